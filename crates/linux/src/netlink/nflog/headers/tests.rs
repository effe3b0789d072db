use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

const UDP: u8 = 17;
const PORTS: [u8; 8] = [0x14, 0xe9, 0, 53, 0, 8, 0, 0];
const TO_53: Flow = Flow::Ports { source: 5353, destination: 53 };

/// Returns an IPv4 packet with this many words of options.
fn v4(protocol: u8, options: u8, fragment: u16, behind: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + 4 * usize::from(options) + behind.len()).unwrap();
    let mut packet = vec![0x45 + options, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.resize(packet.len() + 4 * usize::from(options), 1);
    packet.extend(behind);
    packet
}

/// An IPv6 packet from `fd00::1` to `fd00::2` that begins with this header.
fn v6(first: u8, behind: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(behind.len()).unwrap().to_be_bytes());
    packet.extend([first, 64]);
    for last in [1, 2] {
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    packet.extend(behind);
    packet
}

fn flow_of(packet: &[u8]) -> (u8, Flow) {
    let headers = LoggedHeaders::parse(packet).unwrap();
    assert_eq!(headers.length as usize, packet.len());
    let ends: [IpAddr; 2] = if packet[0] >> 4 == 4 {
        [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]
    } else {
        ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()]
    };
    assert_eq!([headers.tuple.source, headers.tuple.destination], ends);
    (headers.tuple.protocol, headers.tuple.flow)
}

#[test]
fn ports_are_read_behind_options_but_not_in_later_fragments() {
    const MORE_FRAGMENTS: u16 = 0x2000;
    const DO_NOT_FRAGMENT: u16 = 0x4000;
    for protocol in WITH_PORTS {
        for options in 0..=10 {
            for fragment in [0, DO_NOT_FRAGMENT, MORE_FRAGMENTS] {
                assert_eq!(flow_of(&v4(protocol, options, fragment, &PORTS)), (protocol, TO_53));
            }
            for fragment in [1, MORE_FRAGMENTS | 0x1fff] {
                assert_eq!(flow_of(&v4(protocol, options, fragment, &PORTS)), (protocol, Flow::Other));
            }
        }
    }
    for protocol in [ICMPV6, 47, 50, AUTHENTICATION] {
        assert_eq!(flow_of(&v4(protocol, 0, 0, &PORTS)), (protocol, Flow::Other), "none that have ports");
    }
}

