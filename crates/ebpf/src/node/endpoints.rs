//! Assignment of endpoints to interfaces.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_classes::evaluate::Layer;
use tortie_classes::{Compiled, GroupId};
use tortie_model::desired::{DesiredUpdate, HostEndpointState};
use tortie_model::{
    AdminState, Direction, HostEndpoint, HostEndpointName, HostInterface, InterfaceName, WorkloadEndpoint,
    WorkloadEndpointId,
};

/// Layers for which a host endpoint has groups, in the order of its record.
const HOST_LAYERS: [Layer; 4] = [Layer::Normal, Layer::Forward, Layer::Untracked, Layer::PreDnat];
const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// An interface of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "made by the interface monitor")]
pub struct Interface {
    /// Its name.
    pub name: InterfaceName,
    /// Its index.
    pub index: u32,
    /// All of its addresses.
    pub addresses: Vec<IpAddr>,
}

/// Name of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EndpointName {
    /// A workload endpoint.
    Workload(WorkloadEndpointId),
    /// A host endpoint.
    Host(HostEndpointName),
}

impl EndpointName {
    pub(super) fn workload(&self) -> Option<&WorkloadEndpointId> {
        match self {
            Self::Workload(id) => Some(id),
            Self::Host(_) => None,
        }
    }
}

impl std::fmt::Display for EndpointName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workload(id) => write!(f, "workload endpoint {id}"),
            Self::Host(name) => write!(f, "host endpoint {name}"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Workload {
    pub(super) endpoint: Arc<WorkloadEndpoint>,
    /// Groups of ingress and egress.
    pub(super) groups: [Option<GroupId>; 2],
}

#[derive(Debug)]
pub(super) struct Host {
    endpoint: Arc<HostEndpoint>,
    /// Bit `i` is set if group `i` is evaluated.
    pub(super) evaluated: u32,
    /// Groups in the order of the endpoint's record.
    pub(super) groups: [Option<GroupId>; 8],
}

/// All endpoints, and all interfaces.
#[derive(Debug)]
pub(super) struct Endpoints {
    workload_prefixes: Vec<Arc<str>>,
    workloads: BTreeMap<WorkloadEndpointId, Workload>,
    hosts: BTreeMap<HostEndpointName, Host>,
    interfaces: BTreeMap<u32, Interface>,
    /// Whether endpoints have changed since their groups were last looked up.
    has_changed: bool,
}

/// Endpoint of each interface.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InterfaceEndpoints {
    /// By the index of the interface.
    pub(super) at: BTreeMap<u32, EndpointName>,
    /// Endpoint of all interfaces that are not workload interfaces and have no specific endpoint.
    pub(super) at_all: Option<HostEndpointName>,
}

impl Endpoints {
    pub(super) fn new(workload_prefixes: Vec<Arc<str>>) -> Self {
        Self {
            workload_prefixes,
            workloads: BTreeMap::new(),
            hosts: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            has_changed: false,
        }
    }

    pub(super) fn on_update(&mut self, update: &DesiredUpdate) {
        match update {
            DesiredUpdate::WorkloadEndpoint(id, state) => {
                let workload = Workload { endpoint: Arc::clone(&state.endpoint), groups: [None; 2] };
                self.workloads.insert(id.clone(), workload);
            }
            DesiredUpdate::WorkloadEndpointRemove(id) => drop(self.workloads.remove(id)),
            DesiredUpdate::HostEndpoint(name, state) => {
                let host =
                    Host { endpoint: Arc::clone(&state.endpoint), evaluated: evaluated(state), groups: [None; 8] };
                self.hosts.insert(name.clone(), host);
            }
            DesiredUpdate::HostEndpointRemove(name) => drop(self.hosts.remove(name)),
            _ => return,
        }
        self.has_changed = true;
    }

    /// Takes an interface. Returns whether it changed.
    pub(super) fn on_interface(&mut self, interface: Interface) -> bool {
        if self.interfaces.get(&interface.index) == Some(&interface) {
            return false;
        }
        // Names are unique: the removal or renaming of the other interface has not been reported
        // yet.
        self.interfaces.retain(|_, other| other.name != interface.name);
        self.interfaces.insert(interface.index, interface);
        true
    }

    pub(super) fn on_interface_gone(&mut self, index: u32) -> bool {
        self.interfaces.remove(&index).is_some()
    }

    /// Looks up the groups of endpoints, if endpoints have changed.
    pub(super) fn find_groups(&mut self, compiled: &Compiled<'_>) {
        if !std::mem::take(&mut self.has_changed) {
            return;
        }
        for (id, workload) in &mut self.workloads {
            workload.groups = DIRECTIONS.map(|direction| compiled.workload_group(id, direction));
        }
        for (name, host) in &mut self.hosts {
            let questions = HOST_LAYERS.iter().flat_map(|layer| DIRECTIONS.map(|direction| (*layer, direction)));
            for (group, (layer, direction)) in host.groups.iter_mut().zip(questions) {
                *group = compiled.host_group(name, layer, direction);
            }
        }
    }

