//! Part of a program that decides about a packet.

use tortie_model::{Family, Protocol};

use crate::assembler::Assembler;
use crate::blocks::Cell;
use crate::group_roots::{NOWHERE, Shortcuts, family_bit};
use crate::instruction::{Base, Helper, Label, MapId, Operation, Register, Size, Test};
use crate::layout::{EXACT_FACTORS, ExactRecord, LearnedKey, LearnedRecord, ROOTS, endpoint, roots};
use crate::walk::{BlocksPlace, NumberWalk, Walk};

/// Inputs of [`Assembler::decide`], as byte offsets from `base`.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Base address: the stack, or `r7`. No other register is preserved.
    pub base: Base,
    /// The blocks.
    pub blocks: BlocksPlace,
    /// Family of the addresses, which determines their length.
    pub family: Family,
    /// Root of the address trie.
    pub addresses: i16,
    /// Hash table in which IPv6 addresses are looked up first; `None`: only the trie is used.
    pub exact: Option<ExactPlace>,
    /// Hash table in which addresses of the peer are looked up first that the endpoint has learned;
    /// `None`: there are none.
    pub learned: Option<LearnedPlace>,
    /// Group record ([`GroupRoots::to_bytes`](crate::GroupRoots::to_bytes)), as an offset from the
    /// address in `r6`.
    pub group: i16,
    /// Address of the group's own end. This and the following fields have network byte order.
    pub own: i16,
    /// Address of the peer.
    pub peer: i16,
    /// Protocol.
    pub protocol: i16,
    /// Destination port, or ICMP type and code, of two bytes.
    pub detail: i16,
    /// Source port, of two bytes.
    pub source_port: i16,
    /// Byte that is not 0 if the packet has a destination port or an ICMP message.
    pub has_detail: i16,
    /// Byte that is not 0 if the packet has a source port.
    pub has_source_port: i16,
}

/// Location of the [`ExactRecord`]s in a program.
#[derive(Clone, Copy, Debug)]
pub struct ExactPlace {
    /// Map of the records, an array of one value that holds them one behind the other.
    pub map: MapId,
    /// Number of records.
    pub count: u32,
    /// [`EXACT_SHIFT`](crate::layout::roots::EXACT_SHIFT), as an offset from [`Question::base`].
    pub shift: i16,
    /// Root of the trie for addresses without a specific class,
    /// [`NETWORKS`](crate::layout::roots::NETWORKS).
    pub networks: i16,
}

/// Location of learned addresses ([`MapKind::Learned`](crate::layout::MapKind::Learned)) in a
/// program.
#[derive(Clone, Copy, Debug)]
pub struct LearnedPlace {
    /// The map.
    pub map: MapId,
    /// Stack offset of the address of the endpoint's record.
    pub record: i16,
    /// Stack offset of the flags of the roots, [`FLAGS`](crate::layout::roots::FLAGS).
    pub flags: i16,
    /// Stack offset of unused memory for a [`LearnedKey`].
    pub key: i16,
}

/// Offsets of the roots in a group record.
const OWN: i16 = 0;
const PEER: i16 = 4;
const DETAILS: i16 = 8;
const PROTOCOLS: i16 = 12;
const SOURCE_PORTS: i16 = 16;
const NO_SOURCE_PORT: i16 = 20;
const CELLS: i16 = 24;
const IS_LARGE: i16 = 28;
/// Offsets of the shortcuts, for IPv4 and then for IPv6.
const NEAR_OWN: i16 = 32;
const NEAR_PEER: i16 = 40;
const TCP_PORTS: i16 = 48;
const UDP_PORTS: i16 = 52;
const NEAR_CELLS: i16 = 56;
const ALIKE: i16 = 60;

