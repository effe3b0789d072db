//! IP protocols and port matches.

use std::fmt;
use std::sync::Arc;

/// The protocols that may be given by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NamedProtocol {
    /// `tcp`.
    Tcp,
    /// `udp`.
    Udp,
    /// `icmp`.
    Icmp,
    /// `icmpv6`.
    Icmpv6,
    /// `sctp`.
    Sctp,
    /// `udplite`.
    UdpLite,
}

impl NamedProtocol {
    /// The protocol with this name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        const ALL: [NamedProtocol; 6] = [
            NamedProtocol::Tcp,
            NamedProtocol::Udp,
            NamedProtocol::Icmp,
            NamedProtocol::Icmpv6,
            NamedProtocol::Sctp,
            NamedProtocol::UdpLite,
        ];
        ALL.into_iter().find(|p| p.as_str().eq_ignore_ascii_case(name))
    }

    /// The lower-case name that rules and messages use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Icmpv6 => "icmpv6",
            Self::Sctp => "sctp",
            Self::UdpLite => "udplite",
        }
    }

    /// The number assigned by IANA.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Icmp => 1,
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Icmpv6 => 58,
            Self::Sctp => 132,
            Self::UdpLite => 136,
        }
    }
}

/// An IP protocol, by name or by number. The two forms are distinct: they render and match differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// By name.
    Named(NamedProtocol),
    /// By number.
    Number(u8),
}

impl Protocol {
    /// The number assigned by IANA.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Named(name) => name.number(),
            Self::Number(number) => number,
        }
    }

    /// Whether port matches are possible: TCP, UDP and SCTP.
    #[must_use]
    pub fn supports_ports(self) -> bool {
        matches!(self.number(), 6 | 17 | 132)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name.as_str()),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// One entry of a rule's port list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortSpec {
    /// Ports `first` to `last`, both included.
    Range {
        /// The lowest port.
        first: u16,
        /// The highest port; never below `first`.
        last: u16,
    },
    /// A port that endpoints declare by name.
    Named(Arc<str>),
}

impl PortSpec {
    /// A single port.
    #[must_use]
    pub fn single(port: u16) -> Self {
        Self::Range { first: port, last: port }
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { first, last } if first == last => first.fmt(f),
            Self::Range { first, last } => write!(f, "{first}:{last}"),
            Self::Named(name) => f.write_str(name),
        }
    }
}
