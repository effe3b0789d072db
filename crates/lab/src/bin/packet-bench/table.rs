//! Measurements as Markdown tables.

use std::time::Duration;

use tortie_model::Family;

use crate::policy::{Peers, Policy};
use crate::straight_line::StraightLine;
use crate::test_run::PacketPath;
use crate::traffic::Cost;
use crate::{Backend, Workloads};

/// Measurements of a policy with a back end.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) peers: Peers,
    pub(crate) backend: Backend,
    pub(crate) workloads: Workloads,
    pub(crate) rules: u16,
    pub(crate) first: Cost,
    pub(crate) last: Cost,
    pub(crate) none: Cost,
    pub(crate) established: Cost,
    /// Number of rules that each of these packets traverses, if known.
    pub(crate) traversed: Option<[usize; 4]>,
    /// Time from the start of the agent until the policy was in force.
    pub(crate) in_force: Duration,
}

/// Table of all rows, in Markdown.
#[derive(Debug)]
pub(crate) struct Table {
    /// Cost of a packet without any policy.
    bare: Cost,
}

impl Table {
    pub(crate) const fn new(bare: Cost) -> Self {
        Self { bare }
    }

    pub(crate) fn print_head(&self) {
        println!("| peers | back end | rules | first rule | last rule | no rule | established | in force after |");
        println!("|---|---|---|---|---|---|---|---|");
        println!("| nothing | none | 0 | {0} | {0} | {0} | {0} | |", nanoseconds(self.bare));
    }

    pub(crate) fn print(&self, row: &Row) {
        let Row { peers, backend, workloads, rules, first, last, none, established, traversed, in_force } = row;
        let mut cells = [first, last, none, established].map(|cost| nanoseconds(*cost));
        for (cell, traversed) in cells.iter_mut().zip(traversed.iter().flatten()) {
            *cell = format!("{traversed} rules, {cell}");
        }
        let [first, last, none, established] = cells;
        let how = match workloads {
            Workloads::ByName => "",
            Workloads::ByAddress => ", workloads by address",
        };
        println!(
            "| {peers} | {backend}{how} | {rules} | {first} | {last} | {none} | {established} | {:.2} s |",
            in_force.as_secs_f64()
        );
    }
}

/// Test-run measurements of a policy.
#[derive(Debug)]
pub(crate) struct TestRunRow {
    pub(crate) policy: Policy,
    pub(crate) family: Family,
    pub(crate) path: PacketPath,
    /// Nanoseconds of an empty program, with warm and with cold caches.
    pub(crate) entry: [f64; 2],
    /// Nanoseconds of a packet that the first rule allows, with warm and with cold caches.
    pub(crate) first: [f64; 2],
    pub(crate) last: [f64; 2],
    pub(crate) none: [f64; 2],
    /// Time from rules to map values.
    pub(crate) compiled: Duration,
    /// Time to write these values.
    pub(crate) filled: Duration,
    /// Load time of the program, including the verifier.
    pub(crate) loaded: Duration,
    /// Time to attach, and to detach.
    pub(crate) attached: [Duration; 2],
    /// Time from an edit of the last rule until it was in force.
    pub(crate) edit: Duration,
    /// Size of all blocks in use.
    pub(crate) bytes: u64,
    /// Size of the maps as the kernel reports it.
    pub(crate) kernel_bytes: u64,
    /// Cost of the same rules as sequential instructions: outer `None` if not measured, inner
    /// `None` if they do not fit into one program.
    pub(crate) straight_line: Option<Option<StraightLine>>,
}

impl TestRunRow {
    pub(crate) fn print_head() {
        println!(
            "| packets | traffic | peers | rules | entry alone (cold) | first rule (cold) | last rule (cold) | no rule (cold) | compiled | written | \
             loaded | attached, detached | an edit | tables | maps | as instructions: first, last, none | loaded |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    }

    pub(crate) fn print(&self) {
        let Self { policy, family, path, entry, first, last, none, compiled, filled, loaded, edit, .. } = self;
        let [attached, detached] = self.attached.map(milliseconds);
        let cost = |[warm, cold]: [f64; 2]| format!("{warm:.0} ns ({cold:.0})");
        let straight_line = match self.straight_line {
            Some(Some(StraightLine { warm: [first, last, none], loaded })) => {
                format!("{first:.0}, {last:.0}, {none:.0} ns | {}", milliseconds(loaded))
            }
            Some(None) => "more than one program | ".to_owned(),
            None => " | ".to_owned(),
        };
        println!(
            "| {family} | {path} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {attached}, {detached} | {} | {} KiB | {} KiB | {straight_line} |",
            policy.peers,
            policy.rules,
            cost(*entry),
            cost(*first),
            cost(*last),
            cost(*none),
            milliseconds(*compiled),
            milliseconds(*filled),
            milliseconds(*loaded),
            milliseconds(*edit),
            self.bytes / 1024,
            self.kernel_bytes / 1024,
        );
    }
}

/// Prints the ratio of packet costs between the most and the fewest rules, for rows that are equal
/// otherwise.
pub(crate) fn print_ratios(rows: &[TestRunRow]) {
    println!("\n| packets | traffic | peers | rules | first rule (cold) | last rule (cold) | no rule (cold) |");
    println!("|---|---|---|---|---|---|---|");
    let is_alike = |left: &TestRunRow, right: &TestRunRow| {
        (left.family, left.path, left.policy.peers) == (right.family, right.path, right.policy.peers)
    };
    for rows in rows.chunk_by(is_alike) {
        let by_rules = |row: &&TestRunRow| row.policy.rules;
        let (Some(few), Some(many)) = (rows.iter().min_by_key(by_rules), rows.iter().max_by_key(by_rules)) else {
            continue;
        };
        if few.policy.rules == many.policy.rules {
            continue;
        }
        let pairs = [(few.first, many.first), (few.last, many.last), (few.none, many.none)];
        let [first, last, none] = pairs.map(|([warm, cold], [warm_of_many, cold_of_many])| {
            format!("{:.2} ({:.2})", warm_of_many / warm, cold_of_many / cold)
        });
        let TestRunRow { family, path, policy, .. } = many;
        println!(
            "| {family} | {path} | {} | {} to {} | {first} | {last} | {none} |",
            policy.peers, few.policy.rules, policy.rules
        );
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

/// Formats nanoseconds per packet and thousands of packets per second.
fn nanoseconds(cost: Cost) -> String {
    format!("{:.0} ns, {:.0} k/s", cost.0, 1e6 / cost.0)
}
