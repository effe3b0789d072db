use std::collections::BTreeSet;

use tortie_iptables::{
    Action, Chain, ChainName, ConntrackState, Family, IcmpType, InterfaceName, InterfacePattern, IpSetName, MarkBits,
    MaskedMark, Match, Matches, PortList, Protocol, RejectWith, Rule, Side, matches_text,
};
use tortie_model::Cidr;
use tortie_model::desired::{IpPortMember, Members, PortProtocol};

use super::{PacketOutcome, Skb, Tables, WalkError};
use crate::packet::Packet;

fn name(text: &str) -> ChainName {
    ChainName::new(text).unwrap()
}

fn tables(chains: &[(&str, Vec<Rule>)]) -> Tables {
    let mut tables = Tables::new();
    for (chain, rules) in chains {
        tables.add_chain(Chain::new(name(chain), rules.clone()));
    }
    tables
}

fn tcp(port: u16) -> Skb {
    let [source, destination] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    Skb::new(Packet::with_ports(6, (source, 1000), (destination, port)), "cali1", "eth0")
}

fn bits(bits: u32) -> MarkBits {
    MarkBits::new(bits).unwrap()
}

fn set_mark(mark: u32) -> Rule {
    Rule::new(Action::SetMark(bits(mark)))
}

#[test]
fn jumps_return_and_gotos_do_not() {
    let tables = tables(&[
        ("a", vec![Rule::new(Action::Jump(name("b"))), set_mark(8)]),
        ("b", vec![Rule::new(Action::Goto(name("c"))), set_mark(2)]),
        ("c", vec![set_mark(1), Rule::new(Action::Return), set_mark(4)]),
    ]);
    let walk = tables.walk(name("a"), &tcp(80)).unwrap();
    assert_eq!((walk.outcome, walk.mark), (PacketOutcome::Returned, 1 | 8));
    let path: Vec<_> = walk.path.iter().map(|(chain, rule)| (chain.as_str().to_owned(), *rule)).collect();
    let expected = [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("a", 1)].map(|(chain, rule)| (chain.to_owned(), rule));
    assert_eq!(path, expected);
}

#[test]
fn verdicts_end_the_walk_wherever_they_are() {
    for (action, outcome) in [
        (Action::Accept, PacketOutcome::Accepted),
        (Action::Drop, PacketOutcome::Dropped),
        (Action::Reject(RejectWith::TcpReset), PacketOutcome::Rejected(RejectWith::TcpReset)),
        (Action::Masquerade { ports: None }, PacketOutcome::Accepted),
    ] {
        let tables =
            tables(&[("a", vec![Rule::new(Action::Jump(name("b"))), set_mark(1)]), ("b", vec![Rule::new(action)])]);
        let walk = tables.walk(name("a"), &tcp(80)).unwrap();
        assert_eq!((walk.outcome, walk.mark), (outcome, 0));
    }
}

#[test]
fn marks_are_set_cleared_and_masked() {
    let tables = tables(&[(
        "a",
        vec![
            Rule::new(Action::SetMaskedMark(MaskedMark::new(0x10, bits(0x30)))),
            Rule::when(Matches::new().mark_clear(bits(0x20)), Action::SetMark(bits(1))),
            Rule::when(Matches::new().mark_set(bits(0x20)), Action::SetMark(bits(2))),
            Rule::new(Action::ClearMark(bits(0x100))),
        ],
    )]);
    assert_eq!(tables.walk(name("a"), &Skb { mark: 0x320, ..tcp(80) }).unwrap().mark, 0x211);
}

#[test]
fn every_match_is_answered() {
    let set = IpSetName::new("nets").unwrap();
    let ports = IpSetName::new("ports").unwrap();
    let interface = |text: &str| InterfaceName::new(text).unwrap();
    let net = |text: &str| text.parse::<Cidr>().unwrap();
    let yes: Vec<Matches> = vec![
        Matches::new(),
        Matches::new().protocol(Protocol::TCP),
        Matches::new().protocol(Protocol::Number(0)),
        Matches::new().not_protocol(Protocol::UDP),
        Matches::new().net(Side::Source, net("10.0.0.0/31")),
        Matches::new().not_net(Side::Destination, net("10.0.0.0/31")),
        Matches::new().ip_set(Side::Source, set),
        Matches::new().not_ip_set(Side::Destination, set),
        Matches::new().ip_port_set(Side::Destination, ports),
        Matches::new().not_ip_port_set(Side::Source, ports),
        Matches::new().protocol(Protocol::TCP).destination_ports(PortList::single(80)),
        Matches::new().protocol(Protocol::TCP).not_ports(Side::Source, PortList::single(80)),
        Matches::new().protocol(Protocol::TCP).destination_port(80),
        Matches::new().and(Match::InInterface(InterfacePattern::prefix(interface("cali")))),
        Matches::new().and(Match::OutInterface(InterfacePattern::exact(interface("eth0")))),
    ];
    let no: Vec<Matches> = vec![
        Matches::new().protocol(Protocol::Number(17)),
        Matches::new().net(Side::Destination, net("10.0.0.0/31")),
        Matches::new().ip_set(Side::Destination, set),
        Matches::new().ip_port_set(Side::Source, ports),
        Matches::new().protocol(Protocol::TCP).source_ports(PortList::single(80)),
        Matches::new().and(Match::InInterface(InterfacePattern::exact(interface("cali")))),
        Matches::new().and(Match::OutInterface(InterfacePattern::exact(interface("eth")))),
        Matches::new().and(Match::ReversePathFails),
    ];
    for (matches, expected) in yes.into_iter().map(|m| (m, 1)).chain(no.into_iter().map(|m| (m, 0))) {
        let text = matches_text(&matches);
        let mut tables = tables(&[("a", vec![Rule::when(matches, Action::SetMark(bits(1)))])]);
        tables.add_set(set, Members::Nets(vec!["10.0.0.1/32".parse().unwrap(), "10.1.0.0/16".parse().unwrap()]));
        let member = IpPortMember::new("10.0.0.2".parse().unwrap(), PortProtocol::Tcp, 80);
        tables.add_set(ports, Members::IpPorts(vec![member]));
        assert_eq!(tables.walk(name("a"), &tcp(80)).unwrap().mark, expected, "{text}");
    }
}

