//! The chains of policies and profiles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_ipsets::SetId;
use tortie_iptables::{Action, Chain, ChainName, Rule, Table};
use tortie_model::desired::{Policy, Profile, RuleSets, Rules, SetIds};
use tortie_model::{Direction, Family, IpSetId, PolicyId, ProfileName, RuleAction, SelectorText};
use tortie_rules::names::{policy_chain, profile_chain};
use tortie_rules::{PolicyChains, Renderer, RuleProblem};

use crate::output::Output;
use crate::report::{Owner, Problem};

const POLICY_TABLES: [Table; 3] = [Table::Raw, Table::Mangle, Table::Filter];
const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// Policies and profiles that apply to endpoints of this node.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    policies: BTreeMap<PolicyId, Arc<Policy>>,
    profiles: BTreeMap<ProfileName, Arc<Profile>>,
    dirty_policies: BTreeSet<PolicyId>,
    dirty_profiles: BTreeSet<ProfileName>,
    /// Policies whose selector changed, or was not known before; their endpoints' policies are grouped anew.
    regrouped: BTreeSet<PolicyId>,
    problems: BTreeMap<Owner, Vec<(Family, RuleProblem)>>,
    /// IP sets that lack members in the kernel.
    overfull: BTreeSet<(Family, SetId)>,
}

impl Policies {
    pub(crate) fn on_policy(&mut self, id: PolicyId, policy: Arc<Policy>) {
        if self.selector(&id) != Some(&policy.selector) {
            self.regrouped.insert(id.clone());
        }
        self.policies.insert(id.clone(), policy);
        self.dirty_policies.insert(id);
    }

    pub(crate) fn on_policy_remove(&mut self, id: PolicyId) {
        if self.policies.remove(&id).is_some() {
            self.regrouped.insert(id.clone());
        }
        self.dirty_policies.insert(id);
    }

    pub(crate) fn on_profile(&mut self, name: ProfileName, profile: Arc<Profile>) {
        self.profiles.insert(name.clone(), profile);
        self.dirty_profiles.insert(name);
    }

    pub(crate) fn on_profile_remove(&mut self, name: ProfileName) {
        self.profiles.remove(&name);
        self.dirty_profiles.insert(name);
    }

    /// Tells which IP sets lack members for want of room.
    pub(crate) fn on_overfull_sets(&mut self, overfull: BTreeSet<(Family, SetId)>) {
        let before = std::mem::replace(&mut self.overfull, overfull);
        let changed: BTreeSet<&SetId> = before.symmetric_difference(&self.overfull).map(|(_, id)| id).collect();
        let users: Vec<Owner> = changed.into_iter().flat_map(|id| self.users_of_set(id.as_str())).collect();
        for user in users {
            match user {
                Owner::Policy(id) => self.dirty_policies.insert(id),
                Owner::Profile(name) => self.dirty_profiles.insert(name),
                _ => false,
            };
        }
    }

    /// The chain; or one that drops, if members that its sets lack would let more through.
    fn closed(&self, chain: Chain, rules: &Rules, family: Family) -> Arc<Chain> {
        let lacks = |ids: &SetIds| {
            ids.iter().any(|id| self.overfull.iter().any(|(of, set)| *of == family && set.as_str() == id.as_str()))
        };
        let open = !self.overfull.is_empty() && rules.iter().any(|rule| opens(rule.action(), rule.sets, lacks));
        if !open {
            return Arc::new(chain);
        }
        let drop = Rule::new(Action::Drop).comment("An IP set lacks members that do not fit in");
        Arc::new(Chain::new(chain.name, vec![drop]))
    }

    /// The policies for which endpoints must be looked at again, since the last call.
    pub(crate) fn take_regrouped(&mut self) -> BTreeSet<PolicyId> {
        std::mem::take(&mut self.regrouped)
    }

    pub(crate) fn selector(&self, id: &PolicyId) -> Option<&SelectorText> {
        self.policies.get(id).map(|policy| &policy.selector)
    }

    pub(crate) fn complete(&mut self, renderer: &Renderer, output: &mut Output) {
        for id in std::mem::take(&mut self.dirty_policies) {
            self.write_policy(&id, renderer, output);
        }
        for name in std::mem::take(&mut self.dirty_profiles) {
            self.write_profile(&name, renderer, output);
        }
    }