/// Register with the address of the group record.
const GROUP: Register = Register::R6;
/// Register with the cell number.
const SUM: Register = Register::R8;
/// Register with the cell of a trie.
const CELL: Register = Register::R9;
/// Register with the bits of ends that have one row only.
const ENDS: Register = Register::R4;
/// Register with the class of an address.
const CLASS: Register = Register::R2;
/// Binary logarithm of the size of an [`ExactRecord`].
const RECORD: i32 = ExactRecord::SIZE.trailing_zeros().cast_signed();
const _: () = assert!(ExactRecord::SIZE.is_power_of_two());
/// Number of entries of such a record.
const WAYS: i16 = 3;
/// Number of summands of a cell number. Each summand has the bit of values when it is added.
const PARTS: u64 = 4;

impl Assembler {
    /// Leaves in `r9` the decision of the group at `r6` about a packet. Jumps to `missing` if an
    /// object is missing; the caller then denies. The lowest bits are the verdict, the others the
    /// [number](crate::DecisionId::from_cell). Clobbers `r0` to `r5` and `r8`.
    pub fn decide(&mut self, question: &Question, missing: Label) -> &mut Self {
        let Question { blocks, group, .. } = *question;
        let walk = |offset: i16, bytes: u8| Walk { blocks, cell: CELL, key: question.base, offset, bytes };
        let decided = self.label();
        self.load(Size::U32, ENDS, GROUP, group + ALIKE).load(Size::U32, CELL, GROUP, group + NEAR_CELLS).jump_if(
            ENDS,
            Test::Common,
            Shortcuts::ALL_ALIKE.cast_signed(),
            decided,
        );
        self.find_blocks(blocks).set_wide(SUM, (PARTS << 31).wrapping_neg());
        let rows = [(true, question.own, OWN, NEAR_OWN), (false, question.peer, PEER, NEAR_PEER)];
        for (is_own, address, rows, near) in rows {
            let alike = Shortcuts::alike_bit(is_own, question.family);
            self.add_row(question, (address, alike), (group + rows, group + near), missing);
        }

        // The most frequent paths have the fewest jumps.
        let (alone, protocol, ports) = (self.label(), self.label(), self.label());
        self.load(Size::U8, Register::R1, question.base, question.has_detail)
            .jump_if(Register::R1, Test::Equal, 0, alone)
            .load(Size::U8, Register::R1, question.base, question.protocol)
            .load(Size::U32, CELL, GROUP, group + TCP_PORTS)
            .jump_if(Register::R1, Test::Equal, i32::from(Protocol::TCP.number()), ports)
            .load(Size::U32, CELL, GROUP, group + UDP_PORTS)
            .jump_if(Register::R1, Test::Equal, i32::from(Protocol::UDP.number()), ports)
            .load(Size::U32, CELL, GROUP, group + DETAILS)
            .jump(protocol)
            .place(alone)
            .load(Size::U32, CELL, GROUP, group + PROTOCOLS)
            .place(protocol)
            .begin_walk(&walk(question.protocol, 1))
            // After a lookup by protocol alone, the cell is a value, at which the next lookup ends.
            .place(ports)
            .begin_walk(&walk(question.detail, 2))
            .add_value(missing);

        let found = self.label();
        self.load(Size::U8, Register::R1, question.base, question.has_source_port)
            .load(Size::U32, CELL, GROUP, group + NO_SOURCE_PORT)
            .jump_if(Register::R1, Test::Equal, 0, found)
            .load(Size::U32, CELL, GROUP, group + SOURCE_PORTS)
            .begin_walk(&walk(question.source_port, 2))
            .place(found)
            .add_value(missing);

        // In a small table, the first two bytes of the number are 0, and the trie begins with the
        // others.
        let (small, near, second, last) = (self.label(), self.label(), self.label(), self.label());
        let of_sum = |first, last| NumberWalk { blocks, cell: CELL, number: SUM, first, last };
        self.load(Size::U32, CELL, GROUP, group + CELLS)
            .load(Size::U32, Register::R1, GROUP, group + IS_LARGE)
            .jump_if_half(Register::R1, Test::Equal, Cell::value(0).bits().cast_signed(), small)
            .jump_if(SUM, Test::GreaterOrEqual, NOWHERE.cast_signed(), missing)
            .jump_if(SUM, Test::Less, 1 << 24, near)
            .walk_number(&of_sum(3, 3))
            .jump(second)
            .place(near)
            .load(Size::U32, CELL, GROUP, group + NEAR_CELLS)
            .place(second)
            .walk_number(&of_sum(2, 2))
            .jump(last)
            .place(small)
            .jump_if(SUM, Test::Greater, i32::from(u16::MAX), missing)
            .place(last)
            .walk_number(&of_sum(1, 0))
            .place(decided)
            .end_walk(CELL, missing)
            .compute_half(Operation::And, CELL, i32::MAX)
    }

