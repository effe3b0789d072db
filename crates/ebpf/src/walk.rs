//! Reading trees of blocks.

use crate::assembler::Assembler;
use crate::instruction::{Base, Helper, Label, MapId, Operation, Register, Size, Test};

/// Where a program finds what it needs to follow a tree.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// The array map of the blocks, of which each is [`CELLS`](crate::CELLS) cells of 4 bytes in the machine's order.
    pub blocks: MapId,
    /// Holds the root before, and the value afterwards: `r6` to `r9`, which calls leave alone.
    pub cell: Register,
    /// From where the key is, in `r6` to `r9` or on the stack.
    pub key: Base,
    /// How far from there it begins.
    pub offset: i16,
    /// How many bytes it has.
    pub bytes: u8,
    /// Four bytes of the stack that may be written.
    pub scratch: i16,
}

impl Assembler {
    /// Follows the tree in `walk.cell` to the value of a key. `r0` to `r5` hold nothing afterwards. Where a block is not there,
    /// or leads on behind the end of the key, it goes on at `missing`.
    pub fn walk(&mut self, walk: &Walk, missing: Label) -> &mut Self {
        self.begin_walk(walk, missing).jump_if_half(walk.cell, Test::GreaterOrEqual, i32::MIN, missing)
    }

    /// The same for the first bytes of a key: leaves a cell from where to go on with the others.
    pub(crate) fn begin_walk(&mut self, walk: &Walk, missing: Label) -> &mut Self {
        let Walk { blocks, cell, key, offset, bytes, scratch } = *walk;
        let found = self.label();
        for byte in 0..bytes {
            // As 32 bits this is the bit that tells blocks from values.
            self.jump_if_half(cell, Test::Less, i32::MIN, found)
                .compute_half(Operation::And, cell, i32::MAX)
                .store(Size::U32, Base::Frame, scratch, cell)
                .set_map(Register::R1, blocks)
                .set_stack(Register::R2, scratch.unsigned_abs())
                .call(Helper::MapLookup)
                .jump_if(Register::R0, Test::Equal, 0, missing)
                .load(Size::U8, Register::R1, key, offset + i16::from(byte))
                .compute(Operation::ShiftLeft, Register::R1, 2)
                .compute(Operation::Add, Register::R0, Register::R1)
                .load(Size::U32, cell, Register::R0, 0);
        }
        self.place(found)
    }
}
