//! Workload endpoints: their interfaces, chains and dispatch
//! (`felix/dataplane/linux/endpoint_mgr.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_iptables::{ChainName, InterfaceName, StandIn, Table};
use tortie_model::desired::{TierList, WorkloadEndpointState};
use tortie_model::{AdminState, Cidr, PolicyId, QosControls, WorkloadEndpointId};
use tortie_rules::names::{EndpointChain, endpoint_chain};
use tortie_rules::{PolicyBackend, WorkloadDispatch};

use crate::links::is_workload;
use crate::managers::Completion;
use crate::managers::chain_set::ChainSet;
use crate::managers::groups::{GroupUse, group_tiers, uses_any};
use crate::report::{DataplaneProblem, EndpointProblem, Owner};

const CHAINS: [EndpointChain; 2] = [EndpointChain::ToWorkload, EndpointChain::FromWorkload];

/// All workload endpoints of the node.
///
/// Among several with the same interface, the one with the smallest id owns it. The others are
/// kept, and the next one takes over when the owner is removed.
#[derive(Debug, Default)]
pub(crate) struct Workloads {
    endpoints: BTreeMap<WorkloadEndpointId, Endpoint>,
    claims: BTreeMap<InterfaceName, BTreeSet<WorkloadEndpointId>>,
    dirty: BTreeSet<InterfaceName>,
    /// Interfaces whose endpoint is denied for now, whatever its state.
    closed: BTreeSet<InterfaceName>,
    programmed: BTreeMap<InterfaceName, Programmed>,
    dispatch: ChainSet,
    has_dispatch: bool,
    /// Limits that chains apply, where eBPF programs enforce policy.
    limits: BTreeMap<InterfaceName, QosControls>,
}

#[derive(Debug)]
struct Endpoint {
    state: WorkloadEndpointState,
    interface: Result<InterfaceName, EndpointProblem>,
}

/// State in the output of the endpoint that owns an interface.
#[derive(Debug)]
struct Programmed {
    id: WorkloadEndpointId,
    tiers: TierList,
    groups: GroupUse,
}

impl Workloads {
    pub(crate) fn on_update(&mut self, id: WorkloadEndpointId, state: WorkloadEndpointState) {
        self.release(&id);
        let interface = interface_of(state.endpoint.iface);
        if let Ok(interface) = &interface {
            self.claims.entry(*interface).or_default().insert(id.clone());
            self.dirty.insert(*interface);
        }
        self.endpoints.insert(id, Endpoint { state, interface });
    }

    pub(crate) fn on_remove(&mut self, id: &WorkloadEndpointId) {
        self.release(id);
        self.endpoints.remove(id);
    }

    fn release(&mut self, id: &WorkloadEndpointId) {
        let Some(Endpoint { interface: Ok(interface), .. }) = self.endpoints.get(id) else { return };
        if let Some(claims) = self.claims.get_mut(interface) {
            claims.remove(id);
            if claims.is_empty() {
                self.claims.remove(interface);
            }
        }
        self.dirty.insert(*interface);
    }

    /// Returns the endpoint that owns an interface.
    pub(crate) fn owner(&self, interface: InterfaceName) -> Option<(&WorkloadEndpointId, &WorkloadEndpointState)> {
        let id = self.claims.get(&interface)?.first()?;
        Some((id, &self.endpoints.get(id)?.state))
    }

    /// Returns the addresses that lead to the chains of an interface: those of its endpoint, or, if
    /// that is inactive, those of all endpoints that claim the interface.
    pub(crate) fn nets(&self, interface: InterfaceName) -> BTreeSet<Cidr> {
        let is_active = self.owner(interface).is_some_and(|(_, state)| state.endpoint.state == AdminState::Active);
        let claimants = self.claims.get(&interface).into_iter().flatten();
        let counting = claimants.take(if is_active { 1 } else { usize::MAX });
        counting.filter_map(|id| self.endpoints.get(id)).flat_map(|endpoint| endpoint.state.endpoint.nets()).collect()
    }

