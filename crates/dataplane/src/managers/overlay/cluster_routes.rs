//! Routes to the addresses of other nodes, and blackhole routes for this node's IPAM blocks, for
//! the pools of one encapsulation (`felix/dataplane/linux/route_mgr.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_model::desired::{PoolType, Route, RouteTypes};
use tortie_model::{Cidr, Family, Hostname, InterfaceName};

use crate::config::RoutesConfig;
use crate::route::{RouteKey, RouteKind, RouteProtocol, RouteScope, RouteTarget};
use crate::routes::{DEFAULT_METRIC_V6, RouteClass, RouteTable, Slot, exclusive_protocol};

/// Properties of an encapsulation.
#[derive(Clone, Debug)]
pub(crate) struct Medium {
    pub(crate) pool: PoolType,
    pub(crate) tunnel: Option<Tunnel>,
    pub(crate) same_subnet: RouteClass,
    pub(crate) blackhole: RouteClass,
}

/// Tunnel device of an encapsulation.
#[derive(Clone, Debug)]
pub(crate) struct Tunnel {
    pub(crate) device: InterfaceName,
    pub(crate) class: RouteClass,
    pub(crate) protocol: RouteProtocol,
    pub(crate) mtu: u32,
    /// Whether far ends of tunnels are on the link, so that they are reached without a gateway.
    pub(crate) has_far_ends: bool,
}

/// A network of a pool with this encapsulation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Network {
    /// A network of another node.
    Remote { node: Option<Hostname>, address: Option<IpAddr>, same_subnet: bool, is_far_end: bool },
    /// An IPAM block of this node. Its workloads have separate routes.
    Block,
}

/// The routes of one family for the pools of one encapsulation.
#[derive(Debug)]
pub(crate) struct ClusterRoutes {
    family: Family,
    medium: Medium,
    protocol: RouteProtocol,
    source: Option<IpAddr>,
    is_enabled: bool,
    parent: Option<InterfaceName>,
    networks: BTreeMap<Cidr, Network>,
    by_node: BTreeMap<Hostname, BTreeSet<Cidr>>,
    dirty: BTreeSet<Cidr>,
    /// Slot that holds the route of each network.
    placed: BTreeMap<Cidr, Slot>,
}

impl ClusterRoutes {
    pub(crate) fn new(family: Family, medium: Medium, config: &RoutesConfig) -> Self {
        Self {
            family,
            medium,
            protocol: exclusive_protocol(config.protocol),
            source: config.source(family),
            is_enabled: false,
            parent: None,
            networks: BTreeMap::new(),
            by_node: BTreeMap::new(),
            dirty: BTreeSet::new(),
            placed: BTreeMap::new(),
        }
    }

    /// Sets or removes the owner and type of a network.
    pub(crate) fn on_route(&mut self, net: Cidr, route: Option<&Route>) {
        let new = route.filter(|route| route.pool_type == self.medium.pool).and_then(|route| network(net, route));
        let old = self.networks.get(&net);
        if old == new.as_ref() {
            return;
        }
        if let Some(Network::Remote { node: Some(node), .. }) = old
            && let Some(nets) = self.by_node.get_mut(node)
        {
            nets.remove(&net);
            if nets.is_empty() {
                self.by_node.remove(node);
            }
        }
        if let Some(Network::Remote { node: Some(node), .. }) = &new {
            self.by_node.entry(node.clone()).or_default().insert(net);
        }
        match new {
            Some(new) => self.networks.insert(net, new),
            None => self.networks.remove(&net),
        };
        self.dirty.insert(net);
    }

    /// Notes that the gateway of a node changed.
    pub(crate) fn on_gateway(&mut self, node: &Hostname) {
        self.dirty.extend(self.by_node.get(node).into_iter().flatten());
    }

    /// Sets whether pools of this encapsulation exist.
    pub(crate) fn set_enabled(&mut self, is_enabled: bool) {
        if is_enabled != self.is_enabled {
            self.is_enabled = is_enabled;
            self.dirty.extend(self.networks.keys());
        }
    }

