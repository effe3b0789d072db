//! Members of sets, packed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

use tortie_net::Family;

use crate::spec::SetType;

#[cfg(test)]
mod tests;

/// Why something is no member, or not one of this kind of set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemberError {
    /// A prefix longer than the address.
    #[error("prefix length {prefix} is more than an {family} address has bits")]
    PrefixTooLong {
        /// The family of the address.
        family: Family,
        /// The length asked for.
        prefix: u8,
    },
    /// IPv4 bits beyond the lowest 32.
    #[error("address bits {0:#x} do not fit an IPv4 address")]
    BitsTooLarge(u128),
    /// Text that is no member of that type.
    #[error("{text:?} is no member of a {set_type} set")]
    Malformed {
        /// The type of the set.
        set_type: SetType,
        /// The text.
        text: String,
    },
    /// A member that this type of set has no room for in principle: another kind of member, a
    /// network in a set of addresses, a port out of range, or a member of no length (see the
    /// other variants for those that the kernel refuses for their value).
    #[error("{member} cannot be stored in a {set_type} set")]
    WrongKind {
        /// The type of the set.
        set_type: SetType,
        /// The member.
        member: Member,
    },
    /// `0.0.0.0` and `::` cannot be stored in sets of addresses.
    #[error("{0}: the unspecified address cannot be stored in a hash set of addresses")]
    Unspecified(Member),
    /// `hash:net,net` takes no network of length 0.
    #[error("{0}: a network of prefix length 0 cannot be stored in a hash:net,net set")]
    ZeroPrefix(Member),
}

/// A network, packed into 17 bytes; a single address is a network of full length.
///
/// Host bits are always clear, so that equal networks are equal bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Net {
    /// Big endian; an IPv4 address is in the last four.
    bits: [u8; 16],
    /// The prefix length, plus [`V4_TAG`] for IPv4.
    length: u8,
}

/// Larger than any IPv6 prefix length.
const V4_TAG: u8 = 192;

impl Net {
    /// A network from its address bits (IPv4: the lowest 32) and prefix length; host bits are
    /// cleared.
    ///
    /// # Errors
    /// A prefix longer than the address, or IPv4 bits beyond 32.
    pub fn new(family: Family, bits: u128, prefix: u8) -> Result<Self, MemberError> {
        if prefix > family.max_prefix_len() {
            return Err(MemberError::PrefixTooLong { family, prefix });
        }
        if family == Family::V4 && bits > u128::from(u32::MAX) {
            return Err(MemberError::BitsTooLarge(bits));
        }
        Ok(Self::masked(family, bits, prefix))
    }

    fn masked(family: Family, bits: u128, prefix: u8) -> Self {
        let host_bits = u32::from(family.max_prefix_len() - prefix);
        let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
        let tag = match family {
            Family::V4 => V4_TAG,
            Family::V6 => 0,
        };
        Self { bits: (bits & mask).to_be_bytes(), length: prefix + tag }
    }

    /// A single address.
    #[must_use]
    pub fn host(addr: IpAddr) -> Self {
        let (family, bits) = match addr {
            IpAddr::V4(addr) => (Family::V4, u128::from(addr.to_bits())),
            IpAddr::V6(addr) => (Family::V6, addr.to_bits()),
        };
        Self::masked(family, bits, family.max_prefix_len())
    }

    /// The family.
    #[must_use]
    pub const fn family(&self) -> Family {
        if self.length >= V4_TAG { Family::V4 } else { Family::V6 }
    }

    /// The prefix length.
    #[must_use]
    pub const fn prefix(&self) -> u8 {
        match self.family() {
            Family::V4 => self.length - V4_TAG,
            Family::V6 => self.length,
        }
    }

    /// The address bits; those of IPv4 are the lowest 32.
    #[must_use]
    pub const fn bits(&self) -> u128 {
        u128::from_be_bytes(self.bits)
    }

    /// The network address.
    #[must_use]
    pub fn addr(&self) -> IpAddr {
        addr_from(self.family(), self.bits)
    }

    /// Whether this is a single address.
    #[must_use]
    pub const fn is_host(&self) -> bool {
        self.prefix() == self.family().max_prefix_len()
    }

