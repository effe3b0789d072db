//! Typed texts and numbers, with an error for invalid ones.

use std::net::IpAddr;
use std::sync::Arc;

use tortie_model::{
    Cidr, DomainParseError, DomainPattern, Family, Interner, Labels, List, Mac, NamedProtocol, PortSpec, Protocol,
    parse_address,
};
use tortie_selector::Selector;

use crate::Lint;
use crate::tree::{Content, Cursor, Map, Sink};

/// Reads a network or an address; host bits are kept.
pub(crate) fn cidr(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Cidr> {
    match cursor.text(sink)?.parse() {
        Ok(cidr) => Some(cidr),
        Err(error) => {
            cursor.error(sink, error.to_string());
            None
        }
    }
}

/// Reads the network of a peer; host bits are dropped.
pub(crate) fn net(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Cidr> {
    let written = cidr(cursor, sink)?;
    let net = written.masked();
    if written != net {
        cursor.lint(sink, Lint::HostBits, format!("bits are set behind the prefix; is `{net}` meant?"));
    }
    Some(net)
}

/// Reads a list of domain names and patterns; they are sorted, each once.
pub(crate) fn domains(map: Map<'_, '_>, name: &str, sink: &mut Sink) -> List<DomainPattern> {
    let mut domains = map.list(name, sink, domain);
    domains.sort_unstable();
    domains.dedup();
    domains.into()
}

/// Reads the domains of a rule. An empty list is an error, because a rule without domains matches
/// every address.
pub(crate) fn domains_of_rule(map: Map<'_, '_>, name: &str, sink: &mut Sink) -> List<DomainPattern> {
    let reports = sink.problems.reports();
    let domains = domains(map, name, sink);
    if let Some(field) = map.field(name)
        && domains.is_empty()
        && sink.problems.reports() == reports
    {
        field.error(sink, "names no domain");
    }
    domains
}

fn domain(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<DomainPattern> {
    let text = cursor.text(sink)?;
    match text.parse() {
        Ok(domain) => Some(domain),
        Err(error @ DomainParseError { position, .. }) => {
            let start = text.char_indices().nth(position.saturating_sub(1)).map_or(text.len(), |(at, _)| at);
            cursor.error_within(sink, start..text.len(), error.to_string());
            None
        }
    }
}

pub(crate) fn address(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<IpAddr> {
    let text = cursor.text(sink)?;
    let address = parse_address(text);
    if address.is_none() {
        cursor.error(sink, format!("`{text}` is not an IP address"));
    }
    address
}

pub(crate) fn address_of(family: Family, cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<IpAddr> {
    let address = address(cursor, sink)?;
    if Cidr::host(address).family() == family {
        return Some(address);
    }
    cursor.error(sink, format!("`{address}` is not an IPv{} address", family.number()));
    None
}

/// Reads a MAC address: six octets in hexadecimal, separated by colons or hyphens.
pub(crate) fn mac(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Mac> {
    let text = cursor.text(sink)?;
    let mac = text.parse().ok();
    if mac.is_none() {
        cursor.error(sink, format!("`{text}` is not an Ethernet address"));
    }
    mac
}

/// Spelling of protocol names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// `tcp`, as in the datastore.
    Lower,
    /// `TCP`, `ICMPv6`, `UDPLite`, as in resources. The lower-case spelling of older releases is
    /// accepted as well.
    Resource,
}

/// Reads a protocol by name or by number from 1 to 255; quoted digits are a number too.
pub(crate) fn protocol(spelling: Spelling, cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Protocol> {
    let text = match cursor.content() {
        Content::Int(_) | Content::Float(_) => return cursor.int(1, 255, sink).map(Protocol::Number),
        _ => cursor.text(sink)?,
    };
    if let Ok(number) = text.parse::<u8>() {
        if number == 0 {
            cursor.error(sink, "must be between 1 and 255, is 0");
            return None;
        }
        return Some(Protocol::Number(number));
    }
    let name = NamedProtocol::from_name(text).filter(|name| match spelling {
        Spelling::Lower => text == name.as_str(),
        Spelling::Resource => text == resource_protocol_name(*name) || text == name.as_str(),
    });
    if name.is_none() {
        cursor
            .error(sink, format!("`{text}` is not a protocol; known are TCP, UDP, ICMP, ICMPv6, SCTP, UDPLite, 1-255"));
    }
    name.map(Protocol::Named)
}

/// Returns the protocol's name in resources.
pub(crate) fn resource_protocol_name(protocol: NamedProtocol) -> &'static str {
    match protocol {
        NamedProtocol::Tcp => "TCP",
        NamedProtocol::Udp => "UDP",
        NamedProtocol::Icmp => "ICMP",
        NamedProtocol::Icmpv6 => "ICMPv6",
        NamedProtocol::Sctp => "SCTP",
        NamedProtocol::UdpLite => "UDPLite",
    }
}

/// Reads a port by number, by range (`8000:8080`) or by name (`api/pkg/lib/numorstring/port.go`).
pub(crate) fn port_spec(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<PortSpec> {
    let text = match cursor.content() {
        Content::Int(_) | Content::Float(_) => return cursor.int(1, 65535, sink).map(PortSpec::single),
        _ => cursor.text(sink)?,
    };
    match parse_port(text) {
        Ok(port) => Some(port),
        Err(error) => {
            cursor.error(sink, error.to_string());
            None
        }
    }
}

/// Error of a port.
#[derive(Debug, thiserror::Error)]
enum PortError<'t> {
    #[error("port `{0}` is not between 1 and 65535")]
    Number(&'t str),
    #[error("port range `{0}` ends before it begins")]
    Range(&'t str),
    #[error("`{0}` is neither a port, nor a range such as `8000:8080`, nor the name of a port")]
    Form(&'t str),
}

fn parse_port(text: &str) -> Result<PortSpec, PortError<'_>> {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if digits(text) {
        return port_number(text).map(PortSpec::single);
    }
    if let Some((first, last)) = text.split_once(':')
        && digits(first)
        && digits(last)
    {
        let (first, last) = (port_number(first)?, port_number(last)?);
        if first > last {
            return Err(PortError::Range(text));
        }
        return Ok(PortSpec::Range { first, last });
    }
    let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    if (1..=128).contains(&text.len()) && text.bytes().all(named) {
        return Ok(PortSpec::Named(text.into()));
    }
    Err(PortError::Form(text))
}

fn port_number(part: &str) -> Result<u16, PortError<'_>> {
    match part.parse() {
        Ok(0) | Err(_) => Err(PortError::Number(part)),
        Ok(port) => Ok(port),
    }
}

/// Reads a DSCP value by number or by name (`api/pkg/lib/numorstring/dscp.go`).
pub(crate) fn dscp(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<u8> {
    if let Content::Text(text) = cursor.content() {
        let value = parse_dscp(text);
        if value.is_none() {
            cursor.error(sink, format!("`{text}` is not a DSCP value"));
        }
        return value;
    }
    cursor.int(0, 63, sink)
}

/// Parses a DSCP value by number or by name, such as `46` or `EF`.
#[must_use]
pub fn parse_dscp(text: &str) -> Option<u8> {
    let name = text.trim().to_ascii_uppercase();
    let digit = |from: usize, max: u8| {
        let digit = name.as_bytes().get(from)?.checked_sub(b'0')?;
        (digit <= max).then_some(digit)
    };
    match &*name {
        "DF" => Some(0),
        "EF" => Some(46),
        // Assured forwarding: class 1 to 4, drop precedence 1 to 3 (RFC 2597).
        _ if name.starts_with("AF") && name.len() == 4 => {
            let (class, drop) = (digit(2, 4)?, digit(3, 3)?);
            (class > 0 && drop > 0).then_some(8 * class + 2 * drop)
        }
        _ if name.starts_with("CS") && name.len() == 3 => Some(8 * digit(2, 6)?),
        _ => name.parse().ok().filter(|value| *value <= 63),
    }
}

/// Interns labels from pairs; an error is reported at `cursor`.
pub(crate) fn interned<K: AsRef<str>, V: AsRef<str>>(
    cursor: &Cursor<'_, '_>,
    pairs: impl IntoIterator<Item = (K, V)>,
    interner: &mut Interner,
    sink: &mut Sink,
) -> Labels {
    interner.labels(pairs).unwrap_or_else(|error| {
        cursor.error(sink, error.to_string());
        Labels::default()
    })
}

/// Reads a selector.
pub(crate) fn selector(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Selector> {
    let text = cursor.text(sink)?;
    match sink.selectors.parse(text) {
        Ok(selector) => Some(selector),
        Err(error) => {
            cursor.error_within(sink, error.span(), format!("`{text}` is not a selector: {error}"));
            None
        }
    }
}

/// Reads a list of text; each item is shared.
pub(crate) fn shared_texts(map: Map<'_, '_>, name: &str, sink: &mut Sink) -> Box<[Arc<str>]> {
    map.texts(name, sink).into_iter().map(Arc::from).collect()
}

/// Reads a mapping of text to text, sorted.
pub(crate) fn sorted_pairs(map: Map<'_, '_>, name: &str, sink: &mut Sink) -> List<(Arc<str>, Arc<str>)> {
    let mut pairs = map.field(name).map(|field| field.text_map(sink)).unwrap_or_default();
    pairs.sort_unstable();
    pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// Reads a text, or the text of a number or boolean; `yes` is the text `true`.
pub(crate) fn plain_text(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<String> {
    match cursor.content() {
        Content::Bool(value) | Content::Switch(value, _) => Some(value.to_string()),
        Content::Int(value) => Some(value.to_string()),
        Content::Float(value) => Some(value.to_string()),
        _ => cursor.text(sink).map(str::to_owned),
    }
}
