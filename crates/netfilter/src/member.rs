//! Members of sets, packed.

use std::fmt;
use std::net::IpAddr;

use thiserror::Error;
use tortie_net::{Cidr, Family, IpPortMember, PortProtocol};

use crate::set_type::SetType;

#[cfg(test)]
mod tests;

/// Reason why a text is no member, or a member does not fit this kind of set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemberError {
    /// Text that is no member of that type.
    #[error("{text:?} is no member of a {set_type} set")]
    Malformed {
        /// The type of the set.
        set_type: SetType,
        /// The text.
        text: String,
    },
    /// A member of another kind than the set holds, such as a network in a set of addresses, or a
    /// pair of both families. The other variants are members that the kernel refuses for their
    /// value.
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
    /// `hash:net,net` accepts no network of length 0.
    #[error("{0}: a network of prefix length 0 cannot be stored in a hash:net,net set")]
    ZeroPrefix(Member),
}

/// A network as a member of a set: host bits are clear, so that equal networks are equal members. A
/// single address is a network of full length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetMember(Cidr);

impl NetMember {
    /// The network.
    #[must_use]
    pub const fn cidr(&self) -> Cidr {
        self.0
    }

    fn parse(text: &str) -> Option<Self> {
        // As the kernel prints it: an IPv4-mapped address in an IPv6 set is IPv6, unlike in user
        // input.
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().ok()?;
        let net = match length {
            None => Cidr::host(address),
            Some(length) => {
                let is_plain = length.bytes().all(|byte| byte.is_ascii_digit());
                Cidr::new(address, is_plain.then(|| length.parse().ok())??)?
            }
        };
        Some(net.into())
    }
}

impl From<Cidr> for NetMember {
    fn from(cidr: Cidr) -> Self {
        Self(cidr.masked())
    }
}

impl fmt::Display for NetMember {
    /// As `ipset list` prints it: a single address has no suffix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_host() { self.0.address().fmt(f) } else { self.0.fmt(f) }
    }
}

impl fmt::Debug for NetMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetMember({self})")
    }
}

/// A pair of networks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetPair(NetMember, NetMember);

impl NetPair {
    /// From its parts.
    #[must_use]
    pub const fn new(first: NetMember, second: NetMember) -> Self {
        Self(first, second)
    }

    /// The first network.
    #[must_use]
    pub const fn first(&self) -> NetMember {
        self.0
    }

    /// The second network.
    #[must_use]
    pub const fn second(&self) -> NetMember {
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

/// Member of a set in canonical form: members that are equal to the kernel are equal here.
///
/// Members are values, never text: ipset sends to the name service any text that it does not
/// recognise, so no unchecked text may reach it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// An address or network, for `hash:ip` (addresses only) and `hash:net`.
    Net(NetMember),
    /// For `hash:ip,port`.
    IpPort(IpPortMember),
    /// For `hash:net,net`.
    NetPair(NetPair),
    /// For `bitmap:port`.
    Port(u16),
}

impl Member {
    /// The family; ports have none.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        match self {
            Self::Net(net) => Some(net.0.family()),
            Self::IpPort(ip_port) => Some(Family::of(ip_port.address())),
            Self::NetPair(pair) => Some(pair.0.0.family()),
            Self::Port(_) => None,
        }
    }

    /// Reads a member as datastores and `ipset list` write it: `10.0.0.1`, `10.0.0.0/8` (for
    /// `hash:ip` the length is dropped), `10.0.0.1,tcp:80`, `10.0.0.0/8,10.1.0.0/16`, `80`,
    /// `v4,80`.
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
                    Some((addr, _)) => (addr, NetMember::parse(text).ok_or_else(malformed)?),
                    None => (text, NetMember::parse(text).ok_or_else(malformed)?),
                };
                Self::Net(NetMember::parse(addr).ok_or_else(malformed)?)
            }
            SetType::HashNet => Self::Net(NetMember::parse(text).ok_or_else(malformed)?),
            SetType::HashIpPort => Self::IpPort(parse_ip_port(text).ok_or_else(malformed)?),
            SetType::HashNetNet => Self::NetPair(parse_net_pair(text).ok_or_else(malformed)?),
            // Another program keeps their members.
            SetType::HashNetIface => return Err(malformed()),
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

    /// Checks that the kernel accepts this member in a set of that type.
    ///
    /// `hash:net` refuses networks of length 0 as well, but those are accepted here, since
    /// `IpSets` of `tortie-ipsets` stores each as its two halves.
    ///
    /// # Errors
    /// [`MemberError`] if it does not.
    pub fn check(&self, set_type: SetType) -> Result<(), MemberError> {
        match (set_type, self) {
            (SetType::HashIp, Self::Net(net)) if net.0.is_host() => {
                if net.0.address().is_unspecified() {
                    return Err(MemberError::Unspecified(*self));
                }
            }
            (SetType::HashIpPort, Self::IpPort(ip_port)) => {
                if ip_port.address().is_unspecified() {
                    return Err(MemberError::Unspecified(*self));
                }
            }
            (SetType::HashNetNet, Self::NetPair(NetPair(a, b))) if a.0.family() == b.0.family() => {
                if a.0.prefix_len() == 0 || b.0.prefix_len() == 0 {
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

fn parse_ip_port(text: &str) -> Option<IpPortMember> {
    let (addr, rest) = text.split_once(',')?;
    let (protocol, port) = rest.split_once(':')?;
    let addr = NetMember::parse(addr)?.0;
    let addr = addr.is_host().then(|| addr.address())?;
    let protocol = PortProtocol::ALL.into_iter().find(|known| protocol.eq_ignore_ascii_case(known.as_str()))?;
    Some(IpPortMember::new(addr, protocol, parse_port(port)?))
}

fn parse_net_pair(text: &str) -> Option<NetPair> {
    let (first, second) = text.split_once(',')?;
    let pair = NetPair(NetMember::parse(first)?, NetMember::parse(second)?);
    (pair.0.0.family() == pair.1.0.family()).then_some(pair)
}

/// `u16::from_str` would take a sign.
fn parse_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

impl From<IpAddr> for Member {
    fn from(addr: IpAddr) -> Self {
        Cidr::host(addr).into()
    }
}

impl From<Cidr> for Member {
    fn from(cidr: Cidr) -> Self {
        Self::Net(cidr.into())
    }
}

impl From<NetMember> for Member {
    fn from(net: NetMember) -> Self {
        Self::Net(net)
    }
}

impl From<IpPortMember> for Member {
    fn from(ip_port: IpPortMember) -> Self {
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
