//! Values by keys of some bytes, as blocks that an array map holds.
//!
//! A *tree* leads from the bytes of a key, one after the other, to a value. Each step is a *block* of 256 *cells*; a cell is a
//! value, which holds for all keys from there on, or the number of another block. A tree is known by its root, a cell as well.
//! Blocks never change: a change makes new ones along its way and gives a new root. Two blocks are never alike, so that what
//! trees have in common is there once. Whoever writes new blocks before the root that leads to them changes a tree, or many at
//! once, in one step, and readers see all of a change or nothing.

use std::collections::{BTreeMap, BTreeSet};

use ahash::{AHashMap, AHashSet, RandomState};
use hashbrown::HashTable;

/// How many cells a block has.
pub const CELLS: usize = 256;
/// Bytes of the longest keys.
const MAX_DEPTH: usize = 16;

/// A value, or a block of cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cell(u32);

impl Cell {
    /// The bit of blocks, here. In a map it is that of values: see [`Self::bits`].
    const BLOCK: u32 = 1 << 31;
    /// How far apart blocks are in a map, in powers of two.
    pub(crate) const SHIFT: u32 = (CELLS * 4).trailing_zeros();
    /// Numbers of blocks that a map can have are below.
    const BLOCKS: u32 = Self::BLOCK >> Self::SHIFT;

    /// A value; of its 32 bits the highest is none.
    #[must_use]
    pub const fn value(value: u32) -> Self {
        Self(value & !Self::BLOCK)
    }

    const fn block(number: u32) -> Self {
        Self(number | Self::BLOCK)
    }

    /// What stands in a map. What leads to no block there that could be is one with a number that none has.
    pub(crate) const fn from_bits(bits: u32) -> Self {
        if bits & Self::BLOCK != 0 {
            Self::value(bits)
        } else if bits != 0 && bits.trailing_zeros() >= Self::SHIFT {
            Self::block(bits >> Self::SHIFT)
        } else {
            Self::block(bits | 1 << 30)
        }
    }

    /// The block that it leads to.
    #[must_use]
    pub const fn as_block(self) -> Option<u32> {
        if self.0 & Self::BLOCK == 0 { None } else { Some(self.0 & !Self::BLOCK) }
    }

    /// The value; of what leads to a block a number that none has.
    #[must_use]
    pub const fn as_value(self) -> u32 {
        self.0
    }

    /// As it stands in a map: a value with its highest bit set, or how many bytes a block is from the first one. So a program adds what it has read
    /// to the address of the blocks, and one comparison tells it whether there is one. Zeros lead to the first, which is never
    /// used and leads nowhere.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self.as_block() {
            None => self.0 | Self::BLOCK,
            Some(number) if number < Self::BLOCKS => number << Self::SHIFT,
            // The last that could be: no map has it.
            Some(_) => (Self::BLOCKS - 1) << Self::SHIFT,
        }
    }
}

/// Keys that begin with some bits are to have a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment<'k> {
    /// The bytes of a key; it has all that `bits` reaches into.
    pub key: &'k [u8],
    /// How many bits of it count.
    pub bits: u8,
    /// The value.
    pub value: u32,
}

#[derive(Debug)]
struct Block {
    cells: Box<[Cell; CELLS]>,
    /// How many cells and roots lead to it.
    references: u32,
    /// Blocks of the tree that begins here, each counted as often as a way leads to it.
    ways: u32,
    /// Whether nobody has been told of it yet, so that no reader can be at it.
    is_new: bool,
}

/// All blocks, by number.
#[derive(Debug, Default)]
pub struct Blocks {
    blocks: Vec<Option<Block>>,
    by_cells: HashTable<u32>,
    hasher: RandomState,
    /// The lowest are given out first, so that the map need not be longer than its contents.
    free: BTreeSet<u32>,
    /// Those that nothing leads to any more, which readers may still be at.
    retired: Vec<u32>,
    /// Those that are new since they were last taken.
    written: Vec<u32>,
    /// Those that were there already, which may be without any use.
    adopted: Vec<u32>,
}

