//! Runs policy cases against an agent on a real kernel.
//!
//! Every worker has a laboratory of its own with one agent in each node's namespace. For each step it brings the pods
//! up to date, tells the agents the new state, waits until canaries show that each agent has taken it in, and then
//! measures every flow of the expectation. At its end no agent may say that something is out of sync in the kernel. Of agents that tell flows, what they tell of each measured packet is then held
//! against the packet's fate and the rules that `tortie_analysis::trace` names.
//!
//! ```no_run
//! use tortie_lab::conformance::{CommandAgent, Options, run};
//!
//! let agent = CommandAgent::tortie("target/debug/tortie").environment("FELIX_IPTABLESBACKEND", "nft");
//! let report = run(&Options::new(agent))?;
//! println!("{report}");
//! assert!(report.passed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agent;
mod canary;
mod command_agent;
mod etcd_store;
mod feed;
mod flows;
mod problems;
mod report;
mod supply;
mod worker;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

pub use agent::{Agent, AgentError, NodeUnderTest, RunningAgent, State};
pub use command_agent::CommandAgent;
pub use flows::{FlowFault, FlowMismatch, Hit, ToldEnd, ToldFlow};
pub use report::{Mismatch, Report, StepReport};
pub use supply::{NotASource, Source};

use crate::{
    cases::{self, Addressing, Case, CaseError},
    kernel::{self, Unavailable},
    shard::Shard,
};
use worker::Worker;

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConformanceError {
    /// A case file cannot be read.
    #[error(transparent)]
    Cases(#[from] CaseError),
    /// Kernel tests cannot run here.
    #[error(transparent)]
    Kernel(#[from] Unavailable),
}

/// What to run and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The agent under test.
    pub agent: Arc<dyn Agent>,
    /// Files of cases.
    pub cases: Vec<PathBuf>,
    /// Run only cases whose short name contains this.
    pub filter: Option<String>,
    /// Run only this part of them.
    pub shard: Shard,
    /// How many laboratories work side by side.
    pub workers: usize,
    /// The address families of the pods.
    pub addressing: Addressing,
    /// Compare contested rows as well.
    pub contested: bool,
    /// How many nodes each laboratory has. The pods are spread over them, with VXLAN between them.
    pub nodes: usize,
    /// A new laboratory and agent for every case, instead of a living agent that goes from case to case.
    pub fresh: bool,
    /// How long a step may take until every row is as expected.
    pub deadline: Duration,
    /// Where to keep the state and the log of each agent; a temporary folder, removed afterwards, if `None`.
    pub keep: Option<PathBuf>,
}

impl Options {
    /// All bundled cases, one worker.
    #[must_use]
    pub fn new(agent: impl Agent + 'static) -> Self {
        Self {
            agent: Arc::new(agent),
            cases: cases::bundled().to_vec(),
            filter: None,
            shard: Shard::ALL,
            workers: 1,
            addressing: Addressing::V4,
            contested: false,
            nodes: 1,
            fresh: false,
            deadline: Duration::from_secs(5),
            keep: None,
        }
    }
}

/// Runs the cases and compares every row. What an agent does wrong, up to dying, is in the report.
///
/// # Errors
/// If the cases cannot be read or kernel tests cannot run here.
pub fn run(options: &Options) -> Result<Report, ConformanceError> {
    kernel::require()?;
    let start = Instant::now();
    let cases = select(options)?;
    let queue = Mutex::new(cases.into_iter().enumerate());
    let next = || queue.lock().map_or(None, |mut queue| queue.next());
    let mut finished: Vec<(usize, Vec<StepReport>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..options.workers.max(1))
            .map(|number| {
                scope.spawn(move || {
                    let mut worker = Worker::new(options, number);
                    std::iter::from_fn(next).map(|(position, case)| (position, worker.run_case(&case))).collect()
                })
            })
            .collect();
        let done = |worker: std::thread::ScopedJoinHandle<'_, Vec<_>>| match worker.join() {
            Ok(reports) => reports,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().flat_map(done).collect()
    });
    finished.sort_by_key(|(position, _)| *position);
    let steps = finished.into_iter().flat_map(|(_, steps)| steps).collect();
    Ok(Report { steps, elapsed: start.elapsed() })
}

fn select(options: &Options) -> Result<Vec<Case>, CaseError> {
    let mut all = Vec::new();
    for path in &options.cases {
        all.extend(cases::read(path)?);
    }
    let wanted = |case: &Case| options.filter.as_ref().is_none_or(|text| case.file.contains(text));
    Ok(all
        .into_iter()
        .filter(wanted)
        .enumerate()
        .filter(|(position, _)| options.shard.contains(*position))
        .map(|(_, case)| case.readdressed(options.addressing))
        .collect())
}

#[cfg(test)]
mod tests;
