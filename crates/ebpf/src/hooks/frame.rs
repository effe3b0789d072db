//! What is where on the stack of a program, counted from the lowest byte of it.

use tortie_model::{Direction, Family};

use super::kernel::TUPLE;
use crate::decide::{ExactPlace, Question};
use crate::instruction::{Base, Register};
use crate::layout::MapKind;
use crate::log::{LogRecord, LoggedPlaces};
use crate::node::MapSizes;
use crate::walk::BlocksPlace;

/// How many bytes there are.
pub(super) const BYTES: u16 = 272;

/// The same as seen from the end of the stack.
pub(super) const fn at(offset: i16) -> i16 {
    offset - BYTES.cast_signed()
}

/// The tree of addresses.
pub(super) const ADDRESSES: i16 = 0;
/// By how much a hash is shifted of addresses that are looked for before.
pub(super) const EXACT_SHIFT: i16 = 4;
/// The tree for those that have no class of their own.
pub(super) const NETWORKS: i16 = 120;

/// Where it is that something is known of a packet.
#[derive(Clone, Copy)]
pub(super) struct Places {
    /// What is logged of it: a head, and behind it all that follows.
    pub(super) log: i16,
    /// The beginning. Of an IPv4 packet that is where its first 24 bytes are put, as they are.
    pub(super) begin: i16,
    pub(super) source: i16,
    pub(super) destination: i16,
    pub(super) protocol: i16,
    /// Four bytes behind the headers: two ports, or an ICMP message.
    pub(super) source_port: i16,
    pub(super) detail: i16,
    /// Two bytes that say whether there are such.
    pub(super) has_detail: i16,
    pub(super) has_source_port: i16,
    /// Four bytes with the last two, and with the protocol of an IPv6 packet.
    pub(super) rest: i16,
}

/// The bytes of what is known of a packet.
const PACKET: i16 = LogRecord::SIZES[1] - HEAD;
/// The bytes of what is logged before it.
const HEAD: i16 = LogRecord::HEAD;

/// So many blocks.
pub(super) const fn blocks_place(count: u32) -> BlocksPlace {
    BlocksPlace { map: MapKind::Blocks.id(), register: Register::R5, count }
}

/// One of the two packets that are asked about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// The packet as it is.
    Now,
    /// As it was before its addresses were translated.
    First,
}

impl Seen {
    /// Where it is known.
    pub(super) const fn places(self, family: Family) -> Places {
        let log = match self {
            Self::Now => 8,
            Self::First => 8 + HEAD + PACKET,
        };
        let begin = log + HEAD;
        let LoggedPlaces { source, destination, protocol, source_port, has_detail, has_source_port } =
            LogRecord::places(family);
        let rest = match family {
            Family::V4 => 24,
            Family::V6 => 36,
        };
        Places {
            log,
            begin,
            source: begin + source,
            destination: begin + destination,
            protocol: begin + protocol,
            source_port: begin + source_port,
            detail: begin + source_port + 2,
            has_detail: begin + has_detail,
            has_source_port: begin + has_source_port,
            rest: begin + rest,
        }
    }

    /// How it is asked about.
    pub(super) const fn question(self, family: Family, direction: Direction, sizes: &MapSizes) -> Question {
        let Places { source, destination, protocol, source_port, detail, has_detail, has_source_port, .. } =
            self.places(family);
        let (own, peer) = match direction {
            Direction::Ingress => (destination, source),
            Direction::Egress => (source, destination),
        };
        Question {
            // By this register processors know what they have just stored.
            base: Base::Frame,
            blocks: blocks_place(sizes.blocks),
            family,
            addresses: at(ADDRESSES),
            exact: Some(ExactPlace {
                map: MapKind::Exact.id(),
                count: sizes.exact,
                shift: at(EXACT_SHIFT),
                networks: at(NETWORKS),
            }),
            group: 0,
            own: at(own),
            peer: at(peer),
            protocol: at(protocol),
            detail: at(detail),
            source_port: at(source_port),
            has_detail: at(has_detail),
            has_source_port: at(has_source_port),
        }
    }
}

/// One of the two interfaces of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// By which it came.
    In,
    /// By which it is to leave.
    Out,
}

impl Side {
    const fn begin(self) -> i16 {
        match self {
            Self::In => 104,
            Self::Out => 128,
        }
    }

    /// Its own endpoint, if it has one.
    pub(super) const fn own(self) -> i16 {
        self.begin()
    }

    /// The host endpoint that stands for it.
    pub(super) const fn host(self) -> i16 {
        self.begin() + 8
    }

    /// What it is: one of [`interface`].
    pub(super) const fn kind(self) -> i16 {
        self.begin() + 20
    }
}

// Of numbers that are kept in the upper half of eight bytes, and are not 0, the verifier does not know which they are. For each that it
// knew it would look at all that follows.

/// What interfaces are: those that have a record, what it says.
pub(super) mod interface {
    use crate::layout::EndpointKind;

    /// It looks like a workload's, but is nobody's.
    pub(crate) const NOBODYS: i32 = EndpointKind::None as i32;
    pub(crate) const WORKLOAD: i32 = EndpointKind::Workload as i32;
    pub(crate) const HOST_ENDPOINT: i32 = EndpointKind::Host as i32;
    /// The host's, without an endpoint of its own.
    pub(crate) const HOST: i32 = 3;
}

/// The packet, and what the hook knows of it.
pub(super) const SKB: i16 = 152;
pub(super) const STATE: i16 = 160;
/// The bytes of the packet.
pub(super) const LENGTH: i16 = 168;
/// What connection tracking says, one of [`tracked`].
pub(super) const TRACKED: i16 = 172;

pub(super) mod tracked {
    /// It begins a connection, or is not tracked.
    pub(crate) const NEW: i32 = 1;
    /// It belongs to one, or tells of one.
    pub(crate) const KNOWN: i32 = 2;
    pub(crate) const INVALID: i32 = 3;
}

/// What `bpf_dynptr_from_skb` makes.
pub(super) const DYNPTR: i16 = 176;
/// The host endpoint of all interfaces.
pub(super) const ALL_INTERFACES: i16 = 192;
/// The host endpoint whose pre-DNAT policy is asked.
pub(super) const PICKED: i16 = 200;
/// Keys of maps.
pub(super) const KEY: i16 = 208;
/// The address of a device.
pub(super) const DEVICE: i16 = 216;
/// A header or a tuple.
pub(super) const BUFFER: i16 = 224;

/// The flags of the roots.
pub(super) const FLAGS: i16 = 268;

const _: () = assert!(BUFFER + TUPLE <= FLAGS && FLAGS + 4 == BYTES.cast_signed() && BYTES.is_multiple_of(8));
const _: () = assert!(Seen::First.places(Family::V6).begin + PACKET <= Side::In.begin());
const _: () = assert!(Side::In.host() + 8 == NETWORKS && NETWORKS + 4 == Side::In.kind());
