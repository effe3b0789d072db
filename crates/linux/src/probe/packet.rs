//! Probe packets for protocols without kernel sockets.

/// Returns an ICMP message of either family without data. The kernel fills in the checksum of
/// `ICMPv6`.
pub(super) fn echo(icmp_type: u8, code: u8, id: u16) -> Vec<u8> {
    const SEQUENCE: u16 = 1;
    let head = u16::from_be_bytes([icmp_type, code]);
    let sum = u32::from(head) + u32::from(id) + u32::from(SEQUENCE);
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = (!((folded & 0xffff) + (folded >> 16))).to_be_bytes();
    let mut packet = vec![icmp_type, code, high, low];
    packet.extend(id.to_be_bytes());
    packet.extend(SEQUENCE.to_be_bytes());
    packet
}

pub(super) fn is_echo_reply(packet: &[u8], id: u16) -> bool {
    packet.first_chunk().is_some_and(|&[icmp_type, _, _, _, high, low]: &[u8; 6]| {
        matches!(icmp_type, 0 | 129) && u16::from_be_bytes([high, low]) == id
    })
}

/// Removes the IPv4 header, which raw sockets deliver with the packet.
pub(super) fn without_ipv4_header(packet: &[u8]) -> &[u8] {
    let length = packet.first().map_or(0, |byte| usize::from(byte & 15) * 4);
    packet.get(length..).unwrap_or_default()
}

/// Returns an SCTP packet that opens an association (INIT, RFC 9260).
pub(super) fn sctp_init(source: u16, destination: u16) -> Vec<u8> {
    const TAG: u32 = 0x7072_6f62;
    let mut packet = Vec::with_capacity(32);
    packet.extend(source.to_be_bytes());
    packet.extend(destination.to_be_bytes());
    // No verification tag yet; the checksum comes last.
    packet.extend([0; 8]);
    packet.extend([1, 0, 0, 20]);
    packet.extend(TAG.to_be_bytes());
    packet.extend(65536_u32.to_be_bytes());
    packet.extend([0, 1, 0, 1]);
    packet.extend(TAG.to_be_bytes());
    let checksum = crc32c(&packet).to_le_bytes();
    packet.splice(8..12, checksum);
    packet
}

pub(super) fn is_sctp_answer(packet: &[u8], source: u16, destination: u16) -> bool {
    let Some(&[s0, s1, d0, d1]) = packet.first_chunk() else { return false };
    let is_ours = u16::from_be_bytes([s0, s1]) == destination && u16::from_be_bytes([d0, d1]) == source;
    is_ours && matches!(packet.get(12), Some(2 | 6))
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0x82f6_3b78 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests;
