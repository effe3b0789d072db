//! Links between nodes, and the translation of source addresses on them.

use std::net::IpAddr;

use tortie_evaluate::{MixedFamilies, Packet};
use tortie_model::{Cidr, EncapMode, Family, Hostname, InterfaceName, Key, Node, Update, Wireguard};

use crate::trace::cluster::Cluster;
use crate::trace::connection::Place;
use crate::trace::host::Link;
use crate::trace::pools::NatSettings;

const IPIP: InterfaceName = InterfaceName::from_static("tunl0");
const VXLAN: InterfaceName = InterfaceName::from_static("vxlan.calico");
const VXLAN_V6: InterfaceName = InterfaceName::from_static("vxlan-v6.calico");
const WIREGUARD: InterfaceName = InterfaceName::from_static("wireguard.cali");
const WIREGUARD_V6: InterfaceName = InterfaceName::from_static("wg-v6.cali");

impl Cluster {
    /// Sets the parameters of address translation on a node.
    pub fn set_nat(&mut self, node: Hostname, settings: NatSettings) {
        self.nat.insert(node, settings);
    }

    /// Returns the workload that a floating address leads to, and its own address. `None` if there
    /// is none, or if its node does not translate floating addresses.
    #[must_use]
    pub fn floating(&self, address: IpAddr) -> Option<(Place, IpAddr)> {
        let (key, internal) = self.index().floating(address)?;
        let is_translated = self.nat_of(&Hostname::new(key.host())).floating_addresses;
        is_translated.then(|| (Place::Workload(key.clone()), internal))
    }

    /// Returns the node of the workload with a floating address, whether or not it is translated.
    #[must_use]
    pub fn node_of_floating(&self, address: IpAddr) -> Option<Hostname> {
        self.index().floating(address).map(|(key, _)| Hostname::new(key.host()))
    }

    fn nat_of(&self, node: &Hostname) -> NatSettings {
        self.nat.get(node).copied().unwrap_or_default()
    }

    /// Returns the link by which a packet from outside enters a node.
    pub(crate) fn link_from_outside(&self, node: Option<&Hostname>, packet: &Packet) -> Link {
        node.map_or(Link::Network(None), |node| Link::Network(self.own(node, packet.destination())))
    }

    /// Returns the link by which a packet leaves a node; `next` is the next node on its way.
    pub(crate) fn link(&self, node: &Hostname, next: Option<&Hostname>, packet: &Packet, from: &Place) -> Link {
        let destination = packet.destination();
        let tunnel = next.and_then(|next| self.tunnel(node, next, destination));
        // Without a pool, another program connects the workloads, probably by a tunnel.
        let is_unknown = || {
            let between = matches!((from, self.place_of(destination)), (Place::Workload(_), Place::Workload(_)));
            between && next.is_some() && self.pools.of(destination).is_none()
        };
        match tunnel {
            Some(device) => Link::Tunnel { device: Some(device), address: self.tunnel_address(node, device) },
            None if is_unknown() => Link::Tunnel { device: None, address: None },
            None => Link::Network(self.own(node, packet.source())),
        }
    }

    /// Returns the link by which a packet enters a node that left another one by `link`.
    pub(crate) fn link_into(&self, node: &Hostname, link: Link, packet: &Packet) -> Link {
        match link {
            Link::Tunnel { device: Some(device), .. } => {
                Link::Tunnel { device: Some(device), address: self.tunnel_address(node, device) }
            }
            Link::Tunnel { device: None, .. } => link,
            _ => Link::Network(self.own(node, packet.destination())),
        }
    }

    /// Returns a packet of the node with the source address that its route prescribes: that of the
    /// tunnel instead of the node's main address.
    pub(crate) fn with_source_by_route(
        &self,
        node: &Hostname,
        link: Link,
        packet: Packet,
    ) -> Result<Packet, MixedFamilies> {
        match link {
            Link::Tunnel { address: Some(address), .. }
                if self.node_address(node, packet.family()) == Some(packet.source()) =>
            {
                packet.with_source(address)
            }
            _ => Ok(packet),
        }
    }

