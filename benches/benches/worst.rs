//! Time of the whole engine for the worst cases of a cluster, compared with its limits.
//!
//! `cargo bench -p tortie-benches --bench worst [-- [--runs N] [NAME…]]` prints a table, and fails
//! if a case exceeds its limit. With `--test` it runs small cases once and checks only counts.
//! Measured is processor time.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads its arguments")]

use std::process::ExitCode;

use tortie_benches::{Arguments, LATER_PARTS, Scenario, Stopwatch, Timing, run, small_worst_cases, worst_cases};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::read(std::env::args(), 5);
    if arguments.test {
        for scenario in small_worst_cases() {
            println!("{}", measure(&scenario, 1).0);
        }
        return ExitCode::SUCCESS;
    }
    println!("| worst case | load ms | at most | change ms | at most | evaluations | more | groups | then |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut too_slow = Vec::new();
    for (name, build) in worst_cases() {
        if arguments.selects(name) {
            let (row, is_within) = measure(&build(name), arguments.runs);
            println!("{row}");
            too_slow.extend((!is_within).then_some(name));
        }
    }
    if too_slow.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("longer than it may take: {}", too_slow.join(", "));
    ExitCode::FAILURE
}

/// Runs a case this many times. Returns a row of the table, and whether the case was within its
/// limits.
fn measure(scenario: &Scenario, runs: usize) -> (String, bool) {
    let mut timings = Vec::new();
    let mut efforts = None;
    for _ in 0..runs {
        let input = scenario.input.clone();
        let mut stopwatch = Stopwatch::start();
        let outcome = run(input, &mut stopwatch);
        timings.push(stopwatch.stop());
        scenario.check(&outcome);
        efforts = Some((outcome.effort, outcome.effort_in_the_end()));
    }
    let is_later = |part: &str| LATER_PARTS.contains(&part);
    let min = |is_selected: &dyn Fn(&str) -> bool| {
        timings.iter().map(|timing: &Timing| timing.millis_of(is_selected)).min_by(f64::total_cmp).unwrap_or_default()
    };
    let (load, changes) = (min(&|part| !is_later(part)), min(&is_later));
    let at_most = scenario.bounds.map_or([f64::INFINITY; 2], |bounds| [bounds.load, bounds.changes]);
    let efforts = efforts.map_or_else(String::new, |(first, last)| {
        let more = last.evaluations - first.evaluations;
        format!("{} | {more} | {} | {}", first.evaluations, first.groups, last.groups)
    });
    let row =
        format!("| {} | {load:.1} | {:.0} | {changes:.1} | {:.0} | {efforts} |", scenario.name, at_most[0], at_most[1]);
    (row, load <= at_most[0] && changes <= at_most[1])
}
