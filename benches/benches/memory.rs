//! Memory of the whole engine for Felix's benchmarks, and for the worst cases of a cluster.
//!
//! `cargo bench -p tortie-benches --bench memory [-- [--worst] [NAME…]]` prints a table; with
//! `--test` it runs small scenarios.
#![allow(clippy::disallowed_methods, reason = "each scenario runs in a separate process")]

use cap::Cap;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use tortie_benches::{Observer, Scenario, run, scenarios, small_scenarios, small_worst_cases, worst_cases};

/// Counts bytes and their peak, around the counter of allocations.
#[global_allocator]
static ALLOCATOR: Cap<&StatsAlloc<System>> = Cap::new(&INSTRUMENTED_SYSTEM, usize::MAX);

struct Silent;

impl Observer for Silent {
    fn done(&mut self, _: &'static str) {}
}

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench" && arg != "--table").collect();
    if args.iter().any(|arg| arg == "--test") {
        for scenario in small_scenarios().into_iter().chain(small_worst_cases()) {
            println!("{}", measure(scenario));
        }
        return;
    }
    let all = || scenarios().into_iter().chain(worst_cases());
    if let [flag, name] = &args[..]
        && flag == "--exactly"
    {
        all().filter(|scenario| scenario.0 == name).for_each(|(name, build)| println!("{}", measure(build(name))));
        return;
    }
    let with_arguments = args.len();
    args.retain(|arg| arg != "--worst");
    let chosen = if args.len() < with_arguments { worst_cases() } else { scenarios() };
    println!("| benchmark | graph alone | with its values | peak | allocations | Felix | share | graph, each |");
    println!("|---|---|---|---|---|---|---|---|");
    let names = chosen.into_iter().map(|(name, _)| name);
    for name in names.filter(|name| args.is_empty() || args.iter().any(|arg| name.contains(&**arg))) {
        // The peak is per process.
        let this = std::env::current_exe().expect("the path of this program");
        let status = std::process::Command::new(this).args(["--exactly", name]).status().expect("this program runs");
        assert!(status.success(), "{name}: {status}");
    }
}

/// Runs a scenario and returns a row of the table.
///
/// Felix's figure is the heap with the graph but without the inputs, so values that the graph keeps
/// are included.
fn measure(scenario: Scenario) -> String {
    let empty = ALLOCATOR.allocated();
    let input = scenario.input.clone();
    let allocations = INSTRUMENTED_SYSTEM.stats().allocations;
    let outcome = run(input, &mut Silent);
    let allocations = INSTRUMENTED_SYSTEM.stats().allocations - allocations;
    let (alone, peak) = (ALLOCATOR.allocated() - empty, ALLOCATOR.max_allocated() - empty);
    scenario.check(&outcome);
    let Scenario { name, original, unit, input, .. } = scenario;
    drop(input);
    let with_values = ALLOCATOR.allocated();
    drop(outcome);
    let with_values = with_values - ALLOCATOR.allocated();
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let original = original
        .map_or_else(|| "– | –".into(), |o| format!("{:.1} | {:.2}", o.heap_mib, mib(with_values) / o.heap_mib));
    let each = unit.map_or_else(|| "–".into(), |(items, number)| format!("{} B, {items}", alone / number as usize));
    let [alone, with_values, peak] = [alone, with_values, peak].map(mib);
    format!("| {name} | {alone:.1} | {with_values:.1} | {peak:.1} | {allocations} | {original} | {each} |")
}