    pub(super) fn interface_endpoints(&self) -> InterfaceEndpoints {
        let mut owners: AHashMap<InterfaceName, (&WorkloadEndpointId, &Workload)> = AHashMap::new();
        for (id, workload) in &self.workloads {
            if let Some(name) = workload.endpoint.iface {
                // Among several endpoints that claim it, the one with the smallest id owns it,
                // whether it is active or not.
                owners.entry(name).or_insert((id, workload));
            }
        }
        let mut interface_endpoints = InterfaceEndpoints::default();
        for (index, interface) in &self.interfaces {
            let name = interface.name.as_str();
            let endpoint = if self.workload_prefixes.iter().any(|prefix| name.starts_with(&**prefix)) {
                let active = |(_, workload): &&(_, &Workload)| workload.endpoint.state == AdminState::Active;
                owners.get(&interface.name).filter(active).map(|(id, _)| EndpointName::Workload((*id).clone()))
            } else {
                self.hosts.iter().find(|(_, host)| host.is_at(interface)).map(|(id, _)| EndpointName::Host(id.clone()))
            };
            interface_endpoints.at.extend(endpoint.map(|endpoint| (*index, endpoint)));
        }
        let mut hosts = self.hosts.iter();
        interface_endpoints.at_all =
            hosts.find(|(_, host)| host.endpoint.iface == Some(HostInterface::All)).map(|(name, _)| name.clone());
        interface_endpoints
    }

    pub(super) fn workload(&self, id: &WorkloadEndpointId) -> Option<&Workload> {
        self.workloads.get(id)
    }

    pub(super) fn host(&self, name: &HostEndpointName) -> Option<&Host> {
        self.hosts.get(name)
    }

    /// Returns all groups of all endpoints, with their layers and directions.
    pub(super) fn groups(&self) -> impl Iterator<Item = (EndpointName, Layer, Direction, GroupId)> + '_ {
        let workloads = self.workloads.iter().flat_map(|(id, workload)| {
            let groups = DIRECTIONS.into_iter().zip(workload.groups);
            groups.filter_map(move |(direction, group)| {
                Some((EndpointName::Workload(id.clone()), Layer::Normal, direction, group?))
            })
        });
        let hosts = self.hosts.iter().flat_map(|(name, host)| {
            let questions = HOST_LAYERS.iter().flat_map(|layer| DIRECTIONS.map(|direction| (*layer, direction)));
            let evaluated = (0..).map(|place: u32| host.evaluated >> place & 1 == 1);
            questions.zip(host.groups).zip(evaluated).filter(|(_, evaluated)| *evaluated).filter_map(
                move |(((layer, direction), group), _)| {
                    Some((EndpointName::Host(name.clone()), layer, direction, group?))
                },
            )
        });
        workloads.chain(hosts)
    }

    /// Returns the name of an interface.
    pub(super) fn interface(&self, index: u32) -> Option<&str> {
        self.interfaces.get(&index).map(|interface| interface.name.as_str())
    }

    /// Returns the name of an interface as a value.
    pub(super) fn interface_name(&self, index: u32) -> Option<InterfaceName> {
        self.interfaces.get(&index).map(|interface| interface.name)
    }

    /// Returns the names of all endpoints.
    pub(super) fn names(&self) -> impl Iterator<Item = EndpointName> + '_ {
        let workloads = self.workloads.keys().cloned().map(EndpointName::Workload);
        workloads.chain(self.hosts.keys().cloned().map(EndpointName::Host))
    }

    /// Adds the interface that each endpoint names, or one with the addresses that it expects.
    pub(super) fn assume_interfaces(&mut self) {
        let named = |name| (Some(name), Vec::new());
        let workloads = self.workloads.values().filter_map(|workload| workload.endpoint.iface).map(named);
        let hosts = self.hosts.values().filter_map(|host| match host.endpoint.iface {
            Some(HostInterface::All) => None,
            Some(HostInterface::Named(name)) => Some(named(name)),
            None => {
                let addresses = host.endpoint.expected_ipv4.iter().chain(&host.endpoint.expected_ipv6);
                let addresses: Vec<IpAddr> = addresses.copied().collect();
                (!addresses.is_empty()).then_some((None, addresses))
            }
        });
        let interfaces: Vec<(Option<InterfaceName>, Vec<IpAddr>)> = workloads.chain(hosts).collect();
        for ((name, addresses), index) in interfaces.into_iter().zip(1..) {
            self.on_interface(Interface { name: name.unwrap_or_else(|| unnamed(index)), index, addresses });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.workloads.is_empty() && self.hosts.is_empty() && self.interfaces.is_empty()
    }
}

impl Host {
    fn is_at(&self, interface: &Interface) -> bool {
        match self.endpoint.iface {
            Some(named) => named == HostInterface::Named(interface.name),
            None => {
                let mut expected = self.endpoint.expected_ipv4.iter().chain(&self.endpoint.expected_ipv6);
                expected.any(|address| interface.addresses.contains(address))
            }
        }
    }
}

/// Returns the name of an assumed interface that no endpoint names: host endpoints do not accept an
/// `@`.
#[expect(clippy::expect_used, reason = "the longest number has ten digits")]
fn unnamed(index: u32) -> InterfaceName {
    format!("@{index}").parse().expect("a short word")
}

/// Returns the bit set of the groups to evaluate of a host endpoint: always those of normal policy,
/// others only with tiers.
fn evaluated(state: &HostEndpointState) -> u32 {
    let HostEndpointState { forward_tiers, untracked_tiers, pre_dnat_tiers, .. } = state;
    let of = |exists: bool, bits: u32| if exists { bits } else { 0 };
    0b11 | of(!forward_tiers.is_empty(), 0b1100)
        | of(!untracked_tiers.is_empty(), 0b11_0000)
        | of(!pre_dnat_tiers.is_empty(), 0b0100_0000)
}

/// Bits of untracked policy, which the endpoint of all interfaces cannot have.
pub(super) const UNTRACKED: u32 = 0b11_0000;
