//! The policy resolver: for each endpoint of this node, the tiers and policies that apply to it, in
//! order (`felix/calc/policy_resolver.go`, `felix/calc/event_sequencer.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use tortie_labelindex::MatchSetId;
use tortie_model::desired::{HostEndpointState, TierList, TierPolicies, WorkloadEndpointState};
use tortie_model::{AdminState, PolicyId, TierDefaultAction, WorkloadEndpointKey};

use crate::computed::{ComputedData, fields};
use crate::contests::{ContestOutcome, Contests};
use crate::local::{Endpoint, EndpointId};
use crate::policies::{Criterion, LocalMatches, Policies, PolicyEntry, PolicySlot};
use crate::policy_sorter::PolicySorter;
use crate::sequencer::Sequencer;

/// The lists of one set of policies; endpoints that match the same policies share them.
#[derive(Debug, Default, PartialEq)]
struct TierLists {
    normal: TierList,
    untracked: TierList,
    pre_dnat: TierList,
    forward: TierList,
}

/// The policies in the order of their evaluation, for the log.
impl fmt::Display for TierLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [&self.untracked, &self.pre_dnat, &self.forward, &self.normal];
        let tiers = lists.into_iter().flat_map(|list| list.iter());
        let directions = tiers.flat_map(|tier| [("ingress", &tier.ingress), ("egress", &tier.egress)]);
        let mut policies = directions.flat_map(|(direction, policies)| policies.iter().map(move |id| (direction, id)));
        if let Some((direction, policy)) = policies.next() {
            write!(f, "{direction} {policy}")?;
        }
        policies.try_for_each(|(direction, policy)| write!(f, ", {direction} {policy}"))
    }
}

#[derive(Debug)]
struct LocalEndpoint {
    value: Endpoint,
    /// The state that was last sent.
    lists: Option<Arc<TierLists>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct PolicyResolver {
    endpoints: BTreeMap<EndpointId, LocalEndpoint>,
    /// Endpoints to be sent, with or without changes of their policies.
    changed: BTreeSet<EndpointId>,
    /// Endpoints whose policies may have changed.
    stale: BTreeSet<EndpointId>,
}

impl PolicyResolver {
    /// Records the value of an endpoint. Returns the previous one.
    pub(crate) fn on_endpoint(&mut self, id: &EndpointId, value: Endpoint) -> Option<Endpoint> {
        match self.endpoints.get_mut(id) {
            Some(endpoint) if endpoint.value == value => Some(value),
            Some(endpoint) => {
                self.changed.insert(id.clone());
                Some(std::mem::replace(&mut endpoint.value, value))
            }
            None => {
                self.changed.insert(id.clone());
                self.endpoints.insert(id.clone(), LocalEndpoint { value, lists: None });
                None
            }
        }
    }

    /// Removes an endpoint. Returns its value.
    pub(crate) fn on_endpoint_removed(&mut self, id: &EndpointId) -> Option<Endpoint> {
        self.changed.remove(id);
        self.stale.remove(id);
        self.endpoints.remove(id).map(|endpoint| endpoint.value)
    }

    /// Marks endpoints that match other policies than before.
    pub(crate) fn on_matches_changed(&mut self, ids: Vec<EndpointId>) {
        self.stale.extend(ids);
    }

    /// Marks the endpoints that match these policies, because the place or kind of the policies has
    /// changed.
    pub(crate) fn on_policies_changed(&mut self, slots: &[PolicySlot], matches: &LocalMatches) {
        let mut sets: AHashSet<MatchSetId> = AHashSet::new();
        for slot in slots {
            sets.extend(matches.match_sets_with(&Criterion::Policy(*slot)));
        }
        if sets.is_empty() {
            return;
        }
        let affected = self.endpoints.keys().filter(|&id| matches.match_set(id).is_some_and(|set| sets.contains(&set)));
        self.stale.extend(affected.cloned());
    }

    /// Marks all endpoints, because a tier has changed.
    pub(crate) fn on_tiers_changed(&mut self) {
        self.stale.extend(self.endpoints.keys().cloned());
    }

    /// Marks endpoints with changed calculated properties.
    pub(crate) fn on_computed_changed(&mut self, keys: Vec<WorkloadEndpointKey>) {
        self.changed.extend(keys.into_iter().map(EndpointId::Workload));
    }

