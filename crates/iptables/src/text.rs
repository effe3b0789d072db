//! Text of a rule for `iptables-restore`.
//!
//! The text is the input of rule hashes: a change of any byte makes every running node rewrite its
//! rules once (`felix/iptables/match_builder.go`, `felix/iptables/actions.go`).

use std::fmt::{self, Write};
use std::net::IpAddr;

use tortie_netfilter::{
    Action, ConntrackStates, Family, MaskedMark, Match, Matches, PortRange, RejectWith, Rule, Side,
};

use crate::features::Features;

/// Appends comments, matches and action of a rule, single spaces between them.
pub fn write_rest(rule: &Rule, features: &Features, out: &mut String) {
    let start = out.len();
    let separate = |out: &mut String| {
        if out.len() > start {
            out.push(' ');
        }
    };
    for comment in rule.comments.iter() {
        separate(out);
        out.push_str("-m comment --comment \"");
        out.push_str(comment.as_str());
        out.push('"');
    }
    for question in rule.matches.iter() {
        separate(out);
        infallible(write_match(question, out));
    }
    if let Some(action) = &rule.action {
        separate(out);
        infallible(write_action(action, features, out));
    }
}

/// The text of some matches, single spaces between them.
#[must_use]
pub fn matches_text(matches: &Matches) -> String {
    let mut out = String::new();
    write_rest(&Rule { matches: matches.clone(), ..Rule::default() }, &Features::ALL, &mut out);
    out
}

/// Writing to a `String` does not fail.
pub(crate) fn infallible(result: fmt::Result) {
    debug_assert!(result.is_ok());
}

const fn not(negated: bool) -> &'static str {
    if negated { "! " } else { "" }
}

const fn short(side: Side) -> &'static str {
    match side {
        Side::Source => "src",
        Side::Destination => "dst",
    }
}

const fn long(side: Side) -> &'static str {
    match side {
        Side::Source => "source",
        Side::Destination => "destination",
    }
}

fn write_match(question: &Match, out: &mut String) -> fmt::Result {
    match question {
        Match::Mark { want, negated } => write_mark(*want, *negated, out),
        Match::InInterface(pattern) => write!(out, "--in-interface {pattern}"),
        Match::NotInInterface(pattern) => write!(out, "! --in-interface {pattern}"),
        Match::OutInterface(pattern) => write!(out, "--out-interface {pattern}"),
        Match::InBridgePort(port) => write!(out, "-m physdev --physdev-in {port}"),
        Match::Bridged => out.write_str("-m physdev --physdev-is-bridged"),
        // iptables has no such match: the chain is refused, and a stand-in that drops takes its
        // place.
        Match::ArpReply(of) => write!(out, "--arp-reply {of}"),
        Match::ReversePathFails => out.write_str("-m rpfilter --invert --validmark"),
        Match::LocalAddress { side, limit_to_out_interface, negated } => {
            let side = short(*side);
            let limit = if *limit_to_out_interface { " --limit-iface-out" } else { "" };
            write!(out, "-m addrtype {}--{side}-type LOCAL{limit}", not(*negated))
        }
        Match::Conntrack { states, negated } => write_conntrack(*states, *negated, out),
        Match::Protocol { protocol, negated } => write!(out, "{}-p {protocol}", not(*negated)),
        Match::Net { side, net, negated } => write!(out, "{}--{} {net}", not(*negated), long(*side)),
        Match::IpSet { side, set, with_port, negated } => {
            let side = short(*side);
            write!(out, "-m set {}--match-set {set} {side}", not(*negated))?;
            if *with_port { write!(out, ",{side}") } else { Ok(()) }
        }
        Match::DestinationByInterface(set) => write!(out, "-m set --match-set {set} dst,src"),
        Match::Reply => out.write_str("-m conntrack --ctdir REPLY"),
        Match::AboveRateOfDestination { limit, name } => write!(
            out,
            "-m hashlimit --hashlimit-above {}/sec --hashlimit-burst {} --hashlimit-mode dstip --hashlimit-name {name}",
            limit.rate(),
            limit.burst(),
        ),
        // iptables has no such match: the chain is refused, and a stand-in that drops takes its
        // place.
        Match::AnyOf { .. } => out.write_str("-m set --match-set cali-unknown src"),
        Match::Ports { side, ports, negated } => {
            write!(out, "-m multiport {}--{}-ports {ports}", not(*negated), long(*side))
        }
        Match::DestinationPort(port) => write!(out, "--dport {port}"),
        Match::Icmp { family: Family::V4, icmp, negated } => {
            write!(out, "-m icmp {}--icmp-type {icmp}", not(*negated))
        }
        Match::Icmp { family: Family::V6, icmp, negated } => {
            write!(out, "-m icmp6 {}--icmpv6-type {icmp}", not(*negated))
        }
        Match::Limit { rate, burst } => {
            write!(out, "-m limit --limit {rate}")?;
            burst.map_or(Ok(()), |burst| write!(out, " --limit-burst {burst}"))
        }
    }
}

