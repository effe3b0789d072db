//! Paths to workloads and to other nodes: routes, neighbours, tunnels, sysctls, bandwidth limits
//! and addresses for BGP peers.

use tortie_iptables::InterfaceName;
use tortie_model::desired::{DesiredUpdate, HostMetadata, Route, Vtep, WireguardPeer};
use tortie_model::{Cidr, Family, Hostname};

use crate::bandwidth::Bandwidth;
use crate::config::DataplaneConfig;
use crate::links::{KnownLinks, is_workload};
use crate::managers::overlay::Overlay;
use crate::neighbours::StaticNeighbours;
use crate::peer_addresses::PeerAddresses;
use crate::proxy_neighbours::ProxyNeighbours;
use crate::routes::RouteTable;
use crate::sysctls::SysctlSettings;
use crate::wireguard::Wireguard;

/// Routes, neighbours, tunnels, sysctls, bandwidth limits and addresses for BGP peers of a node;
/// written once policy is in force.
#[derive(Debug)]
pub(crate) struct Connectivity {
    /// Name prefixes of workload interfaces.
    workload_prefixes: Vec<InterfaceName>,
    /// Main routing table of each family, in the order of the output.
    pub(crate) routes: Vec<RouteTable>,
    pub(crate) neighbours: StaticNeighbours,
    /// One for each family, in the order of the output.
    pub(crate) overlays: Vec<Overlay>,
    /// One for each family, in the order of the output; empty if no routing table is configured for
    /// them.
    pub(crate) wireguards: Vec<Wireguard>,
    /// One for each family, in the order of the output; empty if the node answers for no addresses.
    pub(crate) proxy_neighbours: Vec<ProxyNeighbours>,
    /// The set of tunnels, on which rules depend, has changed.
    pub(crate) tunnels_changed: bool,
    pub(crate) sysctls: SysctlSettings,
    pub(crate) bandwidth: Bandwidth,
    pub(crate) peer_addresses: PeerAddresses,
    /// Whether virtual machines that had moved here before have been looked for.
    pub(crate) has_sought_live: bool,
}

impl Connectivity {
    pub(crate) fn new(families: &[Family], config: &DataplaneConfig) -> Self {
        let routes = &config.routes;
        Self {
            workload_prefixes: config.rules.workload_prefixes.clone(),
            routes: families.iter().map(|family| RouteTable::new(*family, routes.clone())).collect(),
            neighbours: StaticNeighbours::new(routes.enabled && families.contains(&Family::V4)),
            overlays: families.iter().map(|family| Overlay::new(*family, config)).collect(),
            wireguards: families.iter().filter_map(|family| Wireguard::new(*family, config)).collect(),
            proxy_neighbours: families.iter().filter_map(|family| ProxyNeighbours::new(*family, config)).collect(),
            // The sets that rules refer to have to be filled at the start.
            tunnels_changed: true,
            sysctls: SysctlSettings::new(families.to_vec(), config.ip_forwarding, routes.refresh_interval),
            bandwidth: Bandwidth::default(),
            peer_addresses: PeerAddresses::new(families.to_vec()),
            has_sought_live: false,
        }
    }