    /// Computes and sends the endpoints that have changed.
    pub(crate) fn flush(
        &mut self,
        matches: &LocalMatches,
        policies: &Policies,
        order: &PolicySorter,
        (computed_data, contests): (&ComputedData, &Contests),
        sequencer: &mut Sequencer,
    ) {
        self.stale.extend(self.changed.iter().cloned());
        let mut computed: AHashMap<MatchSetId, Arc<TierLists>> = AHashMap::new();
        let nothing = Arc::new(TierLists::default());
        for id in std::mem::take(&mut self.stale) {
            let Some(endpoint) = self.endpoints.get_mut(&id) else { continue };
            let lists = match matches.match_set(&id) {
                None => &nothing,
                Some(set) => computed.entry(set).or_insert_with(|| {
                    Arc::new(tier_lists(matches.matches(set).filter_map(Criterion::policy), policies, order))
                }),
            };
            let unchanged = endpoint.lists.as_ref().is_some_and(|sent| sent == lists);
            if !unchanged {
                endpoint.lists = Some(Arc::clone(lists));
            } else if !self.changed.contains(&id) {
                continue;
            }
            let why = if unchanged { "its own data" } else { "its policies" };
            tracing::debug!(endpoint = %id, why, policies = %lists, "endpoint changes");
            send(&id, &endpoint.value, lists, (computed_data, contests), sequencer);
        }
        self.changed.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.endpoints.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.changed.is_empty() && self.stale.is_empty()
    }
}

fn send(
    id: &EndpointId,
    value: &Endpoint,
    lists: &TierLists,
    (computed_data, contests): (&ComputedData, &Contests),
    sequencer: &mut Sequencer,
) {
    match (id, value) {
        (EndpointId::Workload(key), Endpoint::Workload(endpoint)) => {
            let mut state = WorkloadEndpointState {
                endpoint: Arc::clone(endpoint),
                tiers: Arc::clone(&lists.normal),
                computed: fields(endpoint, computed_data.of(key)),
            };
            match contests.outcome(key) {
                None => {}
                Some(ContestOutcome::Lost(_)) => return sequencer.workload_endpoints.remove(key.id()),
                Some(ContestOutcome::Denied(contest)) => {
                    tracing::warn!(endpoint = %key, %contest, "a contested workload endpoint is denied");
                    Arc::make_mut(&mut state.endpoint).state = AdminState::Inactive;
                    state.computed.get_or_insert_default().contest = Some(contest);
                }
            }
            sequencer.workload_endpoints.update(key.id(), state);
        }
        (EndpointId::Host(name), Endpoint::Host(endpoint)) => {
            let state = HostEndpointState {
                endpoint: Arc::clone(endpoint),
                tiers: Arc::clone(&lists.normal),
                untracked_tiers: Arc::clone(&lists.untracked),
                pre_dnat_tiers: Arc::clone(&lists.pre_dnat),
                forward_tiers: Arc::clone(&lists.forward),
                qos_policies: [].into(),
            };
            sequencer.host_endpoints.update(name.clone(), state);
        }
        _ => debug_assert!(false, "{id} has a value of another kind"),
    }
}

fn tier_lists(slots: impl Iterator<Item = PolicySlot>, policies: &Policies, order: &PolicySorter) -> TierLists {
    let mut ranked: Vec<(u32, PolicySlot)> = slots.map(|slot| (order.rank_of(slot), slot)).collect();
    ranked.sort_unstable();
    let entries: Vec<&PolicyEntry> = ranked.into_iter().map(|(_, slot)| policies.get(slot)).collect();
    let [mut normal, mut untracked, mut pre_dnat, mut forward] = [const { Vec::new() }; 4];
    for tier in entries.chunk_by(|a, b| a.policy.tier == b.policy.tier) {
        let [mut of_normal, mut of_untracked, mut of_pre_dnat, mut of_forward] = [const { Directions::EMPTY }; 4];
        for entry in tier {
            if entry.policy.untracked {
                of_untracked.push(entry, true);
            } else if entry.policy.pre_dnat {
                of_pre_dnat.push(entry, false);
            } else {
                if entry.policy.apply_on_forward {
                    of_forward.push(entry, true);
                }
                of_normal.push(entry, true);
            }
        }
        let Some(name) = tier.first().map(|entry| &entry.policy.tier) else { continue };
        let default_action = order.default_action(name);
        // The lists that are evaluated early must leave undecided packets to the normal one.
        let pass = Some(TierDefaultAction::Pass);
        for (list, policies, default_action) in [
            (&mut normal, of_normal, default_action),
            (&mut untracked, of_untracked, pass),
            (&mut pre_dnat, of_pre_dnat, pass),
            (&mut forward, of_forward, default_action),
        ] {
            if !policies.is_empty() {
                let (ingress, egress) = policies.into_lists();
                list.push(TierPolicies { name: name.clone(), default_action, ingress, egress });
            }
        }
    }
    TierLists { normal: normal.into(), untracked: untracked.into(), pre_dnat: pre_dnat.into(), forward: forward.into() }
}

/// The policies of a tier, by the direction that they govern.
struct Directions<'a> {
    ingress: Vec<&'a PolicyId>,
    egress: Vec<&'a PolicyId>,
}

impl<'a> Directions<'a> {
    const EMPTY: Self = Self { ingress: Vec::new(), egress: Vec::new() };

    fn push(&mut self, entry: &'a PolicyEntry, may_govern_egress: bool) {
        if entry.policy.types.ingress {
            self.ingress.push(&entry.id);
        }
        if entry.policy.types.egress && may_govern_egress {
            self.egress.push(&entry.id);
        }
    }

    fn is_empty(&self) -> bool {
        self.ingress.is_empty() && self.egress.is_empty()
    }

    fn into_lists(self) -> (Arc<[PolicyId]>, Arc<[PolicyId]>) {
        let ingress: Arc<[PolicyId]> = self.ingress.iter().map(|&id| id.clone()).collect();
        if self.ingress == self.egress {
            return (Arc::clone(&ingress), ingress);
        }
        let egress = self.egress.into_iter().cloned().collect();
        (ingress, egress)
    }
}
