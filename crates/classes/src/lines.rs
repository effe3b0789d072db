//! Reading tables line by line, as stretches of equal decisions.
//!
//! Lines of a table with kept cells are read from these. Where rules ask for many addresses and
//! many ports at once, there are too many cells to keep. But only few clauses hold where two rows
//! meet, and a decision can change only in columns where one of these begins or ceases to hold. So
//! the cost of a line depends only on the clauses of its rows.

use smallvec::SmallVec;

use crate::clause_set::Clauses;
use crate::ids::Row;
use crate::table::Table;

/// The lines of a table: see [`TableView::lines`](crate::TableView::lines).
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    table: &'a Table,
    /// For each clause, the columns at which it begins or ceases to hold.
    edges: Vec<SmallVec<[u32; 2]>>,
    work: usize,
    max_work: usize,
}

impl<'a> Lines<'a> {
    /// Default bound on the work for one table, in words of 64 clauses that are read: a fraction of
    /// a second.
    pub const MAX_WORK: usize = 1 << 27;

    /// Replaces the bound [`Self::MAX_WORK`].
    #[must_use]
    pub fn with_max_work(mut self, max_work: usize) -> Self {
        self.max_work = max_work;
        self
    }

    pub(crate) fn new(table: &'a Table) -> Self {
        let mut lines = Self { table, edges: Vec::new(), work: 0, max_work: Self::MAX_WORK };
        if !table.has_cells() {
            lines.edges = edges(table);
        }
        lines
    }

    /// Returns the decisions where two rows meet: the start of each stretch of one decision, and
    /// the decision's place in [`TableView::decisions`](crate::TableView::decisions). For each
    /// column of source ports, all columns of protocols, destination ports and ICMP messages follow
    /// one another. `None` if the lines read so far exceed the work bound, or if the table has no
    /// such row.
    #[expect(clippy::indexing_slicing, reason = "words of rows have a bit for each clause")]
    pub fn stretches(&mut self, own: Row, peer: Row) -> Option<Vec<(usize, usize)>> {
        let mut found: Vec<(usize, usize)> = Vec::new();
        let mut add = |start: usize, decision: usize| {
            if found.last().is_none_or(|(_, last)| *last != decision) {
                found.push((start, decision));
            }
        };
        if let Some(line) = self.table.kept_line(own, peer) {
            line.enumerate().for_each(|(start, decision)| add(start, decision));
            return Some(found);
        }
        let (own, peer) = (self.table.own().clauses(own), self.table.peer().clauses(peer));
        let rows = own.common(peer);
        self.work += own.work(peer);
        let columns = self.table.l4().len();
        for (source_port, of_port) in self.table.source_ports().clauses().enumerate() {
            let clauses = rows.as_ref().common(of_port);
            let edges = clauses.as_ref().iter().flat_map(|clause| &self.edges[clause]);
            let mut starts: Vec<u32> = std::iter::once(0).chain(edges.copied()).collect();
            starts.sort_unstable();
            starts.dedup();
            self.work += rows.as_ref().work(of_port) + (starts.len() + 1) * clauses.as_ref().work_of_lookup();
            if self.work > self.max_work {
                return None;
            }
            for start in starts {
                add(source_port * columns + start as usize, self.table.decision_of(clauses.as_ref(), start as usize)?);
            }
        }
        Some(found)
    }
}

#[expect(clippy::indexing_slicing, reason = "words of columns have a bit for each clause")]
fn edges(table: &Table) -> Vec<SmallVec<[u32; 2]>> {
    let mut edges: Vec<SmallVec<[u32; 2]>> = vec![SmallVec::new(); table.clause_count()];
    let mut before: Option<Clauses<'_>> = None;
    for (column, clauses) in (0..).zip(table.l4().clauses()) {
        for clause in clauses.differing(before.unwrap_or(clauses.none())) {
            edges[clause].push(column);
        }
        before = Some(clauses);
    }
    edges
}