    /// Adds a summand of the cell number, with its bit of values.
    fn add_value(&mut self, missing: Label) -> &mut Self {
        self.end_walk(CELL, missing).compute(Operation::Add, SUM, CELL)
    }

    /// Adds the row of an address. If all addresses of its family have one row, it is not looked
    /// up.
    fn add_row(&mut self, question: &Question, (address, alike): (i16, u32), (rows, near): (i16, i16), missing: Label) {
        let all_alike = alike.cast_signed();
        let Question { blocks, .. } = *question;
        let (bytes, near, family) = match question.family {
            Family::V4 => (4, near, Family::V4),
            Family::V6 => (16, near + 4, Family::V6),
        };
        let of_address = Walk { blocks, cell: CELL, key: question.base, offset: address, bytes };
        let of_class = |first, last| NumberWalk { blocks, cell: CELL, number: CLASS, first, last };
        let (alike, classified, last) = (self.label(), self.label(), self.label());
        self.load(Size::U32, CELL, GROUP, near).jump_if(ENDS, Test::Common, all_alike, alike);
        if let Some(learned) = question.learned.filter(|_| address == question.peer) {
            self.find_learned(question, learned, address, classified);
        }
        match question.exact {
            Some(exact) if question.family == Family::V6 => {
                self.find_exact(question, exact, address, classified);
            }
            Some(_) | None => drop(self.load(Size::U32, CELL, question.base, question.addresses)),
        }
        self.begin_walk(&of_address)
            .end_walk(CELL, missing)
            .place(classified)
            .compute_half(Operation::Move, CLASS, CELL)
            .compute_half(Operation::Move, Register::R1, CELL)
            .compute_half(Operation::Xor, Register::R1, Cell::value(family_bit(family)).bits().cast_signed())
            .load(Size::U32, CELL, GROUP, near)
            .jump_if(Register::R1, Test::LessOrEqual, i32::from(u16::MAX), last)
            .load(Size::U32, CELL, GROUP, rows)
            .walk_number(&of_class(2, 2))
            .place(last)
            .walk_number(&of_class(1, 0))
            .place(alike)
            .add_value(missing);
    }

    /// Looks an address up among those that the endpoint has learned. If it has an entry, leaves
    /// its class in `r9`, with the bit of values, and jumps to `found`. Clobbers the register of
    /// ends.
    fn find_learned(&mut self, question: &Question, place: LearnedPlace, address: i16, found: Label) {
        let LearnedPlace { map, record, flags, key } = place;
        let to = key + LearnedKey::ADDRESS;
        let unlearned = self.label();
        self.load(Size::U64, Register::R1, Base::Frame, record)
            .load(Size::U32, Register::R1, Register::R1, endpoint::DOMAINS)
            .jump_if(Register::R1, Test::Equal, 0, unlearned)
            .store(Size::U32, Base::Frame, key, Register::R1)
            .store(Size::U32, Base::Frame, key + 4, i32::from(question.family.number()));
        match question.family {
            Family::V4 => self
                .load(Size::U32, Register::R1, question.base, address)
                .store(Size::U32, Base::Frame, to, Register::R1)
                .store(Size::U32, Base::Frame, to + 4, 0)
                .store(Size::U64, Base::Frame, to + 8, 0),
            Family::V6 => self
                .load(Size::U64, Register::R1, question.base, address)
                .store(Size::U64, Base::Frame, to, Register::R1)
                .load(Size::U64, Register::R1, question.base, address + 8)
                .store(Size::U64, Base::Frame, to + 8, Register::R1),
        };
        self.set_map(Register::R1, map)
            .set_stack(Register::R2, key.unsigned_abs())
            .call(Helper::MapLookup)
            .find_blocks(question.blocks)
            .jump_if(Register::R0, Test::Equal, 0, unlearned)
            // The class that belongs to the roots that this packet uses.
            .load(Size::U32, Register::R1, Base::Frame, flags)
            .compute(Operation::ShiftRight, Register::R1, roots::SLOT_SHIFT - 2)
            .compute(Operation::And, Register::R1, (ROOTS.cast_signed() - 1) << 2)
            .compute(Operation::Add, Register::R0, Register::R1)
            .load(Size::U32, CELL, Register::R0, 0)
            .jump_if_half(CELL, Test::LessSigned, 0, found)
            .place(unlearned);
        const { assert!(ROOTS.is_power_of_two() && LearnedRecord::OPEN == 1 << 31) };
    }

