//! Headers as parsed by programs.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tortie_ebpf::layout::MapKind;
use tortie_model::Family;

use crate::{Bench, Expected, PORTS, V4, V6, attachments, open, v4, v6};

#[test]
fn headers_of_ipv4_are_read() {
    for attachment in attachments() {
        let bench = Bench::new(attachment, Family::V4);
        let expect = |expected| bench.expect(&V4[0], &V4[1], expected);
        for protocol in [6, 17, 33, 132, 136] {
            expect(Expected { protocol, detail: Some(80), source_port: Some(0x0611) });
            assert!(bench.passes(&v4(protocol, 0, 0, &PORTS)), "{protocol}");
            assert!(bench.passes(&v4(protocol, 10, 0, &PORTS)), "{protocol} behind options");
            assert!(bench.passes(&v4(protocol, 0, 0x2000, &PORTS)), "{protocol}, the first of some fragments");
            assert!(!bench.passes(&v4(protocol, 0, 0, &[6, 17, 0, 81])), "another port");
            assert!(!bench.passes(&v4(protocol, 0, 0, &[6, 18, 0, 80])), "another source port");
            assert!(!bench.passes(&v4(protocol + 1, 0, 0, &PORTS)), "another protocol");
            assert!(!bench.passes(&v4(protocol, 0, 1, &PORTS)), "{protocol}, a later fragment");
            assert!(!bench.passes(&v4(protocol, 0, 0, &PORTS[..3])), "{protocol}, torn");
            let mut short = v4(protocol, 0, 0, &PORTS);
            short[0] = 0x44;
            assert!(!bench.passes(&short), "a header that is too short");
            expect(Expected { protocol, detail: None, source_port: None });
            assert!(!bench.passes(&v4(protocol, 0, 0, &PORTS)));
            assert!(bench.passes(&v4(protocol, 0, 1, &PORTS)), "{protocol}, a later fragment");
            assert!(bench.passes(&v4(protocol, 0, 0x3fff, &[])), "{protocol}, a later fragment");
        }
        expect(Expected { protocol: 1, detail: Some(0x0305), source_port: None });
        assert!(bench.passes(&v4(1, 0, 0, &[3, 5])));
        assert!(!bench.passes(&v4(1, 0, 0, &[3, 4])));
        assert!(!bench.passes(&v4(1, 0, 0, &[3])));
        for protocol in [0, 2, 4, 47, 50, 51, 58, 255] {
            expect(Expected { protocol, detail: None, source_port: None });
            assert!(bench.passes(&v4(protocol, 0, 0, &PORTS)), "{protocol} has no ports");
            assert!(bench.passes(&v4(protocol, 0, 0, &[])), "{protocol} has no ports");
        }
        // Addresses are compared.
        bench.expect(&V4[1], &V4[0], Expected { protocol: 50, detail: None, source_port: None });
        assert!(!bench.passes(&v4(50, 0, 0, &[])));
    }
}

/// Returns headers one behind the other: the number of each and its bytes, of which the first is
/// the number of the next.
fn chain(headers: &[(u8, Vec<u8>)], last: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let nexts = headers.iter().skip(1).map(|(number, _)| *number).chain([last]);
    for ((_, header), next) in headers.iter().zip(nexts) {
        bytes.push(next);
        bytes.extend(header.iter().skip(1));
    }
    bytes.extend(payload);
    v6(headers.first().map_or(last, |(number, _)| *number), &bytes)
}

/// An options header of this many times 8 bytes.
fn options(number: u8, eights: u8) -> (u8, Vec<u8>) {
    let mut bytes = vec![0; usize::from(eights) * 8];
    bytes[1] = eights - 1;
    (number, bytes)
}

/// An authentication header of this many times 4 bytes.
fn authentication(fours: u8) -> (u8, Vec<u8>) {
    let mut bytes = vec![0xee; usize::from(fours) * 4];
    bytes[1] = fours - 2;
    (51, bytes)
}

