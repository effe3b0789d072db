//! Evaluation of matches for a packet, and checks of rules as by the kernel.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_iptables::{ConntrackState, Family, IpSetName, Match, PortList, Protocol, Rule, Side};
use tortie_model::desired::Members;

use super::Skb;
use crate::packet::{Packet, Payload, in_network};

/// Protocols that `-m multiport` supports.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];

/// Checks a rule for errors that `ip[6]tables-restore` would report and the types do not exclude.
pub(super) fn check(rule: &Rule, ipv4: bool) -> Result<(), &'static str> {
    let mut protocol: Option<u8> = None;
    for question in rule.matches.iter() {
        match question {
            Match::Protocol { protocol: expected, negated } => {
                if protocol.is_some() {
                    return Err("two protocol matches");
                }
                if *negated && expected.number() == 0 {
                    return Err("no packet could match");
                }
                protocol = (!negated).then(|| expected.number());
            }
            Match::Ports { .. } | Match::DestinationPort(_)
                if !protocol.is_some_and(|protocol| WITH_PORTS.contains(&protocol)) =>
            {
                return Err("a port match without a protocol that has ports");
            }
            Match::Icmp { family, .. } => {
                let (wanted, number) = if *family == Family::V4 { (true, 1) } else { (false, 58) };
                if ipv4 != wanted || protocol != Some(number) {
                    return Err("an ICMP match without the protocol of the family");
                }
            }
            Match::Net { net, negated: true, .. } if net.cidr().prefix_len() == 0 => {
                return Err("no packet could match");
            }
            Match::Net { net, .. } if net.cidr().address().is_ipv4() != ipv4 => {
                return Err("a network of the other family");
            }
            _ => {}
        }
    }
    let one_per_side = |side| {
        rule.matches.iter().filter(|question| matches!(question, Match::Net { side: of, .. } if *of == side)).count()
    };
    if one_per_side(Side::Source) > 1 || one_per_side(Side::Destination) > 1 {
        return Err("two networks for one side");
    }
    Ok(())
}

/// Reports whether the packet matches. The error is an IP set that does not exist or is of another
/// type.
pub(super) fn answer(question: &Match, skb: &Skb, sets: &BTreeMap<IpSetName, Members>) -> Result<bool, IpSetName> {
    let packet = &skb.packet;
    Ok(match question {
        Match::Mark { want, negated } => (skb.mark & want.mask().get() == want.value()) != *negated,
        Match::InInterface(pattern) => interface_matches(&pattern.to_string(), &skb.in_interface),
        Match::NotInInterface(pattern) => !interface_matches(&pattern.to_string(), &skb.in_interface),
        Match::OutInterface(pattern) => interface_matches(&pattern.to_string(), &skb.out_interface),
        // The modelled nodes have no bridges, no program learns addresses on them, and ARP packets
        // are not IP packets.
        Match::InBridgePort(_) | Match::Bridged | Match::ArpReply(_) | Match::DestinationByInterface(_) => false,
        Match::ReversePathFails => skb.reverse_path_fails,
        Match::LocalAddress { side, negated, .. } => skb.local_addresses.contains(&address(packet, *side)) != *negated,
        Match::Conntrack { states, negated } => {
            states.states().iter().any(|state| skb.conntrack.contains(state)) != *negated
        }
        Match::Protocol { protocol, negated } => {
            (protocol == &Protocol::Number(0) || protocol.number() == packet.protocol) != *negated
        }
        Match::Net { side, net, negated } => {
            in_network(address(packet, *side), net.cidr().address(), net.cidr().prefix_len()) != *negated
        }
        Match::IpSet { side, set, with_port, negated } => {
            let members = sets.get(set).ok_or(*set)?;
            is_member(packet, *side, members, *with_port).ok_or(*set)? != *negated
        }
        Match::Reply => skb.conntrack.contains(&ConntrackState::Established),
        Match::AboveRateOfDestination { .. } => !skb.within_rates,
        Match::AnyOf { side, these, negated } => {
            let address = address(packet, *side);
            let mut found = these.nets.iter().any(|net| in_network(address, net.address(), net.prefix_len()));
            for set in &these.sets {
                let members = sets.get(set).ok_or(*set)?;
                found |= is_member(packet, *side, members, false).ok_or(*set)?;
            }
            found != *negated
        }
        // A packet without ports passes neither the match nor its negation: the rule's protocol
        // match comes first.
        Match::Ports { side, ports, negated } => {
            port(packet, *side).is_some_and(|port| listed(ports, port) != *negated)
        }
        Match::DestinationPort(wanted) => packet.destination_port() == Some(*wanted),
        Match::Icmp { icmp, negated, .. } => match packet.payload {
            Payload::Icmp { kind, code } => {
                (kind == icmp.number && icmp.code.is_none_or(|wanted| wanted == code)) != *negated
            }
            Payload::Ports { .. } | Payload::Opaque => false,
        },
        Match::Limit { .. } => skb.within_rates,
    })
}

fn address(packet: &Packet, side: Side) -> IpAddr {
    match side {
        Side::Source => packet.source,
        Side::Destination => packet.destination,
    }
}

fn port(packet: &Packet, side: Side) -> Option<u16> {
    match side {
        Side::Source => packet.source_port(),
        Side::Destination => packet.destination_port(),
    }
}

/// Reports whether a side of a packet is in a set; `None` if the set is of another type than
/// required.
fn is_member(packet: &Packet, side: Side, members: &Members, with_port: bool) -> Option<bool> {
    let address = address(packet, side);
    match (members, with_port) {
        (Members::Nets(nets), false) => {
            Some(nets.iter().any(|net| in_network(address, net.address(), net.prefix_len())))
        }
        (Members::IpPorts(members), true) => Some(members.iter().any(|member| {
            let protocol = tortie_model::NamedProtocol::from(member.protocol()).number();
            member.address() == address && protocol == packet.protocol && Some(member.port()) == port(packet, side)
        })),
        _ => None,
    }
}

fn listed(ports: &PortList, port: u16) -> bool {
    ports.ranges().iter().any(|range| range.first() <= port && port <= range.last())
}

/// Matches an interface name as the kernel does: a trailing `+` is a wildcard.
fn interface_matches(pattern: &str, interface: &str) -> bool {
    match pattern.strip_suffix('+') {
        Some(prefix) => interface.starts_with(prefix),
        None => interface == pattern,
    }
}