    /// Returns the interface that an endpoint claims, whether or not it owns it.
    pub(crate) fn interface(&self, id: &WorkloadEndpointId) -> Option<InterfaceName> {
        self.endpoints.get(id)?.interface.as_ref().ok().copied()
    }

    /// Returns the interfaces that have an endpoint, in order.
    pub(crate) fn interfaces(&self) -> impl Iterator<Item = InterfaceName> {
        self.claims.keys().copied()
    }

    /// Marks the endpoints that use these policies, so that their policies are grouped again.
    pub(crate) fn on_regrouped(&mut self, policies: &BTreeSet<PolicyId>) {
        let affected = self.programmed.iter().filter(|(_, programmed)| uses_any(&programmed.tiers, policies));
        self.dirty.extend(affected.map(|(interface, _)| *interface));
    }

    /// Denies the endpoints of these interfaces, and no others. Returns whether chains have to be
    /// updated for that.
    pub(crate) fn close(&mut self, interfaces: BTreeSet<InterfaceName>) -> bool {
        self.dirty.extend(self.closed.symmetric_difference(&interfaces));
        let before = std::mem::replace(&mut self.closed, interfaces);
        before != self.closed
    }

    pub(crate) fn is_closed(&self, interface: InterfaceName) -> bool {
        self.closed.contains(&interface)
    }

    /// Updates the chains. Returns the interfaces whose endpoint changed.
    pub(crate) fn complete(&mut self, with: &mut Completion<'_>) -> BTreeSet<InterfaceName> {
        let changed = std::mem::take(&mut self.dirty);
        let mut dispatch_changed = !self.has_dispatch;
        for interface in &changed {
            let was_programmed = self.programmed.contains_key(interface);
            let is_programmed = self.write(*interface, with);
            if was_programmed != is_programmed {
                dispatch_changed = true;
            }
        }
        // `WorkloadAddresses` writes the dispatch by address.
        let config = with.renderer.config();
        if dispatch_changed
            && config.workloads == WorkloadDispatch::Name
            && config.policy_backend == PolicyBackend::Chains
        {
            self.has_dispatch = true;
            let chains = with.renderer.workload_dispatch(self.programmed.keys().copied());
            self.dispatch.replace(chains.into_iter().map(|chain| (Table::Filter, chain)), with.output);
        }
        if config.policy_backend == PolicyBackend::Programs {
            self.write_limits(&changed, with);
        }
        changed
    }

    fn write_limits(&mut self, changed: &BTreeSet<InterfaceName>, with: &mut Completion<'_>) {
        let mut has_changed = !std::mem::replace(&mut self.has_dispatch, true);
        for interface in changed {
            let limits = self.owner(*interface).and_then(|(_, state)| qos_of(state)).cloned();
            has_changed |= self.limits.get(interface) != limits.as_ref();
            match limits {
                Some(limits) => drop(self.limits.insert(*interface, limits)),
                None => drop(self.limits.remove(interface)),
            }
        }
        if !has_changed {
            return;
        }
        let limits: Vec<_> = self.limits.iter().map(|(interface, qos)| (*interface, qos)).collect();
        let chains = with.renderer.workload_limits(&limits);
        for chain in &chains {
            // A missing limit is no reason to drop packets.
            with.output.set_stand_in(&[Table::Filter], chain.name, &StandIn::Rules(Vec::new()));
        }
        self.dispatch.replace(chains.into_iter().map(|chain| (Table::Filter, chain)), with.output);
    }

