//! The printed table: a row for each measure, a column for each back end and program.

use std::fmt::Write as _;

/// Measures of one program with one back end, in order.
#[derive(Debug, Default)]
pub(crate) struct Column {
    pub(crate) title: String,
    measures: Vec<Measure>,
}

#[derive(Clone, Copy, Debug)]
struct Measure {
    row: &'static str,
    digits: usize,
    value: f64,
}

impl Column {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), measures: Vec::new() }
    }

    /// Adds a measure, printed with this number of decimal places.
    pub(crate) fn add(&mut self, row: &'static str, digits: usize, value: f64) {
        self.measures.push(Measure { row, digits, value });
    }

    fn get(&self, row: &str) -> Option<Measure> {
        self.measures.iter().find(|measure| measure.row == row).copied()
    }

    /// Returns the values of another program as multiples of these.
    pub(crate) fn ratios(&self, other: &Self) -> Self {
        let ratio = |one: &Measure| Some(Measure { digits: 1, value: other.get(one.row)?.value / one.value, ..*one });
        let measures = self.measures.iter().filter_map(ratio).filter(|ratio| ratio.value.is_finite()).collect();
        Self { title: "ratio".to_owned(), measures }
    }
}

/// Returns the table. Rows have the order of the first column that has them.
pub(crate) fn table(columns: &[Column]) -> String {
    let mut rows: Vec<&str> = Vec::new();
    for measure in columns.iter().flat_map(|column| &column.measures) {
        if !rows.contains(&measure.row) {
            rows.push(measure.row);
        }
    }
    let titles: Vec<&str> = columns.iter().map(|column| column.title.as_str()).collect();
    let mut text = format!("| | {} |\n|---|{}\n", titles.join(" | "), "---|".repeat(columns.len()));
    for row in rows {
        let cell = |column: &Column| {
            column.get(row).map_or_else(|| "–".to_owned(), |Measure { digits, value, .. }| format!("{value:.digits$}"))
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        writeln!(text, "| {row} | {} |", cells.join(" | ")).expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_measure_is_a_dash_and_a_ratio_is_of_the_same_row() {
        let (mut tortie, mut felix) = (Column::new("nftables"), Column::new("Felix"));
        tortie.add("first start, s", 2, 2.0);
        tortie.add("writes", 0, 0.0);
        felix.add("first start, s", 2, 5.0);
        felix.add("writes", 0, 3.0);
        tortie.add("idle, s", 2, 0.5);
        let ratios = tortie.ratios(&felix);
        assert_eq!(
            table(&[tortie, felix, ratios]),
            "| | nftables | Felix | ratio |
|---|---|---|---|
| first start, s | 2.00 | 5.00 | 2.5 |
| writes | 0 | 3 | – |
| idle, s | 0.50 | – | – |
"
        );
    }
}
