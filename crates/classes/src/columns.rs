//! Columns: points of a line that are the same to all clauses of a group.

use ahash::AHashMap;

use crate::bits::Bits;
use crate::budget::Meter;
use crate::ids::number_of;
use crate::line::Intervals;

/// The columns of one line.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    /// Start of each stretch of one column, ascending, and its column.
    stretches: Vec<(u32, u32)>,
    /// For each column the clauses that hold for its points.
    bits: Vec<Bits>,
}

impl Columns {
    /// Builds the columns from the condition of each clause on the point. Over budget, the rest of
    /// the line is left out.
    #[expect(clippy::indexing_slicing, reason = "edges at one point are at least one")]
    pub(crate) fn new<'a>(
        conditions: impl ExactSizeIterator<Item = &'a Intervals>,
        line_end: u32,
        meter: &mut Meter,
    ) -> Self {
        let mut current = Bits::new(conditions.len());
        let mut edges: Vec<(u32, usize, bool)> = Vec::new();
        for (number, intervals) in conditions.enumerate() {
            for (start, end) in intervals.iter() {
                meter.edge();
                if meter.is_over() {
                    break;
                }
                if start == 0 {
                    current.insert(number);
                } else {
                    edges.push((start, number, true));
                }
                if end < line_end {
                    edges.push((end, number, false));
                }
            }
        }
        edges.sort_unstable_by_key(|(at, ..)| *at);
        let mut columns = Self { stretches: Vec::new(), bits: Vec::new() };
        let mut known: AHashMap<Bits, u32> = AHashMap::new();
        columns.stretch(0, &current, &mut known, meter);
        for at in edges.chunk_by(|(left, ..), (right, ..)| left == right) {
            if meter.is_over() {
                break;
            }
            for (_, number, starts) in at {
                if *starts {
                    current.insert(*number);
                } else {
                    current.remove(*number);
                }
            }
            let start = at[0].0;
            columns.stretch(start, &current, &mut known, meter);
        }
        columns
    }

    fn stretch(&mut self, start: u32, bits: &Bits, known: &mut AHashMap<Bits, u32>, meter: &mut Meter) {
        meter.lookup(bits.words().len());
        let column = match known.get(bits) {
            Some(column) => *column,
            None => {
                let column = number_of(self.bits.len());
                meter.stored_set(bits.words().len());
                self.bits.push(bits.clone());
                known.insert(bits.clone(), column);
                column
            }
        };
        if self.stretches.last().is_none_or(|(_, last)| *last != column) {
            self.stretches.push((start, column));
        }
    }

    /// The column of a point.
    #[expect(clippy::indexing_slicing, reason = "the first stretch starts at 0")]
    pub(crate) fn of(&self, point: u32) -> usize {
        let behind = self.stretches.partition_point(|(start, _)| *start <= point);
        self.stretches[behind - 1].1 as usize
    }

    /// Points at which the column may change, ascending; the first is 0.
    pub(crate) fn starts(&self) -> impl Iterator<Item = u32> + '_ {
        self.stretches.iter().map(|(start, _)| *start)
    }

    /// Returns the start of each stretch of one column, ascending, with its column.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        self.stretches.iter().map(|(start, column)| (*start, *column as usize))
    }

    pub(crate) fn len(&self) -> usize {
        self.bits.len()
    }

    /// The clauses of each column.
    pub(crate) fn words(&self) -> impl Iterator<Item = &[u64]> {
        self.bits.iter().map(Bits::words)
    }

    /// Empty if there is no such column.
    pub(crate) fn words_of(&self, column: usize) -> &[u64] {
        self.bits.get(column).map_or(&[], Bits::words)
    }
}
