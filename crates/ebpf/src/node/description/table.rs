//! Human-readable table of a group.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tortie_classes::evaluate::{DecidedBy, Verdict};
use tortie_classes::{ClassId, Row, TableView};
use tortie_model::Family;

use super::{ClassNumbers, short};

/// Maximum number of cells of a table that is shown.
const MAX_SHOWN: usize = 1 << 16;

/// Table as shown: rows and columns are numbered from 1, and rows with equal cells are merged.
#[derive(Clone, Debug)]
pub(super) struct TableText {
    own_rows: Vec<(Row, String)>,
    peer_rows: Vec<(Row, String)>,
    columns: Vec<String>,
    source_ports: Vec<String>,
    /// Rows of this end with their common lines; the number of cells if there are too many to show.
    cells: Result<Cells, usize>,
}

type Cells = Vec<(Vec<usize>, Vec<Line>)>;

/// Rows of the peer, and the content of their cells.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    peer: Vec<usize>,
    decided: Vec<Decided>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Decided {
    /// Columns by the column of the source port.
    columns: Vec<(usize, Vec<usize>)>,
    verdict: String,
}

impl TableText {
    pub(super) fn new(table: &TableView<'_>, classes: &ClassNumbers) -> Self {
        let own = rows(table.own_rows(), &table.own_classes(), |family| table.own_rest(family), classes);
        let peer = rows(table.peer_rows(), &table.peer_classes(), |family| table.peer_rest(family), classes);
        let is_shown = table.cell_count() <= MAX_SHOWN;
        let cells = is_shown.then(|| cells(table, &own, &peer)).flatten();
        Self {
            own_rows: own,
            peer_rows: peer,
            columns: (1..=table.l4_columns()).map(|place| column(table, place % table.l4_columns())).collect(),
            source_ports: source_ports(table),
            cells: cells.ok_or_else(|| table.cell_count()),
        }
    }
}

impl TableText {
    /// Returns the number and text of a row of this end.
    pub(super) fn own_row(&self, row: Row) -> Option<(usize, &str)> {
        numbered(&self.own_rows, row)
    }

    /// Returns the number and text of a row of the peer's end.
    pub(super) fn peer_row(&self, row: Row) -> Option<(usize, &str)> {
        numbered(&self.peer_rows, row)
    }

    /// Returns the number and text of a column.
    pub(super) fn column(&self, column: usize) -> Option<(usize, &str)> {
        let number = shown_at(column, self.columns.len());
        Some((number, self.columns.get(number - 1)?))
    }

    /// Returns the number and text of a source port column; `None` if source ports do not matter.
    pub(super) fn source_port(&self, column: usize) -> Option<(usize, &str)> {
        let number = shown_at(column, self.source_ports.len());
        let text = self.source_ports.get(number.checked_sub(1)?)?;
        (self.source_ports.len() > 1).then_some((number, text))
    }
}

fn numbered(rows: &[(Row, String)], row: Row) -> Option<(usize, &str)> {
    let place = rows.iter().position(|(of, _)| *of == row)?;
    Some((place + 1, &rows.get(place)?.1))
}

/// Returns the merged cells; `None` if the computation exceeds the work limit.
fn cells(table: &TableView<'_>, own: &[(Row, String)], peer: &[(Row, String)]) -> Option<Cells> {
    let mut lines = table.lines();
    let mut cells = Cells::new();
    for (own_number, (own_row, _)) in (1..).zip(own) {
        let mut of_row: Vec<Line> = Vec::new();
        for (peer_number, (peer_row, _)) in (1..).zip(peer) {
            let decided = decided(table, &lines.stretches(*own_row, *peer_row)?);
            match of_row.iter_mut().find(|line| line.decided == decided) {
                Some(line) => line.peer.push(peer_number),
                None => of_row.push(Line { peer: vec![peer_number], decided }),
            }
        }
        match cells.iter_mut().find(|(_, lines)| *lines == of_row) {
            Some((own, _)) => own.push(own_number),
            None => cells.push((vec![own_number], of_row)),
        }
    }
    Some(cells)
}

/// Returns the shown number of a column, from 1. The first column, which most packets have, is
/// shown last.
fn shown_at(column: usize, columns: usize) -> usize {
    if column == 0 { columns } else { column }
}

/// Returns the packets of a column; separately for IPv4 and IPv6 if they differ.
fn column(table: &TableView<'_>, column: usize) -> String {
    let mut texts: Vec<String> = Vec::new();
    for family in Family::ALL {
        let text = table.traffic(column, family).to_string();
        if !text.is_empty() && !texts.contains(&text) {
            texts.push(text);
        }
    }
    match &texts[..] {
        [] => "no packets".to_owned(),
        [text] => text.clone(),
        [v4, v6, ..] => format!("{v4}; of IPv6 {v6}"),
    }
}

fn source_ports(table: &TableView<'_>) -> Vec<String> {
    let count = table.source_port_columns();
    let mut texts: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let stretches: Vec<(Option<u16>, usize)> = table.source_port_stretches().collect();
    let ends = stretches.iter().skip(1).map(|(next, _)| next.map_or(0, u32::from)).chain([1 << 16]);
    for ((first, column), end) in stretches.iter().zip(ends) {
        let texts = texts.entry(shown_at(*column, count)).or_default();
        let mut first = first.map(u32::from);
        if first.is_none() {
            texts.push("none".to_owned());
            first = Some(0);
        }
        match first.map(|first| (first, end)) {
            Some((first, end)) if first + 1 == end => texts.push(first.to_string()),
            Some((first, end)) if first < end => texts.push(format!("{first}-{}", end - 1)),
            _ => {}
        }
    }
    texts.into_values().map(|texts| texts.join(", ")).collect()
}

