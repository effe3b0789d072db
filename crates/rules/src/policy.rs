//! The chains of policies and profiles, rendered from their rules (`felix/rules/policy.go`).
//!
//! A policy chain only gives a verdict: it sets the accept or the pass mark and returns, or denies
//! at once. The endpoint's chain acts on the verdict.

mod blocks;
mod conditions;
mod domains;

use std::sync::Arc;

use tortie_model::desired::{self, RuleView, Rules};
use tortie_model::{DenyAction, Direction, Family, PolicyId, ProfileName, RuleAction, TierName};
use tortie_netfilter::{Action, Chain, ChainName, LogPrefix, MarkBits, Matches, Origin, Rule};

pub use self::conditions::InvalidCondition;
use self::conditions::{Conditions, Parsed};
use crate::config::LogConfig;
use crate::endpoint::word;
use crate::names::{full_policy_chain, full_profile_chain, policy_chain, policy_id_text, profile_chain};
use crate::nflog::{OwnerKind, PrefixVerdict, nflog, rule_prefix};
use crate::renderer::Renderer;

/// Both chains of a policy or profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyChains {
    /// For traffic to endpoints.
    pub inbound: Chain,
    /// For traffic from endpoints.
    pub outbound: Chain,
    /// Rules that could not be rendered as they are.
    pub problems: Vec<RuleProblem>,
}

/// A rule that `iptables` cannot express, and its fallback.
///
/// Written unchanged, the rule would make `iptables-restore` refuse the whole table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{owner}: {} rule {index}: {condition}; {}", word(*.direction), .fallback.explain())]
#[non_exhaustive]
pub struct RuleProblem {
    /// The policy or profile.
    pub owner: String,
    /// Direction of its list.
    pub direction: Direction,
    /// The rule's place in the list, counted from 0.
    pub index: usize,
    /// Condition that cannot be expressed.
    pub condition: InvalidCondition,
    /// Fallback.
    pub fallback: RuleFallback,
}

/// Fallback for a rule that cannot be expressed. No fallback allows a packet that the rule would
/// not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleFallback {
    /// Rules that allow or log: the rule is left out.
    LeftOut,
    /// Rules that deny, or pass to the next tier: all packets that match the other conditions are
    /// denied. Without a pass rule, the rest of the tier could allow packets that the rule keeps
    /// from it.
    DeniesMore,
    /// Rules whose destination is selected by other means, too: the rule counts for these only.
    WithoutDomains,
}

impl RuleFallback {
    const fn explain(self) -> &'static str {
        match self {
            Self::LeftOut => "the rule is left out",
            Self::WithoutDomains => "the rule allows no destination by name",
            Self::DeniesMore => "the rule denies everything that its other conditions match",
        }
    }
}

/// Policy or profile of a list of rules, with direction and family.
pub(crate) struct Context<'a> {
    pub(crate) owner: Owner<'a>,
    pub(crate) origin: Arc<str>,
    pub(crate) direction: Direction,
    pub(crate) family: Family,
    pub(crate) untracked: bool,
    /// Action of the policy on packets that it denies, if it has one.
    pub(crate) deny_action: Option<DenyAction>,
}

impl Context<'_> {
    fn problem(&self, index: usize, condition: InvalidCondition, fallback: RuleFallback) -> RuleProblem {
        RuleProblem { owner: self.origin.to_string(), direction: self.direction, index, condition, fallback }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Owner<'a> {
    Policy(&'a PolicyId, &'a TierName),
    Profile(&'a ProfileName),
}

impl Owner<'_> {
    fn log_prefix(self, config: &LogConfig) -> LogPrefix {
        match self {
            Self::Policy(id, tier) => config.prefix_of_policy(id, tier),
            Self::Profile(name) => config.prefix_of_profile(name),
        }
    }
}

