//! A client that checks its messages, and worlds to be sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use tortie_model::desired::{DesiredUpdate as U, Policy, Profile, RuleSets, Rules, WorkloadEndpointState};
use tortie_model::{IpSetId, Labels, NamespacedName, PolicyId, ProfileName, RuleAction, WorkloadEndpointId};

use crate::policysync::fixture::{delta, endpoint, namespace, pod, policy, policy_id, profile, service_account, set};
use crate::policysync::members::{self, Member};

const SETS: [&str; 4] = ["s0", "s1", "s2", "s3"];
const POLICIES: [&str; 3] = ["p0", "p1", "p2"];
const PROFILES: [&str; 2] = ["q0", "q1"];
const PODS: [&str; 2] = ["web", "db"];
const NAMES: [&str; 3] = ["n0", "n1", "n2"];

/// Objects that may exist. Sets are those that something refers to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct World {
    /// Members of the sets.
    members: [BTreeSet<u32>; 4],
    /// Sets of the policies, and a detail.
    policies: [Option<(BTreeSet<usize>, bool)>; 3],
    /// Sets of the profiles.
    profiles: [Option<BTreeSet<usize>>; 2],
    /// Policies and profiles of the pods, as far as there are any.
    pods: [Option<(BTreeSet<usize>, BTreeSet<usize>)>; 2],
    /// Labels of service accounts.
    accounts: [Option<bool>; 3],
    /// Labels of namespaces.
    namespaces: [Option<bool>; 3],
}

fn some_of(count: usize) -> impl Strategy<Value = BTreeSet<usize>> {
    prop::collection::btree_set(0..count, 0..3)
}

impl World {
    pub(super) fn any() -> impl Strategy<Value = Self> {
        let members = prop::array::uniform4(prop::collection::btree_set(0..12_u32, 0..8));
        let policies = prop::array::uniform3(prop::option::weighted(0.8, (some_of(4), any::<bool>())));
        let profiles = prop::array::uniform2(prop::option::weighted(0.8, some_of(4)));
        let pods = prop::array::uniform2(prop::option::weighted(0.9, (some_of(3), some_of(2))));
        let labels = || prop::array::uniform3(prop::option::of(any::<bool>()));
        (members, policies, profiles, pods, labels(), labels()).prop_map(
            |(members, policies, profiles, mut pods, accounts, namespaces)| {
                for (of_pod, of_profiles) in pods.iter_mut().flatten() {
                    of_pod.retain(|policy| policies[*policy].is_some());
                    of_profiles.retain(|profile| profiles[*profile].is_some());
                }
                Self { members, policies, profiles, pods, accounts, namespaces }
            },
        )
    }

    fn sets(&self) -> BTreeSet<usize> {
        let of_policies = self.policies.iter().flatten().flat_map(|(sets, _)| sets);
        of_policies.chain(self.profiles.iter().flatten().flatten()).copied().collect()
    }

    /// Returns the updates that an engine sends when it becomes another one, in an engine's order.
    pub(super) fn updates_to(&self, new: &Self) -> Vec<U> {
        let mut updates = self.values_to(new);
        updates.extend(self.removals_to(new));
        updates
    }

