//! Tables to read, as whoever puts them into a kernel needs them.

use tortie_evaluate::{DecidedBy, Verdict};

use crate::axis::Axis;
use crate::classes::Classes;
use crate::ids::{ClassId, Id, L4ClassId, RowId};
use crate::table::Table;

/// The table of a group. A packet has a row by the address class of its peer, one by that of the group's own end, and a column
/// by its L4 class and one by its source port; these four tell what is decided.
///
/// Rows and columns that no rule of the group tells apart are one.
#[derive(Clone, Copy, Debug)]
pub struct TableView<'a> {
    classes: &'a Classes,
    table: &'a Table,
}

/// A row of one end of a table, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row(RowId);

impl Row {
    /// The number. Numbers are small, and those that are free are given out again.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0.number()
    }
}

impl<'a> TableView<'a> {
    pub(crate) fn new(classes: &'a Classes, table: &'a Table) -> Self {
        Self { classes, table }
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
        axis.row_with(addresses.family_of(class), addresses.atoms_of(class)).map(Row)
    }

    /// The rows of the peer's end, in order.
    pub fn peer_rows(&self) -> impl Iterator<Item = Row> + use<'a> {
        self.table.peer().rows().map(Row)
    }

    /// The rows of the group's own end, in order.
    pub fn own_rows(&self) -> impl Iterator<Item = Row> + use<'a> {
        self.table.own().rows().map(Row)
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

    /// How many columns there are for protocols, destination ports and ICMP messages.
    #[must_use]
    pub fn l4_columns(&self) -> usize {
        self.table.l4().len()
    }

    /// How many columns there are for source ports; one unless a rule asks for them.
    #[must_use]
    pub fn source_port_columns(&self) -> usize {
        self.table.source_ports().len()
    }

    /// How many cells the table has.
    #[must_use]
    pub fn cell_count(&self) -> usize {
        self.table.cell_count()
    }

    /// Whether the cells are kept. There may be too many; they are worked out when they are asked for then.
    #[must_use]
    pub fn has_cells(&self) -> bool {
        self.table.has_cells()
    }

    /// What is decided in a cell, and by what; `None` if there is no such cell.
    #[must_use]
    pub fn cell(&self, own: Row, peer: Row, l4: usize, source_port: usize) -> Option<(Verdict, &'a DecidedBy)> {
        let (verdict, by) = self.table.decision_at(own.0, peer.0, l4, source_port)?;
        Some((*verdict, by))
    }
}