#[test]
fn connection_state_and_local_addresses_are_given() {
    let established = Matches::new()
        .and(Match::Conntrack { states: tortie_iptables::ConntrackStates::RELATED_OR_ESTABLISHED, negated: false });
    let local = Matches::new().and(Match::LocalAddress {
        side: Side::Destination,
        limit_to_out_interface: false,
        negated: false,
    });
    let tables = tables(&[(
        "a",
        vec![
            Rule::when(established, Action::SetMark(bits(1))),
            Rule::when(local, Action::SetMark(bits(2))),
            Rule::new(Action::RejectConnectionsAbove(3)),
        ],
    )]);
    let walk = |skb: &Skb| tables.walk(name("a"), skb).unwrap();
    assert_eq!(walk(&tcp(80)).mark, 0);
    let mut skb = tcp(80);
    skb.local_addresses.insert(skb.packet.destination);
    skb.conntrack = BTreeSet::from([ConntrackState::Established]);
    skb.open_connections = 4;
    assert_eq!((walk(&skb).mark, walk(&skb).outcome), (3, PacketOutcome::Returned));
    skb.conntrack = BTreeSet::from([ConntrackState::New]);
    assert_eq!(walk(&skb).outcome, PacketOutcome::Rejected(RejectWith::TcpReset));
}

#[test]
fn rules_that_the_kernel_refuses_are_errors() {
    let icmp = IcmpType { number: 8, code: None };
    let refused: Vec<Matches> = vec![
        Matches::new().destination_ports(PortList::single(80)),
        Matches::new().not_protocol(Protocol::TCP).destination_ports(PortList::single(80)),
        Matches::new().protocol(Protocol::ICMP).destination_ports(PortList::single(80)),
        Matches::new().protocol(Protocol::TCP).not_protocol(Protocol::UDP),
        Matches::new().icmp(Family::V4, icmp),
        Matches::new().not_protocol(Protocol::Number(0)),
        Matches::new().not_net(Side::Source, "0.0.0.0/0".parse::<Cidr>().unwrap()),
        Matches::new().protocol(Protocol::ICMPV6).icmp(Family::V6, icmp),
        Matches::new().net(Side::Source, "fd00::/8".parse::<Cidr>().unwrap()),
        Matches::new()
            .net(Side::Source, "10.0.0.0/8".parse::<Cidr>().unwrap())
            .not_net(Side::Source, "10.0.0.0/9".parse::<Cidr>().unwrap()),
    ];
    for matches in refused {
        let text = matches_text(&matches);
        let walk = tables(&[("a", vec![Rule::when(matches, Action::Accept)])]).walk(name("a"), &tcp(80));
        assert!(matches!(walk, Err(WalkError::Refused { rule: 0, .. })), "{text}: {walk:?}");
    }
}

#[test]
fn missing_things_and_circles_are_errors() {
    let circle =
        tables(&[("a", vec![Rule::new(Action::Jump(name("b")))]), ("b", vec![Rule::new(Action::Goto(name("a")))])]);
    assert_eq!(circle.walk(name("a"), &tcp(80)), Err(WalkError::Loop(name("a"))));
    let dangling = tables(&[("a", vec![Rule::new(Action::Jump(name("b")))])]);
    assert_eq!(dangling.walk(name("a"), &tcp(80)), Err(WalkError::NoChain(name("b"))));
    let set = IpSetName::new("nets").unwrap();
    let asks = tables(&[("a", vec![Rule::when(Matches::new().ip_set(Side::Source, set), Action::Accept)])]);
    let error = WalkError::NoSet { chain: name("a"), rule: 0, set };
    assert_eq!(asks.walk(name("a"), &tcp(80)), Err(error.clone()));
    let mut wrong_type = asks;
    wrong_type.add_set(set, Members::IpPorts(vec![]));
    assert_eq!(wrong_type.walk(name("a"), &tcp(80)), Err(error));
}
