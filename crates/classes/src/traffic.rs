//! Kinds of packets as readable sets.

use std::fmt;

use tortie_model::Family;

use crate::line::{Intervals, L4_END, L4Detail, at_l4_point, point_of};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const ICMP: u8 = 1;
const IPIP: u8 = 4;
const ICMPV6: u8 = 58;

/// A set of kinds of packets of one family: by protocol, and by destination port or ICMP message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Traffic {
    /// Ascending; protocols without packets in the set are left out.
    protocols: Vec<(u8, Details)>,
    /// The same for packets that are not in the set.
    missing: Vec<(u8, Details)>,
}

/// Packets of one protocol in a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "packets have nothing else that policy sees")]
pub enum Details {
    /// All.
    All,
    /// Those to these ports, ascending, both ends included.
    Ports(Vec<(u16, u16)>),
    /// These messages by type and code, ascending, both ends included.
    Icmp(Vec<((u8, u8), (u8, u8))>),
}

impl Details {
    /// Whether some packets of a protocol are in both.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ports(ours), Self::Ports(theirs)) => overlap(ours, theirs),
            (Self::Icmp(ours), Self::Icmp(theirs)) => overlap(ours, theirs),
            _ => true,
        }
    }
}

/// Reports whether two lists of inclusive ranges overlap.
fn overlap<T: Ord>(ours: &[(T, T)], theirs: &[(T, T)]) -> bool {
    ours.iter().any(|(first, last)| theirs.iter().any(|(start, end)| first <= end && start <= last))
}

/// Fields that distinguish packets of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ports,
    Icmp,
    Bare,
}

fn kind(protocol: u8) -> Kind {
    match protocol {
        TCP | UDP | SCTP => Kind::Ports,
        ICMP | ICMPV6 => Kind::Icmp,
        _ => Kind::Bare,
    }
}

/// The protocols of a family; each family has its own ICMP.
fn protocols(family: Family) -> impl Iterator<Item = u8> {
    let foreign = match family {
        Family::V4 => ICMPV6,
        Family::V6 => ICMP,
    };
    (0..=u8::MAX).filter(move |protocol| *protocol != foreign)
}

/// Returns the points of a protocol that stand for possible packets.
fn points(protocol: u8) -> (u32, u32) {
    match kind(protocol) {
        Kind::Ports => (point_of(protocol, L4Detail::Port(0)), point_of(protocol, L4Detail::Port(u16::MAX)) + 1),
        Kind::Icmp => {
            let end = L4Detail::Icmp { icmp_type: u8::MAX, code: u8::MAX };
            (point_of(protocol, L4Detail::Icmp { icmp_type: 0, code: 0 }), point_of(protocol, end) + 1)
        }
        Kind::Bare => (point_of(protocol, L4Detail::Other), point_of(protocol, L4Detail::Other) + 1),
    }
}

/// The points of all kinds of packets of a family that have ports, or that have none.
pub(crate) fn domain(family: Family, has_ports: bool) -> Intervals {
    let of_kind = protocols(family).filter(|protocol| (kind(*protocol) == Kind::Ports) == has_ports);
    Intervals::ascending(of_kind.map(points))
}

impl Traffic {
    pub(crate) fn new(family: Family, intervals: &Intervals) -> Self {
        Self { protocols: by_protocol(family, intervals), missing: by_protocol(family, &intervals.not(L4_END)) }
    }

    /// The protocols, ascending, and which of their packets are in the set.
    pub fn protocols(&self) -> impl Iterator<Item = (u8, &Details)> {
        self.protocols.iter().map(|(protocol, details)| (*protocol, details))
    }

    /// The protocols of which packets are not in the set, ascending, and which.
    pub fn missing(&self) -> impl Iterator<Item = (u8, &Details)> {
        self.missing.iter().map(|(protocol, details)| (*protocol, details))
    }

