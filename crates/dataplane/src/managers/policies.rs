//! Chains of policies and profiles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_iptables::{Action, Chain, ChainName, Rule, Table};
use tortie_model::desired::{Policy, Profile, Rules};
use tortie_model::{Direction, Family, IpSetId, PolicyId, ProfileName};
use tortie_rules::names::{policy_chain, profile_chain};
use tortie_rules::{PolicyChains, Renderer, RuleProblem};

use crate::output::Output;
use crate::report::{DataplaneProblem, Owner, Reduction};
use crate::set_defects::{Effect, SetDefect, SetDefects, WithoutDomains, effect, without_domains};

const POLICY_TABLES: [Table; 3] = [Table::Raw, Table::Mangle, Table::Filter];
const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// Policies and profiles that apply to endpoints of this node.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    policies: BTreeMap<PolicyId, Arc<Policy>>,
    profiles: BTreeMap<ProfileName, Arc<Profile>>,
    dirty_policies: BTreeSet<PolicyId>,
    dirty_profiles: BTreeSet<ProfileName>,
    /// Policies whose selector changed or became known; the policies of their endpoints are grouped
    /// again.
    regrouped: BTreeSet<PolicyId>,
    problems: BTreeMap<Owner, Vec<(Family, RuleProblem)>>,
    /// IP sets that are not in the kernel as desired.
    defects: SetDefects,
    /// Reductions of policies and profiles because of these sets.
    reduced: BTreeMap<Owner, Vec<DataplaneProblem>>,
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

    /// Sets the defective IP sets. Returns those whose defect changed or ended.
    pub(crate) fn on_set_defects(&mut self, defects: SetDefects) -> Vec<(Family, IpSetId)> {
        let before = std::mem::replace(&mut self.defects, defects);
        let changed = |one: &SetDefects, other: &SetDefects| {
            let differing = one.iter().filter(|(key, defect)| other.get(key) != Some(*defect));
            differing.map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        let (better, worse) = (changed(&before, &self.defects), changed(&self.defects, &before));
        let ids: BTreeSet<&IpSetId> = better.iter().chain(&worse).map(|(_, id)| id).collect();
        for user in self.users_of_sets(|id| ids.contains(id)) {
            match user {
                Owner::Policy(id) => self.dirty_policies.insert(id),
                Owner::Profile(name) => self.dirty_profiles.insert(name),
                _ => false,
            };
        }
        better
    }

    /// Returns the chain without the rules that rely on defective IP sets, or a chain that denies
    /// everything. Also returns the reduction and the sets that caused it.
    fn fit(
        defects: &SetDefects,
        chain: Chain,
        rules: &Rules,
        family: Family,
    ) -> (Arc<Chain>, Option<(Reduction, Vec<IpSetId>)>) {
        let of_family: BTreeMap<&IpSetId, SetDefect> =
            defects.iter().filter(|((of, _), _)| *of == family).map(|((_, id), defect)| (id, *defect)).collect();
        if of_family.is_empty() {
            return (Arc::new(chain), None);
        }
        let defect = |id: &IpSetId| of_family.get(id).copied().unwrap_or_default();
        let mut left_out = BTreeSet::new();
        let mut sets = BTreeSet::new();
        let mut closes = false;
        for (index, rule) in rules.iter().enumerate() {
            match effect(rule.action(), rule.sets, defect) {
                Effect::Stays => continue,
                Effect::LeftOut => {
                    left_out.insert(index);
                }
                Effect::Closes => closes = true,
            }
            sets.extend(rule.sets.iter().filter(|id| of_family.contains_key(id)).cloned());
        }
        let sets = sets.into_iter().collect();
        if closes {
            let drop = Rule::new(Action::Drop).comment("An IP set of this policy is not in sync");
            return (Arc::new(Chain::new(chain.name, vec![drop])), Some((Reduction::Closed, sets)));
        }
        if left_out.is_empty() {
            return (Arc::new(chain), None);
        }
        let part = |rule: &Rule| rule.origin.as_ref().and_then(|origin| usize::try_from(origin.part?).ok());
        let rest = chain.without(|rule| part(rule).is_some_and(|part| left_out.contains(&part)));
        (Arc::new(rest), Some((Reduction::LeftOut(left_out.into_iter().collect()), sets)))
    }

    /// Returns the policy without sets of domains that are missing or have unwanted members, where
    /// its rules have alternatives to these, and the reduction. `None` if it has no such sets.
    fn without_domains(
        defects: &SetDefects,
        policy: &Policy,
        family: Family,
    ) -> Option<(Policy, (Reduction, Vec<IpSetId>))> {
        let defect = |id: &IpSetId| defects.get(&(family, id.clone())).copied().unwrap_or_default();
        if defects.is_empty() {
            return None;
        }
        let WithoutDomains { rules, reduced, sets } = without_domains(&policy.outbound, defect)?;
        let cause = (Reduction::WithoutDomains(reduced), sets.into_iter().collect());
        Some((Policy { outbound: rules, ..policy.clone() }, cause))
    }

    /// Renders these policies anew.
    pub(crate) fn rewrite<'a>(&mut self, policies: impl Iterator<Item = &'a PolicyId>) {
        self.dirty_policies.extend(policies.cloned());
    }

    /// Returns the policies whose endpoints have to group their policies again, since the last
    /// call.
    pub(crate) fn take_regrouped(&mut self) -> BTreeSet<PolicyId> {
        std::mem::take(&mut self.regrouped)
    }

    pub(crate) fn selector(&self, id: &PolicyId) -> Option<&str> {
        self.policies.get(id).map(|policy| &*policy.selector)
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
        let mut reduced = Vec::new();
        let policy = self.policies.get(id);
        let needed = policy.is_some_and(|policy| policy.source.needed_on_every_node);
        for family_output in &mut output.families {
            let family = family_output.family;
            let without_domains = policy.and_then(|policy| Self::without_domains(&self.defects, policy, family));
            let policy = match &without_domains {
                Some((policy, cause)) => {
                    reduced.push(reduction(&owner, family, Direction::Egress, cause.clone()));
                    Some(policy)
                }
                None => policy.map(|policy| &**policy),
            };
            let chains = policy.and_then(|policy| renderer.policy(id, policy, family));
            let pinned = needed && chains.is_some();
            match chains {
                Some(PolicyChains { inbound, outbound, problems }) => {
                    let rules = policy.map(|policy| [&policy.inbound, &policy.outbound]).into_iter().flatten();
                    for ((chain, rules), direction) in [inbound, outbound].into_iter().zip(rules).zip(DIRECTIONS) {
                        let (chain, reduced_rules) = Self::fit(&self.defects, chain, rules, family);
                        family_output.update_chain(&POLICY_TABLES, &chain);
                        reduced.extend(
                            reduced_rules.map(|reduced_rules| reduction(&owner, family, direction, reduced_rules)),
                        );
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
        self.note_reduced(owner, reduced);
    }

    fn write_profile(&mut self, name: &ProfileName, renderer: &Renderer, output: &mut Output) {
        // Only host endpoints evaluate profiles outside of `filter`, and only for egress.
        const INBOUND: [Table; 1] = [Table::Filter];
        const OUTBOUND: [Table; 2] = [Table::Mangle, Table::Filter];

        let owner = Owner::Profile(name.clone());
        self.problems.remove(&owner);
        let mut reduced = Vec::new();
        for family_output in &mut output.families {
            let Some(profile) = self.profiles.get(name) else {
                family_output.remove_chain(&INBOUND, profile_chain(Direction::Ingress, name));
                family_output.remove_chain(&OUTBOUND, profile_chain(Direction::Egress, name));
                continue;
            };
            let family = family_output.family;
            let PolicyChains { inbound, outbound, problems } = renderer.profile(name, profile, family);
            let both = [
                (inbound, &profile.inbound, Direction::Ingress, &INBOUND[..]),
                (outbound, &profile.outbound, Direction::Egress, &OUTBOUND),
            ];
            for (chain, rules, direction, tables) in both {
                let (chain, reduced_rules) = Self::fit(&self.defects, chain, rules, family);
                family_output.update_chain(tables, &chain);
                reduced.extend(reduced_rules.map(|reduced_rules| reduction(&owner, family, direction, reduced_rules)));
            }
            note(&mut self.problems, &owner, family, problems);
        }
        self.note_reduced(owner, reduced);
    }

    fn note_reduced(&mut self, owner: Owner, reduced: Vec<DataplaneProblem>) {
        if reduced.is_empty() {
            self.reduced.remove(&owner);
        } else {
            self.reduced.insert(owner, reduced);
        }
    }

    /// Returns the reductions because of defective IP sets.
    pub(crate) fn reduced(&self) -> impl Iterator<Item = DataplaneProblem> {
        self.reduced.values().flatten().cloned()
    }

    pub(crate) fn problems(&self) -> impl Iterator<Item = DataplaneProblem> {
        self.problems
            .values()
            .flatten()
            .map(|(family, problem)| DataplaneProblem::Rule { family: *family, problem: problem.clone() })
    }

    /// Returns the policy or profile of a chain.
    pub(crate) fn chain_owner(&self, chain: ChainName) -> Option<Owner> {
        let policies = self.policies.keys().flat_map(|id| DIRECTIONS.map(|d| (policy_chain(d, id), id)));
        let policy = policies.into_iter().find(|(name, _)| *name == chain);
        if let Some((_, id)) = policy {
            return Some(Owner::Policy(id.clone()));
        }
        let mut profiles = self.profiles.keys().flat_map(|name| DIRECTIONS.map(|d| (profile_chain(d, name), name)));
        profiles.find(|(name, _)| *name == chain).map(|(_, name)| Owner::Profile(name.clone()))
    }

    /// Returns the policies and profiles that use an IP set.
    pub(crate) fn users_of_set(&self, id: &IpSetId) -> Vec<Owner> {
        self.users_of_sets(|other| other == id)
    }

    fn users_of_sets(&self, uses: impl Fn(&IpSetId) -> bool) -> Vec<Owner> {
        let policies = self.policies.iter().filter(|(_, policy)| {
            policy.inbound.iter().chain(policy.outbound.iter()).any(|rule| rule.sets.iter().any(&uses))
        });
        let profiles = self.profiles.iter().filter(|(_, profile)| {
            profile.inbound.iter().chain(profile.outbound.iter()).any(|rule| rule.sets.iter().any(&uses))
        });
        let policies = policies.map(|(id, _)| Owner::Policy(id.clone()));
        policies.chain(profiles.map(|(name, _)| Owner::Profile(name.clone()))).collect()
    }
}

fn reduction(
    owner: &Owner,
    family: Family,
    direction: Direction,
    (reduction, sets): (Reduction, Vec<IpSetId>),
) -> DataplaneProblem {
    DataplaneProblem::Reduced { family, owner: owner.clone(), direction, sets, reduction }
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
