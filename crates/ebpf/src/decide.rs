//! The part of a program that decides about a packet.

use tortie_model::{Family, Protocol};

use crate::assembler::Assembler;
use crate::instruction::{Base, Helper, Label, MapId, Operation, Register, Size, Test};
use crate::layout::{EXACT_FACTORS, ExactRecord};
use crate::tables::{NOWHERE, family_bit};
use crate::walk::{BlocksPlace, Walk};

/// Where a program finds what [`Assembler::decide`] needs, as distances from what `r7` holds.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The blocks.
    pub blocks: BlocksPlace,
    /// The family of the addresses, and so how many bytes they have.
    pub family: Family,
    /// The root of the tree of addresses.
    pub addresses: i16,
    /// The map of [`ExactRecord`] in which IPv6 addresses are looked for first, and where it is said how many buckets of it
    /// count; none: they are looked for in the tree alone.
    pub exact: Option<(MapId, i16)>,
    /// What a group's entry in a map has, [`GroupRoots::to_bytes`](crate::GroupRoots::to_bytes), as a distance from what `r6` holds.
    pub group: i16,
    /// The address of the group's own end, in the network's order, as what follows.
    pub own: i16,
    /// The address of the peer.
    pub peer: i16,
    /// The protocol, and behind it two bytes of destination port, or of ICMP type and code.
    pub protocol: i16,
    /// Two bytes of source port.
    pub source_port: i16,
    /// A byte that is not 0 if the packet has a destination port or an ICMP message.
    pub has_detail: i16,
    /// A byte that is not 0 if it has a source port.
    pub has_source_port: i16,
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

/// Where keys are made on the stack, and numbers of buckets.
const KEY: i16 = -8;
const SCRATCH: i16 = -4;
/// Holds the group.
const GROUP: Register = Register::R6;
/// Holds what is asked about.
const QUESTION: Register = Register::R7;
/// Holds the number of the cell.
const SUM: Register = Register::R8;
/// Holds the cell of a tree.
const CELL: Register = Register::R9;

impl Assembler {
    /// Leaves in `r9` the decision about a packet, which the group at `r6` is asked about at `r7`, or goes on at `missing` where something is not
    /// there: deny then. The lowest bits are the verdict, the others the [number](crate::DecisionId::from_cell). Uses the 8 bytes
    /// of the stack next to its end; `r0` to `r5` and `r8` hold nothing afterwards.
    pub fn decide(&mut self, question: &Question, missing: Label) -> &mut Self {
        let Question { blocks, group, .. } = *question;
        let walk = |key: Base, offset: i16, bytes: u8| Walk { blocks, cell: CELL, key, offset, bytes };
        let asked = Base::Register(QUESTION);
        self.set(SUM, 0);
        let rows = [(question.own, OWN, NEAR_OWN), (question.peer, PEER, NEAR_PEER)];
        for (address, rows, near) in rows {
            self.add_row(question, address, (group + rows, group + near), missing);
        }

        let (protocol_alone, tcp, udp, ports, found) =
            (self.label(), self.label(), self.label(), self.label(), self.label());
        self.load(Size::U8, Register::R1, QUESTION, question.has_detail)
            .jump_if(Register::R1, Test::Equal, 0, protocol_alone)
            .load(Size::U8, Register::R1, QUESTION, question.protocol)
            .jump_if(Register::R1, Test::Equal, i32::from(Protocol::TCP.number()), tcp)
            .jump_if(Register::R1, Test::Equal, i32::from(Protocol::UDP.number()), udp)
            .load(Size::U32, CELL, GROUP, group + DETAILS)
            .begin_walk(&walk(asked, question.protocol, 1))
            .jump(ports)
            .place(udp)
            .load(Size::U32, CELL, GROUP, group + UDP_PORTS)
            .jump(ports)
            .place(tcp)
            .load(Size::U32, CELL, GROUP, group + TCP_PORTS)
            .place(ports)
            .walk(&walk(asked, question.protocol + 1, 2), missing)
            .jump(found)
            .place(protocol_alone)
            .load(Size::U32, CELL, GROUP, group + PROTOCOLS)
            .walk(&walk(asked, question.protocol, 1), missing)
            .place(found)
            .compute(Operation::Add, SUM, CELL);

        let (no_port, found) = (self.label(), self.label());
        self.load(Size::U8, Register::R1, QUESTION, question.has_source_port)
            .jump_if(Register::R1, Test::Equal, 0, no_port)
            .load(Size::U32, CELL, GROUP, group + SOURCE_PORTS)
            .walk(&walk(asked, question.source_port, 2), missing)
            .jump(found)
            .place(no_port)
            .load(Size::U32, CELL, GROUP, group + NO_SOURCE_PORT)
            .place(found)
            .compute(Operation::Add, SUM, CELL);

        // Of a small table the first two bytes of the number are 0, and the tree begins with the others.
        let (large, near, last) = (self.label(), self.label(), self.label());
        let key = walk(Base::Frame, KEY, 2);
        self.load(Size::U32, CELL, GROUP, group + CELLS)
            .load(Size::U32, Register::R1, GROUP, group + IS_LARGE)
            .jump_if(Register::R1, Test::NotEqual, 0, large)
            .jump_if(SUM, Test::Greater, i32::from(u16::MAX), missing)
            .to_big_endian(Size::U32, SUM)
            .store(Size::U32, Base::Frame, KEY, SUM)
            .jump(last)
            .place(large)
            .jump_if(SUM, Test::GreaterOrEqual, NOWHERE.cast_signed(), missing)
            .set(Register::R1, SUM)
            .to_big_endian(Size::U32, SUM)
            .store(Size::U32, Base::Frame, KEY, SUM)
            .jump_if(Register::R1, Test::Less, 1 << 24, near)
            .begin_walk(&key)
            .jump(last)
            .place(near)
            .load(Size::U32, CELL, GROUP, group + NEAR_CELLS)
            .begin_walk(&Walk { offset: KEY + 1, bytes: 1, ..key })
            .place(last)
            .walk(&Walk { offset: KEY + 2, ..key }, missing)
    }

