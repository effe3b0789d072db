//! Columns: points of a line that are the same to all clauses of a group.

use ahash::AHashMap;

use crate::budget::Meter;
use crate::clause_set::{ClauseSet, Clauses, Shape};
use crate::ids::number_of;
use crate::line::Intervals;

/// The columns of one line.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    /// Start of each stretch of one column, ascending, and its column.
    stretches: Vec<(u32, u32)>,
    /// For each column, the clauses that hold for its points.
    sets: Vec<ClauseSet>,
    shape: Shape,
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
        let shape = Shape::new(conditions.len());
        let mut current = ClauseSet::new(shape);
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
        let mut columns = Self { stretches: Vec::new(), sets: Vec::new(), shape };
        let mut known: AHashMap<ClauseSet, u32> = AHashMap::new();
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

    fn stretch(&mut self, start: u32, set: &ClauseSet, known: &mut AHashMap<ClauseSet, u32>, meter: &mut Meter) {
        meter.lookup(set.words().len());
        let column = match known.get(set) {
            Some(column) => *column,
            None => {
                let column = number_of(self.sets.len());
                meter.stored_set(set.words().len());
                self.sets.push(set.clone());
                known.insert(set.clone(), column);
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
        self.sets.len()
    }

    /// The clauses of each column.
    pub(crate) fn clauses(&self) -> impl Iterator<Item = Clauses<'_>> {
        self.sets.iter().map(ClauseSet::as_ref)
    }

    /// The clauses of a column; none if there is no such column.
    pub(crate) fn clauses_of(&self, column: usize) -> Clauses<'_> {
        self.sets.get(column).map_or(self.shape.set(&[]), ClauseSet::as_ref)
    }
}