/// Returns the cells of a line by decision, in the order of the first column of each.
fn decided(table: &TableView<'_>, stretches: &[(usize, usize)]) -> Vec<Decided> {
    let (columns, source_ports) = (table.l4_columns().max(1), table.source_port_columns());
    let mut cells: BTreeMap<usize, BTreeMap<usize, BTreeSet<usize>>> = BTreeMap::new();
    let ends = stretches.iter().skip(1).map(|(start, _)| *start).chain([columns * source_ports]);
    for ((start, decision), end) in stretches.iter().zip(ends) {
        for cell in *start..end {
            let of_port = cells.entry(*decision).or_default().entry(shown_at(cell / columns, source_ports));
            of_port.or_default().insert(shown_at(cell % columns, columns));
        }
    }
    let mut decided: Vec<Decided> = Vec::new();
    for (decision, columns) in cells {
        let verdict = table
            .decisions()
            .get(decision)
            .map_or_else(|| "deny".to_owned(), |(verdict, by)| verdict_text(*verdict, by));
        let columns = columns.into_iter().map(|(port, columns)| (port, columns.into_iter().collect()));
        decided.push(Decided { columns: columns.collect(), verdict });
    }
    decided.sort_by(|one, other| one.columns.cmp(&other.columns));
    decided
}

fn verdict_text(verdict: Verdict, by: &DecidedBy) -> String {
    let verdict = match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
        Verdict::Undecided => "undecided",
    };
    let by = match by {
        DecidedBy::PolicyRule { policy, index, .. } => format!("{policy} rule {index}"),
        DecidedBy::EndOfTier { tier } => format!("end of tier {tier}"),
        DecidedBy::ProfileRule { profile, index } => format!("profile {profile} rule {index}"),
        DecidedBy::EndOfProfiles => "no profile allows it".to_owned(),
        DecidedBy::NoForwardPolicy => "no policy of forwarded packets".to_owned(),
        DecidedBy::Nothing => "nothing".to_owned(),
        other => format!("{other:?}"),
    };
    format!("{verdict}: {by}")
}

/// Returns the rows of one end, with their classes.
fn rows(
    rows: impl Iterator<Item = Row>,
    classes: &[(ClassId, Row)],
    rest: impl Fn(Family) -> Row,
    numbers: &ClassNumbers,
) -> Vec<(Row, String)> {
    let rest = Family::ALL.map(|family| (family, rest(family)));
    let mut of_row: BTreeMap<Row, BTreeSet<usize>> = BTreeMap::new();
    for (class, row) in classes {
        of_row.entry(*row).or_default().extend(numbers.get(class));
    }
    let mut found: Vec<(bool, usize, String, Row)> = Vec::new();
    for row in rows {
        let families: Vec<Family> = rest.iter().filter(|(_, rest)| *rest == row).map(|(of, _)| *of).collect();
        let classes: Vec<usize> = of_row.remove(&row).unwrap_or_default().into_iter().collect();
        let first = classes.first().copied().unwrap_or(usize::MAX);
        // Classes in the row of all other addresses are not listed.
        let text = match &families[..] {
            [] => format!("{} {}", if classes.len() == 1 { "class" } else { "classes" }, short(&classes)),
            [family] => format!("all other IPv{} addresses", family.number()),
            _ => "all other addresses".to_owned(),
        };
        found.push((!families.is_empty(), first, text, row));
    }
    if found.iter().all(|(is_rest, ..)| *is_rest) {
        // There are no other rows.
        found.iter_mut().for_each(|(_, _, text, _)| *text = text.replace("all other ", "all "));
    }
    found.sort_unstable();
    found.into_iter().map(|(_, _, text, row)| (row, text)).collect()
}

impl fmt::Display for TableText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (has_own, has_ports) = (self.own_rows.len() > 1, self.source_ports.len() > 1);
        if has_own {
            list(f, "own rows", self.own_rows.iter().map(|(_, text)| text))?;
        }
        list(f, "rows", self.peer_rows.iter().map(|(_, text)| text))?;
        list(f, "columns", self.columns.iter())?;
        if has_ports {
            list(f, "source ports", self.source_ports.iter())?;
        }
        let cells = match &self.cells {
            Ok(cells) => cells,
            Err(count) => return writeln!(f, "  cells: {count}, too many to be shown"),
        };
        writeln!(f, "  cells")?;
        for (own, lines) in cells {
            let own = if has_own { format!("own row {}, ", ranges(own)) } else { String::new() };
            for (peer, decided) in lines.iter().flat_map(|line| line.decided.iter().map(|of| (&line.peer, of))) {
                for (port, columns) in &decided.columns {
                    let port = if has_ports { format!(", source ports {port}") } else { String::new() };
                    writeln!(
                        f,
                        "    {own}row {}, column {}{port}: {}",
                        ranges(peer),
                        ranges(columns),
                        decided.verdict
                    )?;
                }
            }
        }
        Ok(())
    }
}

fn list<'a>(f: &mut fmt::Formatter<'_>, heading: &str, mut entries: impl Iterator<Item = &'a String>) -> fmt::Result {
    writeln!(f, "  {heading}")?;
    let mut number = 0;
    entries.try_for_each(|text| {
        number += 1;
        writeln!(f, "    {number}: {text}")
    })
}

/// Returns ascending numbers as text, with runs of consecutive ones merged: `1, 3-5`.
fn ranges(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): (usize, usize)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(", ")
}
