//! The trees of a group.

use ahash::AHashMap;
use tortie_classes::{ClassId, Compiled, Row, TableView};
use tortie_model::Family;

use crate::blocks::{Assignment, Blocks, Cell};
use crate::tables::decisions::{DecisionId, Decisions};
use crate::tables::keys::{l4_trees, source_port_tree};
use crate::tables::{MAX_CELLS, NOWHERE};

/// How many classes a family can have.
pub(super) const CLASSES: u32 = 1 << 23;
/// With as many classes as this changed the rows of all are looked at, which costs less.
const MANY_CLASSES: usize = 64;

/// A class as trees know it: those of one family are beside each other, so that what most of them have in common is one prefix.
pub(super) fn class_value(class: ClassId, family: Family) -> u32 {
    class.number().min(CLASSES - 1) | family_bit(family)
}

fn family_bit(family: Family) -> u32 {
    match family {
        Family::V4 => 0,
        Family::V6 => CLASSES,
    }
}

/// Where the trees of a group begin, in the order in which a program reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRoots {
    /// From the class of the group's own end to its row.
    pub own: Cell,
    /// From the class of the peer to its row.
    pub peer: Cell,
    /// From the protocol and a destination port, or an ICMP type and code, to the column: three bytes.
    pub details: Cell,
    /// From the protocol alone, of packets that have neither: one byte.
    pub protocols: Cell,
    /// From the source port to the column: two bytes.
    pub source_ports: Cell,
    /// The column of packets without a source port.
    pub no_source_port: Cell,
    /// From the number of a cell to the decision: two bytes.
    pub cells: Cell,
}

impl GroupRoots {
    /// Denies everything.
    pub const CLOSED: Self = Self {
        own: Cell::value(NOWHERE),
        peer: Cell::value(NOWHERE),
        details: Cell::value(NOWHERE),
        protocols: Cell::value(NOWHERE),
        source_ports: Cell::value(NOWHERE),
        no_source_port: Cell::value(NOWHERE),
        cells: Cell::value(0),
    };

    /// All of them, as they stand in a map.
    #[must_use]
    pub const fn cells(&self) -> [Cell; 7] {
        let Self { own, peer, details, protocols, source_ports, no_source_port, cells } = *self;
        [own, peer, details, protocols, source_ports, no_source_port, cells]
    }
}

/// Trees and the decisions that they lead to, all of them in use.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) roots: GroupRoots,
    decisions: Vec<DecisionId>,
}

/// From rows to the numbers of their first cells, which add up.
struct Places {
    own: AHashMap<Row, u32>,
    peer: AHashMap<Row, u32>,
}

impl Places {
    /// A cell's number is that of its row of this end, of the peer, of its source port and of its column, in this order.
    fn new(table: &TableView<'_>) -> Self {
        let places = |rows: Vec<Row>, stride: usize| -> AHashMap<Row, u32> {
            let numbers = (0..).map(|row: usize| u32::try_from(row * stride).unwrap_or(NOWHERE));
            rows.into_iter().zip(numbers).collect()
        };
        let columns = table.l4_columns() * table.source_port_columns();
        let peer: Vec<Row> = table.peer_rows().collect();
        let own_stride = columns * peer.len();
        Self { own: places(table.own_rows().collect(), own_stride), peer: places(peer, columns) }
    }
}

/// The rows of one end.
struct Rows<'a> {
    places: &'a AHashMap<Row, u32>,
    rest: [u32; 2],
}

impl<'a> Rows<'a> {
    fn new(places: &'a AHashMap<Row, u32>, rest: impl Fn(Family) -> Row) -> Self {
        let place = |family| places.get(&rest(family)).copied().unwrap_or(NOWHERE);
        Self { places, rest: Family::ALL.map(place) }
    }

    fn rest(&self, family: Family) -> u32 {
        let [v4, v6] = self.rest;
        if family == Family::V4 { v4 } else { v6 }
    }

    fn place(&self, row: Option<Row>) -> u32 {
        row.and_then(|row| self.places.get(&row).copied()).unwrap_or(NOWHERE)
    }

    /// The tree from classes to rows.
    fn tree(&self, classes: &[(ClassId, Row)], compiled: &Compiled<'_>, blocks: &mut Blocks) -> Cell {
        let mut others: Vec<([u8; 4], u32)> = Vec::new();
        for (class, row) in classes {
            let Some(family) = compiled.family_of(*class) else { continue };
            let value = self.place(Some(*row));
            if value != self.rest(family) {
                others.push((class_value(*class, family).to_be_bytes(), value));
            }
        }
        let rest = Family::ALL.map(|family| (family_bit(family).to_be_bytes(), self.rest(family)));
        // The highest bit of a class is the family.
        let rest = rest.iter().map(|([_, key @ ..], value)| Assignment { key, bits: 1, value: *value });
        let others = others.iter().map(|([_, key @ ..], value)| Assignment { key, bits: 24, value: *value });
        blocks.assign(Cell::value(NOWHERE), &rest.chain(others).collect::<Vec<_>>())
    }

