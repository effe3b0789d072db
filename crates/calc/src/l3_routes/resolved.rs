//! Routes in the form in which the table of networks stores them.

use tortie_model::Family;
use tortie_model::desired::{PoolType, Route, RouteTypes, TunnelTypes};

use super::nodes::Nodes;
use crate::slot_table::Slot;

/// A [`Route`] that names its node by the slot and leaves out that node's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) pool_type: PoolType,
    pub(super) types: RouteTypes,
    pub(super) node: Option<Slot>,
    pub(super) same_subnet: bool,
    pub(super) nat_outgoing: bool,
    pub(super) local_workload: bool,
    pub(super) borrowed: bool,
    pub(super) tunnels: TunnelTypes,
}

impl Resolved {
    /// Returns the route as the dataplane receives it.
    pub(super) fn route(self, family: Family, nodes: &Nodes) -> Route {
        let Self { pool_type, types, node, same_subnet, nat_outgoing, local_workload, borrowed, tunnels } = self;
        Route {
            pool_type,
            types,
            node: node.and_then(|node| nodes.name(node)).cloned(),
            node_address: node.and_then(|node| nodes.info(node)?.address(family)),
            same_subnet,
            nat_outgoing,
            local_workload,
            borrowed,
            tunnels,
        }
    }
}