    /// Whether some packets are in both sets.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        self.protocols().any(|(protocol, details)| {
            let theirs = other.protocols.binary_search_by_key(&protocol, |(of, _)| *of);
            theirs
                .ok()
                .and_then(|place| other.protocols.get(place))
                .is_some_and(|(_, theirs)| details.intersects(theirs))
        })
    }

    /// Whether all packets are in the set.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.missing.is_empty()
    }

    /// Reports whether packets of a protocol are in the set. Packets without the port or ICMP
    /// message of their protocol are in no set.
    #[must_use]
    pub fn contains(&self, protocol: u8, detail: L4Detail) -> bool {
        let details = self.protocols().find(|(of, _)| *of == protocol).map(|(_, details)| details);
        let is_whole = || match kind(protocol) {
            Kind::Ports => matches!(detail, L4Detail::Port(_)),
            Kind::Icmp => matches!(detail, L4Detail::Icmp { .. }),
            Kind::Bare => true,
        };
        match (details, detail) {
            (Some(Details::All), _) => is_whole(),
            (Some(Details::Ports(ports)), L4Detail::Port(port)) => {
                ports.iter().any(|(first, last)| (*first..=*last).contains(&port))
            }
            (Some(Details::Icmp(messages)), L4Detail::Icmp { icmp_type, code }) => {
                messages.iter().any(|(first, last)| (*first..=*last).contains(&(icmp_type, code)))
            }
            _ => false,
        }
    }
}

fn by_protocol(family: Family, intervals: &Intervals) -> Vec<(u8, Details)> {
    let details = |protocol: u8| {
        let (start, end) = points(protocol);
        let inside: Vec<(u32, u32)> = intervals.within(start, end).collect();
        let details = match kind(protocol) {
            _ if inside.is_empty() => return None,
            _ if inside == [(start, end)] => Details::All,
            Kind::Ports => Details::Ports(inside.iter().map(|(from, to)| (port(*from), port(to - 1))).collect()),
            Kind::Icmp => Details::Icmp(inside.iter().map(|(from, to)| (message(*from), message(to - 1))).collect()),
            Kind::Bare => Details::All,
        };
        Some((protocol, details))
    };
    protocols(family).filter_map(details).collect()
}

#[expect(clippy::unreachable, reason = "the points are of a protocol with ports")]
fn port(point: u32) -> u16 {
    match at_l4_point(point).1 {
        L4Detail::Port(port) => port,
        L4Detail::Icmp { .. } | L4Detail::Other => unreachable!("point {point} is no port"),
    }
}

#[expect(clippy::unreachable, reason = "the points are of ICMP")]
fn message(point: u32) -> (u8, u8) {
    match at_l4_point(point).1 {
        L4Detail::Icmp { icmp_type, code } => (icmp_type, code),
        L4Detail::Port(_) | L4Detail::Other => unreachable!("point {point} is no message"),
    }
}

impl fmt::Display for Traffic {
    /// `TCP 80, TCP 8080-8090, UDP`; `everything`; `everything but TCP 25`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (inside, outside) = (parts(&self.protocols), parts(&self.missing));
        match outside.len() {
            0 => f.write_str("everything"),
            outside_parts if outside_parts < inside.len() => write!(f, "everything but {}", outside.join(", ")),
            _ => f.write_str(&inside.join(", ")),
        }
    }
}

fn parts(protocols: &[(u8, Details)]) -> Vec<String> {
    let bare = |(protocol, _): &&(u8, Details)| kind(*protocol) == Kind::Bare;
    // All protocols but those that have ports, and ICMP.
    let has_all_others = protocols.iter().filter(bare).count() == 256 - 5;
    let mut parts: Vec<String> = Vec::new();
    for (protocol, details) in protocols.iter().filter(|entry| !has_all_others || !bare(entry)) {
        let name = match *protocol {
            TCP => "TCP".to_owned(),
            UDP => "UDP".to_owned(),
            SCTP => "SCTP".to_owned(),
            ICMP => "ICMP".to_owned(),
            IPIP => "IP-in-IP".to_owned(),
            ICMPV6 => "ICMPv6".to_owned(),
            number => format!("protocol {number}"),
        };
        match details {
            Details::All => parts.push(name),
            Details::Ports(ports) => parts.extend(ports.iter().map(|(first, last)| match first == last {
                true => format!("{name} {first}"),
                false => format!("{name} {first}-{last}"),
            })),
            Details::Icmp(messages) => parts.extend(messages.iter().map(|messages| icmp(&name, *messages))),
        }
    }
    if has_all_others {
        parts.push("other protocols".to_owned());
    }
    parts
}

fn icmp(name: &str, ((first, first_code), (last, last_code)): ((u8, u8), (u8, u8))) -> String {
    match (first_code, last_code) {
        (0, u8::MAX) if first == last => format!("{name} type {first}"),
        (0, u8::MAX) => format!("{name} types {first}-{last}"),
        _ if (first, first_code) == (last, last_code) => format!("{name} type {first} code {first_code}"),
        _ => format!("{name} from type {first} code {first_code} to type {last} code {last_code}"),
    }
}

#[cfg(test)]
mod tests;
