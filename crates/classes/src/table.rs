//! The table of a group: rows of address classes × columns of ports, with the outcome of a packet
//! in each cell.

use ahash::{AHashMap, AHashSet};
use smallvec::SmallVec;
use tortie_evaluate::{DecidedBy, Verdict};
use tortie_model::{Direction, Family};

use crate::addresses::Addresses;
use crate::axis::{Axis, BucketAtoms};
use crate::bits::Bits;
use crate::budget::Meter;
use crate::clause::Clause;
use crate::clause_set::{ClauseSet, Clauses, first_common};
use crate::columns::Columns;
use crate::ids::{AtomId, BucketId, Interned, LineId, Row, number_of};
use crate::inhabited::Inhabited;
use crate::line::{L4_END, PORTS_END, l4_kinds, source_port_kinds};
use crate::program::{PassingRule, Program, StagedRuling, Step};

/// Maximum number of cells that a table keeps. Above it none are kept, and outcomes are computed
/// from the clauses of rows and columns.
const MAX_CELLS: usize = 1 << 15;
/// Maximum number of words of clauses and of staged rulings in all cells together. Above it no
/// cells are kept.
const MAX_FILL: usize = 1 << 24;

/// Decision about a packet, and noted staged rulings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Outcome {
    decision: usize,
    staged: SmallVec<[usize; 2]>,
}

/// Compiled policies of a group.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    steps: Vec<Step>,
    decisions: Vec<(Verdict, DecidedBy)>,
    staged: Vec<StagedRuling>,
    passing: Vec<PassingRule>,
    peer: Axis,
    /// The end where the endpoints of the group are.
    own: Axis,
    l4: Columns,
    source_ports: Columns,
    outcomes: Vec<Outcome>,
    outcome_ids: AHashMap<Outcome, u32>,
    /// Outcomes by source port, then by L4 class.
    lines: Interned<LineId, u32>,
    /// By row of this end, and of the peer.
    cells: AHashMap<(Row, Row), LineId>,
    has_cells: bool,
    /// Whether a clause asks for learned addresses.
    learns: bool,
    meter: Meter,
}

/// Decisions and rules of a table that apply to some packet.
#[derive(Debug, Default)]
pub(crate) struct ReachedRules<'a> {
    pub(crate) decided: Vec<&'a DecidedBy>,
    pub(crate) noted: Vec<&'a StagedRuling>,
    pub(crate) passing: Vec<&'a PassingRule>,
}

/// Rows and points of a packet in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) own: Row,
    pub(crate) peer: Row,
    pub(crate) l4: u32,
    pub(crate) source_port: u32,
}

impl Table {
    /// Without any classes. The table is of no use if the meter [is over](Self::meter) then.
    pub(crate) fn new(program: Program, direction: Direction, mut meter: Meter) -> Self {
        let Program { rules, steps, decisions, staged, passing } = program;
        let clauses: Vec<&Clause> = rules.iter().flat_map(|clauses| clauses.iter()).collect();
        let sources = Axis::new(clauses.iter().map(|clause| (&clause.source, clause.families)));
        let destinations = Axis::new(clauses.iter().map(|clause| (&clause.destination, clause.families)));
        let (peer, own) = match direction {
            Direction::Ingress => (sources, destinations),
            Direction::Egress => (destinations, sources),
        };
        let learns = clauses.iter().any(|clause| clause.is_learned);
        let l4 = Columns::new(clauses.iter().map(|clause| &clause.l4), L4_END, &mut meter);
        let source_ports = Columns::new(clauses.iter().map(|clause| &clause.source_port), PORTS_END, &mut meter);
        Self {
            steps,
            decisions,
            staged,
            passing,
            peer,
            own,
            l4,
            source_ports,
            outcomes: Vec::new(),
            outcome_ids: AHashMap::new(),
            lines: Interned::default(),
            cells: AHashMap::new(),
            has_cells: false,
            learns,
            meter,
        }
    }

    /// Whether a rule asks for learned addresses.
    pub(crate) fn learns(&self) -> bool {
        self.learns
    }