    fn values_to(&self, new: &Self) -> Vec<U> {
        let mut updates = Vec::new();
        let names = |names: &[&'static str], which: &BTreeSet<usize>| -> Vec<&'static str> {
            which.iter().map(|at| names[*at]).collect()
        };
        let had = self.sets();
        for at in new.sets() {
            let (old, new) = (&self.members[at], &new.members[at]);
            if !had.contains(&at) {
                updates.push(set(SETS[at], new.iter().copied()));
            } else if old != new {
                let difference = |a: &BTreeSet<u32>, b: &BTreeSet<u32>| a.difference(b).copied().collect::<Vec<_>>();
                updates.push(delta(SETS[at], difference(new, old), difference(old, new)));
            }
        }
        for (at, value) in new.policies.iter().enumerate().filter(|(at, value)| self.policies[*at] != **value) {
            let update_of = |(sets, is_allowed): &(_, bool)| {
                policy(
                    POLICIES[at],
                    &names(&SETS, sets),
                    if *is_allowed { RuleAction::Allow } else { RuleAction::Deny },
                )
            };
            updates.extend(value.as_ref().map(update_of));
        }
        for (at, value) in new.profiles.iter().enumerate().filter(|(at, value)| self.profiles[*at] != **value) {
            updates.extend(value.as_ref().map(|sets| profile(PROFILES[at], &names(&SETS, sets))));
        }
        for (at, value) in new.pods.iter().enumerate().filter(|(at, value)| self.pods[*at] != **value) {
            let update_of = |(policies, profiles): &(_, _)| {
                endpoint(PODS[at], &names(&POLICIES, policies), &names(&PROFILES, profiles))
            };
            updates.extend(value.as_ref().map(update_of));
        }
        for (at, name) in NAMES.into_iter().enumerate() {
            let accounts = new.accounts[at].filter(|value| self.accounts[at] != Some(*value));
            updates.extend(accounts.map(|value| service_account(name, &value.to_string())));
            let namespaces = new.namespaces[at].filter(|value| self.namespaces[at] != Some(*value));
            updates.extend(namespaces.map(|value| namespace(name, &value.to_string())));
        }
        updates
    }

    fn removals_to(&self, new: &Self) -> Vec<U> {
        let mut updates = Vec::new();
        let gone = |had: bool, has: bool| had && !has;
        for at in (0..2).filter(|at| gone(self.pods[*at].is_some(), new.pods[*at].is_some())) {
            updates.push(U::WorkloadEndpointRemove(pod(PODS[at])));
        }
        for at in (0..2).filter(|at| gone(self.profiles[*at].is_some(), new.profiles[*at].is_some())) {
            updates.push(U::ProfileRemove(ProfileName::new(PROFILES[at])));
        }
        for at in (0..3).filter(|at| gone(self.policies[*at].is_some(), new.policies[*at].is_some())) {
            updates.push(U::PolicyRemove(policy_id(POLICIES[at])));
        }
        updates.extend(self.sets().difference(&new.sets()).map(|at| U::IpSetRemove(IpSetId::new(SETS[*at]))));
        for (at, name) in NAMES.into_iter().enumerate() {
            if gone(self.accounts[at].is_some(), new.accounts[at].is_some()) {
                updates.push(U::ServiceAccountRemove(NamespacedName::new("shop", name)));
            }
            if gone(self.namespaces[at].is_some(), new.namespaces[at].is_some()) {
                updates.push(U::NamespaceRemove(name.into()));
            }
        }
        updates
    }
}

/// All objects that a receiver has been sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Replica {
    endpoints: BTreeMap<String, WorkloadEndpointState>,
    policies: BTreeMap<PolicyId, Arc<Policy>>,
    profiles: BTreeMap<ProfileName, Arc<Profile>>,
    pub(super) sets: BTreeMap<IpSetId, BTreeSet<Member>>,
    accounts: BTreeMap<NamespacedName, Labels>,
    namespaces: BTreeMap<Arc<str>, Labels>,
    pub(super) in_sync: bool,
}

fn sets_of(inbound: &Rules, outbound: &Rules) -> BTreeSet<IpSetId> {
    inbound.sets().iter().chain(outbound.sets().iter()).flat_map(RuleSets::iter).cloned().collect()
}

fn policies_of(state: &WorkloadEndpointState) -> BTreeSet<PolicyId> {
    state.tiers.iter().flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter())).cloned().collect()
}

