//! Keys of tries, and ranges of numbers as prefixes.

use std::net::{Ipv4Addr, Ipv6Addr};

use ahash::AHashMap;
use tortie_classes::L4Detail;
use tortie_model::{Cidr, Family};

use crate::blocks::{Assignment, Blocks, Cell};
use crate::group_roots::NOWHERE;

/// ICMP for IPv4 and for IPv6, whose type and code take the place of a port.
const ICMP: [u8; 2] = [1, 58];

/// Bytes of a network's address, as the key of a trie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddressKey {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl AddressKey {
    pub(crate) fn new(net: Cidr) -> Self {
        Self::from_bits(net.family(), net.masked().bits())
    }

    /// Returns the key of an address whose bits are left-aligned.
    pub(crate) fn from_bits(family: Family, bits: u128) -> Self {
        let bytes = bits.to_be_bytes();
        let [a, b, c, d, ..] = bytes;
        match family {
            Family::V4 => Self::V4([a, b, c, d]),
            Family::V6 => Self::V6(bytes),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::V4(bytes) => bytes,
            Self::V6(bytes) => bytes,
        }
    }
}

/// Returns the networks of all addresses, one of each family.
#[expect(clippy::expect_used, reason = "every address has a network of 0 bits")]
pub(crate) fn everything() -> [Cidr; 2] {
    let unspecified = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    unspecified.map(|address| Cidr::new(address, 0).expect("a prefix may have 0 bits"))
}

/// Encoding of protocol and detail as one number, in the order of `TableView::l4_stretches`.
const PROTOCOL: u32 = 1 << 18;
const FIRST_ICMP: u32 = 1;
const FIRST_PORT: u32 = FIRST_ICMP + (1 << 16);

fn point(protocol: u8, detail: L4Detail) -> u32 {
    let detail = match detail {
        L4Detail::Other => 0,
        L4Detail::Icmp { icmp_type, code } => FIRST_ICMP + u32::from(u16::from_be_bytes([icmp_type, code])),
        L4Detail::Port(port) => FIRST_PORT + u32::from(port),
    };
    u32::from(protocol) * PROTOCOL + detail
}

/// Returns the tries from protocols with ports or ICMP messages, and from protocols alone, to
/// values. `starts` has the points at which each value begins.
#[expect(clippy::expect_used, reason = "stretches end behind the last of 256 protocols")]
pub(super) fn l4_trees(starts: impl Iterator<Item = (u8, L4Detail, u32)>, blocks: &mut Blocks) -> [Cell; 2] {
    let starts: Vec<(u32, u32)> = starts.map(|(protocol, detail, value)| (point(protocol, detail), value)).collect();
    let (mut details, mut protocols) = (Ranges::default(), Ranges::default());
    for (start, end, value) in stretches(&starts, PROTOCOL << 8) {
        for protocol in start / PROTOCOL..end.div_ceil(PROTOCOL) {
            let (from, to) = (start.max(protocol * PROTOCOL), end.min((protocol + 1) * PROTOCOL));
            let (from, to) = (from - protocol * PROTOCOL, to - protocol * PROTOCOL);
            let protocol = u8::try_from(protocol).expect("a protocol is a byte");
            if from == 0 {
                protocols.0.push(([protocol, 0, 0], 8, value));
            }
            let first = if ICMP.contains(&protocol) { FIRST_ICMP } else { FIRST_PORT };
            let within = |point: u32| point.clamp(first, first + (1 << 16)) - first;
            details.add(Some(protocol), within(from), within(to), value);
        }
    }
    [details.assign(3, blocks), protocols.assign(1, blocks)]
}

/// Returns the trie from source ports to values, and the value of packets without one. `starts` has
/// the points at which each value begins.
pub(super) fn source_port_tree(starts: impl Iterator<Item = (Option<u16>, u32)>, blocks: &mut Blocks) -> (Cell, u32) {
    let starts: Vec<(u32, u32)> =
        starts.map(|(port, value)| (port.map_or(0, |port| 1 + u32::from(port)), value)).collect();
    let mut ranges = Ranges::default();
    let mut without = NOWHERE;
    for (start, end, value) in stretches(&starts, 1 + (1 << 16)) {
        if start == 0 {
            without = value;
        }
        // Port numbers are shifted by one, behind the point of packets without a port.
        ranges.add(None, start.max(1) - 1, end - 1, value);
    }
    (ranges.assign(2, blocks), without)
}

/// Returns the trie from numbers of this many bytes to values, given the ranges of each value; all
/// other numbers have 0.
pub(super) fn numbered_tree(stretches: Vec<(u32, u32, u32)>, bytes: u8, blocks: &mut Blocks) -> Cell {
    // The most frequent value becomes the default, so that its ranges need no keys.
    let mut counts: AHashMap<u32, u64> = AHashMap::new();
    for (start, end, value) in &stretches {
        *counts.entry(*value).or_default() += u64::from(end - start);
    }
    let most = counts.into_iter().max_by_key(|(value, count)| (*count, *value)).map_or(0, |(value, _)| value);
    let end = stretches.last().map_or(0, |(_, end, _)| *end);
    let mut keys: Vec<([u8; 4], u8, u32)> = Vec::new();
    let rest = stretches.into_iter().filter(|(_, _, value)| *value != most);
    for (mut first, last, value) in std::iter::once((0, end, most)).chain(rest) {
        while first < last {
            let size = aligned_size(first, last);
            keys.push((first.to_be_bytes(), 8 * bytes - size, value));
            first += 1 << size;
        }
    }
    let assigned = keys.iter().map(|(key, bits, value)| Assignment {
        key: key.split_at(4 - usize::from(bytes)).1,
        bits: *bits,
        value: *value,
    });
    blocks.assign(Cell::value(0), &assigned.collect::<Vec<_>>())
}

/// Returns the binary logarithm of the largest aligned range that begins at `first` and ends at or
/// before `last`.
#[expect(clippy::expect_used, reason = "numbers have 32 bits")]
fn aligned_size(first: u32, last: u32) -> u8 {
    let size = first.trailing_zeros().min((last - first).ilog2());
    u8::try_from(size).expect("the logarithm of a number is below 32")
}

/// Returns the begin and end of each range of one value, given the points at which values begin.
fn stretches(starts: &[(u32, u32)], end: u32) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([end]);
    starts.iter().zip(ends).map(|((start, value), end)| (*start, end, *value))
}

/// Ranges of keys as prefixes, in order.
#[derive(Default)]
struct Ranges(Vec<([u8; 3], u8, u32)>);

impl Ranges {
    /// Adds the range of two-byte numbers from `first` to `last`, exclusive, behind the byte
    /// `before`, if any.
    fn add(&mut self, before: Option<u8>, mut first: u32, last: u32, value: u32) {
        while first < last {
            let size = aligned_size(first, last);
            let [_, _, high, low] = first.to_be_bytes();
            let bits = 16 - size;
            self.0.push(match before {
                Some(before) => ([before, high, low], 8 + bits, value),
                None => ([high, low, 0], bits, value),
            });
            first += 1 << size;
        }
    }

    fn assign(&self, length: usize, blocks: &mut Blocks) -> Cell {
        let all = self.0.iter().map(|(key, bits, value)| Assignment {
            key: key.split_at(length).0,
            bits: *bits,
            value: *value,
        });
        blocks.assign(Cell::value(NOWHERE), &all.collect::<Vec<_>>())
    }
}
