//! The stretches into which the rules of all policies cut a line, as numbered classes.

use std::collections::BTreeMap;

use crate::ids::{L4ClassId, Slab};
use crate::line::Intervals;

/// A line and where it is cut.
#[derive(Clone, Debug)]
pub(crate) struct Cuts {
    /// Classes of the stretches, with the number of intervals that start or end there, by start.
    stretches: BTreeMap<u32, (L4ClassId, u32)>,
    starts: Slab<L4ClassId, u32>,
    line_end: u32,
}

impl Cuts {
    pub(crate) fn new(line_end: u32) -> Self {
        let mut starts = Slab::default();
        let first = starts.insert(0);
        Self { stretches: [(0, (first, 1))].into(), starts, line_end }
    }

    /// Whether it is in one piece.
    pub(crate) fn is_empty(&self) -> bool {
        self.stretches.len() == 1 && self.starts.len() == 1
    }

    pub(crate) fn cut(&mut self, intervals: &Intervals) {
        for at in self.edges(intervals) {
            let starts = &mut self.starts;
            let (_, users) = self.stretches.entry(at).or_insert_with(|| (starts.insert(at), 0));
            *users += 1;
        }
    }

    /// Undoes [`Self::cut`].
    #[expect(clippy::expect_used, reason = "each edge of the intervals was cut before")]
    pub(crate) fn uncut(&mut self, intervals: &Intervals) {
        for at in self.edges(intervals) {
            let (class, users) = self.stretches.get_mut(&at).expect("the line is cut there");
            *users -= 1;
            if *users == 0 {
                self.starts.remove(*class);
                self.stretches.remove(&at);
            }
        }
    }

    fn edges(&self, intervals: &Intervals) -> Vec<u32> {
        let ends = intervals.iter().flat_map(|(start, end)| [start, end]);
        ends.filter(|at| *at != 0 && *at < self.line_end).collect()
    }

    #[expect(clippy::expect_used, reason = "the first stretch starts at 0 and stays")]
    pub(crate) fn class_of(&self, point: u32) -> L4ClassId {
        let (_, (class, _)) = self.stretches.range(..=point).next_back().expect("the first stretch starts at 0");
        *class
    }

    /// Each stretch by where it starts, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, L4ClassId)> + '_ {
        self.stretches.iter().map(|(start, (class, _))| (*start, *class))
    }

    /// The first point of a class.
    pub(crate) fn start_of(&self, class: L4ClassId) -> Option<u32> {
        self.starts.get(class).copied()
    }
}
