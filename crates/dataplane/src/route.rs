//! Routes as data.

use std::net::IpAddr;

use tortie_model::Cidr;

/// A table of routes, by its number (`rtnetlink(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteTableIndex(pub u32);

impl RouteTableIndex {
    /// The table that holds for all packets which no rule leads elsewhere.
    pub const MAIN: Self = Self(254);
}

/// One route of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// What the kernel tells routes apart by.
    pub key: RouteKey,
    /// What happens to packets that take it.
    pub target: RouteTarget,
}

/// What the kernel tells routes apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// Where to; host bits are clear.
    pub destination: Cidr,
    /// Only for this type of service; 0 for any.
    pub tos: u8,
    /// Of routes with the same destination the one with the lowest metric is taken.
    pub metric: u32,
}

/// What happens to packets that take a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteTarget {
    /// What kind of route it is.
    pub kind: RouteKind,
    /// The index of the interface that packets leave by; `None` for routes without one, and for those with several.
    pub interface: Option<u32>,
    /// How far away the destination is. The kernel has no scopes for IPv6: always [`RouteScope::UNIVERSE`] there.
    pub scope: RouteScope,
    /// Who made the route.
    pub protocol: RouteProtocol,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The next hop is on the link, whatever its address is (`RTNH_F_ONLINK`).
    pub on_link: bool,
    /// The largest packet, if it is not the interface's (`RTAX_MTU`).
    pub mtu: Option<u32>,
    /// The source address for packets of the host itself.
    pub source: Option<IpAddr>,
}

/// The kinds of route that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// To one destination (`RTN_UNICAST`).
    Unicast,
    /// Packets vanish (`RTN_BLACKHOLE`).
    Blackhole,
    /// Packets go on as if there were no such table (`RTN_THROW`).
    Throw,
    /// Any other type, by its number in `rtnetlink(7)`.
    Other(u8),
}

/// A route's scope, `rtm_scope` in `rtnetlink(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteScope(pub u8);

impl RouteScope {
    /// Beyond a gateway.
    pub const UNIVERSE: Self = Self(0);
    /// On the link.
    pub const LINK: Self = Self(253);
}

/// Who made a route, `rtm_protocol` in `rtnetlink(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteProtocol(pub u8);

impl RouteProtocol {
    /// The kernel itself.
    pub const KERNEL: Self = Self(2);
    /// Made at boot; Felix's default for routes to workloads.
    pub const BOOT: Self = Self(3);
    /// The BIRD daemon.
    pub const BIRD: Self = Self(12);
    /// Felix's other routes.
    pub const CALICO: Self = Self(80);
}

/// A change of one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// Make this route, in place of one with the same key if there is one (`NLM_F_REPLACE`).
    Replace(Route),
    /// Remove exactly this route.
    Delete(Route),
}

impl RouteChange {
    /// The route that the change is about.
    #[must_use]
    pub const fn route(&self) -> &Route {
        match self {
            Self::Replace(route) | Self::Delete(route) => route,
        }
    }
}
