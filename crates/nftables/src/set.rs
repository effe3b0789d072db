//! Sets of addresses: their members, and the elements that the kernel gets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tortie_net::{Cidr, Family, InterfaceName, PortProtocol, Protocol};
use tortie_netfilter::{MapKey, MapKind, Member, SetType};

/// Type of a set's elements, by `nft`'s names (`felix/nftables/ipsets.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKind {
    /// Addresses.
    Addresses,
    /// Networks, stored as intervals.
    Networks,
    /// An address, a protocol and a port together.
    AddressPorts,
    /// Pairs of addresses.
    AddressPairs,
    /// The name of an interface and an address together.
    InterfaceAddresses,
    /// Ports.
    Ports,
    /// Addresses with token buckets: at most 65,535, which rules add, and the kernel removes after
    /// 10 s without a packet.
    Buckets,
}

/// Maximum number of token buckets of a set. Packets to further addresses are within any rate.
pub(crate) const BUCKETS: u32 = 65_535;
/// Time after which the kernel removes a token bucket that no packet has used.
pub(crate) const BUCKET_LIFETIME: Duration = Duration::from_secs(10);

impl SetKind {
    /// Returns the kind of set for the members of an IP set of this type.
    #[must_use]
    pub const fn of(set_type: SetType) -> Self {
        match set_type {
            SetType::HashIp => Self::Addresses,
            SetType::HashNet => Self::Networks,
            SetType::HashIpPort => Self::AddressPorts,
            SetType::HashNetNet => Self::AddressPairs,
            SetType::HashNetIface => Self::InterfaceAddresses,
            SetType::BitmapPort => Self::Ports,
        }
    }

    /// Returns the declaration behind `add set … NAME`.
    #[must_use]
    pub const fn declaration(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Addresses, Family::V4) => "{ type ipv4_addr ; }",
            (Self::Addresses, Family::V6) => "{ type ipv6_addr ; }",
            (Self::Networks, Family::V4) => "{ type ipv4_addr ; flags interval ; }",
            (Self::Networks, Family::V6) => "{ type ipv6_addr ; flags interval ; }",
            (Self::AddressPorts, Family::V4) => "{ type ipv4_addr . inet_proto . inet_service ; }",
            (Self::AddressPorts, Family::V6) => "{ type ipv6_addr . inet_proto . inet_service ; }",
            (Self::AddressPairs, Family::V4) => "{ type ipv4_addr . ipv4_addr ; }",
            (Self::AddressPairs, Family::V6) => "{ type ipv6_addr . ipv6_addr ; }",
            (Self::InterfaceAddresses, Family::V4) => "{ type ifname . ipv4_addr ; }",
            (Self::InterfaceAddresses, Family::V6) => "{ type ifname . ipv6_addr ; }",
            (Self::Ports, _) => "{ type inet_service ; }",
            (Self::Buckets, Family::V4) => "{ type ipv4_addr ; size 65535 ; flags dynamic,timeout ; timeout 10s ; }",
            (Self::Buckets, Family::V6) => "{ type ipv6_addr ; size 65535 ; flags dynamic,timeout ; timeout 10s ; }",
        }
    }

    /// Reports whether a set of this kind can have the member.
    #[must_use]
    pub fn takes(self, member: &Member) -> bool {
        match (self, member) {
            (Self::Addresses, Member::Net(net)) => net.cidr().is_host(),
            (Self::AddressPairs, Member::NetPair(pair)) => {
                pair.first().cidr().is_host() && pair.second().cidr().is_host()
            }
            (Self::Networks, Member::Net(_))
            | (Self::AddressPorts, Member::IpPort(_))
            | (Self::Ports, Member::Port(_)) => true,
            _ => false,
        }
    }
}

/// A member in `nft` syntax.
#[derive(Clone, Copy, Debug)]
pub struct ElementText<'a>(pub SetKind, pub &'a Member);

impl fmt::Display for ElementText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (SetKind::Networks, Member::Net(net)) => {
                write!(f, "{}/{}", net.cidr().address(), net.cidr().prefix_len())
            }
            (_, Member::Net(net)) => net.cidr().address().fmt(f),
            (_, Member::IpPort(member)) => {
                let protocol = member.protocol().as_str();
                write!(f, "{} . {protocol} . {}", member.address(), member.port())
            }
            (_, Member::NetPair(pair)) => {
                write!(f, "{} . {}", pair.first().cidr().address(), pair.second().cidr().address())
            }
            (_, Member::Port(port)) => port.fmt(f),
        }
    }
}