fn write_mark(want: MaskedMark, negated: bool, out: &mut String) -> fmt::Result {
    write!(out, "-m mark {}--mark ", not(negated))?;
    match want.value() {
        0 => out.write_char('0')?,
        value => write!(out, "{value:#x}")?,
    }
    write!(out, "/{}", want.mask())
}

fn write_conntrack(states: ConntrackStates, negated: bool, out: &mut String) -> fmt::Result {
    write!(out, "-m conntrack {}--ctstate ", not(negated))?;
    for (i, state) in states.states().iter().enumerate() {
        out.write_str(if i == 0 { "" } else { "," })?;
        out.write_str(state.as_str())?;
    }
    Ok(())
}

fn write_action(action: &Action, features: &Features, out: &mut String) -> fmt::Result {
    let randomly = |able: bool| if able { " --random-fully" } else { "" };
    match action {
        Action::Jump(chain) => write!(out, "--jump {chain}"),
        Action::Goto(chain) => write!(out, "--goto {chain}"),
        Action::Return => out.write_str("--jump RETURN"),
        Action::Accept => out.write_str("--jump ACCEPT"),
        Action::Drop => out.write_str("--jump DROP"),
        Action::Reject(with) => write!(out, "--jump REJECT{}", answer(*with)),
        Action::ClearMark(bits) => write!(out, "--jump MARK --set-mark 0/{bits}"),
        Action::SetMark(bits) => write!(out, "--jump MARK --set-mark {bits}/{bits}"),
        Action::SetMaskedMark(mark) => write!(out, "--jump MARK --set-mark {:#x}/{}", mark.value(), mark.mask()),
        Action::NoTrack => out.write_str("--jump NOTRACK"),
        Action::Queue(number) => write!(out, "--jump NFQUEUE --queue-num {number} --queue-bypass"),
        Action::Log(prefix) => {
            write!(out, "--jump LOG --log-prefix \"{}: \" --log-level 5", prefix.as_str())
        }
        Action::Nflog { group, prefix } => {
            let size = if features.nflog_size { "size" } else { "range" };
            write!(out, "--jump NFLOG --nflog-group {group} --nflog-prefix {} --nflog-{size} 80", prefix.as_str())
        }
        Action::Dnat { addr, port } => write_dnat(*addr, *port, out),
        Action::Snat { addr, ports } => {
            write_snat(*addr, *ports, out)?;
            out.write_str(randomly(features.snat_random_fully))
        }
        Action::Masquerade { ports } => {
            out.write_str("--jump MASQUERADE")?;
            if let Some(ports) = ports {
                write!(out, " --to-ports {}-{}", ports.first(), ports.last())?;
            }
            out.write_str(randomly(features.masquerade_random_fully))
        }
        Action::SetDscp(value) => write!(out, "--jump DSCP --set-dscp {value}"),
        Action::SetConnectionMark(mark) => {
            write!(out, "--jump CONNMARK --set-mark {:#x}/{}", mark.value(), mark.mask())
        }
        Action::MarkWithinRate { limit, mark } => write!(
            out,
            "-m limit --limit {}/sec --limit-burst {} \
             --jump MARK --set-mark {mark}/{mark}",
            limit.rate(),
            limit.burst(),
        ),
        // iptables has no such action: the chain is refused, and a stand-in that drops takes its
        // place.
        Action::DropAboveRate(_)
        | Action::Dispatch { .. }
        | Action::OffloadFlow
        | Action::Several(_)
        | Action::Include(_) => out.write_str("--jump cali-unknown"),
        Action::RejectConnectionsAbove(count) => write!(
            out,
            "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN \
             -m connlimit --connlimit-above {count} --connlimit-mask 0 \
             -j REJECT --reject-with tcp-reset"
        ),
    }
}

/// Returns the option of REJECT; port unreachable is its default.
const fn answer(with: RejectWith) -> &'static str {
    match with {
        RejectWith::PortUnreachable => "",
        RejectWith::TcpReset => " --reject-with tcp-reset",
        RejectWith::AdminProhibited(Family::V4) => " --reject-with icmp-admin-prohibited",
        RejectWith::AdminProhibited(Family::V6) => " --reject-with icmp6-adm-prohibited",
    }
}

fn write_dnat(addr: IpAddr, port: Option<u16>, out: &mut String) -> fmt::Result {
    out.write_str("--jump DNAT --to-destination ")?;
    match (addr, port) {
        (addr, None) => write!(out, "{addr}"),
        (IpAddr::V4(addr), Some(port)) => write!(out, "{addr}:{port}"),
        (IpAddr::V6(addr), Some(port)) => write!(out, "[{addr}]:{port}"),
    }
}

fn write_snat(addr: IpAddr, ports: Option<PortRange>, out: &mut String) -> fmt::Result {
    out.write_str("--jump SNAT --to-source ")?;
    match (addr, ports) {
        (addr, None) => write!(out, "{addr}"),
        (IpAddr::V4(addr), Some(ports)) => write!(out, "{addr}:{}-{}", ports.first(), ports.last()),
        (IpAddr::V6(addr), Some(ports)) => write!(out, "[{addr}]:{}-{}", ports.first(), ports.last()),
    }
}

#[cfg(test)]
mod action_tests;
#[cfg(test)]
mod matches_tests;
