//! Reachability between pods, as a table.

use std::fmt::Write;

use super::DemoError;
use super::manifests::{Pod, number_and_protocol};
use crate::pods::{Family, Flow, FlowOutcome, Reachability};

/// Outcome of an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The right server answered.
    Answered,
    /// No answer.
    Silent,
    /// Refused by a TCP reset or an ICMP error.
    Refused,
}

/// Outcomes of an attempt in both families; `None` if one of the two pods has no address of the
/// family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    /// Over IPv4.
    pub(super) v4: Option<Reach>,
    /// Over IPv6.
    pub(super) v6: Option<Reach>,
}

impl Cell {
    fn text(self) -> String {
        let symbol = |reach, answered| match reach {
            None => ' ',
            Some(Reach::Answered) => answered,
            Some(Reach::Silent) => '-',
            Some(Reach::Refused) => 'x',
        };
        format!("{} {}", symbol(self.v4, '4'), symbol(self.v6, '6'))
    }

    fn attempts(self) -> impl Iterator<Item = Reach> {
        [self.v4, self.v6].into_iter().flatten()
    }
}

/// A served port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    /// The serving pod.
    pub(super) pod: String,
    /// Number and protocol.
    pub(super) port: String,
}

/// Outcomes of the attempts from each pod to each served port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    /// Source pods, each with a cell per column; `None` for its own ports.
    pub(super) rows: Vec<(String, Vec<Option<Cell>>)>,
    /// Destination ports.
    pub(super) columns: Vec<Column>,
}

/// Meaning of the symbols.
const LEGEND: &str = "4 answers over IPv4   6 answers over IPv6   - no answer";
const REFUSED: &str = "   x refused";
const CHANGED: &str = "   [ ] changed";

/// Escape sequences of a terminal, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colors {
    /// Plain text.
    Off,
    /// Green for an answer, red for none.
    On,
}

impl Colors {
    /// Returns `text` in bold.
    pub(super) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Self::Off => text.to_owned(),
            Self::On => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

impl Matrix {
    /// Returns the matrix of a measurement between these pods.
    pub(super) fn new(pods: &[Pod], measured: &Reachability) -> Result<Self, DemoError> {
        let targets: Vec<_> = pods.iter().flat_map(|pod| pod.ports.iter().map(move |(_, port)| (pod, *port))).collect();
        let mut rows = Vec::new();
        for from in pods {
            let mut cells = Vec::new();
            for (to, port) in &targets {
                let mut cell = Cell::default();
                for (family, reach) in [(Family::V4, &mut cell.v4), (Family::V6, &mut cell.v6)] {
                    let flow = Flow { family, port: *port, from: from.place.clone(), to: to.place.clone() };
                    *reach = match measured.outcome(&flow) {
                        None => None,
                        Some(FlowOutcome::Reached) => Some(Reach::Answered),
                        Some(FlowOutcome::Silent) => Some(Reach::Silent),
                        Some(FlowOutcome::Refused(_)) => Some(Reach::Refused),
                        Some(FlowOutcome::WrongServer(server)) => {
                            return Err(DemoError::WrongServer { flow: flow.into(), server: server.clone() });
                        }
                    };
                }
                cells.push((to.place != from.place).then_some(cell));
            }
            rows.push((from.place.to_string(), cells));
        }
        let column = |(pod, port): &(&Pod, _)| Column { pod: pod.place.to_string(), port: number_and_protocol(*port) };
        Ok(Self { rows, columns: targets.iter().map(column).collect() })
    }

    /// Returns the table with its legend. Cells that differ from `before` are in brackets.
    pub(super) fn render(&self, before: Option<&Self>, colors: Colors) -> String {
        let first = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max("from \\ to".len());
        let widths: Vec<usize> =
            self.columns.iter().map(|c| (1 + c.pod.len().max(c.port.len())).max("[4 6]".len())).collect();
        let mut text = String::new();
        let mut line = |head: &str, cells: Vec<String>, shown: Option<Vec<String>>| {
            let mut line = format!("   {head:<first$}");
            for (at, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                let shown = shown.as_ref().and_then(|shown| shown.get(at)).unwrap_or(cell);
                let _ = write!(line, "  {shown}{}", " ".repeat(width.saturating_sub(cell.len())));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        };
        line("from \\ to", self.columns.iter().map(|column| format!(" {}", column.pod)).collect(), None);
        line("", self.columns.iter().map(|column| format!(" {}", column.port)).collect(), None);
        for (row, (name, cells)) in self.rows.iter().enumerate() {
            let texts: Vec<(String, String)> = cells
                .iter()
                .enumerate()
                .map(|(column, cell)| cell_text(*cell, before.and_then(|before| before.cell(row, column)), colors))
                .collect();
            let (plain, shown) = texts.into_iter().unzip();
            line(name, plain, Some(shown));
        }
        text.push_str("\n   ");
        text.push_str(LEGEND);
        if self.rows.iter().flat_map(|(_, cells)| cells).flatten().any(|c| c.attempts().any(|r| r == Reach::Refused)) {
            text.push_str(REFUSED);
        }
        if before.is_some_and(|before| before != self) {
            text.push_str(CHANGED);
        }
        text.push('\n');
        text
    }

    /// Returns the cells that differ from `before`, a line each: source, destination, and present
    /// outcome.
    pub(super) fn changes(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        for (row, (name, cells)) in self.rows.iter().enumerate() {
            for (column, (cell, target)) in cells.iter().zip(&self.columns).enumerate() {
                if let (Some(now), Some(then)) = (cell, before.cell(row, column))
                    && *now != then
                {
                    changes.push(format!("{name} -> {} {}: {}", target.pod, target.port, difference(then, *now)));
                }
            }
        }
        changes
    }

    fn cell(&self, row: usize, column: usize) -> Option<Cell> {
        *self.rows.get(row)?.1.get(column)?
    }
}

/// Returns a cell as plain text, to measure its width, and as shown.
fn cell_text(cell: Option<Cell>, before: Option<Cell>, colors: Colors) -> (String, String) {
    let Some(cell) = cell else { return (" self".into(), colors.paint("2", " self")) };
    let (left, right) = if before.is_some_and(|before| before != cell) { ('[', ']') } else { (' ', ' ') };
    let text = cell.text();
    let code = if cell.attempts().any(|reach| reach == Reach::Answered) { "32" } else { "31" };
    (format!("{left}{text}{right}"), format!("{left}{}{right}", colors.paint(code, &text)))
}

fn difference(then: Cell, now: Cell) -> String {
    let word = |reach| match reach {
        Reach::Answered => "open",
        Reach::Silent => "dropped",
        Reach::Refused => "refused",
    };
    let words: Vec<String> = [("IPv4", then.v4, now.v4), ("IPv6", then.v6, now.v6)]
        .into_iter()
        .filter(|(_, then, now)| then != now)
        .filter_map(|(family, _, now)| Some(format!("{} over {family}", word(now?))))
        .collect();
    words.join(", ")
}

#[cfg(test)]
mod tests;