#[test]
fn extension_headers_are_passed() {
    let padded = |next: u8, units: u8| {
        let mut header = vec![next, units];
        header.resize(8 * (usize::from(units) + 1), 0);
        header
    };
    let ports = PORTS.to_vec();
    for extension in [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS, MOBILITY, HOST_IDENTITY, SHIM6] {
        for units in [0, 1, 5] {
            assert_eq!(flow_of(&v6(extension, &[padded(UDP, units), ports.clone()].concat())), (UDP, TO_53));
        }
    }
    let all = [
        padded(ROUTING, 0),
        padded(AUTHENTICATION, 2),
        vec![DESTINATION_OPTIONS, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        padded(FRAGMENT, 0),
        vec![UDP, 0, 0, 1, 0, 0, 0, 9],
        ports.clone(),
    ];
    assert_eq!(flow_of(&v6(HOP_BY_HOP, &all.concat())), (UDP, TO_53));
    // The length in the header of a later fragment has no meaning.
    assert_eq!(flow_of(&v6(FRAGMENT, &[vec![UDP, 9, 0, 1, 0, 0, 0, 9], ports.clone()].concat())), (UDP, TO_53));
    for offset in [[0, 8], [0xff, 0xf8]] {
        let later = [vec![UDP, 0, offset[0], offset[1], 0, 0, 0, 9], ports.clone()].concat();
        assert_eq!(flow_of(&v6(FRAGMENT, &later)), (UDP, Flow::Other));
    }
    let nothing_follows = 59;
    assert_eq!(flow_of(&v6(nothing_follows, &ports)), (nothing_follows, Flow::Other));
}

#[test]
fn the_id_of_an_icmp_message_counts_where_it_is_one() {
    let message = |icmp_type| [icmp_type, 3, 0, 0, 1, 2, 0, 0];
    let expected = |icmp_type, id| Flow::Icmp { id, icmp_type, code: 3 };
    for (icmp_type, id) in [(0, 258), (8, 258), (3, 0), (5, 0), (11, 0), (13, 258), (18, 258), (128, 0)] {
        assert_eq!(flow_of(&v4(ICMP, 0, 0, &message(icmp_type))), (ICMP, expected(icmp_type, id)));
    }
    for (icmp_type, id) in [(128, 258), (129, 258), (1, 0), (135, 0), (8, 0)] {
        assert_eq!(flow_of(&v6(ICMPV6, &message(icmp_type))), (ICMPV6, expected(icmp_type, id)));
    }
    assert_eq!(flow_of(&v6(ICMP, &message(8))), (ICMP, Flow::Other));
}

/// The remaining headers of a truncated packet are decoded correctly.
#[test]
fn packets_that_are_cut_off() {
    let hop_by_hop = [&[UDP, 0, 0, 0, 0, 0, 0, 0][..], &PORTS].concat();
    let cases = [
        (v4(UDP, 2, 0, &PORTS), 20, 32, UDP),
        (v6(UDP, &PORTS), 40, 44, UDP),
        (v6(HOP_BY_HOP, &hop_by_hop), 40, 52, UDP),
        (v4(ICMP, 0, 0, &[8, 0, 0, 0, 0, 9, 0, 1]), 20, 26, ICMP),
    ];
    for (packet, addresses, flow, protocol) in cases {
        let whole = LoggedHeaders::parse(&packet).unwrap();
        for cut in 0..packet.len() {
            let headers = LoggedHeaders::parse(&packet[..cut]);
            if cut < addresses {
                assert_eq!(headers, None, "{cut}");
            } else if cut >= flow {
                assert_eq!(headers, Some(whole), "{cut}");
            } else {
                let headers = headers.unwrap();
                assert_eq!(headers.length, whole.length);
                assert_eq!(headers.tuple.flow, Flow::Other, "{cut}");
                let unknown = cut < 48 && packet[6] == HOP_BY_HOP && packet[0] >> 4 == 6;
                assert_eq!(headers.tuple.protocol, if unknown { HOP_BY_HOP } else { protocol }, "{cut}");
            }
        }
    }
}

#[test]
fn non_ip_packets_are_rejected() {
    for first in [0x00, 0x44, 0x40, 0x55, 0xff] {
        let mut packet = v4(UDP, 0, 0, &PORTS);
        packet[0] = first;
        assert_eq!(LoggedHeaders::parse(&packet), None, "{first:#x}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(first in 0_u8..16, mut bytes in prop::collection::vec(any::<u8>(), 0..160)) {
        let _ = LoggedHeaders::parse(&bytes);
        for version in [0x40, 0x60] {
            if let Some(byte) = bytes.first_mut() {
                *byte = version | first;
            }
            let _ = LoggedHeaders::parse(&bytes);
        }
    }

    #[test]
    fn a_chain_of_extension_headers_ends_with_the_bytes(
        chain in prop::collection::vec(prop::sample::select(vec![0, 43, 44, 51, 60, 135, 139, 140]), 1..30),
        lengths in prop::collection::vec(0_u8..4, 30),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut behind = Vec::new();
        for (at, header) in chain.iter().enumerate() {
            let next = chain.get(at + 1).copied().unwrap_or(UDP);
            let units = lengths[at];
            let length = match *header {
                FRAGMENT => 8,
                AUTHENTICATION => 4 * (usize::from(units) + 2),
                _ => 8 * (usize::from(units) + 1),
            };
            let begin = behind.len();
            behind.extend([next, units]);
            behind.resize(begin + length, 0);
        }
        let ports_at = behind.len();
        behind.extend(PORTS);
        let packet = v6(chain[0], &behind);
        prop_assert_eq!(flow_of(&packet), (UDP, TO_53));
        let cut = cut.index(ports_at + 4);
        let headers = LoggedHeaders::parse(&packet[..40 + cut]).unwrap();
        prop_assert_eq!(headers.tuple.flow, Flow::Other);
        prop_assert!(headers.tuple.protocol == UDP || chain.contains(&headers.tuple.protocol));
    }
}
