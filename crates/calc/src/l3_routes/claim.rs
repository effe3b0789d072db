//! The claims of nodes to networks.

use std::cmp::Reverse;

/// The reason why a node has a network. If several nodes claim a network for reasons of the same
/// kind, the order here decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Claim {
    /// By a block of this prefix length: the network is the block, or an address of the block that
    /// another node has borrowed.
    Block(Reverse<u8>),
    /// It is an address of the node.
    Host,
    /// It is a workload's or a tunnel's.
    Ref(RefKind),
}

/// The owner of an address. If several of a node have the same address, the first in this order
/// owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RefKind {
    Workload,
    Wireguard,
    IpIp,
    Vxlan,
}
