//! The other nodes as peers, and the networks behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use tortie_model::desired::{HostMetadata, Route, RouteTypes, WireguardPeer};
use tortie_model::{Cidr, Family, Hostname, InterfaceName};
use tortie_netfilter::delta::Delta;

use crate::config::RoutesConfig;
use crate::route::{RouteKey, RouteKind, RouteScope, RouteTarget};
use crate::routes::{DEFAULT_METRIC_V6, RouteClass, RouteTable, Slot};
use crate::wireguard_device::{DevicePeer, WireguardKey};

/// Settings common to all peers.
#[derive(Clone, Debug)]
pub(super) struct PeerSettings {
    pub(super) device: InterfaceName,
    /// The port of all nodes.
    pub(super) port: u16,
    /// Keep-alive interval in seconds; 0 disables keep-alives.
    pub(super) keep_alive: u16,
    /// Whether host traffic is encrypted as well.
    pub(super) encrypts_hosts: bool,
}

/// A node, this one included.
#[derive(Debug, Default)]
struct Node {
    address: Option<IpAddr>,
    key: Option<WireguardKey>,
    nets: BTreeSet<Cidr>,
    /// Key under which the node is a peer now.
    is_peer_by: Option<WireguardKey>,
}

impl Node {
    fn is_nothing(&self) -> bool {
        self.address.is_none() && self.key.is_none() && self.nets.is_empty() && self.is_peer_by.is_none()
    }
}

/// All nodes of one family, and the owner of each network.
#[derive(Debug)]
pub(super) struct Peers {
    family: Family,
    this_node: Hostname,
    settings: PeerSettings,
    routes: RoutesConfig,
    nodes: BTreeMap<Hostname, Node>,
    by_key: BTreeMap<WireguardKey, BTreeSet<Hostname>>,
    owners: BTreeMap<Cidr, Hostname>,
    /// Nodes whose peer may have changed.
    dirty_nodes: BTreeSet<Hostname>,
    /// Networks whose route may have changed.
    dirty_nets: BTreeSet<Cidr>,
    /// Slot that holds the route of each network.
    placed: BTreeMap<Cidr, Slot>,
    own_address: Option<IpAddr>,
}

impl Peers {
    pub(super) fn new(family: Family, this_node: Hostname, settings: PeerSettings, routes: RoutesConfig) -> Self {
        Self {
            family,
            this_node,
            settings,
            routes,
            nodes: BTreeMap::new(),
            by_key: BTreeMap::new(),
            owners: BTreeMap::new(),
            dirty_nodes: BTreeSet::new(),
            dirty_nets: BTreeSet::new(),
            placed: BTreeMap::new(),
            own_address: None,
        }
    }

    /// Sets the addresses of a node; `None` for a removed node.
    pub(super) fn on_host(&mut self, name: &Hostname, host: Option<&HostMetadata>) {
        let text = host.map(|host| match self.family {
            Family::V4 => &host.ipv4_addr,
            Family::V6 => &host.ipv6_addr,
        });
        let address = text.and_then(|text| text.parse::<Cidr>().ok()).map(Cidr::address);
        let address = address.filter(|address| Family::of(*address) == self.family);
        self.edit(name, |node| node.address = address);
    }

    /// Sets or removes the identity of a node. An invalid key counts as none.
    pub(super) fn on_peer(&mut self, name: &Hostname, peer: Option<&WireguardPeer>) {
        let key = peer.and_then(|peer| peer.public_key.parse().ok());
        if *name == self.this_node {
            self.own_address = peer.and_then(|peer| peer.address);
        }
        let old = self.nodes.get(name).and_then(|node| node.key);
        if old == key {
            return;
        }
        if let Some(old) = old {
            self.claim(old, |nodes| nodes.remove(name));
        }
        if let Some(key) = key {
            self.claim(key, |nodes| nodes.insert(name.clone()));
        }
        self.edit(name, |node| node.key = key);
    }

    /// Edits the nodes that claim a key. A key that several nodes claim is used for none of them.
    fn claim(&mut self, key: WireguardKey, edit: impl FnOnce(&mut BTreeSet<Hostname>) -> bool) {
        let nodes = self.by_key.entry(key).or_default();
        self.dirty_nodes.extend(nodes.iter().cloned());
        edit(nodes);
        self.dirty_nodes.extend(nodes.iter().cloned());
        if nodes.is_empty() {
            self.by_key.remove(&key);
        }
    }

    /// Sets or removes the owner and type of a network of the family.
    pub(super) fn on_route(&mut self, net: Cidr, route: Option<&Route>) {
        let owner = route.filter(|route| self.is_encrypted(route.types)).and_then(|route| route.node.clone());
        if self.owners.get(&net) == owner.as_ref() {
            return;
        }
        let old = match owner.clone() {
            Some(owner) => self.owners.insert(net, owner),
            None => self.owners.remove(&net),
        };
        self.dirty_nets.insert(net);
        if let Some(old) = old {
            self.edit(&old, |node| node.nets.remove(&net));
        }
        if let Some(owner) = owner {
            self.edit(&owner, |node| node.nets.insert(net));
        }
    }

    /// Reports whether packets to a network of these types are encrypted, if its node is a peer.
    fn is_encrypted(&self, types: RouteTypes) -> bool {
        let is = |kind| types.contains(kind);
        if is(RouteTypes::REMOTE_HOST) {
            return self.settings.encrypts_hosts;
        }
        is(RouteTypes::LOCAL_WORKLOAD)
            || is(RouteTypes::REMOTE_WORKLOAD)
            || is(RouteTypes::LOCAL_TUNNEL)
            || is(RouteTypes::REMOTE_TUNNEL)
    }