    /// Returns a packet after the translation of its source on the way out of a node. `replaces` is
    /// whether kube-proxy masquerades it.
    pub(crate) fn after_source_nat(
        &self,
        node: &Hostname,
        link: Link,
        packet: Packet,
        replaces: bool,
    ) -> Result<Packet, MixedFamilies> {
        let (family, source) = (packet.family(), packet.source());
        let tunnel = match link {
            Link::Tunnel { address, .. } => address,
            _ => None,
        };
        let own = || tunnel.or_else(|| self.node_address(node, family));
        let settings = self.nat_of(node);
        let translated = if replaces {
            own()
        } else if self.leaves_pools(settings, &packet) {
            settings.outgoing_address.filter(|address| Family::of(*address) == family).or_else(own)
        } else {
            // A local address that is not the tunnel's.
            tunnel.filter(|_| self.own(node, source).is_some())
        };
        translated.map_or(Ok(packet), |source| packet.with_source(source))
    }

    fn leaves_pools(&self, settings: NatSettings, packet: &Packet) -> bool {
        let destination = packet.destination();
        let is_node = || match self.place_of(destination) {
            Place::Node(node) => self.node_address(&node, packet.family()) == Some(destination),
            _ => false,
        };
        self.pools.masquerade(packet.source(), destination) && !(settings.excludes_nodes && is_node())
    }

    /// Returns an address if it is one of the node's.
    fn own(&self, node: &Hostname, address: IpAddr) -> Option<IpAddr> {
        (self.place_of(address) == Place::Node(node.clone())).then_some(address)
    }

    /// Returns the device of the tunnel through which a node reaches an address on another node;
    /// `None` if packets are not encapsulated.
    fn tunnel(&self, node: &Hostname, next: &Hostname, destination: IpAddr) -> Option<InterfaceName> {
        let family = Family::of(destination);
        let is_workload = matches!(self.place_of(destination), Place::Workload(_));
        if is_workload && [node, next].into_iter().all(|node| self.has_wireguard(node, family)) {
            return Some(if family == Family::V4 { WIREGUARD } else { WIREGUARD_V6 });
        }
        let pool = self.pools.of(destination)?;
        let is_used = |mode| match mode {
            EncapMode::Always => true,
            EncapMode::CrossSubnet => !self.is_in_subnet(node, next, family),
            _ => false,
        };
        match family {
            Family::V4 if is_used(pool.vxlan_mode) => Some(VXLAN),
            Family::V6 if is_used(pool.vxlan_mode) => Some(VXLAN_V6),
            Family::V4 if is_used(pool.ipip_mode) => Some(IPIP),
            _ => None,
        }
    }

    fn node_object(&self, node: &Hostname) -> Option<&Node> {
        match self.object(&Key::Node(node.clone())) {
            Some(Update::Node(_, Some(node))) => Some(node),
            _ => None,
        }
    }

    fn has_wireguard(&self, node: &Hostname, family: Family) -> bool {
        let key = |wireguard: &Wireguard| match family {
            Family::V4 => !wireguard.public_key.is_empty(),
            Family::V6 => !wireguard.public_key_v6.is_empty(),
        };
        matches!(self.object(&Key::Wireguard(node.clone())), Some(Update::Wireguard(_, Some(found))) if key(found))
    }

    /// Reports whether the next node's address is in the subnet of a node.
    fn is_in_subnet(&self, node: &Hostname, next: &Hostname, family: Family) -> bool {
        let bgp = self.node_object(node).and_then(|node| node.bgp.as_ref());
        let subnet = bgp.map(|bgp| if family == Family::V4 { &bgp.ipv4_address } else { &bgp.ipv6_address });
        let subnet: Option<Cidr> = subnet.and_then(|text| text.parse().ok());
        let next = self.node_address(next, family);
        subnet.zip(next).is_some_and(|(subnet, next)| subnet.contains(next))
    }

    /// Returns the addresses of a node on tunnels.
    pub(crate) fn tunnel_addresses(&self, node: &Hostname) -> Vec<IpAddr> {
        let devices = [IPIP, VXLAN, VXLAN_V6, WIREGUARD, WIREGUARD_V6];
        devices.into_iter().filter_map(|device| self.tunnel_address(node, device)).collect()
    }

    fn tunnel_address(&self, node: &Hostname, device: InterfaceName) -> Option<IpAddr> {
        let tunnels = self.node_object(node)?.tunnels.as_ref()?;
        match device {
            IPIP => tunnels.ipip,
            VXLAN => tunnels.vxlan,
            VXLAN_V6 => tunnels.vxlan_v6,
            WIREGUARD => tunnels.wireguard,
            WIREGUARD_V6 => tunnels.wireguard_v6,
            _ => None,
        }
    }
}