    fn write_policy(&mut self, id: &PolicyId, renderer: &Renderer, output: &mut Output) {
        let owner = Owner::Policy(id.clone());
        self.problems.remove(&owner);
        let policy = self.policies.get(id);
        let needed = policy.is_some_and(|policy| policy.source.needed_on_every_node);
        for family_output in &mut output.families {
            let family = family_output.family;
            let chains = policy.and_then(|policy| renderer.policy(id, policy, family));
            let pinned = needed && chains.is_some();
            match chains {
                Some(PolicyChains { inbound, outbound, problems }) => {
                    let rules = policy.map(|policy| [&policy.inbound, &policy.outbound]).into_iter().flatten();
                    for (chain, rules) in [inbound, outbound].into_iter().zip(rules) {
                        family_output.update_chain(&POLICY_TABLES, &self.closed(chain, rules, family));
                    }
                    note(&mut self.problems, &owner, family, problems);
                }
                None => {
                    for direction in DIRECTIONS {
                        family_output.remove_chain(&POLICY_TABLES, policy_chain(direction, id));
                    }
                }
            }
            for direction in DIRECTIONS {
                family_output.pin_chain(Table::Filter, policy_chain(direction, id), pinned);
            }
        }
    }

    fn write_profile(&mut self, name: &ProfileName, renderer: &Renderer, output: &mut Output) {
        // Only host endpoints ask profiles outside of `filter`, and only about what leaves.
        const INBOUND: [Table; 1] = [Table::Filter];
        const OUTBOUND: [Table; 2] = [Table::Mangle, Table::Filter];

        let owner = Owner::Profile(name.clone());
        self.problems.remove(&owner);
        for family_output in &mut output.families {
            let Some(profile) = self.profiles.get(name) else {
                family_output.remove_chain(&INBOUND, profile_chain(Direction::Ingress, name));
                family_output.remove_chain(&OUTBOUND, profile_chain(Direction::Egress, name));
                continue;
            };
            let family = family_output.family;
            let PolicyChains { inbound, outbound, problems } = renderer.profile(name, profile, family);
            family_output.update_chain(&INBOUND, &self.closed(inbound, &profile.inbound, family));
            family_output.update_chain(&OUTBOUND, &self.closed(outbound, &profile.outbound, family));
            note(&mut self.problems, &owner, family, problems);
        }
    }

    pub(crate) fn problems(&self) -> impl Iterator<Item = Problem> {
        self.problems
            .values()
            .flatten()
            .map(|(family, problem)| Problem::Rule { family: *family, problem: problem.clone() })
    }

    /// Whose chain this is.
    pub(crate) fn chain_owner(&self, chain: ChainName) -> Option<Owner> {
        let policies = self.policies.keys().flat_map(|id| DIRECTIONS.map(|d| (policy_chain(d, id), id)));
        let policy = policies.into_iter().find(|(name, _)| *name == chain);
        if let Some((_, id)) = policy {
            return Some(Owner::Policy(id.clone()));
        }
        let mut profiles = self.profiles.keys().flat_map(|name| DIRECTIONS.map(|d| (profile_chain(d, name), name)));
        profiles.find(|(name, _)| *name == chain).map(|(_, name)| Owner::Profile(name.clone()))
    }

    /// Who uses an IP set.
    pub(crate) fn users_of_set(&self, id: &str) -> Vec<Owner> {
        let uses = |set: &IpSetId| set.as_str() == id;
        let policies = self.policies.iter().filter(|(_, policy)| {
            policy.inbound.iter().chain(policy.outbound.iter()).any(|rule| rule.sets.iter().any(uses))
        });
        let profiles = self.profiles.iter().filter(|(_, profile)| {
            profile.inbound.iter().chain(profile.outbound.iter()).any(|rule| rule.sets.iter().any(uses))
        });
        let policies = policies.map(|(id, _)| Owner::Policy(id.clone()));
        policies.chain(profiles.map(|(name, _)| Owner::Profile(name.clone()))).collect()
    }
}

/// Whether a rule may let more through if some of its sets lack members.
fn opens(action: RuleAction, sets: &RuleSets, lacks: impl Fn(&SetIds) -> bool) -> bool {
    let excluding =
        || [&sets.not_src, &sets.not_src_named_ports, &sets.not_dst, &sets.not_dst_named_ports].into_iter().any(&lacks);
    let requiring = || {
        let source = [&sets.src, &sets.src_named_ports];
        let destination = [&sets.dst, &sets.dst_named_ports, &sets.dst_ip_ports];
        source.into_iter().chain(destination).any(&lacks)
    };
    match action {
        RuleAction::Log => false,
        RuleAction::Allow | RuleAction::Unspecified => excluding(),
        RuleAction::Deny => requiring(),
        // The next tier, or the next rule: either may be the one that allows.
        RuleAction::NextTier => excluding() || requiring(),
    }
}

fn note(
    all: &mut BTreeMap<Owner, Vec<(Family, RuleProblem)>>,
    owner: &Owner,
    family: Family,
    problems: Vec<RuleProblem>,
) {
    if !problems.is_empty() {
        let problems = problems.into_iter().map(|problem| (family, problem));
        all.entry(owner.clone()).or_default().extend(problems);
    }
}
