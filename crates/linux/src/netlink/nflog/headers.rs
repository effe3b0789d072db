//! Headers of an IP packet, from its first bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::netlink::conntrack::{Flow, Tuple};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// TCP, UDP, DCCP, SCTP and UDP-Lite.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
/// Types of ICMP messages of either family that have an id: requests and their answers.
const ICMP_WITH_ID: [u8; 8] = [0, 8, 13, 14, 15, 16, 17, 18];
const ICMPV6_WITH_ID: [u8; 4] = [128, 129, 139, 140];

const IPV6_HEADER_LEN: u32 = 40;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// Headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoggedHeaders {
    /// Source and destination as in the packet at this point: after a chain that translates, the
    /// translated ones.
    ///
    /// The flow is [`Flow::Other`] if ports or the ICMP header are missing: cut off, or in another
    /// fragment. The id is 0 for ICMP messages that have none, such as errors. If IPv6 extension
    /// headers are cut off, the protocol is that of the first missing header.
    pub tuple: Tuple,
    /// Length of the packet in bytes including the IP header, as stated there.
    pub length: u32,
}

impl LoggedHeaders {
    /// Decodes the first bytes of an IP packet; `None` if they belong to another kind of packet, or
    /// end before the addresses do.
    ///
    /// ```
    /// use tortie_linux::netlink::{Flow, LoggedHeaders};
    ///
    /// let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    /// packet.extend([0x14, 0xe9, 0, 53, 0, 8, 0, 0]);
    /// let headers = LoggedHeaders::parse(&packet).unwrap();
    /// assert_eq!(headers.tuple.flow, Flow::Ports { source: 5353, destination: 53 });
    /// assert_eq!(headers.length, 28);
    /// ```
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => ipv4(packet),
            6 => ipv6(packet),
            _ => None,
        }
    }
}

fn ipv4(packet: &[u8]) -> Option<LoggedHeaders> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let header_length = usize::from(header[0] & 0x0f) * 4;
    if header_length < header.len() {
        return None;
    }
    let fragment_offset = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
    let behind = packet.get(header_length..).filter(|_| fragment_offset == 0).unwrap_or_default();
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    let protocol = header[9];
    let flow = if protocol == ICMP { icmp(&ICMP_WITH_ID, behind) } else { ports(protocol, behind) };
    Some(LoggedHeaders {
        tuple: Tuple {
            source: Ipv4Addr::new(s0, s1, s2, s3).into(),
            destination: Ipv4Addr::new(d0, d1, d2, d3).into(),
            protocol,
            flow: flow.unwrap_or(Flow::Other),
        },
        length: u16::from_be_bytes([header[2], header[3]]).into(),
    })
}

fn ipv6(packet: &[u8]) -> Option<LoggedHeaders> {
    let (header, behind) = packet.split_first_chunk::<40>()?;
    let (_, addresses) = header.split_first_chunk::<8>()?;
    let (source, destination) = addresses.split_first_chunk::<16>()?;
    let destination: &[u8; 16] = destination.first_chunk()?;
    let (protocol, behind) = behind_extensions(header[6], behind);
    let flow = if protocol == ICMPV6 { icmp(&ICMPV6_WITH_ID, behind) } else { ports(protocol, behind) };
    Some(LoggedHeaders {
        tuple: Tuple {
            source: Ipv6Addr::from(*source).into(),
            destination: Ipv6Addr::from(*destination).into(),
            protocol,
            flow: flow.unwrap_or(Flow::Other),
        },
        length: IPV6_HEADER_LEN + u32::from(u16::from_be_bytes([header[4], header[5]])),
    })
}

/// Returns the protocol after the extension headers of IPv6, and its bytes; none if they are in
/// another fragment.
pub(in crate::netlink) fn behind_extensions(first: u8, bytes: &[u8]) -> (u8, &[u8]) {
    let (mut header, mut rest) = (first, bytes);
    loop {
        let Some(&[next, length, high, low]) = rest.first_chunk() else { return (header, rest) };
        let length = match header {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY | SHIM6 => {
                8 * (usize::from(length) + 1)
            }
            AUTHENTICATION => 4 * (usize::from(length) + 2),
            FRAGMENT if u16::from_be_bytes([high, low]) >> 3 != 0 => return (next, &[]),
            FRAGMENT => 8,
            _ => return (header, rest),
        };
        match rest.get(length..) {
            Some(behind) => (header, rest) = (next, behind),
            None => return (header, &[]),
        }
    }
}

fn ports(protocol: u8, bytes: &[u8]) -> Option<Flow> {
    let &[s0, s1, d0, d1] = bytes.first_chunk().filter(|_| WITH_PORTS.contains(&protocol))?;
    Some(Flow::Ports { source: u16::from_be_bytes([s0, s1]), destination: u16::from_be_bytes([d0, d1]) })
}

/// Decodes an ICMP header. The types in `with_id` have an id.
fn icmp(with_id: &[u8], bytes: &[u8]) -> Option<Flow> {
    let &[icmp_type, code, _, _, high, low] = bytes.first_chunk()?;
    let id = if with_id.contains(&icmp_type) { u16::from_be_bytes([high, low]) } else { 0 };
    Some(Flow::Icmp { id, icmp_type, code })
}

#[cfg(test)]
mod tests;
