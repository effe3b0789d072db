//! The part of a program that decides about a packet.

use tortie_model::Family;

use crate::assembler::Assembler;
use crate::instruction::{Base, Label, MapId, Operation, Register, Size, Test};
use crate::tables::{CLASS_BYTES, NOWHERE};
use crate::walk::Walk;

/// Where a program finds what [`Assembler::decide`] needs, as distances from what `r7` holds.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The array map of the blocks.
    pub blocks: MapId,
    /// The family of the addresses, and so how many bytes they have.
    pub family: Family,
    /// The root of the tree of addresses.
    pub addresses: i16,
    /// What a group's entry in a map has, [`GroupRoots::cells`](crate::GroupRoots::cells).
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

/// Where keys are made on the stack, and numbers of blocks.
const KEY: i16 = -8;
const SCRATCH: i16 = -4;
/// Holds what is asked about.
const QUESTION: Register = Register::R7;
/// Holds the number of the cell.
const SUM: Register = Register::R8;
/// Holds the cell of a tree.
const CELL: Register = Register::R9;

impl Assembler {
    /// Leaves in `r9` the decision about a packet, which is asked about at `r7`, or goes on at `missing` where something is not
    /// there: deny then. The lowest bits are the verdict, the others the [number](crate::DecisionId::from_cell). Uses the 8 bytes
    /// of the stack next to its end; `r0` to `r5` and `r8` hold nothing afterwards.
    pub fn decide(&mut self, question: &Question, missing: Label) -> &mut Self {
        let Question { blocks, group, .. } = *question;
        let walk =
            |key: Base, offset: i16, bytes: u8| Walk { blocks, cell: CELL, key, offset, bytes, scratch: SCRATCH };
        let asked = Base::Register(QUESTION);
        self.set(SUM, 0);
        for (address, rows) in [(question.own, OWN), (question.peer, PEER)] {
            self.add_row(question, address, group + rows, missing);
        }

        let (protocol_alone, found) = (self.label(), self.label());
        self.load(Size::U8, Register::R1, QUESTION, question.has_detail)
            .jump_if(Register::R1, Test::Equal, 0, protocol_alone)
            .load(Size::U32, CELL, QUESTION, group + DETAILS)
            .walk(&walk(asked, question.protocol, 3), missing)
            .jump(found)
            .place(protocol_alone)
            .load(Size::U32, CELL, QUESTION, group + PROTOCOLS)
            .walk(&walk(asked, question.protocol, 1), missing)
            .place(found)
            .compute(Operation::Add, SUM, CELL);

        let (no_port, found) = (self.label(), self.label());
        self.load(Size::U8, Register::R1, QUESTION, question.has_source_port)
            .jump_if(Register::R1, Test::Equal, 0, no_port)
            .load(Size::U32, CELL, QUESTION, group + SOURCE_PORTS)
            .walk(&walk(asked, question.source_port, 2), missing)
            .jump(found)
            .place(no_port)
            .load(Size::U32, CELL, QUESTION, group + NO_SOURCE_PORT)
            .place(found)
            .compute(Operation::Add, SUM, CELL);

        // Of a small table the first two bytes of the number are 0, and the tree begins with the others.
        let (large, last) = (self.label(), self.label());
        self.load(Size::U32, CELL, QUESTION, group + CELLS)
            .load(Size::U32, Register::R1, QUESTION, group + IS_LARGE)
            .jump_if(Register::R1, Test::NotEqual, 0, large)
            .jump_if(SUM, Test::Greater, i32::from(u16::MAX), missing)
            .to_big_endian(Size::U32, SUM)
            .store(Size::U32, Base::Frame, KEY, SUM)
            .jump(last)
            .place(large)
            .jump_if(SUM, Test::GreaterOrEqual, NOWHERE.cast_signed(), missing)
            .to_big_endian(Size::U32, SUM)
            .store(Size::U32, Base::Frame, KEY, SUM)
            .begin_walk(&walk(Base::Frame, KEY, 2), missing)
            .place(last)
            .walk(&walk(Base::Frame, KEY + 2, 2), missing)
    }

    /// Adds the row of an address. Where all addresses have one, none is looked up.
    fn add_row(&mut self, question: &Question, address: i16, rows: i16, missing: Label) {
        let Question { blocks, .. } = *question;
        let bytes = if question.family == Family::V4 { 4 } else { 16 };
        let of_address = Walk { blocks, cell: CELL, key: QUESTION.into(), offset: address, bytes, scratch: SCRATCH };
        let of_class = Walk { key: Base::Frame, offset: KEY + 1, bytes: CLASS_BYTES, ..of_address };
        let alike = self.label();
        self.load(Size::U32, CELL, QUESTION, rows)
            .jump_if_half(CELL, Test::Less, i32::MIN, alike)
            .load(Size::U32, CELL, QUESTION, question.addresses)
            .walk(&of_address, missing)
            .to_big_endian(Size::U32, CELL)
            .store(Size::U32, Base::Frame, KEY, CELL)
            .load(Size::U32, CELL, QUESTION, rows)
            .walk(&of_class, missing)
            .place(alike)
            .compute(Operation::Add, SUM, CELL);
    }
}
