//! Cost of one object of a megabyte, for each kind and for each of its fields that can grow.
//!
//! `cargo bench -p tortie-benches --bench cost [-- [NAME…]]` prints processor time and peak heap of
//! each object, and fails if one exceeds [`MAX_MILLIS`] or [`MAX_MIB`]. With `--table` it prints
//! only the slowest; with `--test` it measures objects of a thirty-second of the size, without back
//! ends.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads its arguments")]

mod inputs;

use std::alloc::System;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use cap::Cap;
use tortie::Node;
use tortie::calc::Graph;
use tortie::dataplane::{Dataplane, NftablesConfig};
use tortie::datastore::{DirState, FileContent};
use tortie::model::SyncStatus;
use tortie_benches::{Arguments, Observer, Stopwatch};

use inputs::inputs;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, LIMIT);

/// Limit of the processor time to read and calculate one object, in milliseconds.
const MAX_MILLIS: f64 = 1000.0;

/// Limit of the memory for one object at any time, in MiB.
const MAX_MIB: f64 = 100.0;

/// Size of an object, in bytes.
const SIZE: usize = 1_000_000;

/// Heap size at which the measurement of an object is aborted, in bytes.
const LIMIT: usize = 4 << 30;

/// Number of rows in the short table.
const WORST: usize = 20;

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == MEASURE) {
        let text = std::io::read_to_string(std::io::stdin()).expect("the parent writes an object");
        let cost = measure(&text, std::env::args().any(|argument| argument == CALCULATION));
        println!("{}", cost.map(|number| format!("{number:.1}")).join(" | "));
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::read(std::env::args(), 1);
    let mut costs = Vec::new();
    let header = "| object | bytes | ms at most | reading | calculation | iptables | nftables | MiB |\n|---|---|---|---|---|---|---|---|";
    if !arguments.table {
        println!("{header}");
    }
    for input in inputs(if arguments.test { SIZE / 32 } else { SIZE }, !arguments.test) {
        if arguments.selects(&input.name) {
            // The peak of the heap is per process.
            let mut cost = in_process(&input.text, arguments.test);
            // Processor time varies with the load of the machine.
            for _ in 0..2 {
                if is_beyond(&cost) {
                    cost = in_process(&input.text, arguments.test);
                }
            }
            let numbers = cost.map(|number| format!("{number:.1}")).join(" | ");
            let row = format!("| {} | {} | {numbers} |", input.name, input.text.len());
            if !arguments.table {
                println!("{row}");
            }
            costs.push((input.name, cost, row));
        }
    }
    if arguments.table {
        println!("{header}");
        costs.sort_unstable_by(|(_, a, _), (_, b, _)| b[0].total_cmp(&a[0]));
        costs.iter().take(WORST).for_each(|(.., row)| println!("{row}"));
    }
    let largest = costs.iter().map(|(_, cost, _)| cost[PARTS]).fold(0.0, f64::max);
    eprintln!("{} objects; the largest takes {largest:.1} MiB", costs.len());
    let failures: Vec<&str> =
        costs.iter().filter(|(_, cost, _)| is_beyond(cost)).map(|(name, ..)| name.as_str()).collect();
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("beyond {MAX_MILLIS} ms or {MAX_MIB} MiB: {}", failures.join("; "));
    ExitCode::FAILURE
}

fn is_beyond(cost: &[f64; PARTS + 1]) -> bool {
    cost[0] > MAX_MILLIS || cost[PARTS] > MAX_MIB
}

/// Number of times per object: total, reading, calculation, iptables and nftables.
const PARTS: usize = 5;

/// Argument with which this program measures the object on its standard input.
const MEASURE: &str = "--measure";

/// Argument that leaves out the back ends.
const CALCULATION: &str = "--calculation";

/// Measures an object in a separate process: times in milliseconds, and peak heap in MiB. All are
/// infinite if the process fails.
fn in_process(text: &str, is_calculation: bool) -> [f64; PARTS + 1] {
    let this = std::env::current_exe().expect("the path of this program");
    let mut child = Command::new(this)
        .arg(MEASURE)
        .args(is_calculation.then_some(CALCULATION))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program runs");
    child.stdin.take().expect("the input is a pipe").write_all(text.as_bytes()).expect("the child reads");
    let output = child.wait_with_output().expect("the child ends");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.trim().split(" | ").map(|number| number.parse().unwrap_or(f64::INFINITY));
    std::array::from_fn(|_| numbers.next().unwrap_or(f64::INFINITY))
}

/// Adds the object to a small cluster and enforces the result on a node.
fn measure(text: &str, is_calculation: bool) -> [f64; PARTS + 1] {
    let mut node = Node::new("n1");
    let mut files = DirState::new(node.manifest_options.clone());
    let mut graph = Graph::new(&node.graph_config);
    graph.on_status(SyncStatus::InSync);
    files.take_updates().into_iter().for_each(|update| graph.on_update(update));
    let cluster = cluster(if is_calculation { 5 } else { 100 });
    files
        .set_file(Path::new("cluster.yaml"), Some(FileContent::Text(&cluster)))
        .into_iter()
        .for_each(|update| graph.on_update(update));
    assert_eq!(files.problems().count(), 0, "the cluster is sound");
    let mut desired = graph.take_changes();
    let with_chains = node.dataplane_config.clone();
    node.dataplane_config.nftables = Some(NftablesConfig::default());

    let before = ALLOCATOR.allocated();
    let mut stopwatch = Stopwatch::start();
    let updates = files.set_file(Path::new("big.yaml"), Some(FileContent::Text(text)));
    stopwatch.done("reading");
    updates.into_iter().for_each(|update| graph.on_update(update));
    desired.extend(graph.take_changes());
    stopwatch.done("calculation");
    let back_ends = [("iptables", with_chains), ("nftables", node.dataplane_config)];
    for (part, config) in back_ends.into_iter().filter(|_| !is_calculation) {
        let mut dataplane = Dataplane::new(config);
        desired.iter().cloned().for_each(|update| dataplane.on_update(update));
        let _ = dataplane.render();
        stopwatch.done(part);
    }
    let peak = ALLOCATOR.max_allocated();
    let timing = stopwatch.stop();
    let [reading, calculation, iptables, nftables] =
        ["reading", "calculation", "iptables", "nftables"].map(|selected| timing.millis_of(|part| part == selected));
    // A node uses one of the back ends.
    let most = reading + calculation + iptables.max(nftables);
    let mib = peak.saturating_sub(before) as f64 / f64::from(1 << 20);
    [most, reading, calculation, iptables, nftables, mib]
}

/// Returns two namespaces with this number of pods each on four nodes, and policies between them.
fn cluster(pods: usize) -> String {
    let mut text = String::from(include_str!("cluster.yaml"));
    for namespace in ["dev", "prod"] {
        for i in 0..pods {
            let third = u8::from(namespace == "prod");
            text.push_str(&format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{i}, namespace: {namespace}, labels: {{a: v{i}, app: web}}}}\n\
                 spec: {{nodeName: n{}, serviceAccountName: default, containers: [{{name: c, ports: [{{name: http, containerPort: 80}}]}}]}}\n\
                 status: {{phase: Running, podIPs: [{{ip: 10.0.{third}.{i}}}]}}\n",
                i % 4 + 1,
            ));
        }
    }
    text
}
