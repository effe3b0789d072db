//! Text of a rule in `nft` syntax.
//!
//! They are inputs of rule hashes: any byte that changes makes every running node rewrite its rules
//! once (`felix/nftables/match_builder.go`, `felix/nftables/actions.go`). The text differs from
//! Felix's where `nft` refuses that, or where it has another meaning than intended; [`Deviation`]
//! lists these places.

use std::fmt::{self, Write};
use std::net::IpAddr;

use tortie_net::{Family, InterfaceName, Protocol};
use tortie_netfilter::{
    Action, ConntrackState, ConntrackStates, DispatchBy, IcmpType, InterfacePattern, LogPrefix, MaskedMark, Match,
    PortList, PortRange, RejectWith, Rule, Side, Table,
};

use crate::features::Features;
use crate::names::{FullNames, LayeredName, SetName};

/// Inputs of a rule's text besides the rule.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The family of the table.
    pub family: Family,
    /// The layer of the chain.
    pub layer: Table,
    /// The full names of the layer's chains.
    pub names: &'a FullNames,
    /// Features of the kernel.
    pub features: Features,
}

/// Deliberate difference of a rule's text from Felix's. Each avoids a defect of Felix, which has a
/// number and a test on a kernel with packets (`crates/rules/tests/nftables/defects`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Deviation {
    /// `ct status != dnat` is true of nearly every packet; the bit is matched instead.
    NotDnat,
    /// `icmp type 8 code 0` is not valid syntax, and its negation would deny less than it should.
    IcmpCode,
    /// An interface's name that `nft` would misread is quoted.
    QuotedInterface,
}

impl Deviation {
    /// The number of the defect: `dN_…` is its test.
    #[must_use]
    pub const fn defect(self) -> u8 {
        match self {
            Self::NotDnat => 1,
            Self::IcmpCode => 2,
            Self::QuotedInterface => 10,
        }
    }
}

/// The deviations in the text of a rule.
pub fn deviations(rule: &Rule) -> impl Iterator<Item = Deviation> + '_ {
    rule.matches.iter().filter_map(|question| match question {
        Match::Conntrack { states: ConntrackStates::DNAT, negated: true } => Some(Deviation::NotDnat),
        Match::Icmp { icmp, .. } => icmp.code.map(|_| Deviation::IcmpCode),
        Match::InInterface(pattern) | Match::NotInInterface(pattern) | Match::OutInterface(pattern) => {
            needs_quotes(pattern.name).then_some(Deviation::QuotedInterface)
        }
        _ => None,
    })
}

/// Appends matches and action of a rule, single spaces between them; `continue` if it has neither.
pub fn write_rule(rule: &Rule, context: &Context<'_>, out: &mut String) {
    let start = out.len();
    let mut protocol = None;
    for question in rule.matches.iter() {
        separate(start, out);
        infallible(write_match(question, context.family, protocol, out));
        if let Match::Protocol { protocol: wanted, negated: false } = question {
            protocol = Some(*wanted);
        }
    }
    if let Some(action) = &rule.action {
        separate(start, out);
        infallible(write_action(action, context, out));
    }
    if out.len() == start {
        out.push_str("continue");
    }
}

fn separate(start: usize, out: &mut String) {
    if out.len() > start {
        out.push(' ');
    }
}

/// Writing to a `String` does not fail.
fn infallible(result: fmt::Result) {
    debug_assert!(result.is_ok());
}

const fn not(negated: bool) -> &'static str {
    if negated { "!= " } else { "" }
}

pub(crate) const fn ip(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

const fn address(side: Side) -> &'static str {
    match side {
        Side::Source => "saddr",
        Side::Destination => "daddr",
    }
}

const fn port(side: Side) -> &'static str {
    match side {
        Side::Source => "sport",
        Side::Destination => "dport",
    }
}

