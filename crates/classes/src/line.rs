//! Protocols, ports and ICMP messages as points on a line.
//!
//! The protocol, with the destination port or ICMP message, is one point on a line. Each protocol
//! has a stretch of the line: a point for packets without further detail, one for each ICMP type
//! and code, and one for each destination port. The conditions of a rule are a list of intervals,
//! whose ends cut the line into *L4 classes*. Source ports have a separate line.

use smallvec::{SmallVec, smallvec};
use tortie_evaluate::{Packet, Payload};

/// The stretch of one protocol, a power of two.
const PROTOCOL: u32 = 1 << 18;
const FIRST_ICMP: u32 = 1;
const FIRST_PORT: u32 = FIRST_ICMP + (1 << 16);
/// The end of the line of protocols.
pub(crate) const L4_END: u32 = PROTOCOL * 256;
/// The end of the line of source ports, on which 0 stands for no port.
pub(crate) const PORTS_END: u32 = 1 + (1 << 16);

/// Returns the point of a packet on the line of protocols.
pub(crate) fn l4_point(packet: &Packet) -> u32 {
    let detail = match packet.payload() {
        Payload::Ports { destination, .. } => L4Detail::Port(destination),
        Payload::Icmp { icmp_type, code } => L4Detail::Icmp { icmp_type, code },
        Payload::Other => L4Detail::Other,
    };
    point_of(packet.protocol(), detail)
}

/// Returns the point of a packet on the line of source ports.
pub(crate) fn source_port_point(packet: &Packet) -> u32 {
    packet.source_port().map_or(0, |port| 1 + u32::from(port))
}

/// The source port at a point of the line of source ports; `None` for packets without ports.
#[expect(clippy::expect_used, reason = "the line ends with the last port")]
pub(crate) fn at_source_port_point(point: u32) -> Option<u16> {
    let port = point.checked_sub(1)?;
    Some(u16::try_from(port).expect("points are before the end of the line"))
}

/// Returns the point of a protocol's packets with this detail.
pub(crate) fn point_of(protocol: u8, detail: L4Detail) -> u32 {
    let detail = match detail {
        L4Detail::Other => 0,
        L4Detail::Icmp { icmp_type, code } => FIRST_ICMP + u32::from(u16::from_be_bytes([icmp_type, code])),
        L4Detail::Port(port) => FIRST_PORT + u32::from(port),
    };
    u32::from(protocol) * PROTOCOL + detail
}

/// Returns the protocol at a point, and its detail; ports are destination ports. There are no
/// packets behind the last port of a protocol: these points count as that port.
#[expect(clippy::expect_used, reason = "the line ends with the last protocol")]
pub(crate) fn at_l4_point(point: u32) -> (u8, L4Detail) {
    let protocol = u8::try_from(point / PROTOCOL).expect("points are before the end of the line");
    let detail = point % PROTOCOL;
    let number = |from: u32| u16::try_from(detail - from).unwrap_or(u16::MAX);
    let detail = match detail {
        0 => L4Detail::Other,
        FIRST_ICMP..FIRST_PORT => {
            let [icmp_type, code] = number(FIRST_ICMP).to_be_bytes();
            L4Detail::Icmp { icmp_type, code }
        }
        _ => L4Detail::Port(number(FIRST_PORT)),
    };
    (protocol, detail)
}

/// Returns the first point from here on with packets: behind the last port of a protocol, this is
/// the start of the next protocol.
pub(crate) fn first_packet(point: u32) -> Option<u32> {
    let point = if point % PROTOCOL < FIRST_PORT + (1 << 16) { point } else { point.next_multiple_of(PROTOCOL) };
    (point < L4_END).then_some(point)
}

/// Whether a stretch has packets without ports, and packets with ports. It is not empty.
pub(crate) fn l4_kinds(start: u32, end: u32) -> [bool; 2] {
    // Start of the last protocol that the stretch touches.
    let protocol = (end - 1) / PROTOCOL * PROTOCOL;
    let is_in_one = start >= protocol;
    let within = |from: u32, to: u32| start < protocol + to && end > protocol + from;
    let before = |to: u32| !is_in_one && (start % PROTOCOL < to || start / PROTOCOL + 1 < protocol / PROTOCOL);
    let behind = FIRST_PORT + (1 << 16);
    [within(0, FIRST_PORT) || before(FIRST_PORT), within(FIRST_PORT, behind) || before(behind)]
}

/// Whether a stretch of source ports has the place of packets without ports, and ports.
pub(crate) fn source_port_kinds(start: u32, end: u32) -> [bool; 2] {
    [start == 0, end > 1]
}

/// Maps starts of stretches to protocol and detail, without stretches that have no packets.
pub(crate) fn stretches<T>(starts: impl Iterator<Item = (u32, T)>) -> impl Iterator<Item = (u8, L4Detail, T)> {
    let mut starts = starts.filter_map(|(start, of)| Some((first_packet(start)?, of))).peekable();
    std::iter::from_fn(move || {
        // A stretch without packets ends where it begins.
        while let Some((start, of)) = starts.next() {
            if starts.peek().is_none_or(|(next, _)| *next != start) {
                let (protocol, detail) = at_l4_point(start);
                return Some((protocol, detail, of));
            }
        }
        None
    })
}

