//! Tries of a group.

use tortie_classes::{ClassId, Compiled, Row, TableView};
use tortie_model::{Direction, Family};

use crate::blocks::{Assignment, Blocks, CELLS, Cell};
use crate::group_roots::{CLASSES, GroupRoots, NOWHERE, Shortcuts, family_bit};
use crate::tables::class_numbers::ClassNumbers;
use crate::tables::decisions::{DecisionId, Decisions};
use crate::tables::keys::{l4_trees, source_port_tree};
use crate::tables::{Closed, Limits, SMALL};

/// From this number of changed classes on, all rows are rebuilt, which costs less.
const MANY_CLASSES: usize = 64;
/// Maximum number of ranges of equal decisions in one table: 32 MB while the table is built.
const MAX_STRETCHES: usize = 1 << 21;
/// Maximum number of starts that a table keeps for the next edit: 2 MB. An edit of a larger table
/// builds its tries anew.
const MOST_KEPT: usize = 1 << 18;

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
    offsets: RowOffsets,
    /// Whether a rule has learned destinations.
    pub(super) learns: bool,
    /// Starts of the values of cells in a large table, of which an edit rebuilds only the blocks
    /// with other ones; empty for other tables, and beyond [`MOST_KEPT`].
    starts: Vec<(u32, u32)>,
}

/// Numbers of the first cells of rows. The sum for both ends is the first cell of a line.
#[derive(Debug)]
struct RowOffsets {
    own: Offsets,
    peer: Offsets,
}

/// Numbers of the first cells of the rows of one end, indexed by row; [`NOWHERE`] without a row.
#[derive(Debug)]
struct Offsets(Box<[u32]>);

impl Offsets {
    #[expect(clippy::indexing_slicing, reason = "the list has a place for each of the rows")]
    fn new(rows: &[Row], stride: usize) -> Self {
        let extent = rows.iter().map(|row| row.number() as usize + 1).max().unwrap_or(0);
        let mut offsets = vec![NOWHERE; extent];
        rows.iter()
            .zip(0..)
            .for_each(|(row, at): (_, usize)| offsets[row.number() as usize] = cell_number(at * stride));
        Self(offsets.into())
    }

    fn place(&self, row: Option<Row>) -> u32 {
        row.and_then(|row| self.0.get(row.number() as usize).copied()).unwrap_or(NOWHERE)
    }
}

/// Rows of a table, in the order of their offsets.
struct OrderedRows {
    own: Vec<Row>,
    peer: Vec<Row>,
    /// Number of cells of a line.
    line: usize,
}

impl OrderedRows {
    fn new(table: &TableView<'_>) -> Self {
        Self { own: table.own_rows().collect(), peer: table.peer_rows().collect(), line: line_length(table) }
    }

    /// Returns the number of cells, including those that pad lines to whole blocks.
    fn cells(&self) -> usize {
        self.own.len().saturating_mul(self.peer.len()).saturating_mul(self.line)
    }

    /// A cell number consists of the own end's row, the peer's row, the source port and the column,
    /// from the most significant to the least. The number of cells must be within
    /// [`Limits::cells`].
    fn offsets(&self) -> RowOffsets {
        let own_stride = self.line * self.peer.len();
        RowOffsets { own: Offsets::new(&self.own, own_stride), peer: Offsets::new(&self.peer, self.line) }
    }
}

/// Rows of one end.
struct Rows<'a> {
    offsets: &'a Offsets,
    rest: [u32; 2],
}

impl<'a> Rows<'a> {
    fn new(offsets: &'a Offsets, rest: impl Fn(Family) -> Row) -> Self {
        Self { offsets, rest: Family::ALL.map(|family| offsets.place(Some(rest(family)))) }
    }

    fn rest(&self, family: Family) -> u32 {
        let [v4, v6] = self.rest;
        if family == Family::V4 { v4 } else { v6 }
    }

