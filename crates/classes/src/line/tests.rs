use std::net::IpAddr;

use proptest::prelude::*;
use tortie_evaluate::{Packet, Payload};

use super::{Intervals, L4_END, L4Detail, PORTS_END, at_l4_point, l4_point};

fn packet(protocol: u8, payload: Payload) -> Packet {
    let address = IpAddr::from([10, 0, 0, 1]);
    Packet::new(address, address, protocol, payload).unwrap()
}

#[test]
fn points_distinguish_packets() {
    let ports = |destination| Payload::Ports { source: 9, destination };
    let icmp = |icmp_type, code| Payload::Icmp { icmp_type, code };
    let cases = [
        (0, Payload::Other, L4Detail::Other),
        (6, ports(0), L4Detail::Port(0)),
        (6, ports(u16::MAX), L4Detail::Port(u16::MAX)),
        (1, icmp(0, 0), L4Detail::Icmp { icmp_type: 0, code: 0 }),
        (1, icmp(255, 255), L4Detail::Icmp { icmp_type: 255, code: 255 }),
        (255, Payload::Other, L4Detail::Other),
        (255, ports(u16::MAX), L4Detail::Port(u16::MAX)),
    ];
    for (protocol, payload, detail) in cases {
        let point = l4_point(&packet(protocol, payload));
        assert!(point < L4_END);
        assert!(Intervals::protocol(protocol).contains(point));
        assert_eq!(at_l4_point(point), (protocol, detail));
    }
}

fn port_lists() -> impl Strategy<Value = Vec<(u16, u16)>> {
    prop::collection::vec((0..12u16, 0..4u16).prop_map(|(first, more)| (first, first + more)), 0..5)
}

proptest! {
    #[test]
    fn intervals_are_sets_of_points(ours in port_lists(), theirs in port_lists(), protocol in any::<u8>()) {
        let (left, right) = (Intervals::ports(ours.iter().copied()), Intervals::ports(theirs.iter().copied()));
        let listed = |list: &[(u16, u16)], port| list.iter().any(|(first, last)| (*first..=*last).contains(&port));
        let (both, neither) = (left.and(&right), left.not(PORTS_END));
        let (destination, not_destination) = (left.as_destination(protocol), neither.as_destination(protocol));
        for port in (0..20).chain([u16::MAX]) {
            let point = 1 + u32::from(port);
            prop_assert_eq!(left.contains(point), listed(&ours, port));
            prop_assert_eq!(both.contains(point), listed(&ours, port) && listed(&theirs, port));
            prop_assert_eq!(neither.contains(point), !listed(&ours, port));
            let at = l4_point(&packet(protocol, Payload::Ports { source: 1, destination: port }));
            prop_assert_eq!(destination.contains(at), listed(&ours, port));
            prop_assert_eq!(not_destination.contains(at), !listed(&ours, port));
        }
        let without = l4_point(&packet(protocol, Payload::Other));
        prop_assert!(!destination.contains(without) && not_destination.contains(without));
        prop_assert!(neither.contains(0));
    }
}
