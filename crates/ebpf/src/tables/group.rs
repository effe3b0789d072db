//! The trees of a group.

use ahash::AHashMap;
use tortie_classes::{ClassId, Compiled, Row, TableView};
use tortie_model::{Direction, Family, Protocol};

use crate::blocks::{Assignment, Blocks, CELLS, Cell};
use crate::tables::class_numbers::{ClassNumbers, family_bit};
use crate::tables::decisions::{DecisionId, Decisions};
use crate::tables::keys::{l4_trees, numbered_tree, source_port_tree};
use crate::tables::{Closed, Limits, NOWHERE, SMALL};

/// With as many classes as this changed the rows of all are looked at, which costs less.
const MANY_CLASSES: usize = 64;
/// Stretches of equal decisions in one table: 32 MB while the table is made.
const MAX_STRETCHES: usize = 1 << 21;

/// The classes of addresses, and the numbers that trees know them by.
#[derive(Clone, Copy)]
pub(super) struct NumberedClasses<'a> {
    pub(super) compiled: &'a Compiled<'a>,
    pub(super) numbers: &'a ClassNumbers,
}

/// Where the trees of a group begin, in the order in which a program reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// From the number of a cell to the decision: two bytes, or four.
    pub cells: Cell,
    /// Whether the numbers of cells have four bytes.
    pub is_large: bool,
    /// Where these trees go on for most packets: what [`GroupRoots::with_shortcuts`] finds.
    pub shortcuts: Shortcuts,
}

/// Cells that trees of a group lead to by first bytes which most keys have, so that a program need not follow these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shortcuts {
    /// From the last two bytes of an IPv4 and an IPv6 class with a number below 65,536 to the row of the group's own end.
    pub own: [Cell; 2],
    /// The same of the peer.
    pub peer: [Cell; 2],
    /// From the port of TCP and of UDP, two bytes, to the column.
    pub ports: [Cell; 2],
    /// From the last three bytes of the number of a cell to the decision, where numbers have four and this one is below 2²⁴. Where all
    /// packets are alike, the decision about them.
    pub cells: Cell,
    /// A bit for each end and family where all addresses have one row, which is that of the shortcut: 1 and 2 are the own end's with IPv4 and
    /// IPv6, 4 and 8 the peer's. 16: all packets are alike.
    pub alike: Cell,
}

impl Shortcuts {
    /// The bit of groups that decide the same about all packets.
    pub(crate) const ALL_ALIKE: u32 = 16;

    /// All of them, as they stand in a map behind [`GroupRoots::cells`].
    pub(crate) const fn cells(&self) -> [Cell; 8] {
        let Self { own: [own_v4, own_v6], peer: [peer_v4, peer_v6], ports: [tcp, udp], cells, alike } = *self;
        [own_v4, own_v6, peer_v4, peer_v6, tcp, udp, cells, alike]
    }

    pub(crate) const fn from_cells([own_v4, own_v6, peer_v4, peer_v6, tcp, udp, cells, alike]: [Cell; 8]) -> Self {
        Self { own: [own_v4, own_v6], peer: [peer_v4, peer_v6], ports: [tcp, udp], cells, alike }
    }

