use proptest::prelude::*;

use super::*;
use crate::netlink::conntrack::{Flow, tests as conntrack};
use crate::netlink::wire::attribute;

/// UDP from 10.0.0.1:5353 to 10.0.0.2:53.
const PACKET: [u8; 28] =
    [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x14, 0xe9, 0, 53, 0, 8, 0, 0];

fn tuple(destination: [u8; 4]) -> Tuple {
    Tuple {
        source: [10, 0, 0, 1].into(),
        destination: destination.into(),
        protocol: 17,
        flow: Flow::Ports { source: 5353, destination: 53 },
    }
}

/// Returns a message as the kernel sends it, with unused attributes.
fn message(group: u16, info: u32, payload: &[u8]) -> Vec<u8> {
    let [high, low] = group.to_be_bytes();
    let connection = conntrack::attributes_of(&tuple([10, 96, 0, 1]));
    [
        vec![2, 0, high, low],
        attribute(1, &[8, 0, 2, 0]),
        attribute(NFULA_PREFIX, b"DPI|default/db\0"),
        attribute(NFULA_IFINDEX_INDEV, &7_u32.to_be_bytes()),
        attribute(NFULA_IFINDEX_OUTDEV, &9_u32.to_be_bytes()),
        attribute(3, &[0; 16]),
        attribute(NFULA_SEQ, &258_u32.to_be_bytes()),
        attribute(NFULA_CT | 0x8000, &connection),
        attribute(NFULA_CT_INFO, &info.to_be_bytes()),
        attribute(NFULA_PAYLOAD, payload),
    ]
    .concat()
}

#[test]
fn a_packet_is_read() {
    for (info, is_reply) in [(0, false), (1, false), (2, false), (3, true), (4, true)] {
        let bytes = message(300, info, &PACKET);
        let expected = LoggedPacket {
            group: 300,
            prefix: b"DPI|default/db",
            packet: LoggedHeaders { tuple: tuple([10, 0, 0, 2]), length: 28 },
            in_interface: Some(7),
            out_interface: Some(9),
            original: Some(tuple([10, 96, 0, 1])),
            is_reply,
        };
        assert_eq!(LoggedPacket::parse(&bytes).unwrap(), expected);
        assert_eq!(Message::parse(&bytes).unwrap().sequence, Some(258));
    }
}

#[test]
fn omitted_attributes_are_absent() {
    let bytes = [vec![2, 0, 0, 1], attribute(NFULA_PAYLOAD, &PACKET)].concat();
    let expected = LoggedPacket {
        group: 1,
        prefix: b"",
        packet: LoggedHeaders { tuple: tuple([10, 0, 0, 2]), length: 28 },
        in_interface: None,
        out_interface: None,
        original: None,
        is_reply: false,
    };
    assert_eq!(LoggedPacket::parse(&bytes).unwrap(), expected);
    assert_eq!(Message::parse(&bytes).unwrap().sequence, None);
}

#[test]
fn a_packet_that_is_not_of_ip_has_its_number() {
    for payload in [&[][..], &[0, 1, 8, 0, 6, 4], &PACKET[..19]] {
        let bytes = message(1, 2, payload);
        assert!(LoggedPacket::parse(&bytes).is_err());
        assert_eq!(Message::parse(&bytes).unwrap().sequence, Some(258));
    }
}

#[test]
fn attributes_of_another_size_are_refused() {
    for kind in [NFULA_IFINDEX_INDEV, NFULA_IFINDEX_OUTDEV, NFULA_SEQ, NFULA_CT_INFO, NFULA_CT] {
        let bytes = [message(1, 2, &PACKET), attribute(kind, &[0; 5])].concat();
        assert!(LoggedPacket::parse(&bytes).is_err(), "{kind}");
    }
}

#[test]
fn a_message_that_is_cut_off_is_refused() {
    let bytes = message(1, 2, &PACKET);
    for cut in 0..bytes.len() {
        assert!(LoggedPacket::parse(&bytes[..cut]).is_err(), "{cut}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut bytes = message(1, 2, &PACKET);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = LoggedPacket::parse(&bytes);
        bytes.truncate(cut.index(bytes.len()) + 1);
        let _ = LoggedPacket::parse(&bytes);
        let _ = LoggedPacket::parse(&noise);
    }
}
