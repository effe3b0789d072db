//! Treatment of rules whose IP sets are not in the kernel as desired.

use std::collections::{BTreeMap, BTreeSet};

use tortie_ipsets::SetFailure;
use tortie_model::desired::{RuleSets, Rules, SetIds};
use tortie_model::{Family, IpSetId, RuleAction};

/// Difference between a set in the kernel and the desired set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetDefect {
    /// The set is missing; the kernel refuses rules that refer to it.
    pub(crate) absent: bool,
    /// It may lack members.
    pub(crate) lacks: bool,
    /// It may hold unwanted members.
    pub(crate) exceeds: bool,
}

impl SetDefect {
    /// Returns the defects of both sets.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self {
            absent: self.absent || other.absent,
            lacks: self.lacks || other.lacks,
            exceeds: self.exceeds || other.exceeds,
        }
    }
}

/// All defective sets.
pub(crate) type SetDefects = BTreeMap<(Family, IpSetId), SetDefect>;

impl From<&SetFailure> for SetDefect {
    fn from(failure: &SetFailure) -> Self {
        if failure.exists {
            Self { absent: false, lacks: failure.lacks, exceeds: failure.exceeds }
        } else {
            Self { absent: true, lacks: false, exceeds: false }
        }
    }
}

/// Treatment of a rule with defective sets. With it, the chain never allows a packet that it would
/// not allow with the desired sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The rule stays as it is: at worst it allows less.
    Stays,
    /// The rule is left out, which never allows more.
    LeftOut,
    /// The chain denies everything: otherwise a later rule or tier could allow packets that this
    /// rule should have decided on.
    Closes,
}

/// Returns the treatment of a rule, given the defects of its sets.
pub(crate) fn effect(action: RuleAction, sets: &RuleSets, defect: impl Fn(&IpSetId) -> SetDefect) -> Effect {
    let required =
        [&sets.src, &sets.src_named_ports, &sets.dst, &sets.dst_named_ports, &sets.dst_ip_ports, &sets.dst_domains];
    let excluded = [&sets.not_src, &sets.not_src_named_ports, &sets.not_dst, &sets.not_dst_named_ports];
    let some = |all: &[&SetIds], is: fn(SetDefect) -> bool| all.iter().any(|ids| ids.iter().any(|id| is(defect(id))));
    let absent = some(&required, |d| d.absent) || some(&excluded, |d| d.absent);
    let matches_less = some(&required, |d| d.lacks) || some(&excluded, |d| d.exceeds);
    let matches_more = some(&required, |d| d.exceeds) || some(&excluded, |d| d.lacks);
    match action {
        RuleAction::Allow | RuleAction::Unspecified if absent || matches_more => Effect::LeftOut,
        RuleAction::Log if absent => Effect::LeftOut,
        RuleAction::Deny if absent || matches_less => Effect::Closes,
        // Both the next tier and the next rule of this one may allow the packet.
        RuleAction::NextTier if absent || matches_less || matches_more => Effect::Closes,
        RuleAction::Allow | RuleAction::Unspecified | RuleAction::Log | RuleAction::Deny | RuleAction::NextTier => {
            Effect::Stays
        }
    }
}

/// Rules without some of their sets of domains.
#[derive(Debug)]
pub(crate) struct WithoutDomains {
    pub(crate) rules: Rules,
    /// Indices of the rules that have lost sets.
    pub(crate) reduced: Vec<usize>,
    /// The sets.
    pub(crate) sets: BTreeSet<IpSetId>,
}

/// Returns the rules without sets of domains that are missing or have unwanted members, where other
/// sets are an alternative to these: then the rule allows the other destinations. `None` if that
/// concerns no rule. Rules that have no alternative are left to [`effect`].
#[expect(clippy::expect_used, reason = "a rule loses only sets that its fields do not need")]
pub(crate) fn without_domains(rules: &Rules, defect: impl Fn(&IpSetId) -> SetDefect) -> Option<WithoutDomains> {
    let is_bad = |id: &&IpSetId| {
        let defect = defect(id);
        defect.absent || defect.exceeds
    };
    let mut sets: Vec<RuleSets> = Vec::with_capacity(rules.len());
    let (mut reduced, mut bad) = (Vec::new(), BTreeSet::new());
    for (index, view) in rules.iter().enumerate() {
        let mut rest = view.sets.clone();
        let (lost, kept): (Vec<&IpSetId>, Vec<&IpSetId>) = view.sets.dst_domains.iter().partition(is_bad);
        let needs_some = view.sets.dst.is_empty() || !view.rule.destination.extras.domains.is_empty();
        let can_lose = !kept.is_empty() || !needs_some;
        if can_lose && !lost.is_empty() {
            rest.dst_domains = kept.into_iter().cloned().collect();
            reduced.push(index);
            bad.extend(lost.into_iter().cloned());
        }
        sets.push(rest);
    }
    if reduced.is_empty() {
        return None;
    }
    let views = rules.iter();
    let by_proxy = views.clone().any(|view| view.http_by_proxy);
    let all = views.map(|view| view.rule.clone()).collect();
    let rules = Rules::new(all, sets.into()).expect("rules keep the sets that they need");
    Some(WithoutDomains { rules: rules.with_http_by_proxy(by_proxy), reduced, sets: bad })
}

#[cfg(test)]
mod tests;
