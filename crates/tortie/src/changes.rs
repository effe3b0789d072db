//! Following a source.

use std::collections::VecDeque;
use std::fmt;

use tortie_calc::Graph;
use tortie_datastore::{Event, InputProblem, Resend, Watching};
use tortie_model::desired::DesiredUpdate;

use crate::ClusterProblem;

/// Maximum number of events that are taken together, so that the first one does not wait for ever.
const BATCH: usize = 64;

/// Change of a node's state or of its source.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Change {
    /// Desired state, as far as it differs from earlier changes.
    Desired(Vec<DesiredUpdate>),
    /// All current problems of the input, in place of earlier ones.
    Problems(Vec<ClusterProblem>),
    /// The source cannot be read now; earlier changes stay valid until it can.
    Unavailable {
        /// Why.
        why: String,
        /// Whether that lasts until credentials, permissions or a configuration are changed.
        refused: bool,
    },
    /// It can be read again.
    Available,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Desired(updates) => write!(f, "{} changes", updates.len()),
            Self::Problems(problems) => {
                write!(f, "{} problems in the input", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n{problem}"))
            }
            Self::Unavailable { why, .. } => write!(f, "the source cannot be read: {why}"),
            Self::Available => f.write_str("the source can be read"),
        }
    }
}

/// The changes of a node's desired state, as they come. Each step waits for the next change; the
/// iterator ends when the source does, and the source ends soon after the iterator is dropped.
///
/// Nothing is desired before the source has been read once as a whole.
#[derive(Debug)]
pub struct Changes {
    graph: Graph,
    watching: Watching,
    input: Vec<InputProblem>,
    reported: Vec<ClusterProblem>,
    waiting: VecDeque<Change>,
}

impl Changes {
    pub(crate) fn new(graph: Graph, watching: Watching) -> Self {
        Self { graph, watching, input: Vec::new(), reported: Vec::new(), waiting: VecDeque::new() }
    }

    /// Returns a handle that asks the source to send everything again, as when it may have missed
    /// something.
    #[must_use]
    pub fn resend(&self) -> &Resend {
        &self.watching.resend
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Status(status) => self.graph.on_status(status),
            Event::Updates { updates, .. } => {
                for update in updates {
                    self.graph.on_update(update);
                }
            }
            Event::Problems(problems) => self.input = problems,
            Event::Unavailable { why, refused } => self.waiting.push_back(Change::Unavailable { why, refused }),
            Event::Available => self.waiting.push_back(Change::Available),
            Event::Versions(_) => {}
        }
    }

    fn flush(&mut self) {
        let desired = self.graph.take_changes();
        let input = self.input.iter().cloned().map(ClusterProblem::Input);
        let problems: Vec<ClusterProblem> = input.chain(self.graph.problems().map(ClusterProblem::Ignored)).collect();
        if problems != self.reported {
            self.reported.clone_from(&problems);
            self.waiting.push_back(Change::Problems(problems));
        }
        if !desired.is_empty() {
            self.waiting.push_back(Change::Desired(desired));
        }
    }
}

impl Iterator for Changes {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        loop {
            if let Some(change) = self.waiting.pop_front() {
                return Some(change);
            }
            let event = self.watching.events.recv()?;
            self.take(event);
            for _ in 1..BATCH {
                let Ok(event) = self.watching.events.try_recv() else { break };
                self.take(event);
            }
            self.flush();
        }
    }
}
