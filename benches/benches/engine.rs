//! How long the whole engine takes for the original's benchmarks, and how long the floor of any engine.
//!
//! `cargo bench -p tortie-benches --bench engine [-- [--runs N] [NAME…]]` prints a table; with `--test` small scenarios
//! are run once and only the counts are checked. What is measured is processor time of the one thread that does
//! everything.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads its arguments")]

use std::hint::black_box;

use tortie_benches::{Scenario, Stopwatch, Timing, floor, run, scenarios, small_scenarios};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let (mut runs, mut names, mut test) = (15, Vec::new(), false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match &*arg {
            "--bench" => {}
            "--test" => test = true,
            "--runs" => runs = args.next().and_then(|n| n.parse().ok()).unwrap_or(runs),
            _ => names.push(arg),
        }
    }
    if test {
        for scenario in small_scenarios() {
            measure(&scenario, 1);
            println!("{}: as many messages, sets, members and references as there should be", scenario.name);
        }
        return;
    }
    println!(
        "| benchmark | min ms | median ms | floor ms | of the floor | original ms | ratio | evaluations | groups | \
         parts of the fastest run, ms | of the floor, ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (name, build) in scenarios() {
        if names.is_empty() || names.iter().any(|part| name.contains(&**part)) {
            println!("{}", measure(&build(name), runs));
        }
    }
}

/// Runs engine and floor in turn, so many times, and makes a line of the table.
fn measure(scenario: &Scenario, runs: usize) -> String {
    let (mut engine, mut floors) = (Vec::new(), Vec::new());
    let mut stats = None;
    for _ in 0..runs {
        let (feeds, deletions) = scenario.feeds();
        let mut stopwatch = Stopwatch::start();
        let outcome = run(feeds, deletions, &mut stopwatch);
        engine.push(stopwatch.stop());
        scenario.check(&outcome);
        stats = Some(outcome.stats);
        drop(outcome);

        let (feeds, deletions) = scenario.feeds();
        let mut stopwatch = Stopwatch::start();
        let floor = black_box(floor(feeds, deletions, &mut stopwatch));
        floors.push(stopwatch.stop());
        assert_eq!(floor.stored().objects, scenario.objects_left(), "{}: objects", scenario.name);
    }
    let (fastest, fastest_floor) = (Timing::fastest(&engine), Timing::fastest(&floors));
    let (min, lowest) = (fastest.millis(), fastest_floor.millis());
    let original =
        scenario.original.map_or_else(|| "– | –".into(), |o| format!("{:.0} | {:.0}×", o.millis, o.millis / min));
    let stats = stats.unwrap_or_default();
    format!(
        "| {} | {min:.1} | {:.1} | {lowest:.1} | {:.1}× | {original} | {} | {} | {fastest} | {fastest_floor} |",
        scenario.name,
        Timing::median_millis(&engine),
        min / lowest,
        stats.evaluations,
        stats.groups,
    )
}
