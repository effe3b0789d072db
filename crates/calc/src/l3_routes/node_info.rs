//! The addresses of the cluster's nodes that routes depend on.

use std::net::IpAddr;

use tortie_model::{Cidr, Family, Node, NodeAddressKind};

use super::claim::{Claim, RefKind};

/// A node with an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodeInfo {
    /// Its IPv4 address, with the length of its subnet.
    v4: Option<Cidr>,
    /// Its IPv6 address, with the length of its subnet.
    v6: Option<Cidr>,
    /// The addresses that it claims, sorted, without duplicates for one reason.
    pub(super) claims: Box<[(Cidr, Claim)]>,
}

impl NodeInfo {
    /// Returns the addresses of a node; `None` for a node without an address, which counts as
    /// absent, with its tunnels.
    pub(super) fn of(node: &Node) -> Option<Self> {
        let [v4, v6] = Family::ALL.map(|family| address(node, family));
        if v4.is_none() && v6.is_none() {
            return None;
        }
        let listed = node.addresses.iter().filter_map(|address| address.address.parse::<Cidr>().ok());
        let hosts = v4.into_iter().chain(v6).chain(listed).map(Cidr::to_host);
        let hosts = hosts.filter(|host| !host.address().is_unspecified()).map(|host| (host, Claim::Host));
        let tunnels = node.tunnels.as_deref().into_iter().flat_map(|tunnels| {
            [
                (tunnels.ipip, RefKind::IpIp),
                (tunnels.vxlan, RefKind::Vxlan),
                (tunnels.vxlan_v6, RefKind::Vxlan),
                (tunnels.wireguard, RefKind::Wireguard),
                (tunnels.wireguard_v6, RefKind::Wireguard),
            ]
        });
        let tunnels = tunnels.filter_map(|(address, kind)| Some((Cidr::host(address?), Claim::Ref(kind))));
        let mut claims: Vec<_> = hosts.chain(tunnels).collect();
        claims.sort_unstable();
        claims.dedup();
        Some(Self { v4, v6, claims: claims.into() })
    }

    fn net(&self, family: Family) -> Option<Cidr> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    /// Returns its address of a family.
    pub(super) fn address(&self, family: Family) -> Option<IpAddr> {
        self.net(family).map(Cidr::address)
    }

    /// Reports whether another node's address of a family is in this node's subnet.
    pub(super) fn is_neighbour(&self, other: &Self, family: Family) -> bool {
        self.net(family).zip(other.address(family)).is_some_and(|(net, address)| net.contains(address))
    }
}

/// Returns the BGP address of the family. Only if there is none of either family, returns the first
/// internal or otherwise external address.
fn address(node: &Node, family: Family) -> Option<Cidr> {
    let bgp = node.bgp.as_ref().filter(|bgp| !bgp.ipv4_address.is_empty() || !bgp.ipv6_address.is_empty());
    let found = match bgp {
        Some(bgp) => {
            let text = match family {
                Family::V4 => &bgp.ipv4_address,
                Family::V6 => &bgp.ipv6_address,
            };
            text.parse::<Cidr>().ok().filter(|net| net.family() == family)
        }
        None => [NodeAddressKind::InternalIp, NodeAddressKind::ExternalIp].into_iter().find_map(|kind| {
            let of_kind = node.addresses.iter().filter(|address| address.kind == kind);
            of_kind.filter_map(|address| address.address.parse::<Cidr>().ok()).find(|net| net.family() == family)
        }),
    };
    found.filter(|net| !net.address().is_unspecified())
}
