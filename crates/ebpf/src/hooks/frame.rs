//! What is where on the stack of a program.
//!
//! `r7` holds its beginning, from where questions are asked; the 8 bytes behind its end are those of [`Assembler::decide`](crate::Assembler::decide).

use tortie_model::{Direction, Family};

use crate::decide::Question;
use crate::layout::MapKind;
use crate::walk::BlocksPlace;

/// How many bytes there are, those of questions included.
pub(super) const BYTES: u16 = 272;

/// The place on the stack, as seen from its end, of what is so far from `r7`.
pub(super) const fn at(offset: i16) -> i16 {
    offset - BYTES.cast_signed()
}

/// The tree of addresses.
pub(super) const ADDRESSES: i16 = 0;
/// How many buckets there are of addresses that are looked for before.
pub(super) const EXACT_BUCKETS: i16 = 4;

/// What is known of a packet, as distances from where it begins.
pub(super) mod packet {
    pub(crate) const SOURCE: i16 = 0;
    pub(crate) const DESTINATION: i16 = 16;
    /// Eight bytes with all that follows.
    pub(crate) const TRANSPORT: i16 = 32;
    /// In one piece with what follows.
    pub(crate) const PROTOCOL: i16 = 33;
    pub(crate) const DETAIL: i16 = 34;
    pub(crate) const SOURCE_PORT: i16 = 36;
    pub(crate) const HAS_DETAIL: i16 = 38;
    pub(crate) const HAS_SOURCE_PORT: i16 = 39;
    pub(crate) const SIZE: i16 = 40;
}

/// So many blocks.
pub(super) const fn blocks_place(count: u32) -> BlocksPlace {
    BlocksPlace { address: at(BLOCKS), count }
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
    /// Where it begins.
    pub(super) const fn begin(self) -> i16 {
        match self {
            Self::Now => 8,
            Self::First => 8 + packet::SIZE,
        }
    }

    /// How it is asked about.
    pub(super) const fn question(self, family: Family, direction: Direction, blocks: u32) -> Question {
        let begin = self.begin();
        let (source, destination) = (begin + packet::SOURCE, begin + packet::DESTINATION);
        let (own, peer) = match direction {
            Direction::Ingress => (destination, source),
            Direction::Egress => (source, destination),
        };
        Question {
            blocks: blocks_place(blocks),
            family,
            addresses: ADDRESSES,
            exact: Some((MapKind::Exact.id(), EXACT_BUCKETS)),
            group: 0,
            own,
            peer,
            protocol: begin + packet::PROTOCOL,
            source_port: begin + packet::SOURCE_PORT,
            has_detail: begin + packet::HAS_DETAIL,
            has_source_port: begin + packet::HAS_SOURCE_PORT,
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
            Self::In => 88,
            Self::Out => 112,
        }
    }

    /// What it is: one of [`interface`].
    pub(super) const fn kind(self) -> i16 {
        self.begin()
    }

    /// Its own endpoint.
    pub(super) const fn own(self) -> i16 {
        self.begin() + 8
    }

    /// The host endpoint that stands for it.
    pub(super) const fn host(self) -> i16 {
        self.begin() + 16
    }
}

/// What interfaces are.
pub(super) mod interface {
    /// The host's, without an endpoint of its own.
    pub(crate) const HOST: i32 = 0;
    pub(crate) const WORKLOAD: i32 = 1;
    /// It looks like a workload's, but is nobody's.
    pub(crate) const UNKNOWN: i32 = 2;
    pub(crate) const HOST_ENDPOINT: i32 = 3;
}

/// The packet, and what the hook knows of it.
pub(super) const SKB: i16 = 136;
pub(super) const STATE: i16 = 144;
/// The bytes of the packet.
pub(super) const LENGTH: i16 = 152;
/// What connection tracking says, one of [`tracked`].
pub(super) const TRACKED: i16 = 156;
/// The connection that the packet begins; 0 if it begins none.
pub(super) const CONNECTION: i16 = 160;

pub(super) mod tracked {
    /// It begins a connection, or is not tracked.
    pub(crate) const NEW: i32 = 0;
    /// It belongs to one, or tells of one.
    pub(crate) const KNOWN: i32 = 1;
    pub(crate) const INVALID: i32 = 2;
}

/// What `bpf_dynptr_from_skb` makes.
pub(super) const DYNPTR: i16 = 168;
/// The host endpoint of all interfaces.
pub(super) const ALL_INTERFACES: i16 = 184;
/// The host endpoint whose pre-DNAT policy is asked.
pub(super) const PICKED: i16 = 192;
/// Keys of maps.
pub(super) const KEY: i16 = 200;
/// The address of a device.
pub(super) const DEVICE: i16 = 208;
/// A header or a tuple.
pub(super) const BUFFER: i16 = 216;
/// The address of the blocks.
pub(super) const BLOCKS: i16 = 256;

const _: () = assert!(BUFFER + super::kernel::TUPLE <= BLOCKS && BLOCKS + 8 <= BYTES.cast_signed() - 8);
