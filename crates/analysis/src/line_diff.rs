//! Differences of texts by lines.

use std::fmt::Write as _;

const CONTEXT: usize = 3;
/// Maximum number of comparisons for a minimal difference.
const MAX_COMPARISONS: usize = 4_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Same,
    Removed,
    Added,
}

/// Returns the difference of two texts in the unified format; empty if the texts are equal. A text
/// that is `None` does not exist.
#[must_use]
pub fn unified(name: &str, before: Option<&str>, after: Option<&str>) -> String {
    let lines = |text: Option<&'_ str>| text.unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    let (old, new) = (lines(before), lines(after));
    let script = script(&old, &new);
    let mut out = String::new();
    let file = |text: Option<&str>| if text.is_some() { name } else { "/dev/null" };
    let mut shown = 0;
    while let Some(first) = script.iter().skip(shown).position(|(kind, _)| *kind != Kind::Same).map(|at| at + shown) {
        if out.is_empty() {
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(out, "--- {}\n+++ {}", file(before), file(after));
        }
        let begin = first.saturating_sub(CONTEXT).max(shown);
        let mut end = first;
        for (at, (kind, _)) in script.iter().enumerate().skip(first) {
            match kind {
                Kind::Same if at >= end + 2 * CONTEXT => break,
                Kind::Same => {}
                Kind::Removed | Kind::Added => end = at + 1,
            }
        }
        let end = (end + CONTEXT).min(script.len());
        let hunk = script.get(begin..end).unwrap_or_default();
        let count = |lines: &[(Kind, &str)], other: Kind| lines.iter().filter(|(kind, _)| *kind != other).count();
        let before = script.get(..begin).unwrap_or_default();
        let range = |other: Kind| {
            let (skipped, length) = (count(before, other), count(hunk, other));
            format!("{},{length}", if length == 0 { skipped } else { skipped + 1 })
        };
        let _ = writeln!(out, "@@ -{} +{} @@", range(Kind::Added), range(Kind::Removed));
        for (kind, line) in hunk {
            let sign = match kind {
                Kind::Same => ' ',
                Kind::Removed => '-',
                Kind::Added => '+',
            };
            let _ = writeln!(out, "{sign}{line}");
        }
        shown = end;
    }
    out
}

/// Returns the removed (`false`) and added (`true`) lines, in order.
#[must_use]
pub fn changed_lines(old: &[String], new: &[String]) -> Vec<(bool, String)> {
    let changed = script(old, new).into_iter().filter(|(kind, _)| *kind != Kind::Same);
    changed.map(|(kind, line)| (kind == Kind::Added, line.to_owned())).collect()
}

/// Returns the lines to keep, remove and add, in order.
fn script<'t>(old: &'t [String], new: &'t [String]) -> Vec<(Kind, &'t str)> {
    let head = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
    let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let (removed, rest) = old_rest.split_at(old_rest.len() - tail);
    let (added, _) = new_rest.split_at(new_rest.len() - tail);
    let same = |lines: &'t [String]| lines.iter().map(|line| (Kind::Same, line.as_str()));
    let (first, _) = old.split_at(head);
    same(first).chain(middle(removed, added)).chain(same(rest)).collect()
}

/// Returns the same by the longest common subsequence, or replaces all lines if that would take too
/// long.
fn middle<'t>(old: &'t [String], new: &'t [String]) -> Vec<(Kind, &'t str)> {
    let removed = |lines: &'t [String]| lines.iter().map(|line| (Kind::Removed, line.as_str()));
    let added = |lines: &'t [String]| lines.iter().map(|line| (Kind::Added, line.as_str()));
    if old.len().saturating_mul(new.len()) > MAX_COMPARISONS {
        return removed(old).chain(added(new)).collect();
    }
    // Length of the longest common subsequence from each pair of places on.
    let width = new.len() + 1;
    let mut common = vec![0_u32; (old.len() + 1) * width];
    let get = |common: &[u32], row: usize, column: usize| common.get(row * width + column).copied().unwrap_or_default();
    for (row, line) in old.iter().enumerate().rev() {
        for (column, other) in new.iter().enumerate().rev() {
            let best = if line == other {
                get(&common, row + 1, column + 1) + 1
            } else {
                get(&common, row + 1, column).max(get(&common, row, column + 1))
            };
            if let Some(cell) = common.get_mut(row * width + column) {
                *cell = best;
            }
        }
    }
    let (mut row, mut column) = (0, 0);
    let mut script = Vec::new();
    loop {
        match (old.get(row), new.get(column)) {
            (Some(line), Some(other)) if line == other => {
                script.push((Kind::Same, line.as_str()));
                (row, column) = (row + 1, column + 1);
            }
            (Some(line), other)
                if other.is_none() || get(&common, row + 1, column) >= get(&common, row, column + 1) =>
            {
                script.push((Kind::Removed, line.as_str()));
                row += 1;
            }
            (_, Some(other)) => {
                script.push((Kind::Added, other.as_str()));
                column += 1;
            }
            (_, None) => return script,
        }
    }
}

#[cfg(test)]
mod tests;
