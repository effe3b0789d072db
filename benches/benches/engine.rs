//! How long the whole engine takes for the original's benchmarks.
//!
//! `cargo bench -p tortie-benches --bench engine [-- [--runs N] [NAME…]]` prints a table; with `--test` small scenarios
//! are run once and only the counts are checked.
//!
//! What is measured is processor time of the one thread that does everything, system calls included: on an idle machine
//! that is what a wall clock shows, and on a busy one it is still about the engine.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads its arguments")]

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tortie_benches::{Observer, Scenario, run, scenarios, small_scenarios};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Times the parts of a run. Counting what was sent is not part of it.
struct Stopwatch {
    last: Duration,
    parts: Vec<(&'static str, Duration)>,
}

impl Observer for Stopwatch {
    fn done(&mut self, what: &'static str) {
        let time = now();
        if what != "count" {
            self.parts.push((what, time - self.last));
        }
        self.last = time;
    }
}

fn main() {
    let (mut runs, mut names, mut test) = (7, Vec::new(), false);
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
        "| benchmark | min ms | median ms | original min ms | ratio | evaluations | groups | parts of the fastest run, ms |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, build) in scenarios() {
        if names.is_empty() || names.iter().any(|part| name.contains(&**part)) {
            println!("{}", measure(&build(name), runs));
        }
    }
}

/// Runs a scenario so many times, and makes a line of the table.
fn measure(scenario: &Scenario, runs: usize) -> String {
    let mut results: Vec<(Duration, Vec<(&str, Duration)>)> = Vec::new();
    let mut stats = None;
    for _ in 0..runs {
        let (feeds, deletions) = scenario.feeds();
        let mut stopwatch = Stopwatch { last: now(), parts: Vec::new() };
        let outcome = run(feeds, deletions, &mut stopwatch);
        scenario.check(&outcome);
        stats = Some(outcome.stats);
        results.push((stopwatch.parts.iter().map(|(_, time)| *time).sum(), stopwatch.parts));
    }
    results.sort_unstable_by_key(|(total, _)| *total);
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let (min, median) = (millis(results[0].0), millis(results[runs / 2].0));
    let parts: Vec<String> = results[0].1.iter().map(|(what, time)| format!("{what} {:.1}", millis(*time))).collect();
    let original =
        scenario.original.map_or_else(|| "– | –".into(), |o| format!("{:.0} | {:.0}×", o.millis, o.millis / min));
    let stats = stats.unwrap_or_default();
    format!(
        "| {} | {min:.1} | {median:.1} | {original} | {} | {} | {} |",
        scenario.name,
        stats.evaluations,
        stats.groups,
        parts.join(", ")
    )
}