    /// The two networks of one bit more, if this is the whole address space.
    pub(crate) fn halves(&self) -> Option<[Self; 2]> {
        let family = self.family();
        let top = 1 << (family.max_prefix_len() - 1);
        (self.prefix() == 0).then(|| [0, top].map(|bits| Self::masked(family, bits, 1)))
    }

    fn parse(text: &str) -> Option<Self> {
        if text.contains('/') {
            IpNet::from_str(text).ok().map(Self::from)
        } else {
            IpAddr::from_str(text).ok().map(Self::host)
        }
    }
}

fn addr_from(family: Family, bits: [u8; 16]) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(bits[12], bits[13], bits[14], bits[15]).into(),
        Family::V6 => Ipv6Addr::from(bits).into(),
    }
}

impl From<IpAddr> for Net {
    fn from(addr: IpAddr) -> Self {
        Self::host(addr)
    }
}

impl From<IpNet> for Net {
    fn from(net: IpNet) -> Self {
        let host = Self::host(net.addr());
        Self::masked(host.family(), host.bits(), net.prefix_len())
    }
}

/// As `ipset list` prints it: a single address has no suffix.
impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.addr().fmt(f)?;
        if self.is_host() {
            return Ok(());
        }
        write!(f, "/{}", self.prefix())
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Net({self})")
    }
}

/// The protocols that named ports and services can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// ipset's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|protocol| text.eq_ignore_ascii_case(protocol.as_str()))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An address, protocol and port, packed into 20 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpPort {
    bits: [u8; 16],
    family: Family,
    protocol: Protocol,
    port: [u8; 2],
}

impl IpPort {
    /// From its parts.
    #[must_use]
    pub fn new(addr: IpAddr, protocol: Protocol, port: u16) -> Self {
        let host = Net::host(addr);
        Self { bits: host.bits, family: host.family(), protocol, port: port.to_be_bytes() }
    }

    /// The family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// The address.
    #[must_use]
    pub fn addr(&self) -> IpAddr {
        addr_from(self.family, self.bits)
    }

    /// The protocol.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        u16::from_be_bytes(self.port)
    }
}

impl fmt::Display for IpPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.addr().fmt(f)?;
        write!(f, ",{}:{}", self.protocol, self.port())
    }
}

impl fmt::Debug for IpPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IpPort({self})")
    }
}

/// A pair of networks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetPair(Net, Net);

impl NetPair {
    /// From its parts.
    #[must_use]
    pub const fn new(first: Net, second: Net) -> Self {
        Self(first, second)
    }

    /// The first network.
    #[must_use]
    pub const fn first(&self) -> Net {
        self.0
    }

    /// The second network.
    #[must_use]
    pub const fn second(&self) -> Net {
        self.1
    }
}

impl fmt::Display for NetPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.0, self.1)
    }
}

impl fmt::Debug for NetPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetPair({self})")
    }
}

/// A member of a set, in canonical form: what is equal to the kernel is equal here.
///
/// Members are values, never text: ipset asks the name service about any text that it does not
/// recognise, so no unchecked text may reach it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Member {
    /// An address or network, for `hash:ip` (addresses only) and `hash:net`.
    Net(Net),
    /// For `hash:ip,port`.
    IpPort(IpPort),
    /// For `hash:net,net`.
    NetPair(NetPair),
    /// For `bitmap:port`.
    Port(u16),
}

impl Member {
    /// A network from its address bits (IPv4: the lowest 32) and prefix length; host bits are
    /// cleared. A single address is one of full length.
    ///
    /// # Errors
    /// See [`Net::new`].
    pub fn net(family: Family, bits: u128, prefix: u8) -> Result<Self, MemberError> {
        Net::new(family, bits, prefix).map(Self::Net)
    }

    /// An address, protocol and port.
    #[must_use]
    pub fn ip_port(addr: IpAddr, protocol: Protocol, port: u16) -> Self {
        Self::IpPort(IpPort::new(addr, protocol, port))
    }

