//! Tries: values by keys of several bytes, stored in blocks of an array map.
//!
//! A *trie* leads from the bytes of a key, one after the other, to a value. Each step reads a
//! *block* of 256 *cells*. A cell is a value, which holds for all keys with this prefix, or the
//! number of another block. The root of a trie is a cell as well.
//!
//! Blocks never change: a change makes new blocks along the path of the key, and a new root. No two
//! blocks are equal, so tries share their common parts. A writer that writes new blocks before the
//! root that leads to them changes one or many tries atomically: readers see all of the change or
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use ahash::{AHashMap, AHashSet, RandomState};
use hashbrown::HashTable;

mod packed;

use packed::Packed;

/// Number of cells of a block.
pub const CELLS: usize = 256;
/// Maximum length of a key in bytes.
const MAX_DEPTH: usize = 16;

/// A value, or the number of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cell(u32);

impl Cell {
    /// Bit of block numbers in memory. In a map, the same bit marks values: see [`Self::bits`].
    const BLOCK: u32 = 1 << 31;
    /// Binary logarithm of a block's size in bytes.
    pub(crate) const SHIFT: u32 = (CELLS * 4).trailing_zeros();
    /// Upper bound, exclusive, of block numbers that a map can hold.
    const BLOCKS: u32 = Self::BLOCK >> Self::SHIFT;

    /// Returns a cell with a value of 31 bits; the highest bit is ignored.
    #[must_use]
    pub const fn value(value: u32) -> Self {
        Self(value & !Self::BLOCK)
    }

    const fn block(number: u32) -> Self {
        Self(number | Self::BLOCK)
    }

    /// Reads a cell of a map. Bits that cannot lead to a block give a cell with an unused block
    /// number.
    pub(crate) const fn from_bits(bits: u32) -> Self {
        if bits & Self::BLOCK != 0 {
            Self::value(bits)
        } else if bits != 0 && bits.trailing_zeros() >= Self::SHIFT {
            Self::block(bits >> Self::SHIFT)
        } else {
            Self::block(bits | 1 << 30)
        }
    }

    /// Returns the number of the block that it leads to.
    #[must_use]
    pub const fn as_block(self) -> Option<u32> {
        if self.0 & Self::BLOCK == 0 { None } else { Some(self.0 & !Self::BLOCK) }
    }

    /// Returns the value; for the number of a block, a number that no value has.
    #[must_use]
    pub const fn as_value(self) -> u32 {
        self.0
    }

    /// Returns the cell in the format of the map: a value with its highest bit set, or the byte
    /// offset of a block from the first one. So a program adds a cell to the address of the blocks,
    /// and one comparison distinguishes blocks from values. Zeros lead to block 0, which is never
    /// used and leads nowhere.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self.as_block() {
            None => self.0 | Self::BLOCK,
            Some(number) if number < Self::BLOCKS => number << Self::SHIFT,
            // The last possible block, which no map has.
            Some(_) => (Self::BLOCKS - 1) << Self::SHIFT,
        }
    }
}

/// Assignment of a value to all keys with a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment<'k> {
    /// Bytes of a key, at least as many as `bits` covers.
    pub key: &'k [u8],
    /// Length of the prefix in bits.
    pub bits: u8,
    /// Value of these keys.
    pub value: u32,
}

#[derive(Debug)]
struct Block {
    cells: Packed,
    /// Hash of the cells.
    hash: u64,
    /// Number of cells and roots that lead to it.
    references: u32,
    /// Number of blocks of the trie that begins here, each counted once for each path to it.
    paths: u32,
    /// Whether it has not been returned by [`Blocks::take_written`] yet, so that no reader can use
    /// it.
    is_new: bool,
}

/// All blocks, by number.
#[derive(Debug, Default)]
pub struct Blocks {
    blocks: Vec<Option<Block>>,
    by_cells: HashTable<u32>,
    hasher: RandomState,
    /// Free numbers. The lowest are assigned first, so that the map need not be longer than its
    /// contents.
    free: BTreeSet<u32>,
    /// Numbers of blocks that nothing leads to any more, but which readers may still use.
    retired: Vec<u32>,
    /// Numbers of blocks that are new since the last [`Blocks::take_written`].
    written: Vec<u32>,
    /// Numbers of adopted blocks, which may have no use.
    adopted: Vec<u32>,
}

