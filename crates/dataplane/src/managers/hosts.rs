//! Host endpoints: their interfaces, chains and dispatch (`felix/dataplane/linux/endpoint_mgr.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_iptables::{Chain, ChainName, InterfaceName, Table};
use tortie_model::desired::{HostEndpointState, TierList};
use tortie_model::{HostEndpointName, HostInterface, PolicyId};
use tortie_rules::names::{EndpointChain, chain, endpoint_chain, host_endpoint};
use tortie_rules::{HostDispatch, PolicyBackend, TierGroups};

use crate::links::{KnownLinks, is_workload};
use crate::managers::Completion;
use crate::managers::chain_set::{ChainSet, MapSet};
use crate::managers::groups::{GroupUse, group_tiers, uses_any};
use crate::report::{DataplaneProblem, EndpointProblem, Owner};
use crate::stand_ins::is_failsafe;

/// All host endpoints of the node.
#[derive(Debug)]
pub(crate) struct Hosts {
    endpoints: BTreeMap<HostEndpointName, HostEndpointState>,
    resolved: Resolved,
    groups: GroupUse,
    chains: ChainSet,
    maps: MapSet,
    dirty: bool,
    /// Whether interfaces that endpoints name count as existing without a report.
    assume_interfaces: bool,
}

/// The endpoint of each interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    by_interface: BTreeMap<InterfaceName, HostEndpointName>,
    /// Endpoint of all other interfaces.
    any: Option<HostEndpointName>,
}

impl Resolved {
    fn iter(&self) -> impl Iterator<Item = (HostInterface, &HostEndpointName)> {
        let own = self.by_interface.iter().map(|(interface, name)| (HostInterface::Named(*interface), name));
        own.chain(self.any.iter().map(|name| (HostInterface::All, name)))
    }
}

impl Default for Hosts {
    fn default() -> Self {
        Self {
            endpoints: BTreeMap::new(),
            resolved: Resolved::default(),
            groups: GroupUse::default(),
            chains: ChainSet::default(),
            maps: MapSet::default(),
            // The dispatch chains exist even without endpoints.
            dirty: true,
            assume_interfaces: false,
        }
    }
}

/// Chains of host endpoints, and the interfaces that need each kind.
#[derive(Default)]
struct RenderedHosts {
    chains: Vec<(Table, Chain)>,
    groups: Vec<TierGroups>,
    untracked: Vec<InterfaceName>,
    pre_dnat: Vec<InterfaceName>,
    any_pre_dnat: bool,
}

impl RenderedHosts {
    /// Adds the chains of the endpoint of an interface, or of all of them.
    fn add(&mut self, interface: HostInterface, state: &HostEndpointState, with: &Completion<'_>) {
        let (renderer, profiles) = (with.renderer, &state.endpoint.profiles);
        let tiers = group_tiers(&state.tiers, with.policies);
        let forward = group_tiers(&state.forward_tiers, with.policies);
        let filter = renderer.host_endpoint_filter(interface, &tiers, &forward, profiles);
        self.chains.extend(filter.map(|chain| (Table::Filter, chain)));
        self.chains.push((Table::Mangle, renderer.host_endpoint_mangle_egress(interface, &tiers, profiles)));
        self.groups.extend(tiers);
        self.groups.extend(forward);
        if !state.pre_dnat_tiers.is_empty() {
            let tiers = group_tiers(&state.pre_dnat_tiers, with.policies);
            self.chains.push((Table::Mangle, renderer.host_endpoint_mangle_ingress(interface, &tiers)));
            self.groups.extend(tiers);
            match interface {
                HostInterface::All => self.any_pre_dnat = true,
                HostInterface::Named(name) => self.pre_dnat.push(name),
            }
        }
        if let HostInterface::Named(name) = interface
            && !state.untracked_tiers.is_empty()
        {
            let tiers = group_tiers(&state.untracked_tiers, with.policies);
            self.chains.extend(renderer.host_endpoint_raw(interface, &tiers).map(|chain| (Table::Raw, chain)));
            self.groups.extend(tiers);
            self.untracked.push(name);
        }
    }
}