    /// The bit of an end, the group's own or the peer, and a family.
    pub(crate) const fn alike_bit(is_own: bool, family: Family) -> u32 {
        match (is_own, family) {
            (true, Family::V4) => 1,
            (true, Family::V6) => 2,
            (false, Family::V4) => 4,
            (false, Family::V6) => 8,
        }
    }
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
        is_large: false,
        shortcuts: Shortcuts {
            own: [Cell::value(NOWHERE); 2],
            peer: [Cell::value(NOWHERE); 2],
            ports: [Cell::value(NOWHERE); 2],
            cells: Cell::value(0),
            alike: Cell::value(15),
        },
    };

    /// The same trees with the shortcuts that are theirs.
    #[must_use]
    pub fn with_shortcuts(self, blocks: &Blocks) -> Self {
        let rows = |root| {
            Family::ALL.map(|family| {
                let [_, first, ..] = family_bit(family).to_be_bytes();
                blocks.cell_at(root, &[first])
            })
        };
        // Of the first byte of a class the highest bit is the family.
        let is_alike = |root, family| {
            let [_, first, ..] = family_bit(family).to_be_bytes();
            let cell = blocks.cell_at(root, &[first]);
            cell.as_block().is_none() && (first..=first | 0x7f).all(|byte| blocks.cell_at(root, &[byte]) == cell)
        };
        let ends = [(true, self.own), (false, self.peer)];
        let ends = ends.into_iter().flat_map(|(is_own, root)| Family::ALL.map(|family| (is_own, root, family)));
        let alike = ends.filter(|(_, root, family)| is_alike(*root, *family));
        let alike = alike.fold(0, |bits, (is_own, _, family)| bits | Shortcuts::alike_bit(is_own, family));
        let only = self.find_only_decision(blocks);
        let alike = if only.is_some() { alike | Shortcuts::ALL_ALIKE } else { alike };
        let near = || blocks.cell_at(self.cells, if self.is_large { &[0] } else { &[] });
        let of = |protocol: Protocol| blocks.cell_at(self.details, &[protocol.number()]);
        let shortcuts = Shortcuts {
            own: rows(self.own),
            peer: rows(self.peer),
            ports: [of(Protocol::TCP), of(Protocol::UDP)],
            cells: only.map_or_else(near, Cell::value),
            alike: Cell::value(alike),
        };
        Self { shortcuts, ..self }
    }

    /// The value of the cell that decides about all packets, if nothing of them is looked at: that of an endpoint that no policy selects, and
    /// whose profiles let everything through.
    #[must_use]
    pub fn only_decision(&self) -> Option<u32> {
        let Shortcuts { cells, alike, .. } = self.shortcuts;
        (alike.as_value() & Shortcuts::ALL_ALIKE != 0).then_some(cells.as_value())
    }

    fn find_only_decision(&self, blocks: &Blocks) -> Option<u32> {
        let Self { own, peer, details, protocols, source_ports, no_source_port, cells, is_large, .. } = *self;
        let parts = [own, peer, details, source_ports];
        let is_one = parts.iter().all(|part| part.as_block().is_none());
        if is_large || !is_one || details != protocols || source_ports != no_source_port {
            return None;
        }
        let number: u64 = parts.iter().map(|part| u64::from(part.as_value())).sum();
        let number = u16::try_from(number).ok()?;
        Some(blocks.get(cells, &number.to_be_bytes()))
    }

    /// All of them but shortcuts, as they stand in a map. Numbers of cells have four bytes if the last one is 1.
    #[must_use]
    pub const fn cells(&self) -> [Cell; 8] {
        let Self { own, peer, details, protocols, source_ports, no_source_port, cells, is_large, .. } = *self;
        [own, peer, details, protocols, source_ports, no_source_port, cells, Cell::value(is_large as u32)]
    }
}

