//! Values that rules match on: interfaces, protocols, networks, ports, rates.

use std::fmt;
use std::net::IpAddr;

use smallvec::SmallVec;
use tortie_net::{Cidr, CidrParseError, InterfaceName, InvalidName, Protocol};

/// An interface, or all interfaces with a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfacePattern {
    /// The name, or the beginning of names.
    pub name: InterfaceName,
    /// `name` is only the beginning (`iptables` writes `name+`).
    pub is_prefix: bool,
}

impl InterfacePattern {
    /// Exactly this interface.
    #[must_use]
    pub const fn exact(name: InterfaceName) -> Self {
        Self { name, is_prefix: false }
    }

    /// Returns a pattern for all interfaces with this prefix.
    #[must_use]
    pub const fn prefix(name: InterfaceName) -> Self {
        Self { name, is_prefix: true }
    }

    /// Reports whether an interface of this name matches.
    #[must_use]
    pub fn matches(&self, interface: &str) -> bool {
        if self.is_prefix { interface.starts_with(self.name.as_str()) } else { interface == self.name.as_str() }
    }
}

impl std::str::FromStr for InterfacePattern {
    type Err = InvalidName;

    /// A name, or the beginning of names followed by `+`.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        match text.strip_suffix('+') {
            Some(prefix) => InterfaceName::new(prefix).map(Self::prefix),
            None => InterfaceName::new(text).map(Self::exact),
        }
    }
}

impl From<InterfaceName> for InterfacePattern {
    fn from(name: InterfaceName) -> Self {
        Self::exact(name)
    }
}

impl fmt::Display for InterfacePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_str())?;
        f.write_str(if self.is_prefix { "+" } else { "" })
    }
}

/// A set of conntrack states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConntrackStates(&'static [ConntrackState]);

impl ConntrackStates {
    /// Part of a known connection, or related to one.
    pub const RELATED_OR_ESTABLISHED: Self = Self(&[ConntrackState::Related, ConntrackState::Established]);
    /// Belongs to no connection and cannot start one.
    pub const INVALID: Self = Self(&[ConntrackState::Invalid]);
    /// First packet of a connection.
    pub const NEW: Self = Self(&[ConntrackState::New]);
    /// Part of a known connection.
    pub const ESTABLISHED: Self = Self(&[ConntrackState::Established]);
    /// Kept out of connection tracking.
    pub const UNTRACKED: Self = Self(&[ConntrackState::Untracked]);
    /// The connection's destination was translated.
    pub const DNAT: Self = Self(&[ConntrackState::Dnat]);

    /// The states, in the order in which they are written.
    #[must_use]
    pub const fn states(self) -> &'static [ConntrackState] {
        self.0
    }
}

/// A conntrack state, as `-m conntrack --ctstate` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConntrackState {
    /// `NEW`
    New,
    /// `ESTABLISHED`
    Established,
    /// `RELATED`
    Related,
    /// `INVALID`
    Invalid,
    /// `UNTRACKED`
    Untracked,
    /// `DNAT`: not a state but a status, matched in the same list.
    Dnat,
}

impl ConntrackState {
    /// The state's name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Established => "ESTABLISHED",
            Self::Related => "RELATED",
            Self::Invalid => "INVALID",
            Self::Untracked => "UNTRACKED",
            Self::Dnat => "DNAT",
        }
    }
}

/// Argument of `--source` and `--destination`. A single address can be written in two ways, which
/// give different texts and hence different rules; the caller chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Net {
    /// An address without a length.
    Address(IpAddr),
    /// `address/length`, of a single address as well.  Host bits are written as they are; the
    /// kernel masks them.
    Cidr(Cidr),
}

impl Net {
    /// Returns the matched network.
    #[must_use]
    pub fn cidr(self) -> Cidr {
        match self {
            Self::Address(address) => Cidr::host(address),
            Self::Cidr(cidr) => cidr,
        }
    }
}

impl From<IpAddr> for Net {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl From<Cidr> for Net {
    fn from(cidr: Cidr) -> Self {
        Self::Cidr(cidr)
    }
}

impl std::str::FromStr for Net {
    type Err = CidrParseError;

    /// `address` or `address/length`.
    fn from_str(text: &str) -> Result<Self, CidrParseError> {
        text.parse().map(Self::Address).or_else(|_| text.parse().map(Self::Cidr))
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Cidr(cidr) => cidr.fmt(f),
        }
    }
}

/// Ports from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// All ports from `first` to `last`; `None` if there are none.
    #[must_use]
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first > last { None } else { Some(Self { first, last }) }
    }

    /// One port.
    #[must_use]
    pub const fn single(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// The lowest port.
    #[must_use]
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The highest port.
    #[must_use]
    pub const fn last(self) -> u16 {
        self.last
    }

    /// Returns the number of `multiport` slots (of 15) that the range takes.
    const fn slots(self) -> usize {
        if self.first == self.last { 1 } else { 2 }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}:{}", self.first, self.last) }
    }
}

/// Ports that fit into one `multiport` match: never empty, at most 15 slots, where a port takes one
/// and a range two.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortList(SmallVec<[PortRange; 4]>);

impl PortList {
    /// Number of slots of one `multiport` match.
    pub const MAX_SLOTS: usize = 15;