    /// Looks an IPv6 address up in the hash table. If it has an open entry, leaves its class in
    /// `r9`, with the bit of values, and jumps to `found`. Otherwise, leaves the root of the trie
    /// that has it.
    fn find_exact(&mut self, question: &Question, place: ExactPlace, address: i16, found: Label) {
        let Question { base, addresses, .. } = *question;
        let ExactPlace { map, count, shift, networks } = place;
        let [of_first, of_second] = EXACT_FACTORS;
        let (full, end) = (self.label(), self.label());
        // The hash of `exact_bucket`. There are no buckets if no address has a specific class.
        self.load(Size::U32, Register::R0, base, shift)
            .jump_if(Register::R0, Test::Equal, 0, full)
            .load(Size::U64, Register::R1, base, address)
            .load(Size::U64, Register::R2, base, address + 8)
            .set_wide(CELL, of_first)
            .compute(Operation::Multiply, CELL, Register::R1)
            .set_wide(Register::R3, of_second)
            .compute(Operation::Multiply, Register::R3, Register::R2)
            .compute(Operation::Add, Register::R3, CELL)
            .compute(Operation::ShiftRight, Register::R3, Register::R0)
            .jump_if(Register::R3, Test::GreaterOrEqual, count.cast_signed(), full)
            .compute(Operation::ShiftLeft, Register::R3, RECORD)
            .set_first_value(Register::R0, map)
            .compute(Operation::Add, Register::R0, Register::R3)
            .set(CELL, 0);
        for way in 0..WAYS {
            let (other, entry) = (self.label(), 16 * way);
            // Addresses of one network differ in their last bytes.
            self.load(Size::U64, Register::R3, Register::R0, entry + 8)
                .jump_if(Register::R2, Test::NotEqual, Register::R3, other)
                .load(Size::U64, Register::R3, Register::R0, entry)
                .jump_if(Register::R1, Test::NotEqual, Register::R3, other)
                .load(Size::U32, CELL, Register::R0, ExactRecord::CLASSES + 4 * way)
                // The bit of an open entry is that of values. A closed entry may be followed by an
                // open one for the same address.
                .jump_if_half(CELL, Test::LessSigned, 0, found)
                .place(other);
        }
        const { assert!(WAYS as usize == ExactRecord::WAYS && ExactRecord::OPEN == 1 << 31) };
        // The sum is 1 only if the bucket is complete and no entry matched: the class of a closed
        // entry has the IPv6 bit, so that it is neither 0 nor 1.
        self.load(Size::U32, Register::R1, Register::R0, ExactRecord::COMPLETE)
            .compute(Operation::Add, Register::R1, CELL)
            .load(Size::U32, CELL, base, networks)
            .jump_if(Register::R1, Test::Equal, 1, end)
            .place(full)
            .load(Size::U32, CELL, base, addresses)
            .place(end);
    }
}
