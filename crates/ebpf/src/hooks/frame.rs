//! Stack layout of a program: offsets from its lowest byte.

use tortie_model::{Direction, Family};

use super::kernel::TUPLE;
use crate::decide::{ExactPlace, LearnedPlace, Question};
use crate::instruction::{Base, Register};
use crate::layout::{LearnedKey, MapKind};
use crate::log::{LogRecord, LoggedOffsets};
use crate::node::MapSizes;
use crate::walk::BlocksPlace;

/// Size of the used stack in bytes.
pub(super) const BYTES: u16 = 272;

/// Returns the offset from the end of the stack.
pub(super) const fn at(offset: i16) -> i16 {
    offset - BYTES.cast_signed()
}

/// Root of the address trie.
pub(super) const ADDRESSES: i16 = 0;
/// Shift of the hash of IPv6 addresses.
pub(super) const EXACT_SHIFT: i16 = 4;
/// Root of the trie for addresses without a specific class.
pub(super) const NETWORKS: i16 = 120;

/// Stack offsets of a packet's fields.
#[derive(Clone, Copy)]
pub(super) struct FieldOffsets {
    /// Log record: a head, and behind it the fields that follow.
    pub(super) log: i16,
    /// Begin of the fields. The first 24 bytes of an IPv4 packet are copied here unchanged.
    pub(super) begin: i16,
    pub(super) source: i16,
    pub(super) destination: i16,
    pub(super) protocol: i16,
    /// Four bytes behind the headers: two ports, or an ICMP message.
    pub(super) source_port: i16,
    pub(super) detail: i16,
    /// Two bytes that mark whether there are such.
    pub(super) has_detail: i16,
    pub(super) has_source_port: i16,
    /// Four bytes that contain the last two fields, and the protocol of an IPv6 packet.
    pub(super) rest: i16,
}

/// Size in bytes of a packet's fields.
const PACKET: i16 = LogRecord::SIZES[1] - HEAD;
/// Size in bytes of the head of a log record.
const HEAD: i16 = LogRecord::HEAD;

/// Returns the location of `count` blocks.
pub(super) const fn blocks_place(count: u32) -> BlocksPlace {
    BlocksPlace { map: MapKind::Blocks.id(), register: Register::R5, count }
}

/// One of the two views of a packet that are evaluated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketView {
    /// The packet as it is.
    Current,
    /// The packet before NAT.
    PreNat,
}

impl PacketView {
    /// Returns the stack offsets of its fields.
    pub(super) const fn offsets(self, family: Family) -> FieldOffsets {
        let log = match self {
            Self::Current => 8,
            Self::PreNat => 8 + HEAD + PACKET,
        };
        let begin = log + HEAD;
        let LoggedOffsets { source, destination, protocol, source_port, has_detail, has_source_port } =
            LogRecord::offsets(family);
        let rest = match family {
            Family::V4 => 24,
            Family::V6 => 36,
        };
        FieldOffsets {
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

    /// Returns the inputs of its decision.
    /// `learner` is the stack offset of the endpoint's record, for policy that
    /// may have rules by domain name.
    pub(super) const fn question(
        self,
        family: Family,
        direction: Direction,
        sizes: &MapSizes,
        learner: Option<i16>,
    ) -> Question {
        let FieldOffsets { source, destination, protocol, source_port, detail, has_detail, has_source_port, .. } =
            self.offsets(family);
        let (own, peer) = match direction {
            Direction::Ingress => (destination, source),
            Direction::Egress => (source, destination),
        };
        Question {
            // With the frame register as the base, processors forward recent stores to the loads.
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
            learned: match learner {
                None => None,
                Some(record) => Some(LearnedPlace {
                    map: MapKind::Learned.id(),
                    record: at(record),
                    flags: at(FLAGS),
                    key: at(BUFFER),
                }),
            },
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
    /// Incoming interface.
    In,
    /// Outgoing interface.
    Out,
}

impl Side {
    const fn begin(self) -> i16 {
        match self {
            Self::In => 104,
            Self::Out => 128,
        }
    }

    /// Returns the offset of its endpoint: the specific one, if any.
    pub(super) const fn own(self) -> i16 {
        self.begin()
    }

    /// Returns the offset of the host endpoint that applies to it.
    pub(super) const fn host(self) -> i16 {
        self.begin() + 8
    }

    /// Returns the offset of its kind, one of [`interface`].
    pub(super) const fn kind(self) -> i16 {
        self.begin() + 20
    }
}

// The verifier does not track numbers other than 0 in the upper half of an eight-byte stack slot.
// If it knew the number, it would verify the rest of the program once for each.

/// Kinds of interfaces; for interfaces with a record, the kind in the record.
pub(super) mod interface {
    use crate::layout::EndpointKind;

    /// Interface with a workload prefix, but without an endpoint.
    pub(crate) const NO_ENDPOINT: i32 = EndpointKind::None as i32;
    pub(crate) const WORKLOAD: i32 = EndpointKind::Workload as i32;
    pub(crate) const HOST_ENDPOINT: i32 = EndpointKind::Host as i32;
    /// Host interface without a specific endpoint.
    pub(crate) const HOST: i32 = 3;
}

/// Addresses of the packet, and of the hook state.
pub(super) const SKB: i16 = 152;
pub(super) const STATE: i16 = 160;
/// Length of the packet in bytes.
pub(super) const LENGTH: i16 = 168;
/// State in connection tracking, one of [`tracked`].
pub(super) const TRACKED: i16 = 172;

pub(super) mod tracked {
    /// The packet begins a connection, or is not tracked.
    pub(crate) const NEW: i32 = 1;
    /// The packet belongs to a connection, or is related to one.
    pub(crate) const KNOWN: i32 = 2;
    pub(crate) const INVALID: i32 = 3;
}

/// Result of `bpf_dynptr_from_skb`.
pub(super) const DYNPTR: i16 = 176;
/// Host endpoint of all interfaces.
pub(super) const ALL_INTERFACES: i16 = 192;
/// Host endpoint whose pre-DNAT policy is evaluated.
pub(super) const PICKED: i16 = 200;
/// Map keys.
pub(super) const KEY: i16 = 208;
/// Address of a device.
pub(super) const DEVICE: i16 = 216;
/// Buffer for a header or a tuple, or for the key of a learned address.
pub(super) const BUFFER: i16 = 224;

/// Flags of the roots.
pub(super) const FLAGS: i16 = 268;

const _: () = assert!(LearnedKey::SIZE <= TUPLE.unsigned_abs() as usize && BUFFER % 8 == 0);
const _: () = assert!(BUFFER + TUPLE <= FLAGS && FLAGS + 4 == BYTES.cast_signed() && BYTES.is_multiple_of(8));
const _: () = assert!(PacketView::PreNat.offsets(Family::V6).begin + PACKET <= Side::In.begin());
const _: () = assert!(Side::In.host() + 8 == NETWORKS && NETWORKS + 4 == Side::In.kind());