fn write_match(question: &Match, family: Family, protocol: Option<Protocol>, out: &mut String) -> fmt::Result {
    let ip = ip(family);
    match question {
        Match::Mark { want, negated } => write_mark(*want, *negated, out),
        Match::InInterface(pattern) => write_interface("iifname", pattern, out),
        Match::NotInInterface(pattern) => write_interface("iifname !=", pattern, out),
        Match::OutInterface(pattern) => write_interface("oifname", pattern, out),
        // There is no such match: the chain is refused, and a stand-in that drops takes its place.
        Match::InBridgePort(port) => write!(out, "physdev in {port}"),
        Match::Bridged => out.write_str("physdev bridged"),
        Match::ArpReply(of) => write!(out, "arp operation reply arp saddr ip {of}"),
        Match::ReversePathFails => out.write_str("fib saddr . mark . iif oif 0"),
        Match::LocalAddress { side, limit_to_out_interface, negated } => {
            let limit = if *limit_to_out_interface { " . oif" } else { "" };
            write!(out, "fib {}{limit} type {}local", address(*side), not(*negated))
        }
        Match::Conntrack { states: ConntrackStates::DNAT, negated: false } => out.write_str("ct status dnat"),
        Match::Conntrack { states: ConntrackStates::DNAT, negated: true } => out.write_str("ct status & dnat == 0"),
        Match::Conntrack { states, negated } => write_conntrack(*states, *negated, out),
        Match::Protocol { protocol, negated } => write!(out, "meta l4proto {}{protocol}", not(*negated)),
        Match::Net { side, net, negated } => write!(out, "{ip} {} {}{net}", address(*side), not(*negated)),
        Match::IpSet { side, set, with_port: false, negated } => {
            write!(out, "{ip} {} {}@{}", address(*side), not(*negated), SetName::new(*set))
        }
        Match::IpSet { side, set, with_port: true, negated } => {
            let (address, port) = (address(*side), port(*side));
            write!(out, "{ip} {address} . meta l4proto . th {port} {}@{}", not(*negated), SetName::new(*set))
        }
        Match::DestinationByInterface(set) => write!(out, "iifname . {ip} daddr @{}", SetName::new(*set)),
        Match::Reply => out.write_str("ct direction reply"),
        Match::AboveRateOfDestination { limit, name } => {
            let (set, rate, burst) = (SetName::new(*name), limit.rate(), limit.burst());
            write!(out, "update @{set} {{ {ip} daddr limit rate over {rate}/second burst {burst} packets }}")
        }
        // A named set has replaced it before; otherwise it is refused as well.
        Match::AnyOf { side, .. } => write!(out, "{ip} {} @cali-unknown", address(*side)),
        Match::Ports { side, ports, negated } => {
            write!(out, "{} {} {}", transport(protocol), port(*side), not(*negated))?;
            write_ports(ports, out)
        }
        Match::DestinationPort(port) => write!(out, "{} dport {port}", transport(protocol)),
        Match::Icmp { family, icmp, negated } => write_icmp(*family, *icmp, *negated, out),
        Match::Limit { rate, burst } => {
            write!(out, "limit rate {rate}")?;
            burst.map_or(Ok(()), |burst| write!(out, " burst {burst} packets"))
        }
    }
}

fn write_mark(want: MaskedMark, negated: bool, out: &mut String) -> fmt::Result {
    let (mask, operator) = (want.mask(), if negated { "!=" } else { "==" });
    match want.value() {
        0 => write!(out, "meta mark & {mask} {operator} 0"),
        value => write!(out, "meta mark & {mask} {operator} {value:#x}"),
    }
}

fn write_conntrack(states: ConntrackStates, negated: bool, out: &mut String) -> fmt::Result {
    write!(out, "ct state {}", not(negated))?;
    for (i, state) in states.states().iter().enumerate() {
        out.write_str(if i == 0 { "" } else { "," })?;
        out.write_str(conntrack_state(*state))?;
    }
    Ok(())
}

fn write_icmp(family: Family, icmp: IcmpType, negated: bool, out: &mut String) -> fmt::Result {
    let header = match family {
        Family::V4 => "icmp",
        Family::V6 => "icmpv6",
    };
    match icmp.code {
        None => write!(out, "{header} type {}{}", not(negated), icmp.number),
        // Type and code are the first two bytes.
        Some(code) => {
            let value = u16::from_be_bytes([icmp.number, code]);
            write!(out, "@th,0,16 {}{value:#06x}", not(negated))
        }
    }
}