    /// The tree with other rows for some numbers of classes.
    fn changed(
        &self,
        root: Cell,
        classes: &[ClassId],
        (compiled, row): (&Compiled<'_>, impl Fn(ClassId) -> Option<Row>),
        blocks: &mut Blocks,
    ) -> Cell {
        let mut changed: Vec<([u8; 4], u32)> = Vec::new();
        for class in classes {
            let family = compiled.family_of(*class);
            let own = family.map(|family| (family, self.place(row(*class))));
            for family in Family::ALL {
                let value = own.filter(|(own, _)| *own == family).map_or(self.rest(family), |(_, value)| value);
                let key = class_value(*class, family).to_be_bytes();
                let [_, bytes @ ..] = key;
                if blocks.get(root, &bytes) != value {
                    changed.push((key, value));
                }
            }
        }
        let changed = changed.iter().map(|([_, key @ ..], value)| Assignment { key, bits: 24, value: *value });
        blocks.assign(root, &changed.collect::<Vec<_>>())
    }
}

impl Group {
    /// The trees of a table, all of them new uses. Without any if it has too many cells.
    pub(super) fn new(
        compiled: &Compiled<'_>,
        table: &TableView<'_>,
        blocks: &mut Blocks,
        decisions: &mut Decisions,
    ) -> Option<Self> {
        if u32::try_from(table.cell_count()).is_ok_and(|count| count > MAX_CELLS) || table.cell_count() > 1 << 31 {
            return None;
        }
        let (used, cells) = cells(table, blocks, decisions);
        let places = Places::new(table);
        let own = Rows::new(&places.own, |family| table.own_rest(family));
        let peer = Rows::new(&places.peer, |family| table.peer_rest(family));
        let own = own.tree(&table.own_classes(), compiled, blocks);
        let peer = peer.tree(&table.peer_classes(), compiled, blocks);
        let number = |column: usize| u32::try_from(column).unwrap_or(NOWHERE);
        let columns = table.l4_stretches().map(|(protocol, detail, column)| (protocol, detail, number(column)));
        let [details, protocols] = l4_trees(columns, blocks);
        let port_stride = table.l4_columns();
        let ports = table.source_port_stretches().map(|(port, column)| (port, number(column * port_stride)));
        let (source_ports, no_source_port) = source_port_tree(ports, blocks);
        let roots = GroupRoots {
            own,
            peer,
            details,
            protocols,
            source_ports,
            no_source_port: Cell::value(no_source_port),
            cells,
        };
        Some(Self { roots, decisions: used })
    }

    /// Gives the numbers of some classes the rows that they have now. The table is the same otherwise.
    pub(super) fn change_rows(
        &mut self,
        classes: &[ClassId],
        compiled: &Compiled<'_>,
        table: &TableView<'_>,
        blocks: &mut Blocks,
    ) {
        let places = Places::new(table);
        let own = Rows::new(&places.own, |family| table.own_rest(family));
        let peer = Rows::new(&places.peer, |family| table.peer_rest(family));
        let (own, peer) = if classes.len() < MANY_CLASSES {
            (
                own.changed(self.roots.own, classes, (compiled, |class| table.own_row(class)), blocks),
                peer.changed(self.roots.peer, classes, (compiled, |class| table.peer_row(class)), blocks),
            )
        } else {
            (own.tree(&table.own_classes(), compiled, blocks), peer.tree(&table.peer_classes(), compiled, blocks))
        };
        blocks.release(std::mem::replace(&mut self.roots.own, own));
        blocks.release(std::mem::replace(&mut self.roots.peer, peer));
    }

    /// Its uses of trees and decisions are over.
    pub(super) fn release(self, blocks: &mut Blocks, decisions: &mut Decisions) {
        self.roots.cells().into_iter().for_each(|root| blocks.release(root));
        self.decisions.into_iter().for_each(|decision| decisions.release(decision));
    }
}

/// The decisions of a table, and the tree from the numbers of cells to them.
fn cells(table: &TableView<'_>, blocks: &mut Blocks, decisions: &mut Decisions) -> (Vec<DecisionId>, Cell) {
    let mut used: Vec<DecisionId> = Vec::new();
    // By place in the table's decisions.
    let mut values: Vec<Option<u32>> = vec![None; table.decisions().len()];
    let mut cells: Vec<([u8; 2], u32)> = Vec::with_capacity(table.cell_count());
    let peer: Vec<Row> = table.peer_rows().collect();
    for own in table.own_rows() {
        for decided in peer.iter().flat_map(|peer| table.line(own, *peer)) {
            let known = values.get_mut(decided).zip(table.decisions().get(decided));
            let value = known.map_or(0, |(value, (verdict, by))| {
                *value.get_or_insert_with(|| {
                    let id = decisions.acquire(*verdict, by);
                    used.push(id);
                    id.to_cell(*verdict)
                })
            });
            cells.push((u16::try_from(cells.len()).unwrap_or(u16::MAX).to_be_bytes(), value));
        }
    }
    let assigned = cells.iter().map(|(key, value)| Assignment { key, bits: 16, value: *value });
    (used, blocks.assign(Cell::value(0), &assigned.collect::<Vec<_>>()))
}
