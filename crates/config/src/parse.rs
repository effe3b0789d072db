//! Raw configuration text into typed values, as Felix reads it (`felix/config/param_types.go`).

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use regex::Regex;
use tortie_iptables::InterfaceName;
use tortie_model::{Cause, Cidr, DomainName, parse_address, with_causes};
use tortie_rules::Marks;

use super::dns_server::{DnsServer, DnsServerError};
use super::format_value::format_values;
use super::server::{GrpcServer, ServerError};
use tortie_resources::spelling::suggestion;

/// Reason why a value is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub(crate) struct Refusal(Cause);

impl Refusal {
    fn of(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Cause::new(error))
    }

    fn of_part<E: Error + Send + Sync + 'static>(part: &str) -> impl FnOnce(E) -> Self {
        move |error| Self::of(OfPart { part: part.to_owned(), error: Cause::new(error) })
    }
}

/// An error of a part of a value. It shows its cause itself, as problems of parameters are single
/// texts.
#[derive(Debug, thiserror::Error)]
#[error("`{part}`: {}", with_causes(error))]
struct OfPart {
    part: String,
    error: Cause,
}

impl From<&str> for Refusal {
    fn from(words: &str) -> Self {
        Self(words.into())
    }
}

impl From<String> for Refusal {
    fn from(words: String) -> Self {
        Self(words.into())
    }
}

/// Result of parsing the text of one parameter.
pub(crate) type Parsed<T> = Result<T, Refusal>;

/// A value chosen from a fixed list of words, spelt in any case.
pub(crate) trait OneOf: Sized + Copy + 'static {
    /// The canonical words and their values.
    const CHOICES: &'static [(&'static str, Self)];
}

macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $crate::parse::OneOf for $name {
            const CHOICES: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }

        impl $crate::format_value::FormatValue for $name {
            fn format_value(&self) -> String {
                match self { $(Self::$variant => $word.to_owned()),+ }
            }
        }
    };
}
pub(crate) use choices;

choices!(
    /// The least severe message that is logged.
    LogSeverity {
        /// Everything.
        Trace = "TRACE",
        /// For development.
        Debug = "DEBUG",
        /// Regular events.
        Info = "INFO",
        /// Unusual events.
        Warning = "WARNING",
        /// Failures.
        Error = "ERROR",
        /// Failures that end the program.
        Fatal = "FATAL",
    }
);

pub(crate) fn one_of<T: OneOf>(raw: &str) -> Parsed<T> {
    T::CHOICES.iter().find(|(word, _)| word.eq_ignore_ascii_case(raw)).map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = T::CHOICES.iter().map(|(word, _)| *word).collect();
        Refusal::from(format!("must be one of {}{}", words.join(", "), suggestion(raw, &words)))
    })
}

pub(crate) fn boolean(raw: &str) -> Parsed<bool> {
    match raw.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "y" | "t" => Ok(true),
        "false" | "0" | "no" | "n" | "f" => Ok(false),
        _ => Err("must be true or false".into()),
    }
}

pub(crate) fn optional_boolean(raw: &str) -> Parsed<Option<bool>> {
    boolean(raw).map(Some)
}

pub(crate) fn severity(raw: &str) -> Parsed<Option<LogSeverity>> {
    one_of(raw).map(Some)
}

pub(crate) fn regex(raw: &str) -> Parsed<Option<Regex>> {
    Regex::new(raw).map(Some).map_err(Refusal::of)
}

pub(crate) fn text(raw: &str) -> Parsed<String> {
    Ok(raw.into())
}

/// A server of gRPC; `None` for an empty text.
pub(crate) fn grpc_server(raw: &str) -> Parsed<Option<GrpcServer>> {
    if raw.is_empty() {
        return Ok(None);
    }
    raw.parse().map(Some).map_err(|error: ServerError| Refusal::of(error))
}

/// Whether a cluster is Azure's, by its type: words with commas between them, in any order. The
/// first word that names a provider of Kubernetes counts; so does the first empty one, which stands
/// for none (`KubernetesProvider` in `felix/config/config_params.go`).
pub(crate) fn is_on_aks(raw: &str) -> Parsed<bool> {
    const PROVIDERS: [&str; 7] = ["", "eks", "ecs", "gke", "aks", "openshift", "dockerenterprise"];
    let mut words = raw.split(',').map(str::to_ascii_lowercase);
    Ok(words.find(|word| PROVIDERS.contains(&word.as_str())).as_deref() == Some("aks"))
}