    /// Reports whether `multiport` accepts the protocol (TCP, UDP, UDP-Lite, DCCP, SCTP).
    #[must_use]
    pub const fn accepts(protocol: Protocol) -> bool {
        matches!(protocol.number(), 6 | 17 | 33 | 132 | 136)
    }

    /// One port.
    #[must_use]
    pub fn single(port: u16) -> Self {
        Self(SmallVec::from_slice(&[PortRange::single(port)]))
    }

    /// Cuts a list of any length into matches, filling each as far as the next range fits.  The
    /// order is kept; an empty list gives no match.
    #[must_use]
    pub fn split(ports: &[PortRange]) -> Vec<Self> {
        let mut lists: Vec<Self> = Vec::new();
        let mut free = 0;
        for &range in ports {
            match lists.last_mut() {
                Some(list) if range.slots() <= free => list.0.push(range),
                _ => {
                    lists.push(Self(SmallVec::from_slice(&[range])));
                    free = Self::MAX_SLOTS;
                }
            }
            free -= range.slots();
        }
        lists
    }

    /// Returns all ports in one match, or `None` if there are none. Only nftables can hold more
    /// ports than a `multiport` match.
    #[must_use]
    pub fn unsplit(ports: &[PortRange]) -> Option<Self> {
        (!ports.is_empty()).then(|| Self(SmallVec::from_slice(ports)))
    }

    /// The ranges, in order.
    #[must_use]
    pub fn ranges(&self) -> &[PortRange] {
        &self.0
    }

    /// Reports whether the port is in one of the ranges.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.first <= port && port <= range.last)
    }
}

impl From<PortRange> for PortList {
    fn from(range: PortRange) -> Self {
        Self(SmallVec::from_slice(&[range]))
    }
}

impl fmt::Display for PortList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            write!(f, "{range}")?;
        }
        Ok(())
    }
}

/// An ICMP message type, with its code or with any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IcmpType {
    /// The type.
    pub number: u8,
    /// The code; `None` is any.
    pub code: Option<u8>,
}

impl fmt::Display for IcmpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        self.code.map_or(Ok(()), |code| write!(f, "/{code}"))
    }
}

/// A rate limit such as `10/second`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate {
    count: u16,
    per: RateUnit,
}

impl Rate {
    /// The kernel counts in steps of 1/10000 second and cannot express higher rates.
    pub const MAX_PER_SECOND: u16 = 10_000;

    /// `count` times in each `per`; `None` for 0 and for more than [`Rate::MAX_PER_SECOND`].
    #[must_use]
    pub const fn new(count: u16, per: RateUnit) -> Option<Self> {
        if count == 0 || count > Self::MAX_PER_SECOND { None } else { Some(Self { count, per }) }
    }

    /// Returns the number of events per unit of time.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.count
    }

    /// Returns the unit of time.
    #[must_use]
    pub const fn per(self) -> RateUnit {
        self.per
    }
}

impl std::str::FromStr for Rate {
    type Err = InvalidRate;

    /// `N/second`, `N/minute`, `N/hour` or `N/day`.
    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let invalid = || InvalidRate(text.to_owned());
        let (count, per) = text.split_once('/').ok_or_else(invalid)?;
        let per = match per {
            "second" => RateUnit::Second,
            "minute" => RateUnit::Minute,
            "hour" => RateUnit::Hour,
            "day" => RateUnit::Day,
            _ => return Err(invalid()),
        };
        Self::new(count.parse().map_err(|_| invalid())?, per).ok_or_else(invalid)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = match self.per {
            RateUnit::Second => "second",
            RateUnit::Minute => "minute",
            RateUnit::Hour => "hour",
            RateUnit::Day => "day",
        };
        write!(f, "{}/{per}", self.count)
    }
}

/// The time in which a [`Rate`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum RateUnit {
    Second,
    Minute,
    Hour,
    Day,
}

/// A text that is not `N/second`, `N/minute`, `N/hour` or `N/day` with N from 1 to 10000.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a rate such as 10/second")]
pub struct InvalidRate(pub String);

/// Packets per second, with a burst on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketRate {
    rate: u16,
    burst: u16,
}

impl PacketRate {
    /// The kernel's scale: neither rate nor burst can be larger.
    pub const MAX: u16 = 10_000;

    /// `rate` packets per second with a bucket of `burst` tokens; `None` unless both are from 1 to
    /// 10000.
    #[must_use]
    pub const fn new(rate: u16, burst: u16) -> Option<Self> {
        if rate == 0 || rate > Self::MAX || burst == 0 || burst > Self::MAX { None } else { Some(Self { rate, burst }) }
    }

    /// Packets per second.
    #[must_use]
    pub const fn rate(self) -> u16 {
        self.rate
    }

    /// The size of the bucket.
    #[must_use]
    pub const fn burst(self) -> u16 {
        self.burst
    }
}

impl From<PacketRate> for Rate {
    /// Returns the rate without the burst.
    #[expect(clippy::expect_used, reason = "both types have the kernel's range")]
    fn from(limit: PacketRate) -> Self {
        Self::new(limit.rate(), RateUnit::Second).expect("a packet rate is in the range of a rate")
    }
}

#[cfg(test)]
mod tests;
