use std::fmt::Write as _;

use tortie_telemetry::escape;

/// Cells are escaped, so that none begins a line.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let escaped = |row: &Vec<String>| row.iter().map(|cell| escape::line(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(escaped).collect();
    let width = |n: usize| rows.iter().filter_map(|row| row.get(n)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or(0)).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:width$}   ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

pub(super) fn table(titles: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let titles = titles.iter().map(|title| (*title).to_owned()).collect();
    aligned(&std::iter::once(titles).chain(rows).collect::<Vec<_>>())
}