/// A region of `OpenStack`: a DNS label that leaves room for Felix's prefix of it elsewhere.
pub(crate) fn region(raw: &str) -> Parsed<String> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = [raw.as_bytes().first(), raw.as_bytes().last()];
    let is_label = raw.len() <= 63 - "openstack-region-".len()
        && ends.into_iter().all(|b| b.copied().is_some_and(plain))
        && raw.bytes().all(|b| plain(b) || b == b'-');
    if is_label { Ok(raw.into()) } else { Err("must be letters in lower case, digits and `-`, at most 46".into()) }
}

/// An integer in any base that Go accepts: `0x`, `0o`, `0b`, a leading `0` for octal, underscores
/// after a base prefix.
pub(crate) fn integer(raw: &str) -> Parsed<i64> {
    let refuse = || Refusal::from("must be an integer");
    let (negative, digits) = match raw.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, raw.strip_prefix('+').unwrap_or(raw)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, &lower[..]),
    };
    if digits.starts_with(['-', '+']) {
        return Err(refuse());
    }
    let magnitude = i128::from_str_radix(&digits.replace('_', ""), radix).map_err(|_| refuse())?;
    i64::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| refuse())
}

pub(crate) fn integer_in<T: TryFrom<i64>>(raw: &str, min: i64, max: i64) -> Parsed<T> {
    let value = integer(raw)?;
    if !(min..=max).contains(&value) {
        return Err(Refusal::from(format!("must be from {min} to {max}")));
    }
    T::try_from(value).map_err(|_| "is out of range".into())
}

pub(crate) fn port(raw: &str) -> Parsed<u16> {
    integer_in(raw, 0, 65535)
}

pub(crate) fn seconds(raw: &str) -> Parsed<Duration> {
    scaled(raw, 1.0, "must be a number of seconds")
}

pub(crate) fn millis(raw: &str) -> Parsed<Duration> {
    scaled(raw, 1e-3, "must be a number of milliseconds")
}

/// Negative intervals switch a timer off, exactly as zero does.
fn scaled(raw: &str, unit: f64, refusal: &str) -> Parsed<Duration> {
    let number: f64 = raw.parse().map_err(|_| Refusal::from(refusal))?;
    Duration::try_from_secs_f64((number * unit).max(0.0)).map_err(|_| Refusal::from(refusal))
}

pub(crate) fn mark_mask(raw: &str) -> Parsed<u32> {
    let mask: u32 = integer_in(raw, 0, i64::from(u32::MAX)).map_err(|_| "must be a 32-bit number".to_owned())?;
    let marks = Marks::allocate(mask, false, false);
    marks.map(|_| mask).map_err(|error| format!("must have at least {} bits set", error.needed).into())
}

fn iface_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn iface_name(name: &str) -> bool {
    (1..=15).contains(&name.len()) && name.chars().all(iface_char)
}

/// The name of an interface.
pub(crate) fn iface(raw: &str) -> Parsed<InterfaceName> {
    let refuse = || Refusal::from(format!("`{raw}` is not an interface name of 1 to 15 characters"));
    raw.parse().ok().filter(|_| iface_name(raw)).ok_or_else(refuse)
}

/// A comma-separated list of interface names or prefixes.
pub(crate) fn iface_list(raw: &str) -> Parsed<Vec<String>> {
    raw.split(',')
        .map(|name| {
            if iface_name(name) {
                Ok(name.to_owned())
            } else {
                Err(Refusal::from(format!("`{name}` is not an interface name of 1 to 15 characters")))
            }
        })
        .collect()
}

/// Interface names and `/regular expressions/`, comma-separated.
pub(crate) fn iface_patterns(raw: &str) -> Parsed<Vec<Regex>> {
    raw.split(',')
        .map(|element| {
            let pattern = match element.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) {
                Some(pattern) => pattern.to_owned(),
                None if iface_name(element) => format!("^{}$", regex::escape(element)),
                None => {
                    return Err(Refusal::from(format!(
                        "`{element}` is neither an interface name nor a /regular expression/"
                    )));
                }
            };
            Regex::new(&pattern).map_err(Refusal::of_part(element))
        })
        .collect()
}

/// One interface name, with an optional `+` wildcard at its end; empty for none.
pub(crate) fn iface_filter(raw: &str) -> Parsed<Option<String>> {
    match raw {
        "" => Ok(None),
        name if iface_name(name.strip_suffix('+').unwrap_or(name)) && name.len() <= 15 => Ok(Some(name.into())),
        name => Err(Refusal::from(format!("`{name}` is not an interface name"))),
    }
}

/// Addresses and networks, comma-separated.
pub(crate) fn cidrs(raw: &str) -> Parsed<Vec<Cidr>> {
    raw.split(',')
        .map(str::trim)
        .filter(|net| !net.is_empty())
        .map(|net| net.parse::<Cidr>().map(Cidr::masked).map_err(Refusal::of))
        .collect()
}