    fn edit<T>(&mut self, name: &Hostname, edit: impl FnOnce(&mut Node) -> T) {
        edit(self.nodes.entry(name.clone()).or_default());
        self.dirty_nodes.insert(name.clone());
    }

    /// Returns this node's key in the datastore.
    pub(super) fn own_key(&self) -> Option<WireguardKey> {
        self.nodes.get(&self.this_node).and_then(|node| node.key)
    }

    /// Returns the address of this node's device.
    pub(super) fn own_address(&self) -> Option<IpAddr> {
        let of_host = || self.nodes.get(&self.this_node).and_then(|node| node.address);
        self.own_address.or_else(|| if self.settings.encrypts_hosts { of_host() } else { None })
    }

    /// Updates the desired peers and routes.
    pub(super) fn complete(&mut self, peers: &mut Delta<WireguardKey, DevicePeer>, table: &mut RouteTable) {
        let dirty = std::mem::take(&mut self.dirty_nodes);
        let mut made = Vec::new();
        for name in dirty {
            let key = self.peer_key(&name);
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            if node.is_peer_by != key {
                self.dirty_nets.extend(&node.nets);
                // Another node may have its old key by now; that peer is added below.
                if let Some(old) = node.is_peer_by {
                    peers.remove_desired(&old);
                }
                node.is_peer_by = key;
            }
            if let Some(key) = key {
                let endpoint = node.address.map(|address| SocketAddr::new(address, self.settings.port));
                let keep_alive = self.settings.keep_alive;
                made.push((key, DevicePeer { endpoint, keep_alive, allowed: node.nets.clone() }));
            } else if node.is_nothing() {
                self.nodes.remove(&name);
            }
        }
        for (key, peer) in made {
            peers.set_desired(key, peer);
        }
        self.place(table);
    }

    /// Returns the key under which a node is a peer: the node has an address, and no other node
    /// claims the key.
    fn peer_key(&self, name: &Hostname) -> Option<WireguardKey> {
        let node = self.nodes.get(name).filter(|node| *name != self.this_node && node.address.is_some())?;
        node.key.filter(|key| self.by_key.get(key).is_some_and(|nodes| nodes.len() == 1))
    }

    fn place(&mut self, table: &mut RouteTable) {
        let mut dirty = std::mem::take(&mut self.dirty_nets);
        if dirty.is_empty() {
            return;
        }
        let own = |net: &Cidr| {
            let is_of = |slots: &BTreeMap<Cidr, Hostname>| slots.get(net) == Some(&self.this_node);
            is_of(&self.owners) || self.placed.get(net).is_some_and(|slot| slot.interface.is_none())
        };
        if dirty.iter().any(|net| !net.is_host() && own(net)) {
            // Single addresses of this node within its networks need no route.
            let nets = self.nodes.get(&self.this_node).into_iter().flat_map(|node| &node.nets);
            dirty.extend(nets.filter(|net| net.is_host()).copied().collect::<Vec<_>>());
        }
        let local = self.local_networks();
        for net in dirty {
            let wanted = self.route(net, &local);
            let metric = match self.family {
                Family::V4 => 0,
                Family::V6 => DEFAULT_METRIC_V6,
            };
            let key = RouteKey { destination: net, tos: 0, metric };
            let slot = wanted.as_ref().map(|(slot, _)| *slot);
            let old = match slot {
                Some(slot) => self.placed.insert(net, slot),
                None => self.placed.remove(&net),
            };
            if let Some((slot, target)) = wanted {
                table.set_route(&slot, key, Some(target));
            }
            if let Some(old) = old.filter(|old| Some(old) != slot.as_ref()) {
                table.set_route(&old, key, None);
            }
        }
    }

    /// Returns this node's networks of more than one address, and the set of their prefix lengths.
    fn local_networks(&self) -> (BTreeSet<Cidr>, BTreeSet<u8>) {
        let nets = self.nodes.get(&self.this_node).into_iter().flat_map(|node| &node.nets);
        let nets: BTreeSet<Cidr> = nets.filter(|net| !net.is_host()).copied().collect();
        let lengths = nets.iter().map(|net| net.prefix_len()).collect();
        (nets, lengths)
    }

    fn route(&self, net: Cidr, (local, lengths): &(BTreeSet<Cidr>, BTreeSet<u8>)) -> Option<(Slot, RouteTarget)> {
        let owner = self.owners.get(&net)?;
        let is_within =
            |length: &u8| Cidr::new(net.address(), *length).is_some_and(|net| local.contains(&net.masked()));
        if *owner == self.this_node && net.is_host() && lengths.iter().any(is_within) {
            return None;
        }
        let by_peer = self.nodes.get(owner).is_some_and(|node| node.is_peer_by.is_some());
        let target = RouteTarget {
            kind: if by_peer { RouteKind::Unicast } else { RouteKind::Throw },
            interface: None,
            scope: if by_peer && self.family == Family::V4 { RouteScope::LINK } else { RouteScope::UNIVERSE },
            protocol: self.routes.protocol,
            gateway: None,
            on_link: false,
            mtu: None,
            source: None,
        };
        let interface = by_peer.then_some(self.settings.device);
        Some((Slot { class: RouteClass::Wireguard, interface }, target))
    }
}