fn write_interface(key: &str, pattern: &InterfacePattern, out: &mut String) -> fmt::Result {
    let (name, wildcard) = (pattern.name, if pattern.is_prefix { "*" } else { "" });
    if needs_quotes(name) {
        return write!(out, "{key} \"{name}{wildcard}\"");
    }
    write!(out, "{key} {name}{wildcard}")
}

/// Reports whether `nft` would misread the name without quotes, as a number or as several words.
pub(crate) fn needs_quotes(name: InterfaceName) -> bool {
    let name = name.as_str();
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'/' | b'\\');
    !name.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '.')) || !name.bytes().all(is_plain)
}

const fn conntrack_state(state: ConntrackState) -> &'static str {
    match state {
        ConntrackState::New => "new",
        ConntrackState::Established => "established",
        ConntrackState::Related => "related",
        ConntrackState::Invalid => "invalid",
        ConntrackState::Untracked => "untracked",
        ConntrackState::Dnat => "dnat",
    }
}

/// Returns `nft`'s name of a header with ports.
const fn transport(protocol: Option<Protocol>) -> &'static str {
    match protocol {
        Some(protocol) => match protocol.number() {
            6 => "tcp",
            17 => "udp",
            33 => "dccp",
            132 => "sctp",
            136 => "udplite",
            _ => "th",
        },
        None => "th",
    }
}

fn write_ports(ports: &PortList, out: &mut String) -> fmt::Result {
    for (i, range) in ports.ranges().iter().enumerate() {
        out.write_str(if i == 0 { "{ " } else { ", " })?;
        match (range.first(), range.last()) {
            (first, last) if first == last => write!(out, "{first}")?,
            (first, last) => write!(out, "{first}-{last}")?,
        }
    }
    out.write_str(" }")
}

fn write_action(action: &Action, context: &Context<'_>, out: &mut String) -> fmt::Result {
    // The verdict comes from the map; Felix counts no packets here.
    if !matches!(action, Action::Dispatch { .. }) {
        out.write_str("counter ")?;
    }
    write_statement(action, context, out)
}

fn write_statement(action: &Action, context: &Context<'_>, out: &mut String) -> fmt::Result {
    let chain = |chain| LayeredName::new(context.layer, context.names.get(chain));
    let randomly = |able: bool| if able { " fully-random" } else { "" };
    match action {
        Action::Jump(to) => write!(out, "jump {}", chain(to)),
        Action::Goto(to) => write!(out, "goto {}", chain(to)),
        Action::Return => out.write_str("return"),
        Action::Accept => out.write_str("accept"),
        Action::Drop => out.write_str("drop"),
        Action::Dispatch { by, map } => {
            write_dispatch_key(*by, context.family, out)?;
            write!(out, " vmap @{}", LayeredName::new(context.layer, map.as_str()))
        }
        Action::Several(actions) => write_several(actions, context, out),
        // The included rules have replaced it before; otherwise it is refused as well.
        Action::Include(_) => out.write_str("jump cali-unknown"),
        Action::Reject(RejectWith::PortUnreachable) => out.write_str("reject"),
        Action::Reject(RejectWith::TcpReset) => out.write_str("reject with tcp reset"),
        Action::Reject(RejectWith::AdminProhibited(Family::V4)) => out.write_str("reject with icmp admin-prohibited"),
        Action::Reject(RejectWith::AdminProhibited(Family::V6)) => out.write_str("reject with icmpv6 admin-prohibited"),
        Action::ClearMark(bits) => write!(out, "meta mark set mark & {:#x}", !bits.get()),
        Action::SetMark(bits) => write!(out, "meta mark set mark or {bits}"),
        Action::SetMaskedMark(mark) => {
            write!(out, "meta mark set mark & {:#x} ^ {:#x}", !mark.mask().get(), mark.value())
        }
        Action::SetConnectionMark(mark) => {
            write!(out, "ct mark set ct mark & {:#x} ^ {:#x}", !mark.mask().get(), mark.value())
        }
        Action::NoTrack => out.write_str("notrack"),
        // `nft` has no syntax for targets of iptables.
        Action::Queue(number) => write!(out, "queue flags bypass to {number}"),
        Action::Log(prefix) => write!(out, "log prefix \"{}\" level info", log_prefix(prefix)),
        Action::Nflog { group, prefix } => {
            write!(out, "log prefix \"{}\" snaplen {NFLOG_SIZE} group {group}", within_limit(prefix.as_str()))
        }
        Action::Dnat { addr, port: None } => write!(out, "dnat to {addr}"),
        Action::Dnat { addr: IpAddr::V4(addr), port: Some(port) } => write!(out, "dnat to {addr}:{port}"),
        Action::Dnat { addr: IpAddr::V6(addr), port: Some(port) } => write!(out, "dnat to [{addr}]:{port}"),
        Action::Snat { addr, ports } => {
            write_snat(*addr, *ports, out)?;
            out.write_str(randomly(context.features.snat_fully_random))
        }
        Action::Masquerade { ports } => {
            out.write_str("masquerade")?;
            if let Some(ports) = ports {
                write!(out, " to :{}-{}", ports.first(), ports.last())?;
            }
            out.write_str(randomly(context.features.masquerade_fully_random))
        }
        Action::SetDscp(value) => write!(out, "{} dscp set {value}", ip(context.family)),
        Action::MarkWithinRate { limit, mark } => {
            let (rate, burst) = (limit.rate(), limit.burst());
            write!(out, "limit rate {rate}/second burst {burst} packets meta mark set mark or {mark}")
        }
        Action::DropAboveRate(limit) => {
            write!(out, "limit rate over {}/second burst {} packets drop", limit.rate(), limit.burst())
        }
        Action::RejectConnectionsAbove(count) => write!(out, "ct count over {count} reject with tcp reset"),
        Action::OffloadFlow => out.write_str("flow offload @calico"),
    }
}