    /// Adds the row of an address. Where all addresses have one, none is looked up.
    fn add_row(&mut self, question: &Question, address: i16, (rows, near): (i16, i16), missing: Label) {
        let Question { blocks, .. } = *question;
        let (bytes, near, family) = match question.family {
            Family::V4 => (4, near, Family::V4),
            Family::V6 => (16, near + 4, Family::V6),
        };
        let of_address = Walk { blocks, cell: CELL, key: QUESTION.into(), offset: address, bytes };
        let of_class = Walk { key: Base::Frame, offset: KEY + 1, bytes: 1, ..of_address };
        let (alike, classified, far, last) = (self.label(), self.label(), self.label(), self.label());
        self.load(Size::U32, CELL, GROUP, rows).jump_if_half(CELL, Test::Less, i32::MIN, alike);
        if question.family == Family::V6
            && let Some(exact) = question.exact
        {
            self.find_exact(exact, address, classified);
        }
        self.load(Size::U32, CELL, QUESTION, question.addresses)
            .walk(&of_address, missing)
            .place(classified)
            .set(Register::R1, CELL)
            .compute(Operation::Xor, Register::R1, family_bit(family).cast_signed())
            .to_big_endian(Size::U32, CELL)
            .store(Size::U32, Base::Frame, KEY, CELL)
            .jump_if(Register::R1, Test::Greater, i32::from(u16::MAX), far)
            .load(Size::U32, CELL, GROUP, near)
            .jump(last)
            .place(far)
            .load(Size::U32, CELL, GROUP, rows)
            .begin_walk(&of_class)
            .place(last)
            .walk(&Walk { offset: KEY + 2, bytes: 2, ..of_class }, missing)
            .place(alike)
            .compute(Operation::Add, SUM, CELL);
    }

    /// Leaves the class of an IPv6 address in `r9` and goes on at `found` if it has an entry of its own.
    fn find_exact(&mut self, (map, buckets): (MapId, i16), address: i16, found: Label) {
        let [of_high, of_both] = EXACT_FACTORS;
        let none = self.label();
        // As `exact_bucket` has it.
        self.load(Size::U32, Register::R1, QUESTION, buckets)
            .jump_if(Register::R1, Test::Equal, 0, none)
            .compute(Operation::Subtract, Register::R1, 1)
            .load(Size::U64, Register::R2, QUESTION, address)
            .to_big_endian(Size::U64, Register::R2)
            .set_wide(Register::R3, of_high)
            .compute(Operation::Multiply, Register::R2, Register::R3)
            .load(Size::U64, Register::R3, QUESTION, address + 8)
            .to_big_endian(Size::U64, Register::R3)
            .compute(Operation::Xor, Register::R2, Register::R3)
            .set(Register::R3, Register::R2)
            .compute(Operation::ShiftRight, Register::R3, 32)
            .compute(Operation::Xor, Register::R2, Register::R3)
            .set_wide(Register::R3, of_both)
            .compute(Operation::Multiply, Register::R2, Register::R3)
            .compute(Operation::ShiftRight, Register::R2, 32)
            .compute(Operation::And, Register::R2, Register::R1)
            .store(Size::U32, Base::Frame, SCRATCH, Register::R2)
            .set_map(Register::R1, map)
            .set_stack(Register::R2, SCRATCH.unsigned_abs())
            .call(Helper::MapLookup)
            .jump_if(Register::R0, Test::Equal, 0, none)
            .load(Size::U64, Register::R1, QUESTION, address)
            .load(Size::U64, Register::R2, QUESTION, address + 8);
        for way in 0..2 {
            let (other, entry) = (self.label(), 16 * way);
            self.load(Size::U64, Register::R3, Register::R0, entry)
                .jump_if(Register::R1, Test::NotEqual, Register::R3, other)
                .load(Size::U64, Register::R3, Register::R0, entry + 8)
                .jump_if(Register::R2, Test::NotEqual, Register::R3, other)
                .load(Size::U32, CELL, Register::R0, ExactRecord::CLASSES + 4 * way)
                .jump_if_half(CELL, Test::Less, i32::MIN, other)
                .compute_half(Operation::And, CELL, i32::MAX)
                .jump(found)
                .place(other);
        }
        const { assert!(ExactRecord::WAYS == 2 && ExactRecord::OPEN == 1 << 31) };
        self.place(none);
    }
}