/// A fragment header with this offset field.
fn fragment(field: u16) -> (u8, Vec<u8>) {
    let [high, low] = field.to_be_bytes();
    // The second byte is reserved, not a length.
    (44, vec![0, 0xff, high, low, 1, 2, 3, 4])
}

#[test]
fn headers_of_ipv6_are_read() {
    for attachment in attachments() {
        let bench = Bench::new(attachment, Family::V6);
        let expect = |expected| bench.expect(&V6[0], &V6[1], expected);
        for protocol in [6, 17, 33, 132, 136] {
            expect(Expected { protocol, detail: Some(80), source_port: Some(0x0611) });
            let behind = |headers: &[(u8, Vec<u8>)]| bench.passes(&chain(headers, protocol, &PORTS));
            assert!(behind(&[]));
            for number in [0, 43, 60] {
                assert!(behind(&[options(number, 1)]), "behind {number}");
                assert!(behind(&[options(number, 5)]), "behind a long {number}");
            }
            assert!(behind(&[authentication(3)]), "an authentication header of 12 bytes");
            assert!(behind(&[authentication(6)]), "an authentication header of 24 bytes");
            assert!(behind(&[fragment(1)]), "the first of some fragments");
            assert!(behind(&[options(0, 2), options(43, 3), fragment(1), authentication(5), options(60, 1)]));
            assert!(behind(&vec![options(60, 1); 8]));
            assert!(!behind(&vec![options(60, 1); 9]), "nine extension headers");
            assert!(!behind(&[fragment(8)]), "a later fragment");
            assert!(!bench.passes(&chain(&[options(0, 1)], protocol, &PORTS[..3])), "torn");
            assert!(!bench.passes(&v6(0, &[protocol])), "a torn header of options");
            assert!(!bench.passes(&v6(44, &[protocol, 0, 0])), "a torn fragment header");
            expect(Expected { protocol, detail: None, source_port: None });
            assert!(bench.passes(&chain(&[fragment(8)], protocol, &PORTS)), "a later fragment");
            assert!(bench.passes(&chain(&[options(60, 1), fragment(0xfff8)], protocol, &[])), "a later fragment");
            assert!(!bench.passes(&chain(&[fragment(1)], protocol, &PORTS)));
        }
        expect(Expected { protocol: 58, detail: Some(0x8700), source_port: None });
        assert!(bench.passes(&v6(58, &[135, 0])));
        assert!(bench.passes(&chain(&[options(0, 1)], 58, &[135, 0])));
        assert!(!bench.passes(&v6(58, &[136, 0])));
        for protocol in [1, 4, 41, 50, 59, 135, 255] {
            expect(Expected { protocol, detail: None, source_port: None });
            assert!(bench.passes(&chain(&[options(0, 1)], protocol, &PORTS)), "{protocol} has no ports");
        }
        // The content behind a later fragment's header is unknown, and so is the protocol.
        for number in [0, 43, 44, 51, 60] {
            expect(Expected { protocol: number, detail: None, source_port: None });
            assert!(!bench.passes(&chain(&[fragment(8)], number, &[6, 0, 0, 0, 0, 0, 0, 0])), "{number}");
            assert!(!bench.passes(&v6(number, &[])), "{number}");
        }
        bench.expect(&V6[1], &V6[0], Expected { protocol: 50, detail: None, source_port: None });
        assert!(!bench.passes(&v6(50, &[])));
    }
}