pub(crate) fn ipv4(raw: &str) -> Parsed<Option<Ipv4Addr>> {
    match parse_address(raw) {
        Some(IpAddr::V4(address)) => Ok(Some(address)),
        _ => Err("must be an IPv4 address".into()),
    }
}

pub(crate) fn ipv6(raw: &str) -> Parsed<Option<Ipv6Addr>> {
    match parse_address(raw) {
        Some(IpAddr::V6(address)) => Ok(Some(address)),
        _ => Err("must be an IPv6 address".into()),
    }
}

/// `name`, `10.0.0.1` or `::1`; an address to listen on.
pub(crate) fn host_address(raw: &str) -> Parsed<String> {
    let name = raw.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    match parse_address(raw) {
        Some(address) => Ok(address.to_string()),
        None if name => Ok(raw.into()),
        None => Err("must be a host name or address".into()),
    }
}

/// DNS servers, comma-separated.
pub(crate) fn dns_servers(raw: &str) -> Parsed<Vec<DnsServer>> {
    let servers = raw.split(',').map(str::trim).filter(|server| !server.is_empty());
    servers.map(|server| server.parse().map_err(Refusal::of_part::<DnsServerError>(server))).collect()
}

/// A domain name; empty for none.
pub(crate) fn domain_name(raw: &str) -> Parsed<Option<DomainName>> {
    if raw.is_empty() { Ok(None) } else { raw.parse::<DomainName>().map(Some).map_err(Refusal::of) }
}

/// A range of ports, `first:last` or a single one.
pub(crate) fn port_range(raw: &str) -> Parsed<Option<(u16, u16)>> {
    let refuse = |_| format!("`{raw}` is neither a port nor `first:last`");
    let (first, last) = raw.split_once(':').unwrap_or((raw, raw));
    let range = (first.parse::<u16>().map_err(refuse)?, last.parse::<u16>().map_err(refuse)?);
    if range.0 <= range.1 { Ok(Some(range)) } else { Err(Refusal::from(format!("`{raw}` ends before it begins"))) }
}

/// Ranges of ports, comma-separated.
pub(crate) fn port_ranges(raw: &str) -> Parsed<Vec<(u16, u16)>> {
    let ranges = raw.split(',').map(str::trim).map(port_range);
    ranges.filter_map(Result::transpose).collect()
}

/// A range of tables of routes, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a range has two ends")]
pub struct TableRange {
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
}

/// Maximum number of tables.
const MAX_TABLES: u64 = 0xffff;

/// `first-last` within 1-250.
pub(crate) fn table_range(raw: &str) -> Parsed<Option<TableRange>> {
    let refuse = || Refusal::from("must be a range of routing tables within 1-250, such as `1-250`");
    let (first, last) = raw.split_once('-').ok_or_else(refuse)?;
    let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let (first, last) = number(first).zip(number(last)).ok_or_else(refuse)?;
    let is_valid = 1 <= first && first <= last && last <= 250;
    if is_valid { Ok(Some(TableRange { first, last })) } else { Err(refuse()) }
}

/// Any number of `first-last`, with anything between them, as Felix takes them.
pub(crate) fn table_ranges(raw: &str) -> Parsed<Vec<TableRange>> {
    let mut ranges = Vec::new();
    let mut tables = 0;
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut rest = raw;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        rest = rest.get(start..).unwrap_or_default();
        let (first, behind) = rest.split_at(digits(rest));
        rest = behind;
        let Some(behind) = behind.strip_prefix('-') else { continue };
        let (last, behind) = behind.split_at(digits(behind));
        if last.is_empty() {
            continue;
        }
        rest = behind;
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("`{text}` is not the number of a table"));
        let (first, last) = (number(first)?, number(last)?);
        if first == 0 || first > last {
            return Err(Refusal::from(format!("`{first}-{last}` is not a range of tables")));
        }
        tables += u64::from(last - first) + 1;
        if tables > MAX_TABLES {
            return Err(Refusal::from(format!("must be {MAX_TABLES} tables at most")));
        }
        ranges.push(TableRange { first, last });
    }
    if ranges.is_empty() { Err("must be ranges of routing tables, such as `1-250`".into()) } else { Ok(ranges) }
}

/// MTU of a tunnel; 0 for the largest that fits.
pub(crate) fn mtu(raw: &str) -> Parsed<u32> {
    integer_in(raw, 0, i64::from(i32::MAX))
}

/// A pattern of interface names.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a name for a regular expression")]
pub struct IfacePattern(pub Regex);

/// A regular expression for interface names.
pub(crate) fn iface_pattern(raw: &str) -> Parsed<Option<IfacePattern>> {
    Regex::new(raw).map(|pattern| Some(IfacePattern(pattern))).map_err(Refusal::of)
}