/// An element of a set in the kernel, by its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    len: u8,
    bytes: [u8; 32],
}

impl Key {
    /// Of parts that have 32 bytes at most, with their padding.
    #[expect(clippy::expect_used, reason = "the longest key is two IPv6 addresses")]
    fn new(parts: &[&[u8]]) -> Self {
        let mut key = Self { len: 0, bytes: [0; 32] };
        for part in parts {
            // Parts of a concatenation begin at multiples of four.
            let begin = usize::from(key.len);
            let end = begin + part.len();
            key.bytes.get_mut(begin..end).expect("a key has 32 bytes at most").copy_from_slice(part);
            let padded = if parts.len() > 1 { end.next_multiple_of(4) } else { end };
            key.len = u8::try_from(padded).expect("a key has 32 bytes at most");
        }
        key
    }

    /// Returns a key from the kernel's bytes; bytes beyond 32 are cut off.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::new(&[bytes.get(..32).unwrap_or(bytes)])
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.split_at(usize::from(self.len)).0
    }
}

/// Returns a map's key in the kernel's form.
pub(crate) fn map_key_bytes(key: MapKey) -> Vec<u8> {
    match key {
        MapKey::Interface(name) => {
            let mut bytes = name.as_str().as_bytes().to_vec();
            bytes.resize(16, 0);
            bytes
        }
        MapKey::Mark(mark) => mark.to_ne_bytes().to_vec(),
        MapKey::Port(protocol, port) => {
            let [high, low] = port.to_be_bytes();
            vec![protocol_number(protocol), 0, 0, 0, high, low, 0, 0]
        }
        MapKey::Address(IpAddr::V4(address)) => address.octets().to_vec(),
        MapKey::Address(IpAddr::V6(address)) => address.octets().to_vec(),
    }
}

/// Returns the key with this form in the kernel; `None` if no key of this kind has it.
pub(crate) fn map_key(kind: MapKind, bytes: &[u8]) -> Option<MapKey> {
    match kind {
        MapKind::Interface => {
            let name = bytes.split(|byte| *byte == 0).next().and_then(|name| std::str::from_utf8(name).ok())?;
            InterfaceName::new(name).ok().map(MapKey::Interface)
        }
        MapKind::Mark => bytes.try_into().ok().map(u32::from_ne_bytes).map(MapKey::Mark),
        MapKind::Port => {
            let [number, 0, 0, 0, high, low, 0, 0] = *bytes else { return None };
            let protocol = PortProtocol::ALL.into_iter().find(|protocol| protocol_number(*protocol) == number)?;
            Some(MapKey::Port(protocol, u16::from_be_bytes([high, low])))
        }
        MapKind::Address => {
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(MapKey::Address)
        }
    }
}

fn octets(address: IpAddr, with: impl FnOnce(&[u8]) -> Key) -> Key {
    match address {
        IpAddr::V4(address) => with(&address.octets()),
        IpAddr::V6(address) => with(&address.octets()),
    }
}

/// Returns the element for a member in a set of this kind: its key, and in a set of networks the
/// first key behind it, if there is one.
#[must_use]
pub fn element(kind: SetKind, member: &Member) -> (Key, Option<Key>) {
    let single = |address| octets(address, |bytes| Key::new(&[bytes]));
    match member {
        Member::Net(net) => {
            // Other sets refuse an interval end.
            let end = behind(net.cidr()).filter(|_| kind == SetKind::Networks);
            (single(net.cidr().masked().address()), end.map(single))
        }
        Member::IpPort(member) => {
            let (protocol, port) = ([protocol_number(member.protocol())], member.port().to_be_bytes());
            (octets(member.address(), |bytes| Key::new(&[bytes, &protocol, &port])), None)
        }
        Member::NetPair(pair) => {
            let second = pair.second().cidr().address();
            let key =
                octets(pair.first().cidr().address(), |first| octets(second, |second| Key::new(&[first, second])));
            (key, None)
        }
        Member::Port(port) => (Key::new(&[&port.to_be_bytes()]), None),
    }
}

pub(crate) const fn protocol_number(protocol: PortProtocol) -> u8 {
    match protocol {
        PortProtocol::Tcp => Protocol::TCP.number(),
        PortProtocol::Udp => Protocol::UDP.number(),
        PortProtocol::Sctp => Protocol::SCTP.number(),
    }
}

