//! Reading trees of blocks.

use crate::assembler::Assembler;
use crate::blocks::Cell;
use crate::instruction::{Base, Label, MapId, Operation, Register, Size, Test};

/// Where a program has the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlocksPlace {
    /// The map, an array of one value, in which they are one behind the other.
    pub map: MapId,
    /// Holds their address: what [`Assembler::find_blocks`] has put there. Not `r1`.
    pub register: Register,
    /// How many there are: numbers of blocks that are not below lead nowhere. At most [`MAX_BLOCKS`](crate::layout::MAX_BLOCKS).
    pub count: u32,
}

impl BlocksPlace {
    /// A cell that is not below is a value, or leads nowhere.
    const fn end(self) -> i32 {
        match self.count.checked_sub(1) {
            Some(last) => ((last << Cell::SHIFT) + 1).cast_signed(),
            None => 0,
        }
    }
}

/// Where a program finds what it needs to follow a tree.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// The blocks, of which each is [`CELLS`](crate::CELLS) cells of 4 bytes in the machine's order.
    pub blocks: BlocksPlace,
    /// Holds the root before, and the value afterwards: any register but `r1` and that of the blocks.
    pub cell: Register,
    /// From where the key is, in another register or on the stack.
    pub key: Base,
    /// How far from there it begins.
    pub offset: i16,
    /// How many bytes it has.
    pub bytes: u8,
}

/// The same for keys that are the last bytes of a number.
#[derive(Clone, Copy)]
pub(crate) struct NumberWalk {
    pub(crate) blocks: BlocksPlace,
    pub(crate) cell: Register,
    /// Holds the number, and still does afterwards.
    pub(crate) number: Register,
    /// The place of the first byte, counted from the last one.
    pub(crate) first: u8,
    /// That of the last one.
    pub(crate) last: u8,
}

impl Assembler {
    /// Puts the address of blocks where walks expect it.
    pub fn find_blocks(&mut self, place: BlocksPlace) -> &mut Self {
        self.set_first_value(place.register, place.map)
    }

    /// Follows the tree in `walk.cell` to the value of a key. `r1` holds nothing afterwards. Where a block is not there,
    /// or leads on behind the end of the key, it goes on at `missing`.
    pub fn walk(&mut self, walk: &Walk, missing: Label) -> &mut Self {
        self.begin_walk(walk).end_walk(walk.cell, missing).compute_half(Operation::And, walk.cell, i32::MAX)
    }

    /// Goes on at `missing` if a cell is no value: what is one has the highest of its 32 bits set.
    pub(crate) fn end_walk(&mut self, cell: Register, missing: Label) -> &mut Self {
        self.jump_if_half(cell, Test::GreaterOrEqualSigned, 0, missing)
    }

    /// The same as [`Self::walk`] for the first bytes of a key: leaves a cell from where to go on with the others.
    pub(crate) fn begin_walk(&mut self, walk: &Walk) -> &mut Self {
        let Walk { blocks, cell, key, offset, bytes } = *walk;
        let found = self.label();
        for byte in 0..bytes {
            self.jump_if(cell, Test::GreaterOrEqual, blocks.end(), found)
                .load(Size::U8, Register::R1, key, offset + i16::from(byte))
                .compute(Operation::ShiftLeft, Register::R1, 2);
            self.step(blocks, cell);
        }
        self.place(found)
    }

    /// The same with a key in a register.
    pub(crate) fn walk_number(&mut self, walk: &NumberWalk) -> &mut Self {
        let NumberWalk { blocks, cell, number, first, last } = *walk;
        let found = self.label();
        for byte in (last..=first).rev() {
            self.jump_if(cell, Test::GreaterOrEqual, blocks.end(), found).compute_half(
                Operation::Move,
                Register::R1,
                number,
            );
            // Four bytes for each.
            match i32::from(byte) * 8 {
                0 => {
                    self.compute_half(Operation::And, Register::R1, 0xff).compute(Operation::ShiftLeft, Register::R1, 2)
                }
                bits => self.compute_half(Operation::ShiftRight, Register::R1, bits - 2).compute_half(
                    Operation::And,
                    Register::R1,
                    0xff << 2,
                ),
            };
            self.step(blocks, cell);
        }
        self.place(found)
    }

    /// Reads the cell that is `r1` bytes from the beginning of the block in `cell`. The cell comes last: it is what is waited for.
    fn step(&mut self, blocks: BlocksPlace, cell: Register) {
        self.compute(Operation::Add, Register::R1, blocks.register).compute(Operation::Add, Register::R1, cell).load(
            Size::U32,
            cell,
            Register::R1,
            0,
        );
    }
}
