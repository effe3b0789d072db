//! Types of routes.

use std::net::IpAddr;

use tortie_model::Cidr;

/// A routing table, by its number (`rtnetlink(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteTableIndex(pub u32);

impl RouteTableIndex {
    /// Main routing table, which applies to all packets that no routing rule directs elsewhere.
    pub const MAIN: Self = Self(254);
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// Identity of the route in its table.
    pub key: RouteKey,
    /// Treatment of packets that take the route.
    pub target: RouteTarget,
}

/// Identity of a route in its table: the kernel keeps one route for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// Destination; host bits are clear.
    pub destination: Cidr,
    /// Type of service (TOS) to which the route is limited; 0 for any.
    pub tos: u8,
    /// Metric. Among routes with the same destination, the lowest metric wins.
    pub metric: u32,
}

/// Treatment of packets that take a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteTarget {
    /// Type of the route.
    pub kind: RouteKind,
    /// Index of the outgoing interface; `None` for routes without one, and for multipath routes.
    pub interface: Option<u32>,
    /// Scope of the destination. The kernel has no scopes for IPv6: always [`RouteScope::UNIVERSE`]
    /// there.
    pub scope: RouteScope,
    /// Protocol that added the route.
    pub protocol: RouteProtocol,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Whether the next hop is on the link, whatever its address is (`RTNH_F_ONLINK`).
    pub on_link: bool,
    /// MTU, if it differs from the interface's (`RTAX_MTU`).
    pub mtu: Option<u32>,
    /// Source address for the host's own packets.
    pub source: Option<IpAddr>,
}

/// Route types that the dataplane distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// To one destination (`RTN_UNICAST`).
    Unicast,
    /// The kernel drops packets (`RTN_BLACKHOLE`).
    Blackhole,
    /// The lookup continues with the next routing rule (`RTN_THROW`).
    Throw,
    /// Any other type, by its number in `rtnetlink(7)`.
    Other(u8),
}

/// Scope of a route, `rtm_scope` in `rtnetlink(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteScope(pub u8);

impl RouteScope {
    /// Beyond a gateway.
    pub const UNIVERSE: Self = Self(0);
    /// On the link.
    pub const LINK: Self = Self(253);
}

/// Protocol that added a route, `rtm_protocol` in `rtnetlink(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteProtocol(pub u8);

impl RouteProtocol {
    /// The kernel itself.
    pub const KERNEL: Self = Self(2);
    /// Added at boot; Felix's default for routes to workloads.
    pub const BOOT: Self = Self(3);
    /// The BIRD daemon.
    pub const BIRD: Self = Self(12);
    /// Felix's other routes.
    pub const CALICO: Self = Self(80);
}

/// A change of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// Add this route, or replace the one with the same key (`NLM_F_REPLACE`).
    Replace(Route),
    /// Remove exactly this route.
    Delete(Route),
}

impl RouteChange {
    /// Returns the route of the change.
    #[must_use]
    pub const fn route(&self) -> &Route {
        match self {
            Self::Replace(route) | Self::Delete(route) => route,
        }
    }
}
