//! Calculation of a network's route from the data of the network and of those that contain it.

use tortie_model::desired::{PoolType, RouteTypes, TunnelTypes};

use super::claim::RefKind;
use super::nodes::Nodes;
use super::resolved::Resolved;
use super::table::Entry;
use crate::slot_table::Slot;

/// Data of the IPAM blocks that contain the network.
#[derive(Default)]
struct Blocks {
    /// The node of the first block on the way.
    node: Option<Slot>,
    types: RouteTypes,
    /// Whether one of them is the network itself.
    is_here: bool,
}

/// Returns the route of a network, from its entry and those of the networks that contain it, the
/// smallest last; `None` if the network has no data.
pub(super) fn resolve<'t>(
    entry: &'t Entry,
    containing: impl Iterator<Item = &'t Entry>,
    nodes: &Nodes,
) -> Option<Resolved> {
    if !entry.is_known() {
        return None;
    }
    let (own, net) = (nodes.own(), entry.net);
    let mut route = Resolved::default();
    let mut blocks = Blocks::default();
    let (mut is_host, mut is_tunnel, mut cross_subnet) = (false, false, false);
    for entry in containing.chain([entry]) {
        if let Some(pool) = entry.pool {
            if pool.pool_type != PoolType::None {
                route.pool_type = pool.pool_type;
            }
            route.nat_outgoing |= pool.nat_outgoing;
            cross_subnet |= pool.cross_subnet;
        }
        if let Some(node) = entry.block() {
            route.borrowed |= *blocks.node.get_or_insert(node) != node;
            blocks.is_here |= entry.net == net;
            blocks.types |= either(node == own, RouteTypes::LOCAL_WORKLOAD, RouteTypes::REMOTE_WORKLOAD);
            route.node = Some(node);
        }
        if let Some(node) = entry.host() {
            is_host = true;
            route.types |= either(node == own, RouteTypes::LOCAL_HOST, RouteTypes::REMOTE_HOST);
            route.node = Some(node);
        }
        if let Some((node, kind)) = entry.refs().next() {
            route.borrowed |= blocks.node.is_some_and(|of_block| of_block != node);
            route.node = Some(node);
            if kind == RefKind::Workload {
                route.local_workload |= node == own;
                route.types |= either(node == own, RouteTypes::LOCAL_WORKLOAD, RouteTypes::REMOTE_WORKLOAD);
            } else {
                is_tunnel = true;
                route.types |= either(node == own, RouteTypes::LOCAL_TUNNEL, RouteTypes::REMOTE_TUNNEL);
                route.tunnels = tunnels(entry, node);
            }
        }
    }
    // Addresses of nodes are routed as such, also within a block. The address of a tunnel in a
    // larger block uses the route of the block.
    if !is_host && (blocks.is_here || !is_tunnel) {
        route.types |= blocks.types;
    }
    if cross_subnet {
        let info = route.node.and_then(|node| nodes.info(node));
        let own_and_node = nodes.info(own).zip(info);
        route.same_subnet = own_and_node.is_some_and(|(own, node)| own.is_neighbour(node, net.family()));
    }
    Some(route)
}

fn either(local: bool, if_local: RouteTypes, otherwise: RouteTypes) -> RouteTypes {
    if local { if_local } else { otherwise }
}

/// Returns the tunnels of a node that have the address.
fn tunnels(entry: &Entry, node: Slot) -> TunnelTypes {
    let mut tunnels = TunnelTypes::default();
    for (_, kind) in entry.refs().filter(|(of, _)| *of == node) {
        match kind {
            RefKind::Workload => {}
            RefKind::Wireguard => tunnels.wireguard = true,
            RefKind::IpIp => tunnels.ipip = true,
            RefKind::Vxlan => tunnels.vxlan = true,
        }
    }
    tunnels
}
