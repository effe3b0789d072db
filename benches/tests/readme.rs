//! Checks that `README.md` has a row for every benchmark.

#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

use tortie_benches::{Named, scenarios, worst_cases};

const README: &str = include_str!("../README.md");

/// Returns the first cells of the table between a marker and the next end.
fn names(marker: &str) -> Vec<&'static str> {
    let begin = format!("<!-- bench-report: {marker} -->");
    let (_, rest) = README.split_once(&begin).unwrap();
    let (table, _) = rest.split_once("<!-- end of bench-report -->").unwrap();
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.split('|').nth(1).unwrap().trim()).collect()
}

fn names_of(benchmarks: &[Named]) -> Vec<&'static str> {
    benchmarks.iter().map(|(name, _)| *name).collect()
}

#[test]
fn the_tables_name_the_benchmarks() {
    for (marker, benchmarks) in
        [("time", scenarios()), ("memory", scenarios()), ("worst", worst_cases()), ("worst-memory", worst_cases())]
    {
        assert_eq!(names(marker), names_of(&benchmarks), "table `{marker}`; cargo xtask bench-report writes it");
    }
}

#[test]
fn the_readme_describes_every_worst_case() {
    let (_, rest) = README.split_once("| worst case | loaded state |").unwrap();
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    let described: Vec<&str> = rows.map(|row| row.split('|').nth(1).unwrap().trim()).collect();
    assert_eq!(described, names_of(&worst_cases()));
}