    /// Sets the interface by which other nodes of this subnet are reached.
    pub(crate) fn set_parent(&mut self, parent: Option<InterfaceName>) {
        if parent == self.parent {
            return;
        }
        self.parent = parent;
        let needs_parent = |network: &Network| match network {
            Network::Remote { same_subnet, .. } => *same_subnet || self.medium.tunnel.is_none(),
            Network::Block => false,
        };
        self.dirty.extend(self.networks.iter().filter(|(_, network)| needs_parent(network)).map(|(net, _)| *net));
    }

    /// Updates the routes in the table. `gateway` returns the far end of the tunnel to a node.
    pub(crate) fn complete(&mut self, gateway: impl Fn(&Hostname) -> Option<IpAddr>, table: &mut RouteTable) {
        let metric = match self.family {
            Family::V4 => 0,
            Family::V6 => DEFAULT_METRIC_V6,
        };
        for net in std::mem::take(&mut self.dirty) {
            let key = RouteKey { destination: net, tos: 0, metric };
            let network = self.networks.get(&net).filter(|_| self.is_enabled);
            let route = network.and_then(|network| self.route(network, &gateway));
            let slot = route.as_ref().map(|(slot, _)| *slot);
            let old = match slot {
                Some(slot) => self.placed.insert(net, slot),
                None => self.placed.remove(&net),
            };
            if let Some((slot, target)) = route {
                table.set_route(&slot, key, Some(target));
            }
            if let Some(old) = old.filter(|old| Some(*old) != slot) {
                table.set_route(&old, key, None);
            }
        }
    }

    fn route(&self, network: &Network, gateway: impl Fn(&Hostname) -> Option<IpAddr>) -> Option<(Slot, RouteTarget)> {
        let plain = RouteTarget {
            kind: RouteKind::Unicast,
            interface: None,
            scope: RouteScope::UNIVERSE,
            protocol: self.protocol,
            gateway: None,
            on_link: false,
            mtu: None,
            source: self.source,
        };
        let Network::Remote { node, address, same_subnet, is_far_end } = network else {
            let slot = Slot { class: self.medium.blackhole, interface: None };
            return Some((slot, RouteTarget { kind: RouteKind::Blackhole, source: None, ..plain }));
        };
        let is_direct = *same_subnet || self.medium.tunnel.is_none();
        if let (true, Some(parent), Some(address)) = (is_direct, self.parent, address) {
            let slot = Slot { class: self.medium.same_subnet, interface: Some(parent) };
            return Some((slot, RouteTarget { gateway: Some(*address), on_link: true, ..plain }));
        }
        let tunnel = self.medium.tunnel.as_ref()?;
        let slot = Slot { class: tunnel.class, interface: Some(tunnel.device) };
        let plain = RouteTarget { protocol: tunnel.protocol, mtu: Some(tunnel.mtu), ..plain };
        if tunnel.has_far_ends && *is_far_end {
            let scope = match self.family {
                Family::V4 => RouteScope::LINK,
                Family::V6 => RouteScope::UNIVERSE,
            };
            return Some((slot, RouteTarget { scope, ..plain }));
        }
        let gateway = gateway(node.as_ref()?)?;
        Some((slot, RouteTarget { gateway: Some(gateway), on_link: true, ..plain }))
    }
}

/// Classifies a network; `None` if it needs no route here.
fn network(net: Cidr, route: &Route) -> Option<Network> {
    let is = |kind| route.types.contains(kind);
    let is_remote = is(RouteTypes::REMOTE_WORKLOAD);
    // An address that another node's tunnel has borrowed is in none of that node's IPAM blocks.
    let is_borrowed = is(RouteTypes::REMOTE_TUNNEL) && route.borrowed;
    if is_remote || is_borrowed {
        let is_far_end = is_borrowed || is(RouteTypes::REMOTE_TUNNEL);
        return Some(Network::Remote {
            node: route.node.clone(),
            address: route.node_address,
            same_subnet: route.same_subnet,
            is_far_end,
        });
    }
    // No blackhole for a single address: a CNI plugin that is about to assign it to a workload
    // would find a route there.
    let is_block = is(RouteTypes::LOCAL_WORKLOAD) && !route.local_workload && !net.is_host();
    is_block.then_some(Network::Block)
}