impl Hosts {
    pub(crate) fn on_update(&mut self, name: HostEndpointName, state: HostEndpointState) {
        self.endpoints.insert(name, state);
        self.dirty = true;
    }

    pub(crate) fn on_remove(&mut self, name: &HostEndpointName) {
        self.endpoints.remove(name);
        self.dirty = true;
    }

    /// Notes that an interface, which belongs to no workload, appeared, disappeared or changed its
    /// state or addresses. Returns whether an endpoint depends on it: has it, or selects it now.
    pub(crate) fn on_link(&mut self, interface: InterfaceName, links: &KnownLinks) -> bool {
        let addresses = links.addresses_of(interface);
        let is_concerned = self.resolved.by_interface.contains_key(&interface)
            || self.endpoints.values().any(|state| selects(state, interface, &addresses));
        self.dirty |= is_concerned;
        is_concerned
    }

    pub(crate) fn assume_interfaces(&mut self) {
        self.assume_interfaces = true;
        self.dirty = true;
    }

    pub(crate) fn on_regrouped(&mut self, policies: &BTreeSet<PolicyId>) {
        self.dirty |=
            self.endpoints.values().any(|state| all_tiers(state).into_iter().any(|tiers| uses_any(tiers, policies)));
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = &HostEndpointState> {
        self.endpoints.values()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &HostEndpointName> {
        self.endpoints.keys()
    }

    /// Returns the interfaces that have a specific endpoint, in order.
    pub(crate) fn interfaces(&self) -> impl Iterator<Item = (InterfaceName, &HostEndpointName)> {
        self.resolved.by_interface.iter().map(|(interface, name)| (*interface, name))
    }

    /// Returns the endpoint of all other interfaces.
    pub(crate) fn any(&self) -> Option<&HostEndpointName> {
        self.resolved.any.as_ref()
    }

    /// Updates the chains. Returns whether anything may have changed.
    pub(crate) fn complete(&mut self, links: &KnownLinks, with: &mut Completion<'_>) -> bool {
        if !std::mem::take(&mut self.dirty) {
            return false;
        }
        self.resolved = self.resolve(links, &with.renderer.config().workload_prefixes);
        if with.renderer.config().policy_backend == PolicyBackend::Chains {
            self.write(with);
        }
        true
    }

    fn resolve(&self, links: &KnownLinks, workload_prefixes: &[InterfaceName]) -> Resolved {
        let mut interfaces: BTreeSet<InterfaceName> = links.iter().map(|(name, _)| name).collect();
        interfaces.extend(links.addresses().map(|(name, _)| name));
        if self.assume_interfaces {
            interfaces.extend(self.endpoints.values().filter_map(|state| match state.endpoint.iface? {
                HostInterface::All => None,
                HostInterface::Named(name) => Some(name),
            }));
        }
        interfaces.retain(|name| !is_workload(workload_prefixes, *name));

        let mut resolved = Resolved::default();
        for interface in interfaces {
            let addresses = links.addresses_of(interface);
            // In order of their names: the first match wins.
            let fitting = self.endpoints.iter().find(|(_, state)| selects(state, interface, &addresses));
            let Some((name, _)) = fitting else { continue };
            resolved.by_interface.insert(interface, name.clone());
        }
        let mut endpoints = self.endpoints.iter();
        let any = endpoints.find(|(_, state)| state.endpoint.iface == Some(HostInterface::All));
        resolved.any = any.map(|(name, _)| name.clone());
        resolved
    }

    fn write(&mut self, with: &mut Completion<'_>) {
        let mut rendered = RenderedHosts::default();
        for (interface, name) in self.resolved.iter() {
            if let Some(state) = self.endpoints.get(name) {
                rendered.add(interface, state, with);
            }
        }
        let RenderedHosts { mut chains, groups, untracked, pre_dnat, any_pre_dnat } = rendered;
        for (table, rendered) in &chains {
            if let Some(failsafe) = rendered.targets().find(|target| is_failsafe(*target)) {
                with.output.set_host_stand_in(*table, rendered.name, failsafe);
            }
        }
        let before = std::mem::take(&mut self.groups);
        self.groups = with.groups.exchange(before, &groups, with.renderer, with.output);

        let interfaces = || self.resolved.by_interface.keys().copied();
        let any = self.resolved.any.is_some();
        let mut dispatch = Vec::new();
        let mut add = |table, rendered: Vec<Chain>| dispatch.extend(rendered.into_iter().map(|chain| (table, chain)));
        let renderer = with.renderer;
        let mut maps = Vec::new();
        for (table, purpose, interfaces, any) in [
            (Table::Filter, HostDispatch::Filter, interfaces().collect(), any),
            (Table::Mangle, HostDispatch::MangleIngress, pre_dnat, any_pre_dnat),
            (Table::Mangle, HostDispatch::MangleEgress, interfaces().collect(), any),
            (Table::Raw, HostDispatch::Raw, untracked, false),
        ] {
            let members = renderer.host_maps(purpose, interfaces.iter().copied()).into_iter();
            maps.extend(members.map(|(map, key, verdict)| (table, map, key, verdict)));
            add(table, renderer.host_dispatch(purpose, interfaces, any));
        }
        for (table, rendered) in &dispatch {
            if let Some(failsafe) = dispatch_failsafe(rendered.name) {
                with.output.set_host_stand_in(*table, rendered.name, failsafe);
            }
        }
        chains.extend(dispatch);
        self.chains.replace(chains, with.output);
        self.maps.replace(maps, with.output);
    }

    pub(crate) fn problems(&self) -> impl Iterator<Item = DataplaneProblem> {
        let any = self.resolved.any.as_ref();
        let ignored = any.filter(|name| self.endpoints.get(*name).is_some_and(|s| !s.untracked_tiers.is_empty()));
        ignored.into_iter().map(|name| DataplaneProblem::Endpoint {
            owner: Owner::Host(name.clone()),
            error: EndpointProblem::UntrackedForAll,
        })
    }

    /// Returns a problem for each endpoint whose policy would decide about tunnel packets, where no
    /// chain accepts these before policy.
    pub(crate) fn deciding_about_tunnels(&self) -> impl Iterator<Item = DataplaneProblem> {
        let endpoints: BTreeSet<&HostEndpointName> =
            self.resolved.by_interface.values().chain(&self.resolved.any).collect();
        let error = EndpointProblem::TunnelsByPolicy;
        endpoints
            .into_iter()
            .map(move |name| DataplaneProblem::Endpoint { owner: Owner::Host(name.clone()), error: error.clone() })
    }

    pub(crate) fn chain_owner(&self, chain: ChainName) -> Option<Owner> {
        let is_of = |interface: &HostInterface| {
            let interface = host_endpoint(interface);
            HOST_CHAINS.iter().any(|kind| endpoint_chain(*kind, interface) == chain)
        };
        self.resolved.iter().find(|(interface, _)| is_of(interface)).map(|(_, name)| Owner::Host(name.clone()))
    }
}

/// Reports whether an endpoint selects this interface, by its name or by one of these addresses of
/// it.
fn selects(state: &HostEndpointState, interface: InterfaceName, addresses: &BTreeSet<IpAddr>) -> bool {
    let endpoint = &state.endpoint;
    match endpoint.iface {
        Some(named) => named == HostInterface::Named(interface),
        None => endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6).any(|a| addresses.contains(a)),
    }
}

const HOST_CHAINS: [EndpointChain; 4] =
    [EndpointChain::ToHost, EndpointChain::FromHost, EndpointChain::ToHostForward, EndpointChain::FromHostForward];

/// Returns the tiers of all kinds of policy.
pub(crate) fn all_tiers(state: &HostEndpointState) -> [&TierList; 4] {
    [&state.tiers, &state.untracked_tiers, &state.pre_dnat_tiers, &state.forward_tiers]
}

/// Returns the failsafe chain of a dispatch chain's direction; `None` if only forwarded packets
/// pass the chain.
fn dispatch_failsafe(name: ChainName) -> Option<ChainName> {
    [(chain::FROM_HOST_ENDPOINT, chain::FAILSAFE_IN), (chain::TO_HOST_ENDPOINT, chain::FAILSAFE_OUT)]
        .into_iter()
        .find_map(|(root, failsafe)| name.as_str().starts_with(root.as_str()).then_some(failsafe))
}
