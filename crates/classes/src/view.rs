//! Read access to tables, for programs that write them to a kernel.

use tortie_evaluate::{DecidedBy, Verdict};
use tortie_model::Family;

use crate::axis::Axis;
use crate::classes::Classes;
use crate::ids::{ClassId, L4ClassId, Row};
use crate::line::{Intervals, L4_END, L4Detail, source_port_stretches, stretches};
use crate::lines::Lines;
use crate::table::Table;
use crate::traffic::Traffic;

/// The table of a group. A packet has two rows, by the address class of its peer and by that of the
/// group's own end, and two columns, by its L4 class and by its source port. These four determine
/// the decision.
///
/// Rows or columns that no rule of the group distinguishes are one.
#[derive(Clone, Copy, Debug)]
pub struct TableView<'a> {
    classes: &'a Classes,
    table: &'a Table,
}

impl<'a> TableView<'a> {
    pub(crate) fn new(classes: &'a Classes, table: &'a Table) -> Self {
        Self { classes, table }
    }

    /// Reports whether a rule has [learned](Classes::learn) destinations.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.table.learns()
    }

    /// The row of an address class at the peer's end; `None` if there is no such class.
    #[must_use]
    pub fn peer_row(&self, class: ClassId) -> Option<Row> {
        self.row(self.table.peer(), class)
    }

    /// The row of an address class at the group's own end; `None` if there is no such class.
    #[must_use]
    pub fn own_row(&self, class: ClassId) -> Option<Row> {
        self.row(self.table.own(), class)
    }

    fn row(&self, axis: &Axis, class: ClassId) -> Option<Row> {
        let addresses = &self.classes.addresses;
        axis.row_with(addresses.family_of(class), addresses.atoms_of(class))
    }

    /// Returns the row at the peer's end of addresses of a family in no atom that the group asks
    /// for.
    #[must_use]
    pub fn peer_rest(&self, family: Family) -> Row {
        self.table.peer().plain(family)
    }

    /// Returns the row at the group's own end of addresses of a family in no atom that the group
    /// asks for.
    #[must_use]
    pub fn own_rest(&self, family: Family) -> Row {
        self.table.own().plain(family)
    }

    /// Returns classes and their rows at the peer's end, in no order: all classes whose row differs
    /// from [`Self::peer_rest`], and some others.
    #[must_use]
    pub fn peer_classes(&self) -> Vec<(ClassId, Row)> {
        self.classes_of(self.table.peer())
    }

    /// Returns classes and their rows at the group's own end, in no order: all classes whose row
    /// differs from [`Self::own_rest`], and some others.
    #[must_use]
    pub fn own_classes(&self) -> Vec<(ClassId, Row)> {
        self.classes_of(self.table.own())
    }

    fn classes_of(&self, axis: &Axis) -> Vec<(ClassId, Row)> {
        let mut classes = axis.classes(&self.classes.addresses);
        classes.sort_unstable();
        classes.dedup();
        classes
    }

    /// Returns the rows of the peer's end, in an order that depends only on the current policies,
    /// not on their history.
    pub fn peer_rows(&self) -> impl Iterator<Item = Row> + use<'a> {
        in_order(self.table.peer())
    }

    /// The rows of the group's own end, in such an order.
    pub fn own_rows(&self) -> impl Iterator<Item = Row> + use<'a> {
        in_order(self.table.own())
    }

    /// The column of an L4 class.
    #[must_use]
    pub fn l4_column(&self, class: L4ClassId) -> usize {
        let start = self.classes.owners.l4.start_of(class);
        start.map_or(0, |start| self.table.l4().of(start))
    }

    /// The column of a class of source ports.
    #[must_use]
    pub fn source_port_column(&self, class: L4ClassId) -> usize {
        let start = self.classes.owners.source_ports.start_of(class);
        start.map_or(0, |start| self.table.source_ports().of(start))
    }

    /// Returns the start of each stretch of one column, in order, as protocol and detail. A stretch
    /// ends at the next one.
    pub fn l4_stretches(&self) -> impl Iterator<Item = (u8, L4Detail, usize)> + use<'a> {
        stretches(self.table.l4().stretches())
    }

    /// The packets of a family that have a column of [`Self::l4_stretches`].
    ///
    /// Impossible packets are left out, such as TCP without ports.
    #[must_use]
    pub fn traffic(&self, column: usize, family: Family) -> Traffic {
        let starts = || self.table.l4().stretches();
        let ends = starts().skip(1).map(|(start, _)| start).chain([L4_END]);
        let of_column = starts().zip(ends).filter(|((_, of), _)| *of == column);
        Traffic::new(family, &Intervals::ascending(of_column.map(|((start, _), end)| (start, end))))
    }

    /// The first source port of each stretch of one column, in order; `None` stands for packets
    /// without ports.
    pub fn source_port_stretches(&self) -> impl Iterator<Item = (Option<u16>, usize)> + use<'a> {
        source_port_stretches(self.table.source_ports().stretches())
    }

    /// Number of columns for protocols, destination ports and ICMP messages.
    #[must_use]
    pub fn l4_columns(&self) -> usize {
        self.table.l4().len()
    }

    /// Number of columns for source ports; 1 unless a rule asks for them.
    #[must_use]
    pub fn source_port_columns(&self) -> usize {
        self.table.source_ports().len()
    }

    /// Number of cells of the table, kept or not.
    #[must_use]
    pub fn cell_count(&self) -> usize {
        self.table.cell_count()
    }

    /// Whether the cells are kept. Too many are computed on demand instead.
    #[must_use]
    pub fn has_cells(&self) -> bool {
        self.table.has_cells()
    }

    /// Returns the lines of cells where rows meet.
    #[must_use]
    pub fn lines(&self) -> Lines<'a> {
        Lines::new(self.table)
    }

    /// Possible decisions, with the deciding rule of each.
    #[must_use]
    pub fn decisions(&self) -> &'a [(Verdict, DecidedBy)] {
        self.table.decisions()
    }

    /// Returns the decision in a cell and the deciding rule; `None` if there is no such cell.
    #[must_use]
    pub fn cell(&self, own: Row, peer: Row, l4: usize, source_port: usize) -> Option<(Verdict, &'a DecidedBy)> {
        let (verdict, by) = self.table.decision_at(own, peer, l4, source_port)?;
        Some((*verdict, by))
    }
}

/// Sorts rows by their clauses.
fn in_order(axis: &Axis) -> impl Iterator<Item = Row> + use<> {
    let mut rows: Vec<Row> = axis.rows().collect();
    rows.sort_unstable_by(|left, right| axis.clauses(*left).words().cmp(axis.clauses(*right).words()));
    rows.into_iter()
}
