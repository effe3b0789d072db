//! Keys of tries.

use std::net::{Ipv4Addr, Ipv6Addr};

use tortie_classes::L4Detail;
use tortie_model::{Cidr, Family};

use crate::blocks::{Blocks, Cell};
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
pub(super) fn l4_trees(starts: impl Iterator<Item = (u8, L4Detail, u32)>, blocks: &mut Blocks) -> [Cell; 2] {
    let starts: Vec<(u32, u32)> = starts.map(|(protocol, detail, value)| (point(protocol, detail), value)).collect();
    let (mut details, mut protocols) = (Vec::new(), Vec::new());
    for (start, end, value) in stretches(&starts, PROTOCOL << 8) {
        for protocol in start / PROTOCOL..end.div_ceil(PROTOCOL) {
            let (from, to) = (start.max(protocol * PROTOCOL), end.min((protocol + 1) * PROTOCOL));
            let (from, to) = (from - protocol * PROTOCOL, to - protocol * PROTOCOL);
            if from == 0 {
                protocols.push((protocol, value));
            }
            let is_icmp = ICMP.iter().any(|icmp| u32::from(*icmp) == protocol);
            let first = if is_icmp { FIRST_ICMP } else { FIRST_PORT };
            let within = |point: u32| point.clamp(first, first + (1 << 16)) - first;
            if within(from) < within(to) {
                details.push((protocol << 16 | within(from), value));
            }
        }
    }
    [blocks.ranges(&details, 3, None), blocks.ranges(&protocols, 1, None)]
}

/// Returns the trie from source ports to values, and the value of packets without one. `starts` has
/// the points at which each value begins.
pub(super) fn source_port_tree(starts: impl Iterator<Item = (Option<u16>, u32)>, blocks: &mut Blocks) -> (Cell, u32) {
    let mut without = NOWHERE;
    let mut ports: Vec<(u32, u32)> = Vec::new();
    for (port, value) in starts {
        let Some(port) = port else {
            without = value;
            ports.push((0, value));
            continue;
        };
        ports.push((port.into(), value));
    }
    (blocks.ranges(&ports, 2, None), without)
}

/// Returns the begin and end of each range of one value, given the points at which values begin.
fn stretches(starts: &[(u32, u32)], end: u32) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([end]);
    starts.iter().zip(ends).map(|((start, value), end)| (*start, end, *value))
}
