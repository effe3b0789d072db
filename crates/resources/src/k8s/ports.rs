//! The port lists of Kubernetes network policies.

use std::collections::BTreeMap;

use tortie_model::{NamedProtocol, PortSpec};

use crate::tree::{Content, Cursor, Sink};

/// Ports by protocol, in the order of the protocols' names. An empty list means all ports.
pub(super) type Ports = BTreeMap<&'static str, (NamedProtocol, Vec<PortSpec>)>;

/// Groups the entries of a `ports` list by protocol. An entry without a port absorbs the others of
/// its protocol.
pub(super) fn group(entries: Vec<(NamedProtocol, Option<PortSpec>)>) -> Ports {
    let mut ports = Ports::new();
    for (protocol, port) in entries {
        let name = crate::scalar::resource_protocol_name(protocol);
        match (port, ports.get_mut(name)) {
            (None, _) => {
                ports.insert(name, (protocol, Vec::new()));
            }
            (Some(_), Some((_, all))) if all.is_empty() => {}
            (Some(port), Some((_, list))) => list.push(port),
            (Some(port), None) => {
                ports.insert(name, (protocol, vec![port]));
            }
        }
    }
    for (_, list) in ports.values_mut() {
        simplify(list);
    }
    ports
}

/// Merges numbers into the fewest ranges and puts names first; lists with at most one number stay
/// as they are.
pub(super) fn simplify(ports: &mut Vec<PortSpec>) {
    let mut ranges: Vec<(u16, u16)> = ports
        .iter()
        .filter_map(|port| match port {
            PortSpec::Range { first, last } => Some((*first, *last)),
            PortSpec::Named(_) => None,
        })
        .collect();
    if ranges.len() <= 1 {
        return;
    }
    ports.retain(|port| matches!(port, PortSpec::Named(_)));
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if u32::from(first) <= u32::from(*end) + 1 => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    ports.extend(merged.into_iter().map(|(first, last)| PortSpec::Range { first, last }));
}

/// Reads one entry of a `ports` list.
pub(super) fn read(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<(NamedProtocol, Option<PortSpec>)> {
    let map = cursor.map(sink)?;
    map.only(&["port", "endPort", "protocol"], sink);
    let protocol = match map.field("protocol") {
        None => NamedProtocol::Tcp,
        Some(field) => match field.text(sink)? {
            "TCP" => NamedProtocol::Tcp,
            "UDP" => NamedProtocol::Udp,
            "SCTP" => NamedProtocol::Sctp,
            other => {
                field.error(sink, format!("`{other}` is none of TCP, UDP, SCTP"));
                return None;
            }
        },
    };
    let port = match map.field("port") {
        Some(field) => Some(port(field, sink)?),
        None => None,
    };
    let Some(end) = map.field("endPort") else { return Some((protocol, port)) };
    let last: u16 = end.int(1, 65535, sink)?;
    match port {
        Some(PortSpec::Range { first, .. }) if first <= last => Some((protocol, Some(PortSpec::Range { first, last }))),
        Some(PortSpec::Range { first, .. }) => {
            end.error(sink, format!("{last} is below `port`, which is {first}"));
            None
        }
        _ => {
            end.error(sink, "needs `port` to be a number");
            None
        }
    }
}

fn port(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<PortSpec> {
    if matches!(cursor.content(), Content::Text(_)) {
        return named(cursor, sink);
    }
    cursor.int(1, 65535, sink).map(PortSpec::single)
}

/// Reads the name of a port.
pub(super) fn named(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<PortSpec> {
    let name = cursor.text(sink)?;
    if is_port_name(name) {
        return Some(PortSpec::Named(name.into()));
    }
    cursor.error(
        sink,
        format!("`{name}` is not the name of a port: at most 15 letters in lower case, digits and `-`, one a letter"),
    );
    None
}

/// RFC 6335, section 5.1, in lower case.
fn is_port_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.bytes().any(|b| b.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

#[cfg(test)]
mod tests;