impl Renderer {
    /// Returns the chains of a policy in one family, the same for every table; `None` for a staged
    /// policy, which is never programmed.
    #[must_use]
    pub fn policy(&self, id: &PolicyId, policy: &desired::Policy, family: Family) -> Option<PolicyChains> {
        if id.kind.is_staged() {
            return None;
        }
        let name = if id.namespace.is_empty() {
            format!("{} {}", id.kind, id.name)
        } else {
            format!("{} {}/{}", id.kind, id.namespace, id.name)
        };
        let context = |direction| Context {
            owner: Owner::Policy(id, &policy.source.tier),
            origin: id.to_string().into(),
            direction,
            family,
            untracked: policy.source.untracked,
            deny_action: policy.source.deny_action,
        };
        let chain_name = |direction| (policy_chain(direction, id), full_policy_chain(direction, id));
        Some(self.both(&policy.inbound, &policy.outbound, &name, context, chain_name))
    }

    /// Returns the chains of a profile in one family.
    #[must_use]
    pub fn profile(&self, name: &ProfileName, profile: &desired::Profile, family: Family) -> PolicyChains {
        let context = |direction| Context {
            owner: Owner::Profile(name),
            origin: format!("Profile/{name}").into(),
            direction,
            family,
            untracked: false,
            deny_action: None,
        };
        let chain_name = |direction| (profile_chain(direction, name), full_profile_chain(direction, name));
        self.both(&profile.inbound, &profile.outbound, &format!("Profile {name}"), context, chain_name)
    }