impl Replica {
    pub(super) fn apply_unchecked(&mut self, message: &U) {
        match message.clone() {
            U::IpSet(set) => drop(self.sets.insert(set.id, members::of(&set.members).collect())),
            U::IpSetDelta(delta) => {
                let set = self.sets.get_mut(&delta.id).expect("a delta of a set that is there");
                set.extend(members::of(&delta.added));
                members::of(&delta.removed).for_each(|member| _ = set.remove(&member));
            }
            U::IpSetRemove(id) => assert!(self.sets.remove(&id).is_some()),
            U::Policy(id, value) => drop(self.policies.insert(id, value)),
            U::PolicyRemove(id) => assert!(self.policies.remove(&id).is_some()),
            U::Profile(id, value) => drop(self.profiles.insert(id, value)),
            U::ProfileRemove(id) => assert!(self.profiles.remove(&id).is_some()),
            U::WorkloadEndpoint(id, value) => drop(self.endpoints.insert(id.to_string(), value)),
            U::WorkloadEndpointRemove(id) => assert!(self.endpoints.remove(&id.to_string()).is_some()),
            U::ServiceAccount(id, labels) => drop(self.accounts.insert(id, labels)),
            U::ServiceAccountRemove(id) => drop(self.accounts.remove(&id)),
            U::Namespace(name, labels) => drop(self.namespaces.insert(name, labels)),
            U::NamespaceRemove(name) => drop(self.namespaces.remove(&name)),
            U::InSync => assert!(!std::mem::replace(&mut self.in_sync, true)),
            other => panic!("{other:?}"),
        }
    }

    /// Takes a message of a batch that was made when this was the truth.
    pub(super) fn apply(&mut self, message: &U, truth: &Self) {
        if let U::IpSet(set) = message {
            assert!(!self.sets.contains_key(&set.id), "a set that is in use is never listed again");
        }
        self.apply_unchecked(message);
        self.assert_no_loose_end();
        let sets = match message {
            U::Policy(id, value) => {
                assert_eq!(Some(value), truth.policies.get(id));
                sets_of(&value.inbound, &value.outbound)
            }
            U::Profile(id, value) => {
                assert_eq!(Some(value), truth.profiles.get(id));
                sets_of(&value.inbound, &value.outbound)
            }
            U::WorkloadEndpoint(id, value) => {
                assert_eq!(Some(value), truth.endpoints.get(&id.to_string()));
                return;
            }
            _ => return,
        };
        let is_complete = |id: &IpSetId| self.sets.get(id) == truth.sets.get(id);
        assert!(sets.iter().all(is_complete), "{sets:?} are complete before they are used");
    }

    fn assert_no_loose_end(&self) {
        for endpoint in self.endpoints.values() {
            policies_of(endpoint).iter().for_each(|id| assert!(self.policies.contains_key(id), "{id:?}"));
            endpoint.endpoint.profiles.iter().for_each(|id| assert!(self.profiles.contains_key(id), "{id}"));
        }
        let of_policies = self.policies.values().flat_map(|policy| sets_of(&policy.inbound, &policy.outbound));
        let of_profiles = self.profiles.values().flat_map(|profile| sets_of(&profile.inbound, &profile.outbound));
        of_policies.chain(of_profiles).for_each(|id| assert!(self.sets.contains_key(&id), "{id}"));
    }

    /// Asserts that this is the state of a client of this endpoint when nothing more is to be sent.
    pub(super) fn assert_complete(&self, truth: &Self, id: &WorkloadEndpointId) {
        let mut expected = Self {
            accounts: truth.accounts.clone(),
            namespaces: truth.namespaces.clone(),
            in_sync: truth.in_sync,
            ..Self::default()
        };
        if let Some(endpoint) = truth.endpoints.get(&id.to_string()) {
            expected.endpoints.insert(id.to_string(), endpoint.clone());
            for id in policies_of(endpoint) {
                let policy = Arc::clone(&truth.policies[&id]);
                expected.has_sets(&policy.inbound, &policy.outbound, truth);
                expected.policies.insert(id, policy);
            }
            for id in endpoint.endpoint.profiles.iter() {
                let profile = Arc::clone(&truth.profiles[id]);
                expected.has_sets(&profile.inbound, &profile.outbound, truth);
                expected.profiles.insert(id.clone(), profile);
            }
        }
        assert_eq!(*self, expected);
    }

    fn has_sets(&mut self, inbound: &Rules, outbound: &Rules, truth: &Self) {
        self.sets.extend(sets_of(inbound, outbound).into_iter().map(|id| (id.clone(), truth.sets[&id].clone())));
    }

    /// Removes the objects of one world that are missing in another one, which was sent again.
    pub(super) fn remove_missing(&mut self, old: &World, new: &World) {
        old.removals_to(new).iter().for_each(|update| self.apply_unchecked(update));
    }
}
