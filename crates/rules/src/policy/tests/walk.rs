//! Evaluates one policy chain for a packet.

use std::net::IpAddr;

use tortie_iptables::{Action, Chain, IpSetName, Match, Side};
use tortie_model::Family;

use crate::Marks;

#[derive(Debug, Clone)]
pub(super) struct Packet {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    pub(super) icmp_type: u8,
    /// Initial values of the scratch bits.
    pub(super) noise: u32,
}

impl Packet {
    pub(super) fn family(&self) -> Family {
        if self.source.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChainOutcome {
    Accept,
    Pass,
    Deny,
    None,
}

/// Reports an arbitrary but fixed membership, by set id.
pub(super) fn is_in(id: &str, address: IpAddr, port: Option<(u8, u16)>) -> bool {
    let text = format!("{id}{address}{port:?}");
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    hash >> 40 & 1 == 1
}

pub(super) fn walk(chain: &Chain, marks: &Marks, packet: &Packet) -> ChainOutcome {
    let mut mark = packet.noise & marks.scratch().get();
    for rule in &chain.rules {
        if !rule.matches.iter().all(|question| passes(question, mark, packet)) {
            continue;
        }
        match &rule.action {
            Some(Action::SetMark(bits)) => mark |= bits.get(),
            Some(Action::ClearMark(bits)) => mark &= !bits.get(),
            Some(Action::SetMaskedMark(masked)) => mark = mark & !masked.mask().get() | masked.value(),
            Some(Action::Return) => break,
            Some(Action::Drop) => return ChainOutcome::Deny,
            Some(Action::Log(_)) | None => {}
            Some(other) => panic!("unexpected {other:?}"),
        }
    }
    match (mark & marks.accept.get() != 0, mark & marks.pass.get() != 0) {
        (true, false) => ChainOutcome::Accept,
        (false, true) => ChainOutcome::Pass,
        (false, false) => ChainOutcome::None,
        (true, true) => panic!("two verdicts"),
    }
}

fn passes(question: &Match, mark: u32, packet: &Packet) -> bool {
    let address = |side: Side| match side {
        Side::Source => packet.source,
        Side::Destination => packet.destination,
    };
    let port = |side: Side| match side {
        Side::Source => packet.source_port,
        Side::Destination => packet.destination_port,
    };
    match question {
        Match::Mark { want, negated } => (mark & want.mask().get() == want.value()) != *negated,
        Match::Protocol { protocol, negated } => (protocol.number() == packet.protocol) != *negated,
        Match::Net { side, net, negated } => {
            assert_eq!(net.cidr().family(), Family::of(packet.source), "net in the table of the other family");
            net.cidr().contains(address(*side)) != *negated
        }
        Match::IpSet { side, set, with_port, negated } => {
            let with_port = with_port.then(|| (packet.protocol, port(*side)));
            is_in(id_of(set), address(*side), with_port) != *negated
        }
        Match::Ports { side, ports, negated } => {
            // The kernel accepts the rule only for these protocols, so no others occur.
            assert!(matches!(packet.protocol, 6 | 17), "a port match without its protocol");
            ports.contains(port(*side)) != *negated
        }
        Match::Icmp { family, icmp, negated } => {
            assert_eq!(*family, Family::of(packet.source), "ICMP in the table of the other family");
            assert!(matches!(packet.protocol, 1 | 58), "an ICMP match without its protocol");
            (icmp.number == packet.icmp_type) != *negated
        }
        other => panic!("unexpected {other:?}"),
    }
}

fn id_of(set: &IpSetName) -> &str {
    let name = set.as_str();
    name.strip_prefix("cali40").or_else(|| name.strip_prefix("cali60")).unwrap()
}