impl Blocks {
    /// Returns an empty set of blocks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of blocks that lead to values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_cells.len()
    }

    /// Reports whether no block leads to a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_cells.is_empty()
    }

    /// Returns the number of assigned block numbers: those of blocks that lead to values, and those
    /// that readers may still use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        // Number 0 is never assigned.
        (self.blocks.len() - self.free.len()).saturating_sub(1)
    }

    /// Returns the required number of map entries; all block numbers are below.
    #[must_use]
    pub fn extent(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the numbers of blocks that lead to values, ascending.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().zip(0..).filter_map(|(block, number)| block.is_some().then_some(number))
    }

    /// Returns the cells of a block that leads to values.
    #[must_use]
    pub fn cells(&self, number: u32) -> Option<[Cell; CELLS]> {
        Some(self.block(number)?.cells.unpacked())
    }

    fn block(&self, number: u32) -> Option<&Block> {
        self.blocks.get(number as usize)?.as_ref()
    }

    /// Returns the number of blocks of a trie without sharing within it or with others: an upper
    /// bound of the blocks that it takes. Costs no walk.
    pub(crate) fn paths(&self, root: Cell) -> u32 {
        root.as_block().and_then(|number| self.block(number)).map_or(0, |block| block.paths)
    }

    /// Returns the number of blocks of a trie without sharing with others. The cost is proportional
    /// to that number.
    pub(crate) fn count(&self, root: Cell) -> usize {
        let mut seen: AHashSet<u32> = AHashSet::new();
        let mut cells = vec![root];
        while let Some(cell) = cells.pop() {
            let Some(number) = cell.as_block().filter(|number| seen.insert(*number)) else { continue };
            // Most blocks lead to no other, and need not be read.
            if self.paths(cell) > 1 {
                let below = self.block(number).into_iter().flat_map(|block| block.cells.iter());
                cells.extend(below.filter(|cell| cell.as_block().is_some()));
            }
        }
        seen.len()
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, root: Cell, key: &[u8]) -> u32 {
        self.cell_at(root, key).as_value()
    }

    /// Returns the cell behind a key prefix, at which lookups of the remaining bytes begin.
    #[must_use]
    pub fn cell_at(&self, root: Cell, key: &[u8]) -> Cell {
        let step = |cell: Cell, byte: &u8| cell.as_block().map_or(cell, |number| self.cell(number, *byte));
        key.iter().fold(root, step)
    }

    fn cell(&self, number: u32, byte: u8) -> Cell {
        self.block(number).map(|block| block.cells.get(byte)).unwrap_or_default()
    }

    /// Returns the trie with other values; later assignments override earlier ones. The previous
    /// trie stays valid until it is released.
    ///
    /// The cost is proportional to the number of blocks on the paths of the keys.
    pub fn assign(&mut self, root: Cell, assignments: &[Assignment<'_>]) -> Cell {
        let all: Vec<&Assignment<'_>> = assignments.iter().collect();
        self.assigned(root, 0, &all)
    }

    /// Returns the trie from numbers of `bytes` bytes to values; the caller gets a use of it.
    /// `starts` has the number from which each value holds on, ascending; before the first it is 0.
    /// `before` is another trie of as many bytes, which is in use, with its starts: blocks of
    /// numbers with equal starts are those of that trie.
    ///
    /// The cost is proportional to the number of starts, and of blocks with other starts.
    pub(crate) fn ranges(&mut self, starts: &[(u32, u32)], bytes: u32, before: Option<(&[(u32, u32)], Cell)>) -> Cell {
        let new = Ranges { outside: Cell::value(0), starts };
        let before = before.map(|(starts, root)| (Ranges { outside: Cell::value(0), starts }, root));
        self.ranges_within(new, before, (0, 8 * bytes))
    }

    /// Returns the trie of the numbers that have `bits` bits behind `first`. All starts are within
    /// these numbers.
    fn ranges_within(
        &mut self,
        mut new: Ranges<'_>,
        mut before: Option<(Ranges<'_>, Cell)>,
        (first, bits): (u64, u32),
    ) -> Cell {
        if let Some((_, cell)) = before.filter(|(before, _)| *before == new) {
            self.retain(cell);
            return cell;
        }
        if new.starts.iter().all(|(start, _)| u64::from(*start) == first) {
            return new.last();
        }
        let bits = bits - 8;
        let mut cells = Box::new([new.outside; CELLS]);
        // Cells without a start in them have the value of the last one before.
        let mut next = 0;
        while let Some((start, _)) = new.starts.first() {
            let place = (u64::from(*start) - first) >> bits;
            let Ok(byte) = u8::try_from(place) else { break };
            let (first, end) = (first + (place << bits), first + ((place + 1) << bits));
            let outside = new.outside;
            let inside = new.take_before(end);
            let inside_before = before.as_mut().map(|(before, cell)| {
                before.take_before(first);
                let below = cell.as_block().map_or(*cell, |number| self.cell(number, byte));
                (before.take_before(end), below)
            });
            let cell = self.ranges_within(inside, inside_before, (first, bits));
            let place = usize::from(byte);
            cells.get_mut(next..place).into_iter().for_each(|between| between.fill(outside));
            cells.get_mut(place).into_iter().for_each(|at| *at = cell);
            next = place + 1;
        }
        cells.get_mut(next..).into_iter().for_each(|behind| behind.fill(new.outside));
        let owned: Vec<Cell> = cells.iter().copied().filter(|cell| cell.as_block().is_some()).collect();
        let result = self.intern(&cells);
        // The block, if one was made, has retained its children.
        owned.into_iter().for_each(|child| self.release(child));
        result
    }

    /// Adds a use of a trie, which must be released as well.
    pub fn retain(&mut self, root: Cell) {
        if let Some(block) = root.as_block().and_then(|number| self.blocks.get_mut(number as usize)?.as_mut()) {
            block.references += 1;
        }
    }

    /// Ends a use of a trie. Its blocks keep their numbers until [`Blocks::reclaim`], except those
    /// that were never [returned](Self::take_written) for writing.
    #[expect(clippy::expect_used, reason = "a caller that releases a tree too often would have others lose it")]
    pub fn release(&mut self, root: Cell) {
        let mut released = vec![root];
        while let Some(cell) = released.pop() {
            let Some(number) = cell.as_block() else { continue };
            // An adopted block may lead to a duplicate, which is not in use.
            let Some(slot @ Some(_)) = self.blocks.get_mut(number as usize) else { continue };
            let unused = slot.take_if(|block| {
                block.references = block.references.checked_sub(1).expect("each use of a tree ends once");
                block.references == 0
            });
            let Some(block) = unused else { continue };
            if let Ok(entry) = self.by_cells.find_entry(block.hash, |other| *other == number) {
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

    /// Adopts blocks that readers may use, without any use of them here. A new block that is equal
    /// to one of them gets its number, and is not written again. Only possible before any block is
    /// made.
    #[expect(clippy::expect_used, reason = "the ways of all blocks are counted first")]
    pub(crate) fn adopt(&mut self, found: BTreeMap<u32, Box<[Cell; CELLS]>>) {
        let found: BTreeMap<u32, Packed> =
            found.into_iter().map(|(number, cells)| (number, Packed::new(&cells))).collect();
        assert!(self.blocks.is_empty(), "blocks are taken over before any is made");
        let extent = found.last_key_value().map_or(0, |(last, _)| *last as usize + 1);
        self.blocks.resize_with(extent, || None);
        self.free = (1..).take(extent.saturating_sub(1)).filter(|number| !found.contains_key(number)).collect();
        for (number, cells) in &found {
            let hash = self.hasher.hash_one(cells);
            if self.by_cells.find(hash, |other| found.get(other) == Some(cells)).is_some() {
                // Of two equal blocks, only one is used.
                self.retired.push(*number);
                continue;
            }
            let rehash = |number: &u32| found.get(number).map_or(0, |cells| self.hasher.hash_one(cells));
            self.by_cells.insert_unique(hash, *number, rehash);
            self.adopted.push(*number);
        }
        let mut paths = AHashMap::new();
        for number in &self.adopted {
            count_paths(&found, *number, MAX_DEPTH, &mut paths);
        }
        let uses: Vec<Cell> =
            self.adopted.iter().filter_map(|number| found.get(number)).flat_map(Packed::iter).collect();
        for (number, cells) in found {
            if self.adopted.binary_search(&number).is_ok()
                && let Some(slot) = self.blocks.get_mut(number as usize)
            {
                let paths = *paths.get(&number).expect("the ways of each have been counted");
                let hash = self.hasher.hash_one(&cells);
                *slot = Some(Block { cells, hash, references: 0, paths, is_new: false });
            }
        }
        uses.into_iter().for_each(|cell| self.retain(cell));
    }

    /// Releases the adopted blocks that nothing uses.
    pub(crate) fn release_adopted(&mut self) {
        for number in std::mem::take(&mut self.adopted) {
            let block = self.blocks.get(number as usize).and_then(Option::as_ref);
            if block.is_some_and(|block| block.references == 0) {
                self.retain(Cell::block(number));
                self.release(Cell::block(number));
            }
        }
    }

    /// Makes the numbers of blocks that were retired so far available again. The caller ensures
    /// that no reader uses these blocks any more.
    pub fn reclaim(&mut self) {
        self.free.extend(self.retired.drain(..));
        self.trim();
    }

    /// Truncates free numbers at the end.
    fn trim(&mut self) {
        let behind = |number: u32| number as usize + 1;
        let used = self.blocks.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let used = self.retired.iter().map(|number| behind(*number)).max().unwrap_or(0).max(used);
        if used < self.blocks.len() {
            self.blocks.truncate(used);
            self.free.retain(|number| behind(*number) <= used);
        }
    }

    /// Returns the numbers of the blocks that are new since the last call and have not been
    /// retired, ascending. Their [cells](Self::cells) must be written before a root that leads to
    /// them.
    pub fn take_written(&mut self) -> Vec<u32> {
        let mut written = std::mem::take(&mut self.written);
        written.sort_unstable();
        written.dedup();
        for number in &written {
            if let Some(Some(block)) = self.blocks.get_mut(*number as usize) {
                block.is_new = false;
            }
        }
        self.trim();
        written.retain(|number| self.block(*number).is_some());
        written
    }

    /// Returns the new cell at a depth of `depth` bytes; the caller gets a use of it.
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
        // A stable sort: later assignments stay behind earlier ones.
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
        let result = self.intern(&cells);
        // The block, if one was made, has retained its children.
        owned.into_iter().for_each(|child| self.release(child));
        result
    }

    fn cells_of(&self, cell: Cell) -> Box<[Cell; CELLS]> {
        Box::new(cell.as_block().and_then(|number| self.cells(number)).unwrap_or([cell; CELLS]))
    }

    /// Returns the cell for these cells, with a use of it: their common value, an existing block,
    /// or a new one.
    #[expect(clippy::expect_used, reason = "2^32 blocks do not fit into memory")]
    fn intern(&mut self, cells: &[Cell; CELLS]) -> Cell {
        let [first, ..] = *cells;
        if first.as_block().is_none() && cells.iter().all(|cell| *cell == first) {
            return first;
        }
        let packed = Packed::new(cells);
        let hash = self.hasher.hash_one(&packed);
        let blocks = &self.blocks;
        let is_like = |number: &u32| {
            blocks.get(*number as usize).and_then(Option::as_ref).is_some_and(|block| block.cells == packed)
        };
        if let Some(number) = self.by_cells.find(hash, is_like) {
            let cell = Cell::block(*number);
            self.retain(cell);
            return cell;
        }
        cells.iter().for_each(|cell| self.retain(*cell));
        let paths = cells.iter().fold(1_u32, |paths, cell| paths.saturating_add(self.paths(*cell)));
        let block = Some(Block { cells: packed, hash, references: 1, paths, is_new: true });
        let number = match self.free.pop_first() {
            Some(number) => number,
            None => {
                if self.blocks.is_empty() {
                    // Zeros in a map lead to block 0.
                    self.blocks.push(None);
                }
                u32::try_from(self.blocks.len()).expect("there are fewer than 2^32 blocks")
            }
        };
        match self.blocks.get_mut(number as usize) {
            Some(slot) => *slot = block,
            None => self.blocks.push(block),
        }
        let blocks = &self.blocks;
        let rehash = |number: &u32| {
            let block = blocks.get(*number as usize).and_then(Option::as_ref);
            block.map_or(0, |block| block.hash)
        };
        self.by_cells.insert_unique(hash, number, rehash);
        self.written.push(number);
        Cell::block(number)
    }
}

/// Values of adjacent numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ranges<'a> {
    /// Value before the first start.
    outside: Cell,
    /// The number from which each value holds on, ascending.
    starts: &'a [(u32, u32)],
}

impl Ranges<'_> {
    /// Removes and returns the ranges before a number.
    fn take_before(&mut self, end: u64) -> Self {
        let count = self.starts.iter().take_while(|(start, _)| u64::from(*start) < end).count();
        let (starts, rest) = self.starts.split_at(count);
        let taken = Self { outside: self.outside, starts };
        (self.outside, self.starts) = (taken.last(), rest);
        taken
    }

    /// Returns the value of the last number.
    fn last(&self) -> Cell {
        self.starts.last().map_or(self.outside, |(_, value)| Cell::value(*value))
    }
}

/// Counts the blocks of the trie that begins at a block, once for each path; `u32::MAX` if it is no
/// trie.
fn count_paths(found: &BTreeMap<u32, Packed>, number: u32, depth: usize, paths: &mut AHashMap<u32, u32>) -> u32 {
    if let Some(known) = paths.get(&number) {
        return *known;
    }
    let Some(depth) = depth.checked_sub(1) else { return u32::MAX };
    paths.insert(number, u32::MAX);
    let below = found.get(&number).into_iter().flat_map(Packed::iter).filter_map(Cell::as_block);
    let count = below.fold(1_u32, |sum, below| sum.saturating_add(count_paths(found, below, depth, paths)));
    paths.insert(number, count);
    count
}

#[cfg(test)]
mod tests;