    /// The family; ports have none.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        match self {
            Self::Net(net) => Some(net.family()),
            Self::IpPort(ip_port) => Some(ip_port.family()),
            Self::NetPair(pair) => Some(pair.first().family()),
            Self::Port(_) => None,
        }
    }

    /// Reads a member as datastores and `ipset list` write it: `10.0.0.1`, `10.0.0.0/8` (for
    /// `hash:ip` the length is dropped), `10.0.0.1,tcp:80`, `10.0.0.0/8,10.1.0.0/16`, `80`, `v4,80`.
    ///
    /// `None` is a member of the other family.
    ///
    /// # Errors
    /// Text that is no member of that type, and members that the kernel refuses.
    pub fn parse(set_type: SetType, family: Family, text: &str) -> Result<Option<Self>, MemberError> {
        let malformed = || MemberError::Malformed { set_type, text: text.to_owned() };
        let member = match set_type {
            SetType::HashIp => {
                let (addr, _length) = match text.split_once('/') {
                    Some((addr, _)) => (addr, Net::parse(text).ok_or_else(malformed)?),
                    None => (text, Net::parse(text).ok_or_else(malformed)?),
                };
                Self::Net(Net::parse(addr).ok_or_else(malformed)?)
            }
            SetType::HashNet => Self::Net(Net::parse(text).ok_or_else(malformed)?),
            SetType::HashIpPort => Self::IpPort(parse_ip_port(text).ok_or_else(malformed)?),
            SetType::HashNetNet => Self::NetPair(parse_net_pair(text).ok_or_else(malformed)?),
            SetType::BitmapPort => {
                let (of, port) = match text.split_once(',') {
                    Some(("v4", port)) => (family == Family::V4, port),
                    Some(("v6", port)) => (family == Family::V6, port),
                    _ => (true, text),
                };
                let port = parse_port(port).ok_or_else(malformed)?;
                return Ok(of.then_some(Self::Port(port)));
            }
        };
        if member.family().is_some_and(|f| f != family) {
            return Ok(None);
        }
        member.check(set_type)?;
        Ok(Some(member))
    }

    /// Whether the kernel takes this member into a set of that type.
    ///
    /// `hash:net` refuses networks of length 0 as well, but those are accepted here, since
    /// [`IpSets`](crate::IpSets) stores each as its two halves.
    pub(crate) fn check(&self, set_type: SetType) -> Result<(), MemberError> {
        match (set_type, self) {
            (SetType::HashIp, Self::Net(net)) if net.is_host() => {
                if net.addr().is_unspecified() {
                    return Err(MemberError::Unspecified(*self));
                }
            }
            (SetType::HashIpPort, Self::IpPort(ip_port)) => {
                if ip_port.addr().is_unspecified() {
                    return Err(MemberError::Unspecified(*self));
                }
            }
            (SetType::HashNetNet, Self::NetPair(NetPair(a, b))) if a.family() == b.family() => {
                if a.prefix() == 0 || b.prefix() == 0 {
                    return Err(MemberError::ZeroPrefix(*self));
                }
            }
            (SetType::HashNet, Self::Net(_)) | (SetType::BitmapPort, Self::Port(_)) => {}
            _ => {
                return Err(MemberError::WrongKind { set_type, member: *self });
            }
        }
        Ok(())
    }
}

fn parse_ip_port(text: &str) -> Option<IpPort> {
    let (addr, rest) = text.split_once(',')?;
    let (protocol, port) = rest.split_once(':')?;
    let addr = Net::parse(addr).filter(Net::is_host)?.addr();
    Some(IpPort::new(addr, Protocol::parse(protocol)?, parse_port(port)?))
}

fn parse_net_pair(text: &str) -> Option<NetPair> {
    let (first, second) = text.split_once(',')?;
    let pair = NetPair(Net::parse(first)?, Net::parse(second)?);
    (pair.0.family() == pair.1.family()).then_some(pair)
}

/// `u16::from_str` would take a sign.
fn parse_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

impl From<IpAddr> for Member {
    fn from(addr: IpAddr) -> Self {
        Self::Net(addr.into())
    }
}

impl From<IpNet> for Member {
    fn from(net: IpNet) -> Self {
        Self::Net(net.into())
    }
}

impl From<Net> for Member {
    fn from(net: Net) -> Self {
        Self::Net(net)
    }
}

impl From<IpPort> for Member {
    fn from(ip_port: IpPort) -> Self {
        Self::IpPort(ip_port)
    }
}

/// In canonical form, as `ipset list` prints it.
impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) => net.fmt(f),
            Self::IpPort(ip_port) => ip_port.fmt(f),
            Self::NetPair(pair) => pair.fmt(f),
            Self::Port(port) => port.fmt(f),
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({self})")
    }
}
