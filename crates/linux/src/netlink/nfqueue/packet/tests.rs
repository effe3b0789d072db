//! Packets built by hand against the decoder.

use proptest::prelude::*;

use super::*;

const UDP_PAYLOAD: &[u8] = b"payload";

fn bytes_of(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap().to_be_bytes()
}

fn datagram() -> Vec<u8> {
    let length = bytes_of(UDP_HEADER + UDP_PAYLOAD.len());
    [&[0, 53, 0x9c, 0x40], &length[..], &[0, 0], UDP_PAYLOAD].concat()
}

fn segment(flags: u8, options: usize, payload: &[u8]) -> Vec<u8> {
    let offset = u8::try_from((20 + options) / 4).unwrap() << 4;
    let header = [0, 53, 0x9c, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, offset, flags, 0, 0, 0, 0, 0, 0];
    [&header[..], &vec![1; options], payload].concat()
}

fn v4(protocol: u8, options: usize, behind: &[u8]) -> Vec<u8> {
    let first = 0x40 | u8::try_from((20 + options) / 4).unwrap();
    let [high, low] = bytes_of(20 + options + behind.len());
    let header = [first, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    [&header[..], &vec![1; options], behind].concat()
}

fn v6(next: u8, behind: &[u8]) -> Vec<u8> {
    let [high, low] = bytes_of(behind.len());
    let addresses = ["fd00::1", "fd00::2"].map(|text| text.parse::<Ipv6Addr>().unwrap().octets()).concat();
    [&[0x60, 0, 0, 0, high, low, next, 64][..], &addresses, behind].concat()
}

#[track_caller]
fn check(packet: &[u8], sides: [&str; 2], transport: Transport<'_>) {
    let [source, destination] = sides.map(|side| side.parse().unwrap());
    let expected = TransportPacket { source, destination, transport };
    assert_eq!(TransportPacket::parse(packet), Some(expected));
    // Bytes behind the packet, such as padding of Ethernet, do not count.
    assert_eq!(TransportPacket::parse(&[packet, &[0; 9]].concat()), Some(expected));
    for length in 0..packet.len() {
        assert_eq!(TransportPacket::parse(&packet[..length]), None, "{length} bytes");
    }
}

const V4: [&str; 2] = ["10.0.0.1:53", "10.0.0.2:40000"];
const V6: [&str; 2] = ["[fd00::1]:53", "[fd00::2]:40000"];

#[test]
fn datagrams_of_both_families() {
    check(&v4(UDP, 0, &datagram()), V4, Transport::Udp(UDP_PAYLOAD));
    check(&v4(UDP, 40, &datagram()), V4, Transport::Udp(UDP_PAYLOAD));
    check(&v6(UDP, &datagram()), V6, Transport::Udp(UDP_PAYLOAD));
}

#[test]
fn segments_of_both_families() {
    let transport = |syn, fin, rst, payload| Transport::Tcp(Segment { sequence: 0x0102_0304, syn, fin, rst, payload });
    check(&v4(TCP, 0, &segment(SYN | 0x10, 20, &[])), V4, transport(true, false, false, &[]));
    check(&v4(TCP, 4, &segment(FIN | 0x18, 12, b"abc")), V4, transport(false, true, false, b"abc"));
    check(&v6(TCP, &segment(RST, 0, &[])), V6, transport(false, false, true, &[]));
    assert_eq!(TransportPacket::parse(&v4(TCP, 0, &[&segment(0, 0, &[])[..12], &[0x40; 8]].concat())), None);
}

#[test]
fn extension_headers_come_before_the_ports() {
    // Hop-by-hop options, a routing header and destination options of 8, 16 and 8 bytes.
    let hop_by_hop = [43, 0, 1, 4, 0, 0, 0, 0];
    let routing = [&[60, 1, 0, 0][..], &[0; 12]].concat();
    let options = [UDP, 0, 1, 4, 0, 0, 0, 0];
    let behind = [&hop_by_hop[..], &routing, &options, &datagram()].concat();
    check(&v6(0, &behind), V6, Transport::Udp(UDP_PAYLOAD));
}

#[test]
fn fragments_and_other_protocols_have_no_payload() {
    let whole = v4(UDP, 0, &datagram());
    for fragment in [[0x20, 0], [0, 1], [0x3f, 0xff]] {
        let mut packet = whole.clone();
        packet[6..8].copy_from_slice(&fragment);
        assert_eq!(TransportPacket::parse(&packet), None, "{fragment:?}");
    }
    let fragment = |offset_and_more: [u8; 2]| {
        let [high, low] = offset_and_more;
        v6(44, &[&[UDP, 0, high, low, 0, 0, 0, 7], &datagram()[..]].concat())
    };
    assert_eq!(TransportPacket::parse(&fragment([0, 8])), None, "a later one");
    check(&fragment([0, 0]), V6, Transport::Udp(UDP_PAYLOAD));
    for packet in [v4(1, 0, &datagram()), v6(58, &datagram()), vec![0x50; 60]] {
        assert_eq!(TransportPacket::parse(&packet), None);
    }
}

#[test]
fn a_datagram_cannot_be_longer_than_its_packet_or_shorter_than_its_header() {
    for length in [7, UDP_HEADER + UDP_PAYLOAD.len() + 1] {
        let mut datagram = datagram();
        datagram[4..6].copy_from_slice(&bytes_of(length));
        assert_eq!(TransportPacket::parse(&v4(UDP, 0, &datagram)), None, "{length}");
    }
}

proptest! {
    #[test]
    fn no_packet_panics(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        version in prop::sample::select(vec![0x45u8, 0x4f, 0x60]),
        protocol in prop::sample::select(vec![0u8, 6, 17, 43, 44, 51, 60]),
    ) {
        let _ = TransportPacket::parse(&bytes);
        if let Some(first) = bytes.first_mut() {
            *first = version;
        }
        if let Some(next) = bytes.get_mut(if version == 0x60 { 6 } else { 9 }) {
            *next = protocol;
        }
        let _ = TransportPacket::parse(&bytes);
    }
}
