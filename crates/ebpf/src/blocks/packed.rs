//! Cells of one block in memory.

use std::hash::{Hash, Hasher};

use super::{CELLS, Cell};

/// Maximum number of runs; more of them take more memory than the cells themselves.
const MAX_RUNS: usize = CELLS * size_of::<Cell>() / size_of::<Run>();

/// The cells of a block. Most blocks of address tries differ from a single value at one byte, so
/// equal neighbours are stored once. Takes at most the memory of the cells.
///
/// Equal cells have equal forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packed {
    /// Runs of equal cells, ascending by byte.
    Runs(Box<[Run]>),
    Whole(Box<[Cell; CELLS]>),
}

/// Equal cells from the end of the previous run up to one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    last: u8,
    cell: Cell,
}

impl Packed {
    pub(super) fn new(cells: &[Cell; CELLS]) -> Self {
        let runs = cells.chunk_by(|left, right| left == right);
        if runs.clone().nth(MAX_RUNS).is_some() {
            return Self::Whole(Box::new(*cells));
        }
        // The exact length, since a collected list would have spare capacity before it is a box.
        let mut packed: Vec<Run> = Vec::with_capacity(runs.count());
        for (byte, cell) in (0..=u8::MAX).zip(*cells) {
            match packed.last_mut() {
                Some(run) if run.cell == cell => run.last = byte,
                _ => packed.push(Run { last: byte, cell }),
            }
        }
        Self::Runs(packed.into_boxed_slice())
    }

    pub(super) fn get(&self, byte: u8) -> Cell {
        let cell = match self {
            Self::Runs(runs) => runs.get(runs.partition_point(|run| run.last < byte)).map(|run| run.cell),
            Self::Whole(cells) => cells.get(usize::from(byte)).copied(),
        };
        cell.unwrap_or_default()
    }

    /// Returns all cells in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Cell> + '_ {
        let (runs, cells): (&[Run], &[Cell]) = match self {
            Self::Runs(runs) => (runs, &[]),
            Self::Whole(cells) => (&[], &**cells),
        };
        let begins = std::iter::once(0).chain(runs.iter().map(|run| usize::from(run.last) + 1));
        let runs = runs.iter().zip(begins);
        runs.flat_map(|(run, begin)| std::iter::repeat_n(run.cell, usize::from(run.last) + 1 - begin))
            .chain(cells.iter().copied())
    }

    pub(super) fn unpacked(&self) -> [Cell; CELLS] {
        let mut cells = [Cell::default(); CELLS];
        cells.iter_mut().zip(self.iter()).for_each(|(cell, packed)| *cell = packed);
        cells
    }
}

/// Writes several cells at a time, since blocks are hashed with every edit.
impl Hash for Packed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Runs(runs) => {
                runs.iter().for_each(|run| state.write_u64(u64::from(run.last) << 32 | u64::from(run.cell.0)));
            }
            Self::Whole(cells) => {
                for four in cells.chunks_exact(4) {
                    state.write_u128(four.iter().fold(0, |all, cell| all << 32 | u128::from(cell.0)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns cells of blocks with few and with many runs.
    fn cells() -> impl Strategy<Value = [Cell; CELLS]> {
        let run = (any::<u8>(), 0..3_u32);
        prop::collection::vec(run, 0..300).prop_map(|runs| {
            let mut cells = [Cell::value(0); CELLS];
            for (begin, value) in runs {
                cells[usize::from(begin)..].iter_mut().take(5).for_each(|cell| *cell = Cell::value(value));
            }
            cells
        })
    }

    proptest! {
        #[test]
        fn packed_cells_are_the_same(cells in cells(), byte in any::<u8>(), other in 0..3_u32) {
            let packed = Packed::new(&cells);
            prop_assert_eq!(packed.unpacked(), cells);
            prop_assert!(packed.iter().eq(cells));
            for byte in 0..=u8::MAX {
                prop_assert_eq!(packed.get(byte), cells[usize::from(byte)]);
            }
            let mut changed = cells;
            changed[usize::from(byte)] = Cell::value(other);
            prop_assert_eq!(Packed::new(&changed) == packed, changed == cells);
        }
    }

    #[test]
    fn no_block_takes_more_than_its_cells() {
        let alternating = |bound: usize| -> [Cell; CELLS] {
            std::array::from_fn(|at| Cell::value(u32::from(at < bound && at % 2 == 1)))
        };
        for (bound, size) in [(0, 8), (2, 24), (MAX_RUNS, CELLS * 4), (MAX_RUNS + 1, CELLS * 4), (CELLS, CELLS * 4)] {
            let taken = match Packed::new(&alternating(bound)) {
                Packed::Runs(runs) => size_of_val(&*runs),
                Packed::Whole(cells) => size_of_val(&*cells),
            };
            assert!(taken <= size, "{bound}: {taken}");
        }
    }
}
