//! Routes to workloads and nodes, and the ends of VXLAN tunnels (`RouteUpdate` and
//! `VXLANTunnelEndpointUpdate` of `felix/proto/felixbackend.proto`).

use std::fmt;
use std::net::IpAddr;
use std::ops::{BitOr, BitOrAssign};

use crate::{Hostname, Mac};

/// Encapsulation of a pool's traffic between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum PoolType {
    /// The address is in no pool of workloads.
    #[default]
    None,
    /// Without encapsulation.
    NoEncap,
    /// VXLAN.
    Vxlan,
    /// IP-in-IP.
    IpIp,
}

/// Set of the kinds of a destination. Empty for a network of which only pool attributes are known.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RouteTypes(u8);

impl RouteTypes {
    /// Workloads of another node.
    pub const REMOTE_WORKLOAD: Self = Self(1);
    /// Another node.
    pub const REMOTE_HOST: Self = Self(2);
    /// Workloads of this node.
    pub const LOCAL_WORKLOAD: Self = Self(4);
    /// This node.
    pub const LOCAL_HOST: Self = Self(8);
    /// The address of another node's tunnel.
    pub const REMOTE_TUNNEL: Self = Self(16);
    /// The address of a tunnel of this node.
    pub const LOCAL_TUNNEL: Self = Self(32);

    /// Each kind by its name in the protocol.
    pub const NAMES: [(Self, &'static str); 6] = [
        (Self::REMOTE_WORKLOAD, "REMOTE_WORKLOAD"),
        (Self::REMOTE_HOST, "REMOTE_HOST"),
        (Self::LOCAL_WORKLOAD, "LOCAL_WORKLOAD"),
        (Self::LOCAL_HOST, "LOCAL_HOST"),
        (Self::REMOTE_TUNNEL, "REMOTE_TUNNEL"),
        (Self::LOCAL_TUNNEL, "LOCAL_TUNNEL"),
    ];

    /// Returns the bits as sent in messages.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Returns the set with these bits; `None` if one of them is unknown.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Self> {
        (bits < 64).then_some(Self(bits))
    }

    /// Reports whether this set contains all of `other`.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Reports whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for RouteTypes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for RouteTypes {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for RouteTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(Self::NAMES.iter().filter(|(kind, _)| self.contains(*kind)).map(|(_, name)| name))
            .finish()
    }
}

/// The kinds of tunnel for which a node has an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct TunnelTypes {
    /// IP-in-IP.
    pub ipip: bool,
    /// VXLAN.
    pub vxlan: bool,
    /// `WireGuard`.
    pub wireguard: bool,
}

impl TunnelTypes {
    /// Reports whether no tunnel has the address.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Attributes of a destination network: a pool, an IPAM block, a workload, a node or a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Route {
    /// Encapsulation of the pool that contains it.
    pub pool_type: PoolType,
    /// Kinds of the destination.
    pub types: RouteTypes,
    /// The node that has it.
    pub node: Option<Hostname>,
    /// That node's address of the same family.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub node_address: Option<IpAddr>,
    /// Whether the pool encapsulates only between subnets, and the node is in the subnet of this
    /// one.
    pub same_subnet: bool,
    /// Whether traffic from there that leaves all pools is masqueraded.
    pub nat_outgoing: bool,
    /// Whether an endpoint of this node has the address.
    pub local_workload: bool,
    /// Whether the address is from an IPAM block of another node than the one that has it.
    pub borrowed: bool,
    /// The tunnels that have the address.
    pub tunnels: TunnelTypes,
}

/// One family's part of a node's end of VXLAN tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct VtepAddresses {
    /// The Ethernet address of the tunnel interface.
    pub mac: Mac,
    /// The IP address of the tunnel interface.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub tunnel: IpAddr,
    /// The node's own address, which encapsulated packets go to.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub parent: IpAddr,
}

/// A node's end of VXLAN tunnels, for at least one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Vtep {
    /// For IPv4.
    pub v4: Option<VtepAddresses>,
    /// For IPv6.
    pub v6: Option<VtepAddresses>,
}
