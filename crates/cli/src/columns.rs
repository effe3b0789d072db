use std::fmt::Write as _;

use tortie_telemetry::escape;

/// Cells are escaped, so that none begins a line.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    aligned_to(rows, &mut Vec::new())
}

/// As [`aligned`]; columns are at least as wide as those of earlier rows.
pub(super) fn aligned_to(rows: &[Vec<String>], widths: &mut Vec<usize>) -> String {
    let escaped = |row: &Vec<String>| row.iter().map(|cell| escape::line(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(escaped).collect();
    let width = |n: usize| rows.iter().filter_map(|row| row.get(n)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    widths.resize(rows.iter().map(Vec::len).chain([widths.len()]).max().unwrap_or(0), 0);
    widths.iter_mut().enumerate().for_each(|(n, known)| *known = width(n).max(*known));
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&*widths) {
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
