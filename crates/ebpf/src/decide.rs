//! The part of a program that decides about a packet.

use tortie_model::{Family, Protocol};

use crate::assembler::Assembler;
use crate::blocks::Cell;
use crate::group_roots::{NOWHERE, Shortcuts, family_bit};
use crate::instruction::{Base, Label, MapId, Operation, Register, Size, Test};
use crate::layout::{EXACT_FACTORS, ExactRecord};
use crate::walk::{BlocksPlace, NumberWalk, Walk};

/// Where a program finds what [`Assembler::decide`] needs, as distances from `base`.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The stack, or `r7`: no other register is as it was afterwards.
    pub base: Base,
    /// The blocks.
    pub blocks: BlocksPlace,
    /// The family of the addresses, and so how many bytes they have.
    pub family: Family,
    /// The root of the tree of addresses.
    pub addresses: i16,
    /// Where IPv6 addresses are looked for first; none: they are looked for in that tree alone.
    pub exact: Option<ExactPlace>,
    /// What a group's entry in a map has, [`GroupRoots::to_bytes`](crate::GroupRoots::to_bytes), as a distance from what `r6` holds.
    pub group: i16,
    /// The address of the group's own end, in the network's order, as what follows.
    pub own: i16,
    /// The address of the peer.
    pub peer: i16,
    /// The protocol.
    pub protocol: i16,
    /// Two bytes of destination port, or of ICMP type and code.
    pub detail: i16,
    /// Two bytes of source port.
    pub source_port: i16,
    /// A byte that is not 0 if the packet has a destination port or an ICMP message.
    pub has_detail: i16,
    /// A byte that is not 0 if it has a source port.
    pub has_source_port: i16,
}

/// Where a program finds [`ExactRecord`]s.
#[derive(Clone, Copy, Debug)]
pub struct ExactPlace {
    /// The map, an array of one value, in which they are one behind the other.
    pub map: MapId,
    /// How many there are.
    pub count: u32,
    /// Where [`EXACT_SHIFT`](crate::layout::roots::EXACT_SHIFT) is, as a distance from [`Question::base`].
    pub shift: i16,
    /// Where the root of the tree is for addresses that have no class of their own, [`NETWORKS`](crate::layout::roots::NETWORKS).
    pub networks: i16,
}

/// The places of the roots of a group.
const OWN: i16 = 0;
const PEER: i16 = 4;
const DETAILS: i16 = 8;
const PROTOCOLS: i16 = 12;
const SOURCE_PORTS: i16 = 16;
const NO_SOURCE_PORT: i16 = 20;
const CELLS: i16 = 24;
const IS_LARGE: i16 = 28;
/// Those of shortcuts, for IPv4 and then for IPv6.
const NEAR_OWN: i16 = 32;
const NEAR_PEER: i16 = 40;
const TCP_PORTS: i16 = 48;
const UDP_PORTS: i16 = 52;
const NEAR_CELLS: i16 = 56;
const ALIKE: i16 = 60;

/// Holds the group.
const GROUP: Register = Register::R6;
/// Holds the number of the cell.
const SUM: Register = Register::R8;
/// Holds the cell of a tree.
const CELL: Register = Register::R9;
/// Holds the bits of ends that are alike.
const ENDS: Register = Register::R4;
/// Holds the class of an address.
const CLASS: Register = Register::R2;
/// The bytes of an [`ExactRecord`], in powers of two.
const RECORD: i32 = ExactRecord::SIZE.trailing_zeros().cast_signed();
const _: () = assert!(ExactRecord::SIZE.is_power_of_two());
/// How many entries such a record has.
const WAYS: i16 = 3;
/// How many parts the number of a cell has. Each has the bit of values when it is added.
const PARTS: u64 = 4;

impl Assembler {
    /// Leaves in `r9` the decision about a packet, which the group at `r6` is asked about, or goes on at `missing` where something is not
    /// there: deny then. The lowest bits are the verdict, the others the [number](crate::DecisionId::from_cell). `r0` to
    /// `r5` and `r8` hold nothing afterwards.
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

        // What is taken most often is jumped to least.
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
            // A protocol alone has led to a value.
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

        // Of a small table the first two bytes of the number are 0, and the tree begins with the others.
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

    /// Adds a part of the number of the cell, with its bit of values.
    fn add_value(&mut self, missing: Label) -> &mut Self {
        self.end_walk(CELL, missing).compute(Operation::Add, SUM, CELL)
    }

    /// Adds the row of an address. Where all of its family have one, none is looked up.
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

    /// Leaves the class of an IPv6 address in `r9`, with the bit of values, and goes on at `found` if it has an entry that is open;
    /// otherwise the root of the tree that has it.
    fn find_exact(&mut self, question: &Question, place: ExactPlace, address: i16, found: Label) {
        let Question { base, addresses, .. } = *question;
        let ExactPlace { map, count, shift, networks } = place;
        let [of_first, of_second] = EXACT_FACTORS;
        let (full, end) = (self.label(), self.label());
        // As `exact_bucket` has it. Where no address has a class of its own there are no buckets.
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
            // Addresses of one network differ in what comes last.
            self.load(Size::U64, Register::R3, Register::R0, entry + 8)
                .jump_if(Register::R2, Test::NotEqual, Register::R3, other)
                .load(Size::U64, Register::R3, Register::R0, entry)
                .jump_if(Register::R1, Test::NotEqual, Register::R3, other)
                .load(Size::U32, CELL, Register::R0, ExactRecord::CLASSES + 4 * way)
                // The bit is that of values. It may stand here once more, open.
                .jump_if_half(CELL, Test::LessSigned, 0, found)
                .place(other);
        }
        const { assert!(WAYS as usize == ExactRecord::WAYS && ExactRecord::OPEN == 1 << 31) };
        // That is 1, and the class of an entry that is closed is not 0.
        self.load(Size::U32, Register::R1, Register::R0, ExactRecord::COMPLETE)
            .compute(Operation::Add, Register::R1, CELL)
            .load(Size::U32, CELL, base, networks)
            .jump_if(Register::R1, Test::Equal, 1, end)
            .place(full)
            .load(Size::U32, CELL, base, addresses)
            .place(end);
    }
}