    fn place(&self, row: Option<Row>) -> u32 {
        self.offsets.place(row)
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
        let mut others: Vec<(u32, u32)> = Vec::new();
        for (class, row) in classes {
            let family = of.compiled.family_of(*class).expect("a class of a table has a family");
            let value = self.place(Some(*row));
            if value != self.rest(family) {
                others.push((of.numbers.value(*class, family), value));
            }
        }
        others.sort_unstable();
        // The highest bit of a class is the family.
        let mut starts: Vec<(u32, u32)> = Vec::with_capacity(2 * others.len() + 2);
        let mut others = others.into_iter().peekable();
        for family in Family::ALL {
            let bit = family_bit(family);
            starts.push((bit, self.rest(family)));
            while let Some((number, value)) = others.next_if(|(number, _)| *number & CLASSES == bit) {
                starts.extend([(number, value), (number + 1, self.rest(family))]);
            }
        }
        blocks.ranges(&starts, 3, None)
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
    /// Returns the tries of a table, all of them new uses. `before` are those of the same group at
    /// the last update.
    pub(super) fn new(
        of: NumberedClasses<'_>,
        (direction, table, limits): (Direction, &TableView<'_>, &Limits),
        before: Option<&Self>,
        blocks: &mut Blocks,
        decisions: &mut Decisions,
    ) -> Result<Self, Closed> {
        let is_large = table.cell_count() > SMALL;
        let rows = OrderedRows::new(table);
        let too_many = || Closed::TooManyCells(table.cell_count());
        if rows.cells() >= limits.cells as usize {
            return Err(too_many());
        }
        let offsets = rows.offsets();
        let own = Rows::new(&offsets.own, |family| table.own_rest(family));
        let peer = Rows::new(&offsets.peer, |family| table.peer_rest(family));
        let (own_classes, peer_classes) = (table.own_classes(), table.peer_classes());
        if own.needs_more_numbers(&own_classes, of) || peer.needs_more_numbers(&peer_classes, of) {
            return Err(Closed::TooManyClasses(limits.classes));
        }
        let stretches = stretches(table, &rows, limits.work).ok_or_else(too_many)?;
        let values = vec![None; table.decisions().len()];
        let mut used = Used { direction, table, decisions, values, used: Vec::new() };
        let value = |(start, decided)| (start, used.value(decided));
        let mut starts: Vec<(u32, u32)> = stretches.into_iter().map(value).collect();
        starts.push((cell_number(rows.cells()), 0));
        let decisions = used.used;
        let before = before.filter(|before| is_large && before.roots.is_large && !before.starts.is_empty());
        let before = before.map(|before| (&before.starts[..], before.roots.cells));
        let cells = blocks.ranges(&starts, if is_large { 4 } else { 2 }, before);
        if !is_large || starts.len() > MOST_KEPT {
            starts.clear();
        }
        starts.shrink_to_fit();
        let own = own.tree(&own_classes, of, blocks);
        let peer = peer.tree(&peer_classes, of, blocks);
        let roots = GroupRoots { own, peer, cells, is_large, ..roots_of_columns(table, blocks) };
        let of_columns = [roots.details, roots.protocols, roots.source_ports];
        let fixed = blocks.count(cells) as u64 + of_columns.map(|root| paths(blocks, root)).iter().sum::<u64>();
        Ok(Self { roots: roots.with_shortcuts(blocks), decisions, fixed, offsets, learns: table.learns(), starts })
    }

    /// Returns the maximum number of blocks of the tries, without sharing with other groups.
    pub(super) fn charge(&self, blocks: &Blocks) -> u64 {
        self.fixed + paths(blocks, self.roots.own) + paths(blocks, self.roots.peer)
    }

    /// Returns the maximum number of blocks that the tries from classes to rows would take.
    pub(super) fn charge_of_rows(of: NumberedClasses<'_>, table: &TableView<'_>, blocks: &mut Blocks) -> u64 {
        let offsets = OrderedRows::new(table).offsets();
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
        let own = Rows::new(&self.offsets.own, |family| table.own_rest(family));
        let peer = Rows::new(&self.offsets.peer, |family| table.peer_rest(family));
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

/// Returns the tries from protocols and ports to columns, and no others.
fn roots_of_columns(table: &TableView<'_>, blocks: &mut Blocks) -> GroupRoots {
    let columns = table.l4_stretches().map(|(protocol, detail, column)| (protocol, detail, cell_number(column)));
    let [details, protocols] = l4_trees(columns, blocks);
    let port_stride = table.l4_columns();
    let ports = table.source_port_stretches().map(|(port, column)| (port, cell_number(column * port_stride)));
    let (source_ports, no_source_port) = source_port_tree(ports, blocks);
    GroupRoots {
        own: Cell::value(NOWHERE),
        peer: Cell::value(NOWHERE),
        details,
        protocols,
        source_ports,
        no_source_port: Cell::value(no_source_port),
        cells: Cell::value(0),
        is_large: false,
        shortcuts: Shortcuts::default(),
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

/// Returns the start of each range of cells with one decision, in order, and the index of the
/// decision in the table; `None` if the computation exceeds `max_work`.
fn stretches(table: &TableView<'_>, rows: &OrderedRows, max_work: usize) -> Option<Vec<(u32, usize)>> {
    let mut lines = table.lines().with_max_work(max_work);
    let mut starts: Vec<(u32, usize)> = Vec::new();
    let mut line = 0;
    for own in &rows.own {
        for peer in &rows.peer {
            if starts.len() > MAX_STRETCHES {
                return None;
            }
            for (start, decided) in lines.stretches(*own, *peer)? {
                if starts.last().is_none_or(|(_, last)| *last != decided) {
                    starts.push((cell_number(line + start), decided));
                }
            }
            line += rows.line;
        }
    }
    Some(starts)
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
