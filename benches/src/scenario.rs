//! Inputs and expected results of a benchmark, and its execution.

use tortie_calc::{Graph, GraphConfig, GraphStats, Overlap, ReadyFlag, Reason, RouteSource};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Hostname, SyncStatus, Update};

use crate::{Counts, LOCAL};

/// Felix's figures: the minimum of six runs on the machine described in `README.md`.
#[derive(Clone, Copy, Debug)]
pub struct Original {
    /// Milliseconds.
    pub millis: f64,
    /// Live heap in MiB.
    pub heap_mib: f64,
}

/// Inputs. Cheap to clone, as values are shared.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Updates before the first flush, in named parts.
    pub feeds: Vec<(&'static str, Vec<Update>)>,
    /// Updates after the first flush, followed by another flush; may be empty.
    pub changes: Vec<Update>,
    /// Number of further flushes without updates.
    pub idle_flushes: usize,
    /// Source of the routes.
    pub route_source: RouteSource,
}

/// Work and structure, independent of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of evaluations of selectors since the graph was created.
    pub evaluations: u64,
    /// Number of groups of IP set members.
    pub groups: usize,
}

/// Limits of a run, in milliseconds of processor time.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The feeds and the first flush.
    pub load: f64,
    /// The changes and their flush.
    pub changes: f64,
}

/// Inputs of a benchmark and expected results.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// Name; Felix's, for its benchmarks.
    pub name: String,
    /// Inputs.
    pub input: Input,
    /// Expected messages.
    pub expected: Counts,
    /// Expected effort of the feeds and the first flush.
    pub effort: Option<Effort>,
    /// Expected effort until the end.
    pub effort_in_the_end: Option<Effort>,
    /// Felix's figures.
    pub original: Option<Original>,
    /// Limits of a run.
    pub bounds: Option<Bounds>,
    /// The dominant sort of items, and their number.
    pub unit: Option<(&'static str, u32)>,
}

/// Observer of a run, called with the name of each completed part.
pub trait Observer {
    /// Called at the end of a part of the run.
    fn done(&mut self, part: &'static str);
}

/// Results of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The graph at the end.
    pub graph: Graph,
    /// Messages that it has sent.
    pub counts: Counts,
    /// Effort up to the first flush.
    pub effort: Effort,
}

impl Effort {
    fn of(graph: &Graph) -> Self {
        let GraphStats { evaluations, groups, .. } = graph.stats();
        Self { evaluations, groups }
    }
}

impl Outcome {
    /// Returns the effort until the end.
    #[must_use]
    pub fn effort_in_the_end(&self) -> Effort {
        Effort::of(&self.graph)
    }
}

impl Scenario {
    /// Asserts that a run has sent the expected messages with the expected effort.
    ///
    /// # Panics
    /// If it has not.
    pub fn check(&self, outcome: &Outcome) {
        assert_eq!(outcome.counts, self.expected, "{}: messages sent", self.name);
        // Some scenarios end without an object of the node.
        let invalid = outcome.graph.problems().filter(|problem| problem.reason != Reason::UnknownHost).count();
        assert_eq!(invalid, 0, "{}: invalid inputs", self.name);
        let efforts = [(outcome.effort, self.effort), (outcome.effort_in_the_end(), self.effort_in_the_end)];
        for (effort, expected) in efforts {
            assert_eq!(effort, expected.unwrap_or(effort), "{}: effort", self.name);
        }
    }
}

/// Parts of a run after the first flush.
pub const LATER_PARTS: [&str; 2] = ["changes", "flush again"];

/// Feeds a new graph, flushes it, feeds the changes, and flushes it again if there were any.
pub fn run(input: Input, observer: &mut impl Observer) -> Outcome {
    let mut config = GraphConfig::new(Hostname::new(LOCAL));
    // As in Felix, with whose messages they are compared.
    config.ready_flag = ReadyFlag::Required;
    config.overlap = Overlap::Suppress;
    config.route_source = input.route_source;
    let mut graph = Graph::new(&config);
    let mut counts = Counts::default();
    for (part, updates) in input.feeds {
        for update in updates {
            graph.on_update(update);
        }
        observer.done(part);
    }
    graph.on_status(SyncStatus::InSync);
    let mut out = Vec::new();
    graph.flush(&mut out);
    observer.done("flush");
    counts.add(&out);
    out.clear();
    let effort = Effort::of(&graph);
    observer.done("count");
    if !input.changes.is_empty() {
        for update in input.changes {
            graph.on_update(update);
        }
        observer.done(LATER_PARTS[0]);
        for _ in 0..=input.idle_flushes {
            graph.flush(&mut out);
        }
        observer.done(LATER_PARTS[1]);
        counts.add(&out);
    }
    drop::<Vec<DesiredUpdate>>(out);
    observer.done("count");
    Outcome { graph, counts, effort }
}
