//! How much memory the whole engine takes for the original's benchmarks.
//!
//! `cargo bench -p tortie-benches --bench memory [-- [NAME…]]` prints a table; with `--test` it runs small scenarios.
#![allow(clippy::disallowed_methods, reason = "each scenario has a process of its own")]

use cap::Cap;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use tortie_benches::{Observer, Scenario, run, scenarios, small_scenarios};

/// Counts bytes and their peak around the counts of allocations.
#[global_allocator]
static ALLOCATOR: Cap<&StatsAlloc<System>> = Cap::new(&INSTRUMENTED_SYSTEM, usize::MAX);

struct Silent;

impl Observer for Silent {
    fn done(&mut self, _: &'static str) {}
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if args.iter().any(|arg| arg == "--test") {
        for scenario in small_scenarios() {
            println!("{}", measure(scenario));
        }
        return;
    }
    if let [flag, name] = &args[..]
        && flag == "--exactly"
    {
        let only = scenarios().into_iter().find(|scenario| scenario.0 == name);
        only.into_iter().for_each(|(name, build)| println!("{}", measure(build(name))));
        return;
    }
    println!(
        "| benchmark | graph alone MiB | with the values it keeps MiB | peak MiB | allocations | original MiB | share |"
    );
    println!("|---|---|---|---|---|---|---|");
    let names = scenarios().into_iter().map(|(name, _)| name);
    for name in names.filter(|name| args.is_empty() || args.iter().any(|arg| name.contains(&**arg))) {
        // The peak is that of the whole process.
        let this = std::env::current_exe().expect("the path of this program");
        std::process::Command::new(this).args(["--exactly", name]).status().expect("this program runs");
    }
}

/// Runs a scenario and makes a line of the table.
///
/// The original's figure is the heap with the graph alive and the inputs not, so values that the graph keeps count.
fn measure(scenario: Scenario) -> String {
    let empty = ALLOCATOR.allocated();
    let (feeds, deletions) = scenario.feeds();
    let allocations = INSTRUMENTED_SYSTEM.stats().allocations;
    let outcome = run(feeds, deletions, &mut Silent);
    let allocations = INSTRUMENTED_SYSTEM.stats().allocations - allocations;
    let (alone, peak) = (ALLOCATOR.allocated() - empty, ALLOCATOR.max_allocated() - empty);
    scenario.check(&outcome);
    let (name, original) = (scenario.name.clone(), scenario.original);
    drop(scenario);
    let with_values = ALLOCATOR.allocated();
    drop(outcome);
    let with_values = with_values - ALLOCATOR.allocated();
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let original = original
        .map_or_else(|| "– | –".into(), |o| format!("{:.1} | {:.2}", o.heap_mib, mib(with_values) / o.heap_mib));
    format!("| {name} | {:.1} | {:.1} | {:.1} | {allocations} | {original} |", mib(alone), mib(with_values), mib(peak))
}
