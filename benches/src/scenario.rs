//! What a benchmark feeds, what must come of it, and a run.

use tortie_calc::{Graph, GraphConfig, GraphStats, Overlap, ReadyFlag, Reason, RouteSource};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Hostname, SyncStatus, Update};

use crate::{Counts, LOCAL};

/// What the original needed, the minimum of six runs on the machine described in `README.md`.
#[derive(Clone, Copy, Debug)]
pub struct Original {
    /// Milliseconds.
    pub millis: f64,
    /// Live heap in units of 2^20 bytes.
    pub heap_mib: f64,
}

/// What is fed. Cheap to clone, as values are shared.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// What comes before the first flush, one after another, under the names of what it is.
    pub feeds: Vec<(&'static str, Vec<Update>)>,
    /// What comes after the first flush and is flushed again; may be nothing.
    pub changes: Vec<Update>,
    /// How many flushes follow upon that one, with nothing to say.
    pub idle_flushes: usize,
    /// Where routes are made from.
    pub route_source: RouteSource,
}

/// Work and structure that do not depend on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// How often selectors were evaluated since the graph was made.
    pub evaluations: u64,
    /// Into how many groups the members of IP sets fall.
    pub groups: usize,
}

/// What a run may take, in milliseconds of processor time.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The feeds and the first flush.
    pub load: f64,
    /// The changes and what is flushed of them.
    pub changes: f64,
}

/// The inputs of a benchmark and what must come of them.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// Its name; the original's, if it is one of its benchmarks.
    pub name: String,
    /// What is fed.
    pub input: Input,
    /// What must be sent.
    pub expected: Counts,
    /// The effort of the feeds and the first flush.
    pub effort: Option<Effort>,
    /// The effort until the end.
    pub effort_in_the_end: Option<Effort>,
    /// The original's figures.
    pub original: Option<Original>,
    /// What a run may take.
    pub bounds: Option<Bounds>,
    /// What there is much of, and how many.
    pub unit: Option<(&'static str, u32)>,
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
    /// The effort after the first flush.
    pub effort: Effort,
}

impl Effort {
    fn of(graph: &Graph) -> Self {
        let GraphStats { evaluations, groups, .. } = graph.stats();
        Self { evaluations, groups }
    }
}

impl Outcome {
    /// The effort until the end.
    #[must_use]
    pub fn effort_in_the_end(&self) -> Effort {
        Effort::of(&self.graph)
    }
}

impl Scenario {
    /// Asserts that a run has sent what it should, with as much effort as it should take.
    ///
    /// # Panics
    /// If not.
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

/// The parts of a run that come after the first flush.
pub const LATER_PARTS: [&str; 2] = ["changes", "flush again"];

/// Feeds a new graph, flushes it, feeds the changes, and flushes it again if there were any.
pub fn run(input: Input, observer: &mut impl Observer) -> Outcome {
    let mut config = GraphConfig::new(Hostname::new(LOCAL));
    // As the original, with which the messages are compared.
    config.ready_flag = ReadyFlag::Required;
    config.overlap = Overlap::Suppress;
    config.route_source = input.route_source;
    let mut graph = Graph::new(&config);
    let mut counts = Counts::default();
    for (what, updates) in input.feeds {
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
