//! Routes and VXLAN tunnel endpoints.

use tortie_model::desired::{PoolType, Route, RouteTypes, Vtep};
use tortie_model::{Cidr, Hostname};

use super::Message;

pub(super) fn route<M: Message>(m: &mut M, dst: Cidr, route: &Route) {
    m.choice(
        2,
        "ip_pool_type",
        match route.pool_type {
            PoolType::None => (0, "NONE"),
            PoolType::NoEncap => (1, "NO_ENCAP"),
            PoolType::Vxlan => (2, "VXLAN"),
            PoolType::IpIp => (3, "IPIP"),
        },
    );
    m.shown(3, "dst", dst);
    m.text(4, "dst_node_name", route.node.as_ref().map_or("", |node| node.as_str()));
    if let Some(address) = route.node_address {
        m.shown(5, "dst_node_ip", address);
    }
    m.flag(7, "same_subnet", route.same_subnet);
    m.flag(8, "nat_outgoing", route.nat_outgoing);
    m.flag(9, "local_workload", route.local_workload);
    let tunnels = route.tunnels;
    if !tunnels.is_empty() {
        m.message(10, "tunnel_type", |m| {
            m.flag(1, "ipip", tunnels.ipip);
            m.flag(2, "vxlan", tunnels.vxlan);
            m.flag(3, "wireguard", tunnels.wireguard);
        });
    }
    m.flag(11, "borrowed", route.borrowed);
    // The protocol file declares an enumeration, but a combination of several values is not a
    // declared value and has no name.
    let bits = i64::from(route.types.bits());
    match RouteTypes::NAMES.iter().find(|(kind, _)| *kind == route.types) {
        Some((_, name)) => m.choice(12, "types", (bits, name)),
        None => m.integer(12, "types", bits),
    }
}

pub(super) fn vtep<M: Message>(m: &mut M, node: &Hostname, vtep: &Vtep) {
    m.text(1, "node", node.as_str());
    let families = [
        (2, ["mac", "ipv4_addr", "parent_device_ip"], vtep.v4),
        (5, ["mac_v6", "ipv6_addr", "parent_device_ipv6"], vtep.v6),
    ];
    for (first, [mac, tunnel, parent], addresses) in families {
        if let Some(addresses) = addresses {
            m.shown(first, mac, addresses.mac);
            m.shown(first + 1, tunnel, addresses.tunnel);
            m.shown(first + 2, parent, addresses.parent);
        }
    }
}
