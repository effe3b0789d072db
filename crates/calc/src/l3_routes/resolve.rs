//! From what is known of a network and of those that contain it to its route.

use ahash::AHashMap;
use tortie_model::desired::{PoolType, Route, RouteTypes, TunnelTypes};
use tortie_model::{Cidr, Hostname};

use super::nodes::NodeInfo;
use super::table::{Entry, RefKind};

/// What blocks say of the network.
#[derive(Default)]
struct Blocks<'a> {
    /// The node of the first block on the way.
    node: Option<&'a Hostname>,
    types: RouteTypes,
    /// Whether one of them is the network itself.
    is_here: bool,
}

/// The route of `net`, from the entries of the networks that contain it, the smallest last; `None` if nothing is known of it.
pub(super) fn route<'a>(
    net: Cidr,
    path: impl Iterator<Item = (Cidr, &'a Entry)>,
    own: &Hostname,
    nodes: &AHashMap<Hostname, NodeInfo>,
) -> Option<Route> {
    let mut route = Route::default();
    let mut blocks = Blocks::default();
    let (mut is_known, mut is_host, mut is_tunnel, mut cross_subnet) = (false, false, false, false);
    for (outer, entry) in path {
        is_known = outer == net && entry.is_known();
        if let Some(pool) = entry.pool {
            if pool.pool_type != PoolType::None {
                route.pool_type = pool.pool_type;
            }
            route.nat_outgoing |= pool.nat_outgoing;
            cross_subnet |= pool.cross_subnet;
        }
        if let Some(node) = entry.block() {
            route.borrowed |= *blocks.node.get_or_insert(node) != node;
            blocks.is_here |= outer == net;
            blocks.types |= either(node == own, RouteTypes::LOCAL_WORKLOAD, RouteTypes::REMOTE_WORKLOAD);
            route.node = Some(node.clone());
        }
        if let Some(node) = entry.host() {
            is_host = true;
            route.types |= either(node == own, RouteTypes::LOCAL_HOST, RouteTypes::REMOTE_HOST);
            route.node = Some(node.clone());
        }
        if let Some((node, kind)) = entry.refs().next() {
            route.borrowed |= blocks.node.is_some_and(|of_block| of_block != node);
            route.node = Some(node.clone());
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
    // What is a node's own is reached as such, block or not. A tunnel's address in a larger block is reached by the way to
    // the block.
    if !is_host && (blocks.is_here || !is_tunnel) {
        route.types |= blocks.types;
    }
    let family = net.family();
    let info = route.node.as_ref().and_then(|node| nodes.get(node));
    route.node_address = info.and_then(|info| info.address(family));
    route.same_subnet =
        cross_subnet && info.zip(nodes.get(own)).is_some_and(|(of_node, of_own)| of_own.is_neighbour(of_node, family));
    is_known.then_some(route)
}

fn either(local: bool, if_local: RouteTypes, otherwise: RouteTypes) -> RouteTypes {
    if local { if_local } else { otherwise }
}

/// The tunnels of a node that have the address.
fn tunnels(entry: &Entry, node: &Hostname) -> TunnelTypes {
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