/// Trees and the decisions that they lead to, all of them in use.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) roots: GroupRoots,
    decisions: Vec<DecisionId>,
    /// Blocks of the trees that do not depend on addresses.
    pub(super) fixed: u64,
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
        let line = line_length(table);
        let peer: Vec<Row> = table.peer_rows().collect();
        let own_stride = line * peer.len();
        Self { own: places(table.own_rows().collect(), own_stride), peer: places(peer, line) }
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

    /// Whether a class that has no number of its own has another row than others without one may have.
    fn needs_more_numbers(&self, classes: &[(ClassId, Row)], of: NumberedClasses<'_>) -> bool {
        let has_own_row = |(class, row): &(ClassId, Row)| {
            let rest = of.compiled.family_of(*class).map(|family| self.rest(family));
            rest.is_some_and(|rest| rest != self.place(Some(*row)))
        };
        classes.iter().filter(|(class, _)| of.numbers.is_beyond(*class)).any(has_own_row)
    }

    /// The tree from classes to rows.
    fn tree(&self, classes: &[(ClassId, Row)], of: NumberedClasses<'_>, blocks: &mut Blocks) -> Cell {
        let mut others: Vec<([u8; 4], u32)> = Vec::new();
        for (class, row) in classes {
            let Some(family) = of.compiled.family_of(*class) else { continue };
            let value = self.place(Some(*row));
            if value != self.rest(family) {
                others.push((of.numbers.value(*class, family).to_be_bytes(), value));
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
        (of, row): (NumberedClasses<'_>, impl Fn(ClassId) -> Option<Row>),
        blocks: &mut Blocks,
    ) -> Cell {
        let mut changed: Vec<([u8; 4], u32)> = Vec::new();
        for class in classes {
            let family = of.compiled.family_of(*class);
            let own = family.map(|family| (family, self.place(row(*class))));
            for family in Family::ALL {
                let value = own.filter(|(own, _)| *own == family).map_or(self.rest(family), |(_, value)| value);
                let key = of.numbers.value(*class, family).to_be_bytes();
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
    /// The trees of a table, all of them new uses.
    pub(super) fn new(
        of: NumberedClasses<'_>,
        (direction, table, limits): (Direction, &TableView<'_>, &Limits),
        blocks: &mut Blocks,
        decisions: &mut Decisions,
    ) -> Result<Self, Closed> {
        let is_large = table.cell_count() > SMALL;
        let lines = table.own_rows().count().saturating_mul(table.peer_rows().count());
        let too_many = || Closed::TooManyCells(table.cell_count());
        if lines.saturating_mul(line_length(table)) >= limits.cells as usize {
            return Err(too_many());
        }
        let places = Places::new(table);
        let own = Rows::new(&places.own, |family| table.own_rest(family));
        let peer = Rows::new(&places.peer, |family| table.peer_rest(family));
        let (own_classes, peer_classes) = (table.own_classes(), table.peer_classes());
        if own.needs_more_numbers(&own_classes, of) || peer.needs_more_numbers(&peer_classes, of) {
            return Err(Closed::TooManyClasses(limits.classes));
        }
        let stretches = stretches(table, limits.work).ok_or_else(too_many)?;
        let mut used =
            Used { direction, table, decisions, values: vec![None; table.decisions().len()], used: Vec::new() };
        let values: Vec<(u32, u32, u32)> =
            stretches.into_iter().map(|(start, end, decided)| (start, end, used.value(decided))).collect();
        let used = used.used;
        let cells = numbered_tree(values, if is_large { 4 } else { 2 }, blocks);
        let own = own.tree(&own_classes, of, blocks);
        let peer = peer.tree(&peer_classes, of, blocks);
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
            is_large,
            shortcuts: Shortcuts::default(),
        };
        let fixed = blocks.count(cells) as u64
            + [details, protocols, source_ports].map(|root| ways(blocks, root)).iter().sum::<u64>();
        Ok(Self { roots: roots.with_shortcuts(blocks), decisions: used, fixed })
    }

    /// Blocks that the trees take at most, whatever other groups share with them.
    pub(super) fn charge(&self, blocks: &Blocks) -> u64 {
        self.fixed + ways(blocks, self.roots.own) + ways(blocks, self.roots.peer)
    }

    /// Blocks that the trees from classes to rows would take at most.
    pub(super) fn charge_of_rows(of: NumberedClasses<'_>, table: &TableView<'_>, blocks: &mut Blocks) -> u64 {
        let places = Places::new(table);
        let own = Rows::new(&places.own, |family| table.own_rest(family));
        let peer = Rows::new(&places.peer, |family| table.peer_rest(family));
        let trees = [own.tree(&table.own_classes(), of, blocks), peer.tree(&table.peer_classes(), of, blocks)];
        let charge = trees.map(|root| ways(blocks, root)).iter().sum();
        trees.into_iter().for_each(|root| blocks.release(root));
        charge
    }

    /// Gives the numbers of some classes the rows that they have now. The table is the same otherwise.
    pub(super) fn change_rows(
        &mut self,
        classes: &[ClassId],
        of: NumberedClasses<'_>,
        table: &TableView<'_>,
        blocks: &mut Blocks,
    ) {
        let places = Places::new(table);
        let own = Rows::new(&places.own, |family| table.own_rest(family));
        let peer = Rows::new(&places.peer, |family| table.peer_rest(family));
        let (own, peer) = if classes.len() < MANY_CLASSES {
            (
                own.changed(self.roots.own, classes, (of, |class| table.own_row(class)), blocks),
                peer.changed(self.roots.peer, classes, (of, |class| table.peer_row(class)), blocks),
            )
        } else {
            (own.tree(&table.own_classes(), of, blocks), peer.tree(&table.peer_classes(), of, blocks))
        };
        blocks.release(std::mem::replace(&mut self.roots.own, own));
        blocks.release(std::mem::replace(&mut self.roots.peer, peer));
        self.roots = self.roots.with_shortcuts(blocks);
    }

    /// Its uses of trees and decisions are over.
    pub(super) fn release(self, blocks: &mut Blocks, decisions: &mut Decisions) {
        self.roots.cells().into_iter().for_each(|root| blocks.release(root));
        self.decisions.into_iter().for_each(|decision| decisions.release(decision));
    }
}

fn ways(blocks: &Blocks, root: Cell) -> u64 {
    blocks.ways(root).into()
}

/// How many numbers of cells there are for a row against a row. In large tables lines begin where blocks do, so that lines that are
/// alike are the same blocks.
fn line_length(table: &TableView<'_>) -> usize {
    let columns = table.l4_columns().saturating_mul(table.source_port_columns());
    if table.cell_count() > SMALL { columns.next_multiple_of(CELLS) } else { columns }
}

/// Where each stretch of cells with one decision begins and ends, in order, with the decision's place in the table's; `None` if
/// that is too much work.
fn stretches(table: &TableView<'_>, max_work: usize) -> Option<Vec<(u32, u32, usize)>> {
    let number = |cell: usize| u32::try_from(cell).unwrap_or(NOWHERE);
    let length = line_length(table);
    let peer: Vec<Row> = table.peer_rows().collect();
    let mut lines = table.lines().with_max_work(max_work);
    let mut starts: Vec<(u32, usize)> = Vec::new();
    let mut line = 0;
    for own in table.own_rows() {
        for peer in &peer {
            if starts.len() > MAX_STRETCHES {
                return None;
            }
            for (start, decided) in lines.stretches(own, *peer)? {
                if starts.last().is_none_or(|(_, last)| *last != decided) {
                    starts.push((number(line + start), decided));
                }
            }
            line += length;
        }
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([number(line)]);
    Some(starts.iter().zip(ends).map(|((start, decided), end)| (*start, end, *decided)).collect())
}

/// The decisions of a table that are in its cells.
struct Used<'a> {
    direction: Direction,
    table: &'a TableView<'a>,
    decisions: &'a mut Decisions,
    /// By place in the table's decisions, as cells.
    values: Vec<Option<u32>>,
    used: Vec<DecisionId>,
}

impl Used<'_> {
    fn value(&mut self, decided: usize) -> u32 {
        let Self { direction, table, decisions, values, used } = self;
        let Some((value, (verdict, by))) = values.get_mut(decided).zip(table.decisions().get(decided)) else {
            return 0;
        };
        *value.get_or_insert_with(|| {
            let id = decisions.acquire(*direction, *verdict, by);
            used.push(id);
            id.to_cell(*verdict)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_alike_where_all_classes_of_a_family_have_one_row() {
        let mut blocks = Blocks::new();
        let row = |value| Assignment { key: &[0x80], bits: 1, value };
        let of_families = blocks.assign(Cell::value(1), &[row(2)]);
        let last_of_v4 = Assignment { key: &[0x7f, 0xff, 0xff], bits: 24, value: 3 };
        let one_apart = blocks.assign(Cell::value(1), &[row(2), last_of_v4]);
        let alike = |own, peer| {
            let roots = GroupRoots { own, peer, ..GroupRoots::CLOSED }.with_shortcuts(&blocks);
            (roots.shortcuts.alike.as_value(), roots.shortcuts.own.map(Cell::as_value))
        };
        assert_eq!(alike(of_families, Cell::value(7)), (0b1111, [1, 2]));
        assert_eq!(alike(one_apart, of_families), (0b1110, [1, 2]));
        assert_eq!(alike(of_families, one_apart).0, 0b1011);
        assert_eq!(GroupRoots::CLOSED.with_shortcuts(&blocks), GroupRoots::CLOSED);
    }

    #[test]
    fn a_group_that_looks_at_nothing_decides_at_once() {
        let mut blocks = Blocks::new();
        let third = blocks.assign(Cell::value(0), &[Assignment { key: &[0, 3], bits: 16, value: 9 }]);
        let some_port = blocks.assign(Cell::value(1), &[Assignment { key: &[6, 0, 80], bits: 24, value: 0 }]);
        let all = GroupRoots {
            own: Cell::value(0),
            peer: Cell::value(2),
            details: Cell::value(1),
            protocols: Cell::value(1),
            source_ports: Cell::value(0),
            no_source_port: Cell::value(0),
            cells: third,
            ..GroupRoots::CLOSED
        };
        let only = |roots: GroupRoots| roots.with_shortcuts(&blocks).only_decision();
        assert_eq!(only(all), Some(9));
        assert_eq!(only(GroupRoots { peer: Cell::value(3), ..all }), Some(0), "there is no such cell");
        assert_eq!(only(GroupRoots { details: some_port, ..all }), None);
        assert_eq!(only(GroupRoots { protocols: Cell::value(0), ..all }), None);
        assert_eq!(only(GroupRoots { no_source_port: Cell::value(1), ..all }), None);
        assert_eq!(only(GroupRoots { own: Cell::value(NOWHERE), ..all }), None);
        assert_eq!(only(GroupRoots { is_large: true, ..all }), None);
    }
}
