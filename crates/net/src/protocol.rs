//! IP protocols.

use std::fmt;

/// The protocols that may be given by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
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
    /// Returns the protocol with this name, in any case.
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

    /// Returns the lower-case name that rules and messages use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Icmpv6 => "icmpv6",
            Self::Sctp => "sctp",
            Self::UdpLite => "udplite",
        }
    }

    /// Returns the number assigned by IANA.
    #[must_use]
    pub const fn number(self) -> u8 {
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

/// An IP protocol, by name or by number. The two forms are distinct: they render and match
/// differently.
///
/// ```
/// use tortie_net::Protocol;
/// assert_eq!((Protocol::TCP.to_string(), Protocol::Number(6).to_string()), ("tcp".to_owned(), "6".to_owned()));
/// assert_ne!(Protocol::TCP, Protocol::Number(6));
/// assert_eq!(Protocol::TCP.number(), Protocol::Number(6).number());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(untagged))]
pub enum Protocol {
    /// By name.
    Named(NamedProtocol),
    /// By number.
    Number(u8),
}

impl Protocol {
    /// TCP, by name.
    pub const TCP: Self = Self::Named(NamedProtocol::Tcp);
    /// UDP, by name.
    pub const UDP: Self = Self::Named(NamedProtocol::Udp);
    /// SCTP, by name.
    pub const SCTP: Self = Self::Named(NamedProtocol::Sctp);
    /// ICMP, by name.
    pub const ICMP: Self = Self::Named(NamedProtocol::Icmp);
    /// ICMP of IPv6, by name.
    pub const ICMPV6: Self = Self::Named(NamedProtocol::Icmpv6);

    /// Returns the number assigned by IANA.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Named(name) => name.number(),
            Self::Number(number) => number,
        }
    }

    /// Reports whether port matches are possible: TCP, UDP and SCTP.
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

/// The protocols whose ports endpoints and services have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum PortProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl PortProtocol {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// Returns the lower-case name, as in members of IP sets.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// Returns the port protocol of a protocol; `None` if it has no ports.
    #[must_use]
    pub fn of(protocol: Protocol) -> Option<Self> {
        Self::ALL.into_iter().find(|p| NamedProtocol::from(*p).number() == protocol.number())
    }
}

impl From<PortProtocol> for NamedProtocol {
    fn from(protocol: PortProtocol) -> Self {
        match protocol {
            PortProtocol::Tcp => Self::Tcp,
            PortProtocol::Udp => Self::Udp,
            PortProtocol::Sctp => Self::Sctp,
        }
    }
}

impl fmt::Display for PortProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
