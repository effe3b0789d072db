//! The part of SCTP (RFC 9260) needed for INIT and INIT-ACK over a raw socket.

/// Length of the common header and of the fixed part of INIT and INIT-ACK.
const SHORTEST: usize = 12 + 20;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
/// A state cookie parameter (type 7), which INIT-ACK must carry.
const COOKIE: [u8; 8] = [0, 7, 0, 8, 0x0c, 0x00, 0xc1, 0xe5];

/// Relevant contents of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet {
    Init { source: u16, destination: u16, tag: u32 },
    InitAck { source: u16, destination: u16 },
}

/// Parses a packet without its IP header.
pub(super) fn parse(packet: &[u8]) -> Option<Packet> {
    if packet.len() < SHORTEST {
        return None;
    }
    let short = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let (source, destination) = (short(0), short(2));
    match packet[12] {
        INIT => {
            let tag = u32::from_be_bytes([packet[16], packet[17], packet[18], packet[19]]);
            Some(Packet::Init { source, destination, tag })
        }
        INIT_ACK => Some(Packet::InitAck { source, destination }),
        _ => None,
    }
}

/// Removes the IPv4 header, which a raw IPv4 socket also returns.
pub(super) fn strip_ipv4_header(packet: &[u8]) -> &[u8] {
    let length = packet.first().map_or(0, |byte| usize::from(byte & 15) * 4);
    packet.get(length..).unwrap_or_default()
}

/// Returns an INIT packet.
pub(super) fn init(source: u16, destination: u16, tag: u32) -> Vec<u8> {
    packet(source, destination, 0, INIT, tag, &[])
}

/// Returns the INIT-ACK for an INIT with `peer_tag`.
pub(super) fn init_ack(source: u16, destination: u16, peer_tag: u32) -> Vec<u8> {
    packet(source, destination, peer_tag, INIT_ACK, !peer_tag | 1, &COOKIE)
}

fn packet(source: u16, destination: u16, verification: u32, chunk: u8, tag: u32, parameters: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(SHORTEST + COOKIE.len());
    packet.extend(source.to_be_bytes());
    packet.extend(destination.to_be_bytes());
    packet.extend(verification.to_be_bytes());
    packet.extend([0; 4]);
    let length: u8 = if parameters.is_empty() { 20 } else { 28 };
    packet.extend([chunk, 0, 0, length]);
    packet.extend(tag.to_be_bytes());
    packet.extend(65536u32.to_be_bytes());
    packet.extend([0, 1, 0, 1]);
    packet.extend(1u32.to_be_bytes());
    packet.extend(parameters);
    let checksum = crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&checksum);
    packet
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::{Packet, crc32c, init, init_ack, parse, strip_ipv4_header};

    #[test]
    fn checksum_has_the_check_value_of_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn request_and_answer_are_read_back() {
        assert_eq!(parse(&init(7, 80, 42)), Some(Packet::Init { source: 7, destination: 80, tag: 42 }));
        let answer = init_ack(80, 7, 42);
        assert_eq!(parse(&answer), Some(Packet::InitAck { source: 80, destination: 7 }));
        assert_eq!(&answer[4..8], &42u32.to_be_bytes());
        assert_eq!(answer.len(), 12 + usize::from(answer[15]));
        assert_eq!(parse(&answer[..31]), None);
    }

    #[test]
    fn ip_header_length_is_honoured() {
        assert_eq!(strip_ipv4_header(&[&[0x46][..], &[0; 23], b"rest"].concat()), b"rest");
        assert_eq!(strip_ipv4_header(&[0x45, 0]), b"");
        assert_eq!(strip_ipv4_header(&[]), b"");
    }
}
