//! Reading trees of blocks.

use crate::assembler::Assembler;
use crate::blocks::CELLS;
use crate::instruction::{Base, Helper, Label, MapId, Operation, Register, Size, Test};

/// How far apart blocks are, in powers of two.
const SHIFT: i32 = (CELLS * 4).trailing_zeros().cast_signed();

/// Where a program has the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlocksPlace {
    /// The eight bytes of the stack that hold their address: what [`Assembler::find_blocks`] has put there.
    pub address: i16,
    /// How many there are: numbers of blocks that are not below lead nowhere. At most [`MAX_BLOCKS`](crate::layout::MAX_BLOCKS).
    pub count: u32,
}

/// Where a program finds what it needs to follow a tree.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// The blocks, of which each is [`CELLS`] cells of 4 bytes in the machine's order.
    pub blocks: BlocksPlace,
    /// Holds the root before, and the value afterwards: any register but `r0` and `r1`.
    pub cell: Register,
    /// From where the key is, in another register or on the stack.
    pub key: Base,
    /// How far from there it begins.
    pub offset: i16,
    /// How many bytes it has.
    pub bytes: u8,
}

impl Assembler {
    /// Keeps the address of blocks on the stack, which are one behind the other in the first value of an array. `r0` to `r5` hold nothing
    /// afterwards. Where there is none it goes on at `missing`.
    pub fn find_blocks(&mut self, map: MapId, place: BlocksPlace, missing: Label) -> &mut Self {
        self.store(Size::U32, Base::Frame, place.address, 0)
            .set_map(Register::R1, map)
            .set_stack(Register::R2, place.address.unsigned_abs())
            .call(Helper::MapLookup)
            .jump_if(Register::R0, Test::Equal, 0, missing)
            .store(Size::U64, Base::Frame, place.address, Register::R0)
    }

    /// Follows the tree in `walk.cell` to the value of a key. `r0` and `r1` hold nothing afterwards. Where a block is not there,
    /// or leads on behind the end of the key, it goes on at `missing`.
    pub fn walk(&mut self, walk: &Walk, missing: Label) -> &mut Self {
        self.begin_walk(walk).jump_if_half(walk.cell, Test::GreaterOrEqual, i32::MIN, missing)
    }

    /// The same for the first bytes of a key: leaves a cell from where to go on with the others.
    pub(crate) fn begin_walk(&mut self, walk: &Walk) -> &mut Self {
        let Walk { blocks: BlocksPlace { address, count }, cell, key, offset, bytes } = *walk;
        let found = self.label();
        for byte in 0..bytes {
            // Values become larger than any number of a block. So does what is no number of a block there: it stays what leads on.
            self.compute_half(Operation::Move, Register::R1, cell)
                .compute_half(Operation::Xor, Register::R1, i32::MIN)
                .jump_if(Register::R1, Test::GreaterOrEqual, count.cast_signed(), found)
                .compute(Operation::ShiftLeft, Register::R1, SHIFT)
                .load(Size::U64, Register::R0, Base::Frame, address)
                .compute(Operation::Add, Register::R0, Register::R1)
                .load(Size::U8, Register::R1, key, offset + i16::from(byte))
                .compute(Operation::ShiftLeft, Register::R1, 2)
                .compute(Operation::Add, Register::R0, Register::R1)
                .load(Size::U32, cell, Register::R0, 0);
        }
        self.place(found)
    }
}