    /// The cost so far.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Bounds the cost of rows that are added from now on.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.meter.set_limit(limit);
    }

    /// The atoms that clauses ask for at either end.
    pub(crate) fn atoms(&self) -> impl Iterator<Item = AtomId> + '_ {
        self.peer.atoms().chain(self.own.atoms())
    }

    /// The same atoms, ascending and each once.
    pub(crate) fn sorted_atoms(&self) -> Vec<AtomId> {
        let mut atoms: Vec<AtomId> = self.atoms().collect();
        atoms.sort_unstable();
        atoms.dedup();
        atoms
    }

    /// Adds a bucket without filling in cells.
    pub(crate) fn add_row(&mut self, bucket: &BucketAtoms<'_>) {
        self.add_to_axes(bucket);
    }

    /// Adds a bucket at both ends. Returns the new rows, of the peer and of the group's own end.
    fn add_to_axes(&mut self, bucket: &BucketAtoms<'_>) -> [Option<Row>; 2] {
        let words = self.words();
        let meter = &mut self.meter;
        [&mut self.peer, &mut self.own].map(|axis| {
            let before = axis.bucket_count();
            let row = axis.add(bucket);
            if axis.bucket_count() > before {
                meter.bucket(words);
            }
            row.inspect(|row| meter.stored_set(axis.clauses(*row).words().len()))
        })
    }

    /// Returns the maximum number of words of a set of clauses.
    fn words(&self) -> usize {
        self.steps.len().div_ceil(64)
    }

    fn keeps_cells(&self) -> bool {
        let cells = self.cell_count();
        cells <= MAX_CELLS && cells.saturating_mul(self.words() + self.staged.len()) <= MAX_FILL
    }

    /// Fills in all cells, unless there are too many.
    pub(crate) fn fill(&mut self) {
        self.has_cells = self.keeps_cells();
        if !self.has_cells {
            return;
        }
        let (own, peer): (Vec<Row>, Vec<Row>) = (self.own.rows().collect(), self.peer.rows().collect());
        for own in own {
            for peer in &peer {
                self.fill_line(own, *peer);
            }
        }
    }

    /// Number of cells, kept or not.
    pub(crate) fn cell_count(&self) -> usize {
        [self.own.row_count(), self.peer.row_count(), self.l4.len(), self.source_ports.len()]
            .into_iter()
            .fold(1, usize::saturating_mul)
    }

    pub(crate) fn has_cells(&self) -> bool {
        self.has_cells
    }

    /// Adds a new bucket, and fills in its new cells. Returns whether a row is new.
    pub(crate) fn add(&mut self, bucket: &BucketAtoms<'_>) -> bool {
        let [peer, own] = self.add_to_axes(bucket);
        let has_new_row = peer.is_some() || own.is_some();
        if !self.has_cells || !has_new_row {
            return has_new_row;
        }
        if !self.keeps_cells() {
            self.has_cells = false;
            self.cells = AHashMap::new();
            self.lines = Interned::default();
            return true;
        }
        if let Some(peer) = peer {
            let rows: Vec<Row> = self.own.rows().collect();
            rows.into_iter().for_each(|own| self.fill_line(own, peer));
        }
        if let Some(own) = own {
            let rows: Vec<Row> = self.peer.rows().collect();
            rows.into_iter().for_each(|peer| self.fill_line(own, peer));
        }
        true
    }

    /// The buckets with separate rows, in no order; some twice.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = BucketId> + '_ {
        self.peer.buckets().chain(self.own.buckets()).map(|(bucket, _)| bucket)
    }

    /// Removes a bucket, with its cells that no other bucket has. Returns whether a row is removed.
    pub(crate) fn remove(&mut self, bucket: BucketId) -> bool {
        let words = self.words();
        let meter = &mut self.meter;
        let [peer, own] = [&mut self.peer, &mut self.own].map(|axis| {
            let before = axis.bucket_count();
            let row = axis.remove(bucket);
            if axis.bucket_count() < before {
                meter.refund_bucket(words);
            }
            row.map(|(row, words)| {
                meter.refund_row(words);
                row
            })
        });
        if let Some(peer) = peer {
            let rows: Vec<Row> = self.own.rows().chain(own).collect();
            rows.into_iter().for_each(|own| self.remove_line(own, peer));
        }
        if let Some(own) = own {
            let rows: Vec<Row> = self.peer.rows().collect();
            rows.into_iter().for_each(|peer| self.remove_line(own, peer));
        }
        peer.is_some() || own.is_some()
    }

    #[expect(clippy::expect_used, reason = "the last clause of each program holds for all packets, and decides")]
    fn fill_line(&mut self, own: Row, peer: Row) {
        if self.cells.contains_key(&(own, peer)) {
            return;
        }
        let rows = self.own.clauses(own).common(self.peer.clauses(peer));
        let mut line: SmallVec<[u32; 64]> = SmallVec::new();
        for ports in self.source_ports.clauses() {
            for l4 in self.l4.clauses() {
                let outcome = walk(&self.steps, |from| first_common([rows.as_ref(), ports, l4], from));
                let outcome = outcome.expect("some clause decides");
                let number = match self.outcome_ids.get(&outcome) {
                    Some(number) => *number,
                    None => {
                        let number = number_of(self.outcomes.len());
                        self.outcomes.push(outcome.clone());
                        self.outcome_ids.insert(outcome, number);
                        number
                    }
                };
                line.push(number);
            }
        }
        let (line, _) = self.lines.acquire(&line);
        self.cells.insert((own, peer), line);
    }

    fn remove_line(&mut self, own: Row, peer: Row) {
        if let Some(line) = self.cells.remove(&(own, peer))
            && self.lines.release(line)
        {
            self.lines.remove_unused(line);
        }
    }

    fn outcome(&self, point: &Point) -> Option<Outcome> {
        self.outcome_at(point.own, point.peer, self.l4.of(point.l4), self.source_ports.of(point.source_port))
    }

    /// `None` if there is no such row or column.
    fn outcome_at(&self, own: Row, peer: Row, l4: usize, source_port: usize) -> Option<Outcome> {
        if let Some(line) = self.cells.get(&(own, peer)) {
            let number = *self.lines.get(*line).get(source_port * self.l4.len() + l4)?;
            return self.outcomes.get(number as usize).cloned();
        }
        let sets = [
            self.own.clauses(own),
            self.peer.clauses(peer),
            self.l4.clauses_of(l4),
            self.source_ports.clauses_of(source_port),
        ];
        walk(&self.steps, |from| first_common(sets, from))
    }

    /// Returns the decision about a packet and the deciding rule.
    pub(crate) fn decision(&self, point: &Point) -> Option<&(Verdict, DecidedBy)> {
        self.decisions.get(self.outcome(point)?.decision)
    }

    /// The same for rows and columns.
    pub(crate) fn decision_at(
        &self,
        own: Row,
        peer: Row,
        l4: usize,
        source_port: usize,
    ) -> Option<&(Verdict, DecidedBy)> {
        self.decisions.get(self.outcome_at(own, peer, l4, source_port)?.decision)
    }

    /// Returns the decisions where two rows meet, as places in [`Self::decisions`], if cells are
    /// kept: by source port, then by L4 class.
    #[expect(clippy::indexing_slicing, reason = "lines are of outcomes that are known")]
    pub(crate) fn kept_line(&self, own: Row, peer: Row) -> Option<impl Iterator<Item = usize> + '_> {
        let line = self.lines.get(*self.cells.get(&(own, peer))?);
        Some(line.iter().map(|number| self.outcomes[*number as usize].decision))
    }

    /// The decision in a column of L4 classes if only these clauses can hold, by place in
    /// [`Self::decisions`]; `None` if none of them decides.
    pub(crate) fn decision_of(&self, clauses: Clauses<'_>, l4: usize) -> Option<usize> {
        Some(walk(&self.steps, |from| first_common([clauses, self.l4.clauses_of(l4)], from))?.decision)
    }

    pub(crate) fn clause_count(&self) -> usize {
        self.steps.len()
    }

    /// All that its clauses could decide.
    pub(crate) fn decisions(&self) -> &[(Verdict, DecidedBy)] {
        &self.decisions
    }

    /// Returns the rulings of staged policies that precede the decision.
    #[expect(clippy::indexing_slicing, reason = "steps note staged rulings of their program")]
    pub(crate) fn staged(&self, point: &Point) -> Vec<StagedRuling> {
        let noted = self.outcome(point).into_iter().flat_map(|outcome| outcome.staged);
        noted.map(|noted| self.staged[noted].clone()).collect()
    }

    /// Returns the decisions and rules that apply to some packet. If cells are not kept, returns
    /// all that the clauses could lead to.
    #[expect(
        clippy::indexing_slicing,
        reason = "marks are places of steps, which refer to decisions and staged rulings of their program"
    )]
    pub(crate) fn reached(&self, addresses: &Addresses, inhabited: &Inhabited) -> ReachedRules<'_> {
        let mut steps = Bits::new(self.steps.len());
        if self.has_cells {
            self.mark_reached(addresses, inhabited, &mut steps);
        } else {
            (0..self.steps.len()).for_each(|step| steps.insert(step));
        }
        let mut reached = ReachedRules::default();
        for step in steps.iter() {
            match self.steps[step] {
                Step::Decide(decision) => reached.decided.push(&self.decisions[decision].1),
                Step::Note(noted, _) => reached.noted.push(&self.staged[noted]),
                Step::Jump(_) => {}
            }
        }
        let is_reached = |rule: &&PassingRule| rule.steps.clone().any(|step| steps.contains(step));
        reached.passing.extend(self.passing.iter().filter(is_reached));
        reached
    }

    /// Marks each clause that is the first to hold for some packet, or for some packet behind
    /// another clause.
    fn mark_reached(&self, addresses: &Addresses, inhabited: &Inhabited, reached: &mut Bits) {
        let l4 = kinds(&self.l4, L4_END, l4_kinds);
        let source_ports = kinds(&self.source_ports, PORTS_END, source_port_kinds);
        let mut seen: AHashSet<ClauseSet> = AHashSet::new();
        for family in Family::ALL {
            let peers = self.peer.inhabited_rows(family, addresses, inhabited);
            for own in self.own.inhabited_rows(family, addresses, inhabited) {
                for peer in &peers {
                    let rows = self.own.clauses(own).common(self.peer.clauses(*peer));
                    if seen.contains(&rows) {
                        continue;
                    }
                    for (ports, port_kinds) in self.source_ports.clauses().zip(&source_ports) {
                        for (l4, l4_kinds) in self.l4.clauses().zip(&l4) {
                            if port_kinds.iter().zip(l4_kinds).any(|(one, other)| *one && *other) {
                                walk(&self.steps, |from| {
                                    let step = first_common([rows.as_ref(), ports, l4], from);
                                    step.inspect(|step| reached.insert(*step))
                                });
                            }
                        }
                    }
                    seen.insert(rows);
                }
            }
        }
    }

    pub(crate) fn peer(&self) -> &Axis {
        &self.peer
    }

    pub(crate) fn own(&self) -> &Axis {
        &self.own
    }

    pub(crate) fn l4(&self) -> &Columns {
        &self.l4
    }

    pub(crate) fn source_ports(&self) -> &Columns {
        &self.source_ports
    }
}