/// Parses a packet according to RFC 791 and RFC 8200, independently of the programs. `None` if it
/// must be dropped.
fn read(packet: &[u8]) -> Option<Expected> {
    const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
    let is_v4 = packet[0] >> 4 == 4;
    let (mut protocol, mut at, mut is_later) = if is_v4 {
        let words = packet[0] & 0xf;
        if words < 5 {
            return None;
        }
        let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]);
        (*packet.get(9)?, usize::from(words) * 4, fragment % 0x2000 != 0)
    } else {
        (*packet.get(6)?, 40, false)
    };
    for passed in 0.. {
        if is_v4 || ![0, 43, 44, 51, 60].contains(&protocol) {
            break;
        }
        // No header follows that of a later fragment, and there are at most eight.
        if is_later || passed == 8 {
            return None;
        }
        let (next, second) = (*packet.get(at)?, *packet.get(at + 1)?);
        at += match protocol {
            44 => {
                is_later = u16::from_be_bytes([*packet.get(at + 2)?, *packet.get(at + 3)?]) >> 3 != 0;
                8
            }
            51 => (usize::from(second) + 2) * 4,
            _ => (usize::from(second) + 1) * 8,
        };
        protocol = next;
    }
    let (mut detail, mut source_port) = (None, None);
    let number = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    if !is_later && WITH_PORTS.contains(&protocol) {
        (source_port, detail) = (Some(number(at)?), Some(number(at + 2)?));
    } else if !is_later && protocol == if is_v4 { 1 } else { 58 } {
        detail = Some(number(at)?);
    }
    Some(Expected { protocol, detail, source_port })
}

/// Packets of headers that fit together or nearly do, some of them truncated.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let protocol =
        || prop_oneof![prop::sample::select(vec![1_u8, 6, 17, 33, 44, 50, 51, 58, 59, 132, 136]), any::<u8>()];
    let payload = || prop::collection::vec(any::<u8>(), 0..12);
    let of_v4 = (protocol(), 0..=10_u8, prop_oneof![Just(0_u16), any::<u16>()], payload(), any::<bool>()).prop_map(
        |(protocol, options, fragment, payload, is_short)| {
            let mut packet = v4(protocol, options, fragment, &payload);
            packet[0] -= u8::from(is_short && options == 0);
            packet
        },
    );
    let extension = prop_oneof![
        (prop::sample::select(vec![0, 43, 60]), 1..4_u8).prop_map(|(number, eights)| options(number, eights)),
        (2..6_u8).prop_map(authentication),
        prop_oneof![Just(0_u16), Just(1), Just(8), any::<u16>()].prop_map(fragment),
    ];
    let of_v6 = (prop::collection::vec(extension, 0..10), protocol(), payload())
        .prop_map(|(headers, last, payload)| chain(&headers, last, &payload));
    let whole = prop_oneof![of_v4, of_v6];
    (whole, any::<prop::sample::Index>(), 0..4_u8).prop_map(|(mut packet, at, torn)| {
        // The kernel passes no packet with a truncated first header to hooks.
        let first = if packet[0] >> 4 == 4 { 20 } else { 40 };
        if torn == 0 {
            packet.truncate(first + at.index(packet.len() + 1 - first));
        }
        packet
    })
}

#[test]
fn arbitrary_headers_are_parsed_or_dropped() {
    for attachment in attachments() {
        let benches = Family::ALL.map(|family| Bench::new(attachment, family));
        let mut runner =
            TestRunner::new(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() });
        let done = runner.run(&packets(), |packet| {
            let is_v6 = packet[0] >> 4 == 6;
            let bench = &benches[usize::from(is_v6)];
            let [source, destination] = if is_v6 { [&V6[0][..], &V6[1][..]] } else { [&V4[0][..], &V4[1][..]] };
            match read(&packet) {
                Some(expected) => {
                    bench.expect(source, destination, expected);
                    prop_assert!(bench.passes(&packet), "{expected:?}");
                }
                None => {
                    bench.expect(source, destination, Expected { protocol: 0, detail: None, source_port: None });
                    bench.write(MapKind::Groups, 3, &open().to_bytes());
                    prop_assert!(!bench.passes(&packet));
                    let bare = if is_v6 { v6(59, &[]) } else { v4(59, 0, 0, &[]) };
                    prop_assert!(bench.passes(&bare), "other packets are allowed");
                }
            }
            Ok(())
        });
        if let Err(error) = done {
            panic!("{error}");
        }
    }
}