/// Maps starts of stretches to the first source port of each.
pub(crate) fn source_port_stretches<T>(
    starts: impl Iterator<Item = (u32, T)>,
) -> impl Iterator<Item = (Option<u16>, T)> {
    starts.map(|(start, of)| (at_source_port_point(start), of))
}

/// Part of a packet behind the IP header that classes distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum L4Detail {
    /// Neither ports nor an ICMP message.
    Other,
    /// An ICMP message.
    Icmp {
        /// Its type.
        icmp_type: u8,
        /// Its code.
        code: u8,
    },
    /// A destination port.
    Port(u16),
}

/// Points, as ascending intervals that do not touch; ends are excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intervals(SmallVec<[(u32, u32); 1]>);

impl Intervals {
    pub(crate) fn none() -> Self {
        Self(SmallVec::new())
    }

    pub(crate) fn between(start: u32, end: u32) -> Self {
        Self(smallvec![(start, end)])
    }

    /// The number of intervals.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn point(point: u32) -> Self {
        Self::between(point, point + 1)
    }

    /// These, which are ascending and may touch.
    pub(crate) fn ascending(intervals: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut merged: SmallVec<[(u32, u32); 1]> = SmallVec::new();
        for (start, end) in intervals {
            match merged.last_mut() {
                Some((_, last_end)) if start <= *last_end => *last_end = end.max(*last_end),
                _ => merged.push((start, end)),
            }
        }
        Self(merged)
    }

    /// All packets of a protocol.
    pub(crate) fn protocol(protocol: u8) -> Self {
        let start = u32::from(protocol) * PROTOCOL;
        Self::between(start, start + PROTOCOL)
    }

    /// ICMP messages, of a type, and of a code.
    pub(crate) fn icmp(protocol: u8, icmp_type: Option<(u8, Option<u8>)>) -> Self {
        let first = u32::from(protocol) * PROTOCOL + FIRST_ICMP;
        let of_type = |icmp_type: u8| first + (u32::from(icmp_type) << 8);
        match icmp_type {
            None => Self::between(first, first + (1 << 16)),
            Some((icmp_type, None)) => Self::between(of_type(icmp_type), of_type(icmp_type) + (1 << 8)),
            Some((icmp_type, Some(code))) => Self::point(of_type(icmp_type) + u32::from(code)),
        }
    }

    /// These ports, both ends included, on the line of source ports.
    pub(crate) fn ports(ports: impl Iterator<Item = (u16, u16)>) -> Self {
        let mut all: SmallVec<[(u32, u32); 1]> =
            ports.map(|(first, last)| (1 + u32::from(first), 2 + u32::from(last))).collect();
        all.sort_unstable();
        Self::ascending(all.into_iter())
    }

    /// The same as these points of the line of source ports, for destination ports of a protocol.
    pub(crate) fn as_destination(&self, protocol: u8) -> Self {
        let start = u32::from(protocol) * PROTOCOL;
        if self.0.as_slice() == [(0, PORTS_END)] {
            return Self::protocol(protocol);
        }
        let mut result = Self::none();
        for (from, to) in &self.0 {
            // On the other line, packets without ports are separate from port 0.
            if *from == 0 {
                result.0.push((start, start + FIRST_PORT));
            }
            let (from, to) = (start + FIRST_PORT + from.max(&1) - 1, start + FIRST_PORT + to - 1);
            match result.0.last_mut() {
                Some((_, end)) if *end == from => *end = to,
                _ if from < to => result.0.push((from, to)),
                _ => {}
            }
        }
        result
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, point: u32) -> bool {
        self.0.iter().any(|(start, end)| (*start..*end).contains(&point))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Returns the intervals between two points, of which the second is excluded.
    pub(crate) fn within(&self, start: u32, end: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let first = self.0.partition_point(|(_, last)| *last <= start);
        let inside = self.0.get(first..).unwrap_or_default().iter().take_while(move |(from, _)| *from < end);
        inside.map(move |(from, to)| (start.max(*from), end.min(*to)))
    }

    pub(crate) fn and(&self, other: &Self) -> Self {
        let mut result = SmallVec::new();
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some((start, end)), Some((other_start, other_end))) = (ours.peek(), theirs.peek()) {
            let common = (*start.max(other_start), *end.min(other_end));
            if common.0 < common.1 {
                result.push(common);
            }
            if end < other_end {
                ours.next();
            } else {
                theirs.next();
            }
        }
        Self(result)
    }

    /// All points before `line_end` that are not in here.
    pub(crate) fn not(&self, line_end: u32) -> Self {
        let mut result = SmallVec::new();
        let mut from = 0;
        for (start, end) in &self.0 {
            if from < *start {
                result.push((from, *start));
            }
            from = *end;
        }
        if from < line_end {
            result.push((from, line_end));
        }
        Self(result)
    }
}

#[cfg(test)]
mod tests;
