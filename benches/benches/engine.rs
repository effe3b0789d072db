//! Time of the whole engine for Felix's benchmarks, and the lower bound for any engine.
//!
//! `cargo bench -p tortie-benches --bench engine [-- [--runs N] [--table] [NAME…]]` prints a table.
//! With `--test` it runs small scenarios once and checks only the counts. Measured is the processor
//! time of the single thread.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads its arguments")]

use std::hint::black_box;

use tortie_benches::{Arguments, Effort, Scenario, Stopwatch, Timing, floor, run, scenarios, small_scenarios};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments = Arguments::read(std::env::args(), 15);
    if arguments.test {
        for scenario in small_scenarios() {
            Measurement::of(&scenario, 1);
            println!("{}: as many messages, sets, members and references as there should be", scenario.name);
        }
        return;
    }
    print!("| benchmark | min ms | floor ms | of the floor | Felix min ms | ratio | evaluations | groups |");
    let more = if arguments.table { ["", ""] } else { [" median ms | parts, ms | of the floor, ms |", "---|---|---|"] };
    println!("{}\n|---|---|---|---|---|---|---|---|{}", more[0], more[1]);
    for (name, build) in scenarios() {
        if arguments.selects(name) {
            let measured = Measurement::of(&build(name), arguments.runs);
            let more = if arguments.table { String::new() } else { measured.details() };
            println!("{}{more}", measured.row());
        }
    }
}

struct Measurement {
    name: String,
    original: String,
    effort: Effort,
    engine: Vec<Timing>,
    floor: Vec<Timing>,
}

impl Measurement {
    /// Runs engine and floor in turn, this many times.
    fn of(scenario: &Scenario, runs: usize) -> Self {
        let (mut engine, mut floors) = (Vec::new(), Vec::new());
        let mut effort = Effort { evaluations: 0, groups: 0 };
        for _ in 0..runs {
            let input = scenario.input.clone();
            let mut stopwatch = Stopwatch::start();
            let outcome = run(input, &mut stopwatch);
            engine.push(stopwatch.stop());
            scenario.check(&outcome);
            effort = outcome.effort;
            drop(outcome);

            let input = scenario.input.clone();
            let mut stopwatch = Stopwatch::start();
            let floor = black_box(floor(input, &mut stopwatch));
            floors.push(stopwatch.stop());
            assert!(floor.stored().objects > 0, "{}: the floor stored nothing", scenario.name);
        }
        let min = Timing::fastest(&engine).millis();
        let original =
            scenario.original.map_or_else(|| "– | –".into(), |o| format!("{:.0} | {:.0}×", o.millis, o.millis / min));
        Self { name: scenario.name.clone(), original, effort, engine, floor: floors }
    }

    fn row(&self) -> String {
        let [min, floor] = [&self.engine, &self.floor].map(|timings| Timing::fastest(timings).millis());
        let (Self { name, original, .. }, Effort { evaluations, groups }) = (self, self.effort);
        format!("| {name} | {min:.1} | {floor:.1} | {:.1}× | {original} | {evaluations} | {groups} |", min / floor)
    }

    fn details(&self) -> String {
        let [parts, of_floor] = [&self.engine, &self.floor].map(|timings| Timing::fastest(timings));
        format!(" {:.1} | {parts} | {of_floor} |", Timing::median_millis(&self.engine))
    }
}
