use proptest::prelude::*;

use super::*;

#[test]
fn packets_are_whole() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    let packet = sctp_init(0x1234, 80);
    assert_eq!((packet.len(), &packet[..4]), (32, &[0x12, 0x34, 0, 80][..]));
    assert_eq!(echo(8, 0, 0), [8, 0, 0xf7, 0xfe, 0, 0, 0, 1]);
    assert_eq!(echo(8, 0, 0xffff)[2..4], [0xf7, 0xfe]);
}

#[test]
fn answers_are_distinguished_from_other_packets() {
    assert!(is_echo_reply(&[0, 0, 1, 1, 0, 7], 7) && is_echo_reply(&[129, 0, 1, 1, 0, 7], 7));
    assert!(!is_echo_reply(&[8, 0, 1, 1, 0, 7], 7) && !is_echo_reply(&[0, 0, 1, 1, 0, 8], 7));
    let mut packet = sctp_init(80, 5000);
    assert!(!is_sctp_answer(&packet, 5000, 80), "a request");
    packet[12] = 2;
    assert!(is_sctp_answer(&packet, 5000, 80) && !is_sctp_answer(&packet, 5001, 80));
}

proptest! {
    #[test]
    fn no_packet_is_too_strange(packet in proptest::collection::vec(any::<u8>(), 0..40)) {
        let packet = without_ipv4_header(&packet);
        let _ = (is_echo_reply(packet, 1), is_sctp_answer(packet, 1, 2));
    }
}