    fn both<'a>(
        &self,
        inbound: &Rules,
        outbound: &Rules,
        name: &str,
        context: impl Fn(Direction) -> Context<'a>,
        chain_name: impl Fn(Direction) -> (ChainName, Option<Arc<str>>),
    ) -> PolicyChains {
        let mut problems = Vec::new();
        let mut chain = |direction, rules| {
            let mut rendered = self.rules(rules, &context(direction), &mut problems);
            let comment = format!("{name} {}", word(direction));
            match rendered.first_mut() {
                Some(first) => first.add_comment(comment),
                // The comment still names the chain's owner.
                None => rendered.push(Rule::default().comment(comment)),
            }
            // Thousands of chains stay, each with few rules.
            rendered.shrink_to_fit();
            let (name, full_name) = chain_name(direction);
            Chain { name, full_name, rules: rendered }
        };
        let inbound = chain(Direction::Ingress, inbound);
        let outbound = chain(Direction::Egress, outbound);
        PolicyChains { inbound, outbound, problems }
    }

    fn rules(&self, rules: &Rules, context: &Context<'_>, problems: &mut Vec<RuleProblem>) -> Vec<Rule> {
        let mut rendered = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            self.rule(rule, index, context, &mut rendered, problems);
        }
        // The chain returns at its end anyway.
        while rendered.last().is_some_and(|rule| rule.action == Some(Action::Return)) {
            rendered.pop();
        }
        if matches!(context.owner, Owner::Profile(_)) {
            self.forget_earlier_pass(context, &mut rendered);
        }
        rendered
    }

    /// Makes the pass mark mean "a rule of this profile passed".
    ///
    /// Policies are evaluated only while the mark is clear. Profiles follow tiers and other
    /// profiles, which may have passed the packet. Then a pass rule of this profile would return
    /// without a match and skip all denials behind it. A packet that this profile passes only goes
    /// on to the next profile, which does not need the mark.
    fn forget_earlier_pass(&self, context: &Context<'_>, rendered: &mut Vec<Rule>) {
        let passed = Matches::new().mark_set(self.marks().pass);
        // In the fast layout, one rule marks and returns; a table that lays out the chain matches
        // the mark.
        let marks_and_returns = |rule: &Rule| match &rule.action {
            Some(Action::Several(actions)) => actions.contains(&Action::SetMark(self.marks().pass)),
            _ => false,
        };
        let passes = |rule: &Rule| rule.matches == passed || marks_and_returns(rule);
        if rendered.iter().any(passes) {
            let mut clear = Rule::new(Action::ClearMark(self.marks().pass));
            clear.origin = Some(Origin { owner: Arc::clone(&context.origin), part: None });
            rendered.insert(0, clear);
        }
    }

    #[expect(clippy::expect_used, reason = "so many rules do not fit into memory")]
    pub(crate) fn rule(
        &self,
        rule: RuleView<'_>,
        index: usize,
        context: &Context<'_>,
        rendered: &mut Vec<Rule>,
        problems: &mut Vec<RuleProblem>,
    ) {
        let Some(Parsed { mut conditions, mut invalid }) = Conditions::parse(rule, context.family) else { return };
        let (alternatives, unmatched) = self.domains(rule, context, &mut conditions);
        let mut action = rule.action();
        let problem = |condition, fallback| context.problem(index, condition, fallback);
        match unmatched {
            Some(condition) if alternatives.is_some() => {
                problems.push(problem(condition, RuleFallback::WithoutDomains));
            }
            unmatched => invalid.extend(unmatched),
        }
        if !invalid.is_empty() {
            let fallback = match action {
                RuleAction::Unspecified | RuleAction::Allow | RuleAction::Log => RuleFallback::LeftOut,
                RuleAction::Deny | RuleAction::NextTier => RuleFallback::DeniesMore,
            };
            problems.extend(invalid.into_iter().map(|condition| problem(condition, fallback)));
            match fallback {
                RuleFallback::LeftOut | RuleFallback::WithoutDomains => return,
                RuleFallback::DeniesMore => action = RuleAction::Deny,
            }
        }

        let start = rendered.len();
        let is_fast = self.config().packet_filter.is_fast();
        let matches = blocks::render(conditions, self.marks(), context.family, is_fast, rendered);
        match alternatives {
            None => self.verdict(action, matches, index, context, rendered),
            Some(alternatives) => {
                for alternative in alternatives {
                    self.verdict(action, matches.clone().and_all(alternative), index, context, rendered);
                }
            }
        }

        let mut annotations: Vec<_> = rule.rule.extras.annotations.iter().collect();
        annotations.sort();
        let number = u32::try_from(index).expect("a policy has fewer than 2^32 rules");
        let allows = matches!(action, RuleAction::Unspecified | RuleAction::Allow);
        for made in rendered.iter_mut().skip(start) {
            // Without these rules, their packets continue with the rules behind, which can at most
            // allow them as well.
            made.opens = allows.then_some(number);
            for (key, value) in &annotations {
                made.add_comment(format!("{key}={value}"));
            }
            made.origin = Some(Origin { owner: Arc::clone(&context.origin), part: Some(number) });
        }
    }

    /// Appends the rules that apply an action to packets that pass `matches`.
    fn verdict(
        &self,
        action: RuleAction,
        matches: Matches,
        index: usize,
        context: &Context<'_>,
        rules: &mut Vec<Rule>,
    ) {
        let marks = self.marks();
        let (verdict, mark, last): (PrefixVerdict, MarkBits, Action) = match action {
            RuleAction::Unspecified | RuleAction::Allow => (PrefixVerdict::Allow, marks.accept, Action::Return),
            RuleAction::NextTier => (PrefixVerdict::Pass, marks.pass, Action::Return),
            RuleAction::Deny => (PrefixVerdict::Deny, marks.drop, self.deny_by_policy(context.deny_action)),
            RuleAction::Log => {
                // As in Felix, the limit comes first, so packets that do not match use up tokens,
                // too.
                let limited = Matches::new()
                    .and_maybe(self.config().log.limit, |all, (rate, burst)| all.limit(rate, burst))
                    .and_all(matches);
                rules.push(Rule::when(limited, Action::Log(context.owner.log_prefix(&self.config().log))));
                return;
            }
        };
        let nflog_action = (self.config().flow_logs && !context.untracked).then(|| {
            let (kind, owner) = match context.owner {
                Owner::Policy(id, _) => (OwnerKind::Policy, policy_id_text(id)),
                Owner::Profile(name) => (OwnerKind::Profile, name.to_string()),
            };
            nflog(context.direction, &rule_prefix(verdict, kind, context.direction, index, &owner))
        });
        let set = Action::SetMark(mark);
        if self.config().packet_filter.is_fast() {
            rules.push(Rule::when(
                matches,
                Action::Several([Some(set), nflog_action, Some(last)].into_iter().flatten().collect()),
            ));
            return;
        }
        // One match, then several actions: the mark carries the result between the rules.
        rules.push(Rule::when(matches, set));
        let matched = || Matches::new().mark_set(mark);
        rules.extend(nflog_action.map(|action| Rule::when(matched(), action)));
        rules.push(Rule::when(matched(), last));
    }
}

#[cfg(test)]
mod tests;
