//! Tries of a group.

use ahash::AHashMap;
use tortie_classes::{ClassId, Compiled, Row, TableView};
use tortie_model::{Direction, Family};

use crate::blocks::{Assignment, Blocks, CELLS, Cell};
use crate::group_roots::{GroupRoots, NOWHERE, Shortcuts, family_bit};
use crate::tables::class_numbers::ClassNumbers;
use crate::tables::decisions::{DecisionId, Decisions};
use crate::tables::keys::{l4_trees, numbered_tree, source_port_tree};
use crate::tables::{Closed, Limits, SMALL};

/// From this number of changed classes on, all rows are rebuilt, which costs less.
const MANY_CLASSES: usize = 64;
/// Maximum number of ranges of equal decisions in one table: 32 MB while the table is built.
const MAX_STRETCHES: usize = 1 << 21;

/// Address classes with their numbers in tries.
#[derive(Clone, Copy)]
pub(super) struct NumberedClasses<'a> {
    pub(super) compiled: &'a Compiled<'a>,
    pub(super) numbers: &'a ClassNumbers,
}

/// Tries and the decisions that they lead to, all of them in use.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) roots: GroupRoots,
    decisions: Vec<DecisionId>,
    /// Blocks of the tries that do not depend on addresses.
    pub(super) fixed: u64,
}

/// Numbers of the first cells of rows. The sum for both ends is the first cell of a line.
struct RowOffsets {
    own: AHashMap<Row, u32>,
    peer: AHashMap<Row, u32>,
}

impl RowOffsets {
    /// A cell number consists of the own end's row, the peer's row, the source port and the column,
    /// from the most significant to the least.
    fn new(table: &TableView<'_>) -> Self {
        let offsets = |rows: Vec<Row>, stride: usize| -> AHashMap<Row, u32> {
            rows.into_iter().zip((0..).map(|row: usize| cell_number(row * stride))).collect()
        };
        let line = line_length(table);
        let peer: Vec<Row> = table.peer_rows().collect();
        let own_stride = line * peer.len();
        Self { own: offsets(table.own_rows().collect(), own_stride), peer: offsets(peer, line) }
    }
}

/// Rows of one end.
struct Rows<'a> {
    offsets: &'a AHashMap<Row, u32>,
    rest: [u32; 2],
}

impl<'a> Rows<'a> {
    #[expect(clippy::expect_used, reason = "an axis has a row for addresses of a family that no rule distinguishes")]
    fn new(offsets: &'a AHashMap<Row, u32>, rest: impl Fn(Family) -> Row) -> Self {
        let place = |family| *offsets.get(&rest(family)).expect("the row of the rest is a row");
        Self { offsets, rest: Family::ALL.map(place) }
    }

    fn rest(&self, family: Family) -> u32 {
        let [v4, v6] = self.rest;
        if family == Family::V4 { v4 } else { v6 }
    }

    fn place(&self, row: Option<Row>) -> u32 {
        row.and_then(|row| self.offsets.get(&row).copied()).unwrap_or(NOWHERE)
    }

    /// Reports whether a class that shares its number has another row than the default of its
    /// family.
    fn needs_more_numbers(&self, classes: &[(ClassId, Row)], of: NumberedClasses<'_>) -> bool {
        let has_own_row = |(class, row): &(ClassId, Row)| {
            let rest = of.compiled.family_of(*class).map(|family| self.rest(family));
            rest.is_some_and(|rest| rest != self.place(Some(*row)))
        };
        classes.iter().filter(|(class, _)| of.numbers.is_beyond(*class)).any(has_own_row)
    }