    /// Takes a change of the desired state; changes that do not concern these paths are ignored.
    pub(crate) fn on_update(&mut self, update: &DesiredUpdate) {
        use DesiredUpdate as Update;
        let proxies = self.proxy_neighbours.iter_mut();
        match update {
            Update::WorkloadEndpoint(id, state) => proxies.for_each(|proxy| proxy.on_workload(id, Some(state))),
            Update::WorkloadEndpointRemove(id) => proxies.for_each(|proxy| proxy.on_workload(id, None)),
            Update::Service(name, service) => proxies.for_each(|proxy| proxy.on_service(name, Some(service))),
            Update::ServiceRemove(name) => proxies.for_each(|proxy| proxy.on_service(name, None)),
            Update::IpPool(pool) => proxies.for_each(|proxy| proxy.on_pool(pool)),
            Update::IpPoolRemove(cidr) => proxies.for_each(|proxy| proxy.on_pool_remove(*cidr)),
            Update::Host(name, node) => self.on_host(name, Some(node)),
            Update::HostRemove(name) => self.on_host(name, None),
            Update::Route(net, route) => self.on_route(*net, Some(route)),
            Update::RouteRemove(net) => self.on_route(*net, None),
            Update::Vtep(node, vtep) => self.on_vtep(node, Some(vtep)),
            Update::VtepRemove(node) => self.on_vtep(node, None),
            Update::Encapsulation(encapsulation) => {
                for overlay in &mut self.overlays {
                    self.tunnels_changed |= overlay.on_encapsulation(*encapsulation);
                }
            }
            Update::BgpConfiguration(configuration) => self.peer_addresses.on_configuration(configuration),
            Update::Wireguard(node, peer) => self.on_peer(Family::V4, node, Some(peer)),
            Update::WireguardRemove(node) => self.on_peer(Family::V4, node, None),
            Update::WireguardV6(node, peer) => self.on_peer(Family::V6, node, Some(peer)),
            Update::WireguardV6Remove(node) => self.on_peer(Family::V6, node, None),
            // The managers of policy, endpoints and sets handle these, or the owner of the
            // dataplane.
            Update::DatastoreNotReady
            | Update::Config(_)
            | Update::InSync
            | Update::IpSet(_)
            | Update::IpSetDelta(_)
            | Update::IpSetRemove(_)
            | Update::Policy(..)
            | Update::PolicyRemove(_)
            | Update::Profile(..)
            | Update::ProfileRemove(_)
            | Update::HostEndpoint(..)
            | Update::HostEndpointRemove(_)
            | Update::ServiceAccount(..)
            | Update::ServiceAccountRemove(_)
            | Update::Namespace(..)
            | Update::NamespaceRemove(_) => {}
        }
    }

    fn on_host(&mut self, name: &Hostname, node: Option<&HostMetadata>) {
        self.overlays.iter_mut().for_each(|overlay| overlay.on_host(name, node));
        self.wireguards.iter_mut().for_each(|wireguard| wireguard.on_host(name, node));
        self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_host(name, node));
    }

    fn on_route(&mut self, net: Cidr, route: Option<&Route>) {
        self.overlays.iter_mut().for_each(|overlay| overlay.on_route(net, route));
        self.wireguards.iter_mut().for_each(|wireguard| wireguard.on_route(net, route));
    }

    fn on_vtep(&mut self, node: &Hostname, vtep: Option<&Vtep>) {
        for overlay in &mut self.overlays {
            self.tunnels_changed |= overlay.on_vtep(node, vtep);
        }
    }

    fn on_peer(&mut self, family: Family, node: &Hostname, peer: Option<&WireguardPeer>) {
        self.wireguards.iter_mut().for_each(|wireguard| wireguard.on_peer(family, node, peer));
    }

    /// Notes that the addresses of an interface changed. Returns whether anything here depends on
    /// them. Every part must be told, so `|` instead of `||`.
    pub(crate) fn on_addresses(&mut self, name: InterfaceName, links: &KnownLinks) -> bool {
        let is_wireguards = told(&mut self.wireguards, |wireguard| wireguard.on_addresses(name));
        let is_proxies = told(&mut self.proxy_neighbours, |proxy| proxy.on_link(name, links));
        let is_overlays = !is_workload(&self.workload_prefixes, name)
            && told(&mut self.overlays, |overlay| overlay.on_link(name, links));
        is_wireguards | is_proxies | is_overlays | self.peer_addresses.on_link(name)
    }

    /// Notes that an interface appeared, disappeared or changed its state. Returns whether anything
    /// here depends on it.
    pub(crate) fn on_link(&mut self, name: InterfaceName, links: &KnownLinks) -> bool {
        let is_concerned = told(&mut self.routes, |table| table.on_link(name))
            | told(&mut self.wireguards, |wireguard| wireguard.on_link(name))
            | told(&mut self.proxy_neighbours, |proxy| proxy.on_link(name, links));
        if !is_workload(&self.workload_prefixes, name) {
            return is_concerned | told(&mut self.overlays, |overlay| overlay.on_link(name, links));
        }
        self.neighbours.on_link(name);
        self.bandwidth.on_link(name);
        self.peer_addresses.on_link(name);
        self.sysctls.on_link(name);
        true
    }
}

/// Tells every part of a change. Returns whether one depends on it.
fn told<T>(parts: &mut [T], mut tell: impl FnMut(&mut T) -> bool) -> bool {
    parts.iter_mut().fold(false, |is_concerned, part| is_concerned | tell(part))
}
