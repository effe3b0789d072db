//! Lookups in tries of blocks.

use crate::assembler::Assembler;
use crate::blocks::Cell;
use crate::instruction::{Base, Label, MapId, Operation, Register, Size, Test};

/// Location of the blocks in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlocksPlace {
    /// Map of the blocks, an array of one value that holds them one behind the other.
    pub map: MapId,
    /// Register with their address, as set by [`Assembler::find_blocks`]. Not `r1`.
    pub register: Register,
    /// Number of blocks; higher block numbers lead nowhere. At most
    /// [`MAX_BLOCKS`](crate::layout::MAX_BLOCKS).
    pub count: u32,
}

impl BlocksPlace {
    /// Returns the bound from which on a cell is a value, or leads nowhere.
    const fn end(self) -> i32 {
        match self.count.checked_sub(1) {
            Some(last) => ((last << Cell::SHIFT) + 1).cast_signed(),
            None => 0,
        }
    }
}

/// Registers and memory of a trie lookup.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// Blocks, each of [`CELLS`](crate::CELLS) cells of 4 bytes in native byte order.
    pub blocks: BlocksPlace,
    /// Register with the root before, and the value afterwards; not `r1` or that of the blocks.
    pub cell: Register,
    /// Base address of the key: another register, or the stack.
    pub key: Base,
    /// Offset of the key from the base.
    pub offset: i16,
    /// Length of the key in bytes.
    pub bytes: u8,
}

/// Registers of a trie lookup with bytes of a number as the key.
#[derive(Clone, Copy)]
pub(crate) struct NumberWalk {
    pub(crate) blocks: BlocksPlace,
    pub(crate) cell: Register,
    /// Register with the number, which is preserved.
    pub(crate) number: Register,
    /// Position of the first key byte, counted from the least significant one.
    pub(crate) first: u8,
    /// Position of the last key byte.
    pub(crate) last: u8,
}

impl Assembler {
    /// Loads the address of the blocks for lookups.
    pub fn find_blocks(&mut self, place: BlocksPlace) -> &mut Self {
        self.set_first_value(place.register, place.map)
    }

    /// Looks up the value of a key in the trie at `walk.cell`. Clobbers `r1`. Jumps to `missing` if
    /// a block is missing, or if the trie is deeper than the key.
    pub fn walk(&mut self, walk: &Walk, missing: Label) -> &mut Self {
        self.begin_walk(walk).end_walk(walk.cell, missing).compute_half(Operation::And, walk.cell, i32::MAX)
    }

    /// Jumps to `missing` if a cell is not a value: values have the highest of their 32 bits set.
    pub(crate) fn end_walk(&mut self, cell: Register, missing: Label) -> &mut Self {
        self.jump_if_half(cell, Test::GreaterOrEqualSigned, 0, missing)
    }

    /// Like [`Self::walk`], for a key prefix: leaves the cell at which lookups of the remaining
    /// bytes begin.
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

    /// Like [`Self::begin_walk`], with a key in a register.
    pub(crate) fn walk_number(&mut self, walk: &NumberWalk) -> &mut Self {
        let NumberWalk { blocks, cell, number, first, last } = *walk;
        let found = self.label();
        for byte in (last..=first).rev() {
            self.jump_if(cell, Test::GreaterOrEqual, blocks.end(), found).compute_half(
                Operation::Move,
                Register::R1,
                number,
            );
            // A cell has four bytes.
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

    /// Reads the cell at offset `r1` of the block in `cell`. The cell is added last, because the
    /// CPU waits longest for it.
    fn step(&mut self, blocks: BlocksPlace, cell: Register) {
        self.compute(Operation::Add, Register::R1, blocks.register).compute(Operation::Add, Register::R1, cell).load(
            Size::U32,
            cell,
            Register::R1,
            0,
        );
    }
}
