//! Log records of packets.

use std::net::IpAddr;

use tortie_classes::evaluate::{Packet, Payload, Verdict};
use tortie_model::Family;

use crate::layout::{ALLOW, UNDECIDED, VERDICT_BITS};
use crate::tables::DecisionId;

/// Decision about a packet, as programs write it to [`MapKind::Log`](crate::layout::MapKind::Log).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogRecord {
    /// Decision.
    pub decision: DecisionId,
    /// Verdict of the decision.
    pub verdict: Verdict,
    /// Length of the packet in bytes, from its IP header on.
    pub length: u32,
    /// Packet as the policy saw it.
    pub packet: Packet,
    /// Identifier of an ICMP echo; 0 for other packets.
    pub icmp_id: u16,
}

/// Offsets of the packet's fields in a record, behind its head.
pub(crate) struct LoggedOffsets {
    pub(crate) source: i16,
    pub(crate) destination: i16,
    pub(crate) protocol: i16,
    /// Two ports, or identifier, type and code of an ICMP message.
    pub(crate) source_port: i16,
    pub(crate) has_detail: i16,
    pub(crate) has_source_port: i16,
}

impl LogRecord {
    /// Length of the head in bytes: the deciding cell, and the length of the packet.
    pub(crate) const HEAD: i16 = 8;
    /// Offset of the length.
    pub(crate) const LENGTH: i16 = 4;
    /// Size in bytes of a record of an IPv4 and of an IPv6 packet.
    pub(crate) const SIZES: [i16; 2] = [Self::HEAD + 28, Self::HEAD + 40];

    pub(crate) const fn offsets(family: Family) -> LoggedOffsets {
        match family {
            Family::V4 => LoggedOffsets {
                source: 12,
                destination: 16,
                protocol: 9,
                source_port: 20,
                has_detail: 26,
                has_source_port: 27,
            },
            Family::V6 => LoggedOffsets {
                source: 0,
                destination: 16,
                protocol: 38,
                source_port: 32,
                has_detail: 36,
                has_source_port: 37,
            },
        }
    }

    /// Reads a record; `None` for an invalid one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let is_of = |size: i16| bytes.len() == usize::from(size.unsigned_abs());
        let [v4, v6] = Self::SIZES;
        let family = match bytes {
            _ if is_of(v4) => Family::V4,
            _ if is_of(v6) => Family::V6,
            _ => return None,
        };
        let offsets = Self::offsets(family);
        let (head, packet) = bytes.split_at_checked(usize::from(Self::HEAD.unsigned_abs()))?;
        let [cell, length] = head.as_chunks::<4>().0 else { return None };
        let cell = u32::from_ne_bytes(*cell);
        let address = |place| match family {
            Family::V4 => array::<4>(packet, place).map(IpAddr::from),
            Family::V6 => array::<16>(packet, place).map(IpAddr::from),
        };
        let is_set = |place| array::<1>(packet, place).map(|[byte]| byte != 0);
        let [protocol] = array(packet, offsets.protocol)?;
        let [detail @ .., type_or_port, code_or_port] = array::<4>(packet, offsets.source_port)?;
        let first = u16::from_be_bytes(detail);
        let (payload, icmp_id) = match (is_set(offsets.has_detail)?, is_set(offsets.has_source_port)?) {
            (true, true) => {
                let destination = u16::from_be_bytes([type_or_port, code_or_port]);
                (Payload::Ports { source: first, destination }, 0)
            }
            (true, false) => (Payload::Icmp { icmp_type: type_or_port, code: code_or_port }, first),
            (false, _) => (Payload::Other, 0),
        };
        Some(Self {
            decision: DecisionId::from_cell(cell),
            verdict: match cell & ((1 << VERDICT_BITS) - 1) {
                ALLOW => Verdict::Allow,
                UNDECIDED => Verdict::Undecided,
                _ => Verdict::Deny,
            },
            length: u32::from_ne_bytes(*length),
            packet: Packet::new(address(offsets.source)?, address(offsets.destination)?, protocol, payload).ok()?,
            icmp_id,
        })
    }
}

/// Returns the bytes at an offset.
fn array<const N: usize>(bytes: &[u8], place: i16) -> Option<[u8; N]> {
    bytes.get(usize::try_from(place).ok()?..)?.first_chunk().copied()
}