/// Reports for each column whether it has packets without ports, and packets with ports.
#[expect(clippy::indexing_slicing, reason = "stretches are of columns")]
fn kinds(columns: &Columns, end: u32, kinds_of: impl Fn(u32, u32) -> [bool; 2]) -> Vec<[bool; 2]> {
    let mut kinds = vec![[false; 2]; columns.len()];
    let ends = columns.starts().skip(1).chain([end]);
    for ((start, column), end) in columns.stretches().zip(ends) {
        let more = kinds_of(start, end);
        kinds[column].iter_mut().zip(more).for_each(|(kind, more)| *kind |= more);
    }
    kinds
}

/// Evaluates the clauses that hold, in order, until one decides; `None` if none does. The last
/// clause of each program holds for all packets, and decides.
fn walk(steps: &[Step], mut next: impl FnMut(usize) -> Option<usize>) -> Option<Outcome> {
    let mut staged = SmallVec::new();
    let mut from = 0;
    loop {
        // Jump targets come behind the jump, so the loop ends.
        from = match steps.get(next(from)?)? {
            Step::Decide(decision) => return Some(Outcome { decision: *decision, staged }),
            Step::Jump(target) => *target,
            Step::Note(noted, target) => {
                staged.push(*noted);
                *target
            }
        };
    }
}