    /// Updates the chains of an interface. Returns whether it has an endpoint.
    fn write(&mut self, interface: InterfaceName, with: &mut Completion<'_>) -> bool {
        let before = self.programmed.remove(&interface);
        let old_groups = before.map(|before| before.groups).unwrap_or_default();
        let is_by_chains = with.renderer.config().policy_backend == PolicyBackend::Chains;
        let Some((id, state)) = self.owner(interface) else {
            for kind in CHAINS {
                with.output.remove_chain(&[Table::Filter], endpoint_chain(kind, interface.as_str()));
            }
            let _ = with.groups.exchange(old_groups, [], with.renderer, with.output);
            if is_by_chains {
                with.output.set_workload_verdicts(interface, &with.renderer.workload_maps(interface, None));
            }
            return false;
        };
        if !is_by_chains {
            let programmed = Programmed { id: id.clone(), tiers: Arc::clone(&state.tiers), groups: old_groups };
            self.programmed.insert(interface, programmed);
            return true;
        }
        let admin = if self.is_closed(interface) { AdminState::Inactive } else { state.endpoint.state };
        let maps = with.renderer.workload_maps(interface, Some((admin, qos_of(state))));
        with.output.set_workload_verdicts(interface, &maps);
        let tiers = group_tiers(&state.tiers, with.policies);
        let in_use = match admin {
            AdminState::Active => &tiers[..],
            AdminState::Inactive => &[],
        };
        let groups = with.groups.exchange(old_groups, in_use, with.renderer, with.output);
        let profiles = &state.endpoint.profiles;
        for chain in with.renderer.workload_endpoint(interface, admin, &tiers, profiles, qos_of(state)) {
            with.output.update_chain(&[Table::Filter], &Arc::new(chain));
        }
        let programmed = Programmed { id: id.clone(), tiers: Arc::clone(&state.tiers), groups };
        self.programmed.insert(interface, programmed);
        true
    }

    /// Returns each endpoint with the interface that it claims, and whether it owns it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = WorkloadView<'_>> {
        self.endpoints.iter().map(|(id, endpoint)| {
            let interface = endpoint.interface.as_ref().ok().copied();
            let has_it =
                interface.and_then(|interface| self.programmed.get(&interface)).is_some_and(|owner| owner.id == *id);
            WorkloadView { id, state: &endpoint.state, interface, has_it }
        })
    }

    pub(crate) fn problems(&self, prefixes: &[InterfaceName], by: WorkloadDispatch) -> Vec<DataplaneProblem> {
        let mut problems = Vec::new();
        for (id, endpoint) in &self.endpoints {
            let error = match &endpoint.interface {
                Err(error) => Some(error.clone()),
                Ok(interface) => match self.owner(*interface) {
                    Some((other, _)) if other != id => {
                        Some(EndpointProblem::Shadowed { interface: *interface, other: other.clone() })
                    }
                    _ if by == WorkloadDispatch::Name && !is_workload(prefixes, *interface) => {
                        Some(EndpointProblem::ForeignInterface(*interface))
                    }
                    _ => None,
                },
            };
            problems
                .extend(error.map(|error| DataplaneProblem::Endpoint { owner: Owner::Workload(id.clone()), error }));
        }
        problems
    }

    pub(crate) fn chain_owner(&self, chain: ChainName) -> Option<Owner> {
        let mut names = self.programmed.iter().flat_map(|(i, p)| CHAINS.map(|k| (endpoint_chain(k, i.as_str()), p)));
        names.find(|(name, _)| *name == chain).map(|(_, programmed)| Owner::Workload(programmed.id.clone()))
    }
}

/// An endpoint, and whether it owns the interface that it claims.
pub(crate) struct WorkloadView<'a> {
    pub(crate) id: &'a WorkloadEndpointId,
    pub(crate) state: &'a WorkloadEndpointState,
    pub(crate) interface: Option<InterfaceName>,
    pub(crate) has_it: bool,
}

fn qos_of(state: &WorkloadEndpointState) -> Option<&QosControls> {
    state.endpoint.extras.as_ref().and_then(|extras| extras.qos.as_ref())
}

fn interface_of(name: Option<InterfaceName>) -> Result<InterfaceName, EndpointProblem> {
    let name = name.ok_or(EndpointProblem::NoInterface)?;
    // Names that the kernel refuses, and the two directories beside those of interfaces.
    if matches!(name.as_str(), "." | ".." | "all" | "default") {
        Err(EndpointProblem::BadInterface(name))
    } else {
        Ok(name)
    }
}
