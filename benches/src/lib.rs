//! The scenarios of Felix's calculation graph benchmarks, for the whole engine.
//!
//! Each [`Scenario`] holds the inputs of one benchmark of `felix/calc/calc_graph_bench_test.go`, built exactly as there,
//! together with the counts that must come out and what the original needed. [`floor`] does with the same inputs what no
//! engine can avoid. The benchmarks proper are `benches/engine.rs` (time) and `benches/memory.rs` (heap and allocations);
//! `README.md` has the numbers.
#![forbid(unsafe_code)]

mod counts;
mod customers;
mod floor;
mod snapshot;
mod timing;

pub use counts::Counts;
pub use customers::customers;
pub use floor::{Floor, Stored, floor};
pub use snapshot::{Snapshot, snapshot};
pub use timing::{Stopwatch, Timing};

use tortie_calc::{Graph, GraphConfig, GraphStats, Overlap};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Cidr, Hostname, SyncStatus, Update};

/// What the original needed, the minimum of six runs on the machine described in `README.md`.
#[derive(Clone, Copy, Debug)]
pub struct Original {
    /// Milliseconds.
    pub millis: f64,
    /// Live heap in units of 2^20 bytes.
    pub heap_mib: f64,
}

/// The inputs of a benchmark and what must come of them.
#[derive(Debug)]
pub struct Scenario {
    /// The original's name for it.
    pub name: String,
    /// What is fed one after another, under the names of what it is.
    pub feeds: Vec<(&'static str, Vec<Update>)>,
    /// What is fed after the first flush and flushed again; may be nothing.
    pub deletions: Vec<Update>,
    /// What must be sent.
    pub expected: Counts,
    /// How often selectors may be evaluated, and into how many groups the members of IP sets may fall.
    pub effort: Option<(u64, usize)>,
    /// The original's figures.
    pub original: Option<Original>,
}

/// Observes a run; called with the name of what has just been done.
pub trait Observer {
    /// A part of the run is over.
    fn done(&mut self, what: &'static str);
}

/// What is left of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The graph as it is afterwards.
    pub graph: Graph,
    /// What it has sent.
    pub counts: Counts,
    /// The graph's own counts after the first flush.
    pub stats: GraphStats,
}

impl Scenario {
    /// A copy of the inputs that [`run`] can consume; cheap, as values are shared.
    #[must_use]
    pub fn feeds(&self) -> (Vec<(&'static str, Vec<Update>)>, Vec<Update>) {
        (self.feeds.clone(), self.deletions.clone())
    }

    /// How many objects exist in the end, if each is told of once and then deleted, or not.
    #[must_use]
    pub fn objects_left(&self) -> usize {
        self.feeds.iter().map(|(_, updates)| updates.len()).sum::<usize>() - self.deletions.len()
    }

    /// Asserts that a run has sent what it should, with no more effort than it should take.
    ///
    /// # Panics
    /// If not.
    pub fn check(&self, outcome: &Outcome) {
        assert_eq!(outcome.counts, self.expected, "{}: messages sent", self.name);
        assert_eq!(outcome.graph.problems().count(), 0, "{}: invalid inputs", self.name);
        if let Some(effort) = self.effort {
            assert_eq!((outcome.stats.evaluations, outcome.stats.groups), effort, "{}: evaluations, groups", self.name);
        }
    }
}

/// Feeds a new graph, flushes it, feeds the deletions, and flushes it again if there were any.
pub fn run(feeds: Vec<(&'static str, Vec<Update>)>, deletions: Vec<Update>, observer: &mut impl Observer) -> Outcome {
    let mut config = GraphConfig::new(Hostname::new(LOCAL));
    config.overlap = Overlap::Suppress;
    let mut graph = Graph::new(&config);
    let mut counts = Counts::default();
    for (what, updates) in feeds {
        for update in updates {
            graph.on_update(update);
        }
        observer.done(what);
    }
    graph.on_status(SyncStatus::InSync);
    let mut out = Vec::new();
    graph.flush(&mut out);
    observer.done("flush");
    counts.add(&out);
    out.clear();
    let stats = graph.stats();
    observer.done("count");
    if !deletions.is_empty() {
        for update in deletions {
            graph.on_update(update);
        }
        observer.done("delete");
        graph.flush(&mut out);
        observer.done("flush again");
        counts.add(&out);
    }
    drop::<Vec<DesiredUpdate>>(out);
    observer.done("count");
    Outcome { graph, counts, stats }
}

pub(crate) const LOCAL: &str = "localhost";
pub(crate) const REMOTE: &str = "remotehost";

/// The `n`-th address after 10.0.0.0, as the original's generator has it: it writes the four bytes to the wrong end of a
/// 16-byte address, so that `10.0.0.1` becomes `a00:1::ffff:0:0`.
pub(crate) fn address(n: u32) -> Cidr {
    let bits = u128::from(0x0a00_0000 + n) << 96 | 0xffff << 32;
    Cidr::host(std::net::Ipv6Addr::from_bits(bits).into())
}

/// A scenario's name, and what builds it when given that.
pub type Named = (&'static str, fn(&str) -> Scenario);

/// Every benchmark of the original, and a larger one.
#[must_use]
pub fn scenarios() -> Vec<Named> {
    vec![
        ("Snapshot200Local250kTotal10000TagPols", |name| tags(name, 0, [6_576.0, 283.2])),
        ("Snapshot200Local10kTotal1000NetsetPols", |name| netsets(name, 1_000, 0, [1_072.0, 98.5])),
        ("Snapshot200Local10kTotal10000NetsetPols", |name| netsets(name, 10_000, 0, [13_599.0, 791.7])),
        ("SnapshotThenDeleteLocal200Local250kTotal10000TagPols", |name| tags(name, 200, [9_047.0, 200.5])),
        ("SnapshotThenDeleteLocal200Local10kTotal1000NetsetPols", |name| netsets(name, 1_000, 200, [1_323.0, 19.8])),
        ("SnapshotThenDeleteLocal200Local10kTotal10000NetsetPols", |name| netsets(name, 10_000, 200, [23_585.0, 78.1])),
        ("IsolatedCustomers1k", |name| isolated(name, 1_000, [46.384, 9.4])),
        ("IsolatedCustomers10k", |name| isolated(name, 10_000, [566.924, 39.0])),
        ("IsolatedCustomers100k", |name| isolated(name, 100_000, [13_729.0, 314.2])),
        ("Snapshot200Local1MTotal20000TagPols", |name| {
            let size = Snapshot { remote: 1_000_000, local: 200, tag_policies: 20_000, ..Snapshot::default() };
            Scenario { name: name.into(), ..snapshot(&size) }
        }),
    ]
}

/// The same kinds of scenario, small.
#[must_use]
pub fn small_scenarios() -> Vec<Scenario> {
    let tags = Snapshot { remote: 6_200, local: 62, tag_policies: 310, ..Snapshot::default() };
    let netsets = Snapshot { remote: 6_200, local: 62, netsets: 50, ..Snapshot::default() };
    vec![
        snapshot(&tags),
        snapshot(&netsets),
        snapshot(&Snapshot { local_deletions: 62, ..tags }),
        snapshot(&Snapshot { local_deletions: 62, ..netsets }),
        customers(500, 50),
    ]
}

fn tags(name: &str, local_deletions: u32, [millis, heap_mib]: [f64; 2]) -> Scenario {
    let size = Snapshot { remote: 250_000, local: 200, local_deletions, tag_policies: 10_000, netsets: 0 };
    let effort = Some((2_900 + 200, 2_900));
    Scenario { name: name.into(), original: Some(Original { millis, heap_mib }), effort, ..snapshot(&size) }
}

fn netsets(name: &str, netsets: u32, local_deletions: u32, [millis, heap_mib]: [f64; 2]) -> Scenario {
    let size = Snapshot { remote: 10_000, local: 200, local_deletions, tag_policies: 0, netsets };
    let effort = Some((u64::from(netsets) + 200, 2_900 + netsets as usize));
    Scenario { name: name.into(), original: Some(Original { millis, heap_mib }), effort, ..snapshot(&size) }
}

fn isolated(name: &str, number: u32, [millis, heap_mib]: [f64; 2]) -> Scenario {
    let effort = Some((100 + 100, number as usize));
    Scenario { name: name.into(), original: Some(Original { millis, heap_mib }), effort, ..customers(number, 100) }
}
