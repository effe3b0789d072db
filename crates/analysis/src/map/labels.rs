//! Short labels of packets for the edges of a picture.

use tortie_classes::{Details, Passing, Traffic};

/// Number of listed ports of a protocol; further ones are only counted.
const PORTS: usize = 6;

/// First and last source port; `None` means all.
type SourcePorts = Option<(u16, u16)>;

/// A set of all protocols has more than this number.
const FEW_PROTOCOLS: usize = 10;
/// Largest number of distinguished port ranges between two nodes.
const PARTS: usize = 64;

/// Packets that are not divided further.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Packets without a short list: `all`, `all but tcp 25`.
    Text(String),
    /// A protocol, or one range of its ports or messages.
    Listed { source_ports: SourcePorts, protocol: u8, details: Details },
}

impl Part {
    /// Reports whether some of its packets may be among this traffic.
    pub(crate) fn is_in(&self, traffic: &Traffic, from: Option<(u16, u16)>) -> bool {
        let Self::Listed { source_ports, protocol, details } = self else { return true };
        let ports = |ports: Option<(u16, u16)>| ports.unwrap_or((0, u16::MAX));
        let ((first, last), (start, end)) = (ports(*source_ports), ports(from));
        first <= end
            && start <= last
            && traffic.protocols().any(|(of, others)| of == *protocol && others.intersects(details))
    }
}

/// Returns the passing packets, divided as far as possible.
pub(crate) fn parts(passing: &[Passing], unrestricted: &Traffic) -> Vec<Part> {
    let mut parts = Vec::new();
    for kind in passing {
        match traffic(&kind.traffic, unrestricted, false) {
            TrafficText::All(text) => {
                parts.push(Part::Text(text + &from_ports(kind.source_ports)));
            }
            TrafficText::Listed(_) => {
                for (protocol, details) in kind.traffic.protocols() {
                    let part = |details| Part::Listed { source_ports: kind.source_ports, protocol, details };
                    match details {
                        Details::All => parts.push(part(Details::All)),
                        Details::Ports(ports) => {
                            parts.extend(ports.iter().map(|ports| part(Details::Ports(vec![*ports]))));
                        }
                        Details::Icmp(messages) => {
                            parts.extend(messages.iter().map(|messages| part(Details::Icmp(vec![*messages]))));
                        }
                    }
                }
            }
        }
    }
    if parts.len() > PARTS {
        return vec![Part::Text(label(passing, unrestricted, false))];
    }
    parts
}

/// Returns the label of some parts, in order.
pub(crate) fn label_of(parts: &[Part]) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut together: Vec<(SourcePorts, u8, Details)> = Vec::new();
    for part in parts {
        match part {
            Part::Text(text) => words.push(text.clone()),
            Part::Listed { source_ports, protocol, details } => match (together.last_mut(), details) {
                (Some((from, of, Details::Ports(known))), Details::Ports(ports))
                    if (*from, *of) == (*source_ports, *protocol) =>
                {
                    known.extend(ports);
                }
                (Some((from, of, Details::Icmp(known))), Details::Icmp(messages))
                    if (*from, *of) == (*source_ports, *protocol) =>
                {
                    known.extend(messages);
                }
                _ => together.push((*source_ports, *protocol, details.clone())),
            },
        }
    }
    let listed = together
        .iter()
        .filter_map(|(from, protocol, details)| Some(part(*protocol, details, true)? + &from_ports(*from)));
    words.extend(listed);
    words.join("; ")
}

/// Returns `tcp 80,443; udp 53`, `all` or `all but tcp 25`; empty if no packets pass. Packets that
/// never leave pods count as passing.
pub(crate) fn label(passing: &[Passing], unrestricted: &Traffic, few: bool) -> String {
    let parts: Vec<String> = passing
        .iter()
        .map(|kind| {
            let (TrafficText::All(text) | TrafficText::Listed(text)) = traffic(&kind.traffic, unrestricted, few);
            text + &from_ports(kind.source_ports)
        })
        .collect();
    parts.join("; ")
}

fn from_ports(ports: Option<(u16, u16)>) -> String {
    ports.map(|(first, last)| format!(" from ports {first}-{last}")).unwrap_or_default()
}

/// Reports whether all packets in question pass that ever leave pods.
pub(crate) fn is_everything(passing: &[Passing], unrestricted: &Traffic) -> bool {
    let is_whole =
        |kind: &Passing| kind.source_ports.is_none() && missing(&kind.traffic, unrestricted).next().is_none();
    passing.iter().any(is_whole)
}

/// Returns the packets outside the set, except those that never leave pods.
fn missing<'a>(traffic: &'a Traffic, unrestricted: &'a Traffic) -> impl Iterator<Item = (u8, Details)> + 'a {
    traffic.missing().filter_map(|(protocol, details)| {
        let never = unrestricted.missing().find(|(of, _)| *of == protocol).map(|(_, details)| details);
        Some((protocol, without(details, never)?))
    })
}

/// Packets as text: all, possibly with exceptions, or a list.
enum TrafficText {
    All(String),
    Listed(String),
}

fn traffic(traffic: &Traffic, unrestricted: &Traffic, few: bool) -> TrafficText {
    let missing: Vec<String> =
        missing(traffic, unrestricted).filter_map(|(protocol, details)| part(protocol, &details, few)).collect();
    // With few protocols, the question is limited to some ports, which are listed.
    if missing.is_empty() && unrestricted.protocols().count() > FEW_PROTOCOLS {
        return TrafficText::All("all".to_owned());
    }
    let inside: Vec<String> =
        traffic.protocols().filter_map(|(protocol, details)| part(protocol, details, few)).collect();
    if !missing.is_empty() && missing.len() < inside.len() {
        TrafficText::All(format!("all but {}", missing.join("; ")))
    } else {
        TrafficText::Listed(inside.join("; "))
    }
}

/// Returns the packets except those that never leave pods.
fn without(details: &Details, never: Option<&Details>) -> Option<Details> {
    match (details, never) {
        (_, Some(Details::All)) => None,
        (Details::Ports(ports), Some(Details::Ports(never))) => {
            let ports: Vec<(u16, u16)> = ports.iter().copied().filter(|ports| !never.contains(ports)).collect();
            (!ports.is_empty()).then_some(Details::Ports(ports))
        }
        _ => Some(details.clone()),
    }
}

fn part(protocol: u8, details: &Details, few: bool) -> Option<String> {
    let name = match protocol {
        1 => "icmp".to_owned(),
        4 => "ip-in-ip".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        132 => "sctp".to_owned(),
        number => format!("protocol {number}"),
    };
    let stretches: Vec<String> = match details {
        Details::All => return Some(name),
        Details::Ports(ports) => ports.iter().map(stretch).collect(),
        Details::Icmp(messages) => messages
            .iter()
            .map(|((first, code), (last, last_code))| match (*code, *last_code) {
                (0, u8::MAX) => format!("type {}", stretch(&(*first, *last))),
                _ if (first, code) == (last, last_code) => format!("type {first} code {code}"),
                _ => format!("type {first} code {code} to type {last} code {last_code}"),
            })
            .collect(),
    };
    let shown = if few { PORTS } else { stretches.len() };
    let mut text = format!("{name} {}", stretches.iter().take(shown).cloned().collect::<Vec<_>>().join(","));
    if let Some(more) = stretches.len().checked_sub(shown).filter(|more| *more > 0) {
        text += &format!(" and {more} more");
    }
    Some(text)
}

fn stretch<T: PartialEq + std::fmt::Display>((first, last): &(T, T)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}