    /// Returns the trie from classes to rows.
    #[expect(clippy::expect_used, reason = "a table has the classes of the same flush")]
    fn tree(&self, classes: &[(ClassId, Row)], of: NumberedClasses<'_>, blocks: &mut Blocks) -> Cell {
        let mut others: Vec<([u8; 4], u32)> = Vec::new();
        for (class, row) in classes {
            let family = of.compiled.family_of(*class).expect("a class of a table has a family");
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

    /// Returns the trie with other rows for some class numbers.
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
    /// Returns the tries of a table, all of them new uses.
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
        let offsets = RowOffsets::new(table);
        let own = Rows::new(&offsets.own, |family| table.own_rest(family));
        let peer = Rows::new(&offsets.peer, |family| table.peer_rest(family));
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
        let columns = table.l4_stretches().map(|(protocol, detail, column)| (protocol, detail, cell_number(column)));
        let [details, protocols] = l4_trees(columns, blocks);
        let port_stride = table.l4_columns();
        let ports = table.source_port_stretches().map(|(port, column)| (port, cell_number(column * port_stride)));
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
            + [details, protocols, source_ports].map(|root| paths(blocks, root)).iter().sum::<u64>();
        Ok(Self { roots: roots.with_shortcuts(blocks), decisions: used, fixed })
    }

    /// Returns the maximum number of blocks of the tries, without sharing with other groups.
    pub(super) fn charge(&self, blocks: &Blocks) -> u64 {
        self.fixed + paths(blocks, self.roots.own) + paths(blocks, self.roots.peer)
    }

    /// Returns the maximum number of blocks that the tries from classes to rows would take.
    pub(super) fn charge_of_rows(of: NumberedClasses<'_>, table: &TableView<'_>, blocks: &mut Blocks) -> u64 {
        let offsets = RowOffsets::new(table);
        let own = Rows::new(&offsets.own, |family| table.own_rest(family));
        let peer = Rows::new(&offsets.peer, |family| table.peer_rest(family));
        let trees = [own.tree(&table.own_classes(), of, blocks), peer.tree(&table.peer_classes(), of, blocks)];
        let charge = trees.map(|root| paths(blocks, root)).iter().sum();
        trees.into_iter().for_each(|root| blocks.release(root));
        charge
    }

    /// Gives the numbers of some classes their new rows. The table is unchanged otherwise.
    pub(super) fn change_rows(
        &mut self,
        classes: &[ClassId],
        of: NumberedClasses<'_>,
        table: &TableView<'_>,
        blocks: &mut Blocks,
    ) {
        let offsets = RowOffsets::new(table);
        let own = Rows::new(&offsets.own, |family| table.own_rest(family));
        let peer = Rows::new(&offsets.peer, |family| table.peer_rest(family));
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

    /// Ends its uses of tries and decisions.
    pub(super) fn release(self, blocks: &mut Blocks, decisions: &mut Decisions) {
        self.roots.cells().into_iter().for_each(|root| blocks.release(root));
        self.decisions.into_iter().for_each(|decision| decisions.release(decision));
    }
}

fn paths(blocks: &Blocks, root: Cell) -> u64 {
    blocks.paths(root).into()
}

/// Returns the number of cell numbers for each pair of rows. In large tables, lines begin at block
/// boundaries, so that equal lines share their blocks.
fn line_length(table: &TableView<'_>) -> usize {
    let columns = table.l4_columns().saturating_mul(table.source_port_columns());
    if table.cell_count() > SMALL { columns.next_multiple_of(CELLS) } else { columns }
}

/// Returns the number of a cell of a table that is within [`Limits::cells`].
#[expect(clippy::expect_used, reason = "a larger table is refused before its cells are numbered")]
fn cell_number(cell: usize) -> u32 {
    u32::try_from(cell).expect("numbers of cells have 31 bits")
}

/// Returns the begin and end of each range of cells with one decision, in order, and the index of
/// the decision in the table; `None` if the computation exceeds `max_work`.
fn stretches(table: &TableView<'_>, max_work: usize) -> Option<Vec<(u32, u32, usize)>> {
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
                    starts.push((cell_number(line + start), decided));
                }
            }
            line += length;
        }
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([cell_number(line)]);
    Some(starts.iter().zip(ends).map(|((start, decided), end)| (*start, end, *decided)).collect())
}

/// Decisions of a table that are in its cells.
struct Used<'a> {
    direction: Direction,
    table: &'a TableView<'a>,
    decisions: &'a mut Decisions,
    /// Cell values, indexed like the table's decisions.
    values: Vec<Option<u32>>,
    used: Vec<DecisionId>,
}

impl Used<'_> {
    #[expect(clippy::expect_used, reason = "a table's cells lead to its decisions")]
    fn value(&mut self, decided: usize) -> u32 {
        let Self { direction, table, decisions, values, used } = self;
        let of_table = values.get_mut(decided).zip(table.decisions().get(decided));
        let (value, (verdict, by)) = of_table.expect("a cell has a decision of its table");
        *value.get_or_insert_with(|| {
            let id = decisions.acquire(*direction, *verdict, by);
            used.push(id);
            id.to_cell(*verdict)
        })
    }
}