/// The first address behind a network; `None` behind the last of all.
fn behind(net: Cidr) -> Option<IpAddr> {
    let host_bits = u32::from(net.family().max_prefix_len() - net.prefix_len());
    match net.masked().address() {
        IpAddr::V4(address) => {
            let step = 1_u32.checked_shl(host_bits)?;
            u32::from(address).checked_add(step).map(|address| IpAddr::V4(address.into()))
        }
        IpAddr::V6(address) => {
            let step = 1_u128.checked_shl(host_bits)?;
            u128::from(address).checked_add(step).map(|address| IpAddr::V6(address.into()))
        }
    }
}

/// Networks. The kernel gets only those that no other contains, since a set of intervals refuses
/// overlaps.
///
/// Two networks are either disjoint, or one contains the other. So a change affects only the
/// networks inside the changed one: its cost is proportional to the networks that it covers or
/// uncovers.
#[derive(Clone, Debug, Default)]
pub struct Networks {
    /// By first address, larger ones before those inside of them.
    all: BTreeSet<Ordered>,
    /// Number of networks of each length.
    lengths: BTreeMap<u8, usize>,
}

/// Orders a network directly before all that it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ordered(Family, IpAddr, u8);

impl Ordered {
    fn new(net: Cidr) -> Self {
        Self(net.family(), net.masked().address(), net.prefix_len())
    }

    fn cidr(self) -> Option<Cidr> {
        Cidr::new(self.1, self.2)
    }
}

/// Change of the kernel's elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkChange {
    /// Networks to remove.
    pub removed: Vec<Cidr>,
    /// Networks to add.
    pub added: Vec<Cidr>,
}

impl Networks {
    /// Adds a network.
    pub fn insert(&mut self, net: Cidr) -> NetworkChange {
        let net = net.masked();
        if !self.all.insert(Ordered::new(net)) {
            return NetworkChange::default();
        }
        *self.lengths.entry(net.prefix_len()).or_default() += 1;
        if self.is_covered(net) {
            return NetworkChange::default();
        }
        NetworkChange { removed: self.tops_inside(net), added: vec![net] }
    }

    /// Removes a network.
    pub fn remove(&mut self, net: Cidr) -> NetworkChange {
        let net = net.masked();
        if !self.all.remove(&Ordered::new(net)) {
            return NetworkChange::default();
        }
        if let Some(count) = self.lengths.get_mut(&net.prefix_len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&net.prefix_len());
            }
        }
        if self.is_covered(net) {
            return NetworkChange::default();
        }
        NetworkChange { removed: vec![net], added: self.tops_inside(net) }
    }

    /// Returns whether the set contains this network.
    #[must_use]
    pub fn has(&self, net: Cidr) -> bool {
        self.all.contains(&Ordered::new(net.masked()))
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.all.iter().filter_map(|net| net.cidr())
    }

    /// Reports whether the kernel gets this network.
    #[must_use]
    pub fn is_effective(&self, net: Cidr) -> bool {
        let net = net.masked();
        self.all.contains(&Ordered::new(net)) && !self.is_covered(net)
    }

    /// Returns the networks that the kernel gets.
    pub fn effective(&self) -> impl Iterator<Item = Cidr> + '_ {
        let mut last: Option<Cidr> = None;
        self.all.iter().filter_map(|net| net.cidr()).filter(move |net| {
            let is_inside = last.is_some_and(|last| has_inside(last, *net));
            if !is_inside {
                last = Some(*net);
            }
            !is_inside
        })
    }

    /// Reports whether another network contains this one.
    fn is_covered(&self, net: Cidr) -> bool {
        self.lengths.range(..net.prefix_len()).any(|(len, _)| {
            Cidr::new(net.address(), *len).is_some_and(|larger| self.all.contains(&Ordered::new(larger)))
        })
    }

    /// The largest networks that are inside of one, without itself.
    fn tops_inside(&self, net: Cidr) -> Vec<Cidr> {
        let from = (std::ops::Bound::Excluded(Ordered::new(net)), std::ops::Bound::Unbounded);
        let mut tops: Vec<Cidr> = Vec::new();
        let inside = self.all.range(from).map_while(|inner| inner.cidr().filter(|inner| has_inside(net, *inner)));
        for inner in inside {
            if tops.last().is_none_or(|top| !has_inside(*top, inner)) {
                tops.push(inner);
            }
        }
        tops
    }
}

fn has_inside(outer: Cidr, inner: Cidr) -> bool {
    outer.prefix_len() <= inner.prefix_len() && outer.contains(inner.address())
}

#[cfg(test)]
mod tests;