impl Blocks {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many blocks lead to values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_cells.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_cells.is_empty()
    }

    /// How many have a number: those that lead to values, and those that readers may still be at.
    #[must_use]
    pub fn in_use(&self) -> usize {
        // The first number is never given out.
        (self.blocks.len() - self.free.len()).saturating_sub(1)
    }

    /// How many entries the map must have: numbers of blocks are below.
    #[must_use]
    pub fn extent(&self) -> usize {
        self.blocks.len()
    }

    /// The numbers of those that lead to values, ascending.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().zip(0..).filter_map(|(block, number)| block.is_some().then_some(number))
    }

    /// What a block holds that leads to values.
    pub(crate) fn cells(&self, number: u32) -> Option<&[Cell; CELLS]> {
        Some(&*self.blocks.get(number as usize)?.as_ref()?.cells)
    }

    /// Blocks that a tree has if it shares none with others or with itself: never less than it takes. Known without a walk.
    pub(crate) fn ways(&self, root: Cell) -> u32 {
        let block = root.as_block().and_then(|number| self.blocks.get(number as usize)?.as_ref());
        block.map_or(0, |block| block.ways)
    }

    /// Blocks that a tree takes if it shares none with others. The cost is that of these blocks.
    pub(crate) fn count(&self, root: Cell) -> usize {
        let mut seen: AHashSet<u32> = AHashSet::new();
        let mut cells = vec![root];
        while let Some(cell) = cells.pop() {
            let Some(number) = cell.as_block().filter(|number| seen.insert(*number)) else { continue };
            cells.extend(self.cells(number).into_iter().flatten().filter(|cell| cell.as_block().is_some()));
        }
        seen.len()
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, root: Cell, key: &[u8]) -> u32 {
        self.cell_at(root, key).as_value()
    }

    /// The cell that the first bytes of a key lead to, from where to go on with the others.
    #[must_use]
    pub fn cell_at(&self, root: Cell, key: &[u8]) -> Cell {
        let step = |cell: Cell, byte: &u8| cell.as_block().map_or(cell, |number| self.cell(number, *byte));
        key.iter().fold(root, step)
    }

    fn cell(&self, number: u32, byte: u8) -> Cell {
        let block = self.blocks.get(number as usize).and_then(Option::as_ref);
        block.and_then(|block| block.cells.get(usize::from(byte))).copied().unwrap_or_default()
    }

    /// The tree with other values, later assignments over earlier ones. The one before is as it was, until it is released.
    ///
    /// The cost is that of the blocks on the ways to the keys.
    pub fn assign(&mut self, root: Cell, assignments: &[Assignment<'_>]) -> Cell {
        let all: Vec<&Assignment<'_>> = assignments.iter().collect();
        self.assigned(root, 0, &all)
    }

    /// Another use of a tree, which must be released as well.
    pub fn retain(&mut self, root: Cell) {
        if let Some(block) = root.as_block().and_then(|number| self.blocks.get_mut(number as usize)?.as_mut()) {
            block.references += 1;
        }
    }

    /// A use of a tree is over. Its blocks keep their numbers until [`Blocks::reclaim`], but for those that were never
    /// [taken](Self::take_written) to be written.
    #[expect(clippy::expect_used, reason = "a caller that releases a tree too often would have others lose it")]
    pub fn release(&mut self, root: Cell) {
        let mut released = vec![root];
        while let Some(cell) = released.pop() {
            let Some(number) = cell.as_block() else { continue };
            // A block that was taken over may lead to one that was there twice.
            let Some(slot @ Some(_)) = self.blocks.get_mut(number as usize) else { continue };
            let unused = slot.take_if(|block| {
                block.references = block.references.checked_sub(1).expect("each use of a tree ends once");
                block.references == 0
            });
            let Some(block) = unused else { continue };
            let hash = self.hasher.hash_one(&block.cells);
            if let Ok(entry) = self.by_cells.find_entry(hash, |other| *other == number) {
                entry.remove();
            }
            if block.is_new {
                self.free.insert(number);
            } else {
                self.retired.push(number);
            }
            released.extend(block.cells.iter().filter(|cell| cell.as_block().is_some()));
        }
    }

    /// Takes over blocks that readers may be at, without any use of them: what is like one of them gets its number, and is not
    /// written. Only who has none yet can do that.
    #[expect(clippy::expect_used, reason = "the ways of all blocks are counted first")]
    pub(crate) fn adopt(&mut self, found: BTreeMap<u32, Box<[Cell; CELLS]>>) {
        assert!(self.blocks.is_empty(), "blocks are taken over before any is made");
        let extent = found.last_key_value().map_or(0, |(last, _)| *last as usize + 1);
        self.blocks.resize_with(extent, || None);
        self.free = (1..).take(extent.saturating_sub(1)).filter(|number| !found.contains_key(number)).collect();
        for (number, cells) in &found {
            let hash = self.hasher.hash_one(cells);
            if self.by_cells.find(hash, |other| found.get(other) == Some(cells)).is_some() {
                // What is there twice counts once.
                self.retired.push(*number);
                continue;
            }
            let rehash = |number: &u32| found.get(number).map_or(0, |cells| self.hasher.hash_one(cells));
            self.by_cells.insert_unique(hash, *number, rehash);
            self.adopted.push(*number);
        }
        let mut ways = AHashMap::new();
        for number in &self.adopted {
            count_ways(&found, *number, MAX_DEPTH, &mut ways);
        }
        let uses: Vec<Cell> =
            self.adopted.iter().filter_map(|number| found.get(number)).flat_map(|cells| **cells).collect();
        for (number, cells) in found {
            if self.adopted.binary_search(&number).is_ok()
                && let Some(slot) = self.blocks.get_mut(number as usize)
            {
                let ways = *ways.get(&number).expect("the ways of each have been counted");
                *slot = Some(Block { cells, references: 0, ways, is_new: false });
            }
        }
        uses.into_iter().for_each(|cell| self.retain(cell));
    }

    /// Lets those go of what was taken over that nothing uses.
    pub(crate) fn release_adopted(&mut self) {
        for number in std::mem::take(&mut self.adopted) {
            let block = self.blocks.get(number as usize).and_then(Option::as_ref);
            if block.is_some_and(|block| block.references == 0) {
                self.retain(Cell::block(number));
                self.release(Cell::block(number));
            }
        }
    }

    /// No reader is at a block any more that was retired until now: its number may be given out again.
    pub fn reclaim(&mut self) {
        self.free.extend(self.retired.drain(..));
        self.trim();
    }

    /// Forgets the highest numbers if they are free.
    fn trim(&mut self) {
        let behind = |number: u32| number as usize + 1;
        let used = self.blocks.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let used = self.retired.iter().map(|number| behind(*number)).max().unwrap_or(0).max(used);
        if used < self.blocks.len() {
            self.blocks.truncate(used);
            self.free.retain(|number| behind(*number) <= used);
        }
    }

    /// The blocks that are new since the last time and have not been retired: what must be written before a root that leads
    /// to them.
    pub fn take_written(&mut self) -> Vec<(u32, &[Cell; CELLS])> {
        let mut written = std::mem::take(&mut self.written);
        written.sort_unstable();
        written.dedup();
        for number in &written {
            if let Some(Some(block)) = self.blocks.get_mut(*number as usize) {
                block.is_new = false;
            }
        }
        self.trim();
        let cells = |number: u32| Some((number, &*self.blocks.get(number as usize)?.as_ref()?.cells));
        written.into_iter().filter_map(cells).collect()
    }

    /// What a cell becomes that so many bytes lead to; a use of it is the caller's.
    #[expect(
        clippy::expect_used,
        reason = "a block has a cell for each byte, and a key the bytes that its bits reach into"
    )]
    fn assigned(&mut self, before: Cell, depth: usize, assignments: &[&Assignment<'_>]) -> Cell {
        let covers = |assignment: &&Assignment<'_>| usize::from(assignment.bits) <= depth * 8;
        let (base, rest) = match assignments.iter().rposition(covers) {
            Some(last) => {
                let (covering, rest) = assignments.split_at(last + 1);
                (covering.last().map_or(before, |last| Cell::value(last.value)), rest)
            }
            None => (before, assignments),
        };
        if rest.is_empty() {
            self.retain(base);
            return base;
        }
        let mut by_byte: Vec<(u8, &Assignment<'_>)> = Vec::with_capacity(rest.len());
        for assignment in rest {
            let byte = *assignment.key.get(depth).expect("a key has all bytes that its bits reach into");
            let counting = usize::from(assignment.bits) - depth * 8;
            let span = if counting >= 8 { 0 } else { u8::MAX >> counting };
            by_byte.extend((byte & !span..=byte | span).map(|byte| (byte, *assignment)));
        }
        // Stable: later assignments stay behind earlier ones.
        by_byte.sort_by_key(|(byte, _)| *byte);
        let mut cells = self.cells_of(base);
        let mut owned: Vec<Cell> = Vec::new();
        let mut of_byte: Vec<&Assignment<'_>> = Vec::new();
        for same in by_byte.chunk_by(|left, right| left.0 == right.0) {
            let (byte, _) = same.first().expect("a chunk has a first element");
            of_byte.clear();
            of_byte.extend(same.iter().map(|(_, assignment)| *assignment));
            let cell = cells.get_mut(usize::from(*byte)).expect("a block has 256 cells");
            *cell = self.assigned(*cell, depth + 1, &of_byte);
            owned.push(*cell);
        }
        let result = self.intern(cells);
        // The block, if there is one, has uses of its own.
        owned.into_iter().for_each(|child| self.release(child));
        result
    }

    fn cells_of(&self, cell: Cell) -> Box<[Cell; CELLS]> {
        let block = cell.as_block().and_then(|number| self.blocks.get(number as usize)?.as_ref());
        block.map_or_else(|| Box::new([cell; CELLS]), |block| block.cells.clone())
    }

    /// The cell that stands for these cells, with a use of it.
    #[expect(clippy::expect_used, reason = "2^32 blocks do not fit into memory")]
    fn intern(&mut self, cells: Box<[Cell; CELLS]>) -> Cell {
        let [first, ..] = *cells;
        if first.as_block().is_none() && cells.iter().all(|cell| *cell == first) {
            return first;
        }
        let hash = self.hasher.hash_one(&cells);
        let blocks = &self.blocks;
        let is_like = |number: &u32| {
            blocks.get(*number as usize).and_then(Option::as_ref).is_some_and(|block| block.cells == cells)
        };
        if let Some(number) = self.by_cells.find(hash, is_like) {
            let cell = Cell::block(*number);
            self.retain(cell);
            return cell;
        }
        cells.iter().for_each(|cell| self.retain(*cell));
        let ways = cells.iter().fold(1_u32, |ways, cell| ways.saturating_add(self.ways(*cell)));
        let block = Some(Block { cells, references: 1, ways, is_new: true });
        let number = match self.free.pop_first() {
            Some(number) => number,
            None => {
                if self.blocks.is_empty() {
                    // What zeros in a map lead to.
                    self.blocks.push(None);
                }
                u32::try_from(self.blocks.len()).expect("there are fewer than 2^32 blocks")
            }
        };
        match self.blocks.get_mut(number as usize) {
            Some(slot) => *slot = block,
            None => self.blocks.push(block),
        }
        let (blocks, hasher) = (&self.blocks, &self.hasher);
        let rehash = |number: &u32| {
            let block = blocks.get(*number as usize).and_then(Option::as_ref);
            block.map_or(0, |block| hasher.hash_one(&block.cells))
        };
        self.by_cells.insert_unique(hash, number, rehash);
        self.written.push(number);
        Cell::block(number)
    }
}

/// Notes the blocks of the tree that begins at a block, by every way; `u32::MAX` without a tree.
fn count_ways(
    found: &BTreeMap<u32, Box<[Cell; CELLS]>>,
    number: u32,
    depth: usize,
    ways: &mut AHashMap<u32, u32>,
) -> u32 {
    if let Some(known) = ways.get(&number) {
        return *known;
    }
    let Some(depth) = depth.checked_sub(1) else { return u32::MAX };
    ways.insert(number, u32::MAX);
    let below = found.get(&number).into_iter().flat_map(|cells| cells.iter()).filter_map(|cell| cell.as_block());
    let count = below.fold(1_u32, |sum, below| sum.saturating_add(count_ways(found, below, depth, ways)));
    ways.insert(number, count);
    count
}

#[cfg(test)]
mod tests;