/// The same; `None` for an empty text.
pub(crate) fn iface_pattern_unless_empty(raw: &str) -> Parsed<Option<IfacePattern>> {
    if raw.is_empty() { Ok(None) } else { iface_pattern(raw) }
}

/// A host port that policy must never cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailsafePort {
    /// TCP, else UDP.
    pub tcp: bool,
    /// Peers for which it is open; `None` for all.
    pub net: Option<Cidr>,
    /// The port.
    pub port: u16,
}

/// `port`, `protocol:port` or `protocol:net:port`, comma-separated; an IPv6 net stands in brackets.
pub(crate) fn failsafe_ports(raw: &str) -> Parsed<Vec<FailsafePort>> {
    raw.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(failsafe_port).collect()
}

fn failsafe_port(entry: &str) -> Parsed<FailsafePort> {
    let refuse = |what: &str| Refusal::from(format!("`{entry}`: {what}"));
    let parse_net = |net: &str| net.parse::<Cidr>().map(|net| Some(net.masked())).map_err(Refusal::of_part(entry));
    let (protocol, net, port) = match (entry.find('['), entry.find("]:")) {
        (Some(open), Some(close)) if open < close => {
            let protocol = entry[..open].strip_suffix(':').ok_or_else(|| refuse("the protocol is missing"))?;
            (protocol, parse_net(&entry[open + 1..close])?, &entry[close + 2..])
        }
        _ => match entry.split(':').collect::<Vec<_>>()[..] {
            [port] => ("tcp", None, port),
            [protocol, port] => (protocol, None, port),
            [protocol, net, port] => (protocol, parse_net(net)?, port),
            _ => return Err(refuse("must be `port`, `protocol:port` or `protocol:net:port`")),
        },
    };
    let tcp = match protocol.to_ascii_lowercase().as_str() {
        "tcp" => true,
        "udp" => false,
        _ => return Err(refuse("the protocol must be tcp or udp")),
    };
    let port = port.parse().map_err(|_| refuse("the port must be from 0 to 65535"))?;
    Ok(FailsafePort { tcp, net, port })
}

/// `name=value` pairs, comma-separated.
pub(crate) fn pairs(raw: &str) -> Parsed<BTreeMap<String, String>> {
    raw.split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
            None => Err(Refusal::from(format!("`{pair}` is not `name=value`"))),
        })
        .collect()
}

/// `name=duration` pairs, comma-separated, durations as Go writes them.
pub(crate) fn duration_pairs(raw: &str) -> Parsed<BTreeMap<String, Duration>> {
    pairs(raw)?.into_iter().map(|(name, value)| Ok((name, go_duration(&value)?))).collect()
}

/// A duration in Go's syntax: `1h2m3.5s`, `250ms`, `0`.
fn go_duration(raw: &str) -> Parsed<Duration> {
    tortie_resources::go_duration(raw)
        .ok_or_else(|| Refusal::from(format!("`{raw}` is not a duration such as 90s or 1m30s")))
}

/// Rate limit of rules with the action `log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRate(String);

impl LogRate {
    /// As iptables' `limit` match has it, such as `10/second`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

pub(crate) fn dscp(raw: &str) -> Parsed<u8> {
    tortie_resources::parse_dscp(raw).ok_or_else(|| "must be a DSCP value: 0 to 63, or a name such as `AF11`".into())
}

pub(crate) fn log_rate(raw: &str) -> Parsed<Option<LogRate>> {
    if raw.is_empty() {
        return Ok(None);
    }
    let refuse = || Refusal::from("must be `N/second`, `N/minute`, `N/hour` or `N/day` with N from 1 to 9999");
    let (number, unit) = raw.split_once('/').ok_or_else(refuse)?;
    let number: u16 = number.parse().map_err(|_| refuse())?;
    if (1..=9999).contains(&number) && matches!(unit, "second" | "minute" | "hour" | "day") {
        Ok(Some(LogRate(raw.into())))
    } else {
        Err(refuse())
    }
}

format_values! {
    IfacePattern: value => value.0.to_string();
    TableRange: value => format!("{}-{}", value.first, value.last);
    LogRate: value => value.as_str().to_owned();
    FailsafePort: value => {
        let protocol = if value.tcp { "tcp" } else { "udp" };
        match value.net {
            Some(net) if net.address().is_ipv6() => format!("{protocol}:[{net}]:{}", value.port),
            Some(net) => format!("{protocol}:{net}:{}", value.port),
            None => format!("{protocol}:{}", value.port),
        }
    };
}

#[cfg(test)]
mod tests;