fn write_several(actions: &[Action], context: &Context<'_>, out: &mut String) -> fmt::Result {
    for (number, action) in actions.iter().enumerate() {
        out.write_str(if number == 0 { "" } else { " " })?;
        write_statement(action, context, out)?;
    }
    Ok(())
}

fn write_dispatch_key(by: DispatchBy, family: Family, out: &mut String) -> fmt::Result {
    match by {
        DispatchBy::InInterface => out.write_str("iifname"),
        DispatchBy::OutInterface => out.write_str("oifname"),
        DispatchBy::Mark(mask) => write!(out, "meta mark & {mask}"),
        DispatchBy::DestinationPort => out.write_str("meta l4proto . th dport"),
        DispatchBy::Address(side) => write!(out, "{} {}", ip(family), address(side)),
    }
}

fn write_snat(addr: IpAddr, ports: Option<PortRange>, out: &mut String) -> fmt::Result {
    match (addr, ports) {
        (addr, None) => write!(out, "snat to {addr}"),
        (IpAddr::V4(addr), Some(ports)) => write!(out, "snat to {addr}:{}-{}", ports.first(), ports.last()),
        (IpAddr::V6(addr), Some(ports)) => write!(out, "snat to [{addr}]:{}-{}", ports.first(), ports.last()),
    }
}

/// Maximum length of a prefix in bytes: `NF_LOG_PREFIXLEN` without the terminator.
const PREFIX_LIMIT: usize = 127;

/// Returns the prefix of log lines, whose text is cut so that the separator fits as well.
pub(crate) fn log_prefix(prefix: &LogPrefix) -> String {
    const SEPARATOR: &str = ": ";
    format!("{}{SEPARATOR}", cut(prefix.as_str(), PREFIX_LIMIT - SEPARATOR.len()))
}

/// Returns the part of a prefix that fits the kernel.
pub(crate) fn within_limit(prefix: &str) -> &str {
    cut(prefix, PREFIX_LIMIT)
}

/// Cuts a text to a number of bytes, at the end of a character.
fn cut(text: &str, limit: usize) -> &str {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= limit).last();
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// Bytes of a packet that the listeners of a group get.
pub(crate) const NFLOG_SIZE: u32 = 80;
