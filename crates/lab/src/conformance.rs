//! Runs policy cases against an agent on a real kernel.
//!
//! Every worker has a laboratory with an agent in each node's namespace. For each step, the worker
//! updates the pods, passes the new state to the agents, waits until canaries show that each agent
//! has applied it, and measures every flow of the expectation. At the end of the step, no agent may
//! report that the kernel is out of sync. If agents report flows, the worker compares the reported
//! flow of each measured packet with the packet's verdict and with the rules that
//! `tortie_analysis::trace` names.
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
mod datastore;
mod etcd_store;
mod feed;
mod flows;
mod problems;
mod report;
mod worker;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

pub use agent::{Agent, AgentError, NodeUnderTest, RunningAgent, State};
pub use command_agent::CommandAgent;
pub use datastore::{NotASource, Source};
pub use flows::{FlowFault, FlowMismatch, Hit, ReportedEnd, ReportedFlow};
pub use report::{Mismatch, Report, StepReport};

use crate::{
    cases::{self, Addressing, Case, CaseError},
    kernel::{self, Unavailable},
    shard::Shard,
};
use worker::Worker;

/// Error that prevents a run.
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

/// Cases to run, agent, and conditions.
#[derive(Debug, Clone)]
pub struct Options {
    /// Agent under test.
    pub agent: Arc<dyn Agent>,
    /// Case files.
    pub cases: Vec<PathBuf>,
    /// Run only cases whose short name contains this.
    pub filter: Option<String>,
    /// Run only this share of the cases.
    pub shard: Shard,
    /// Number of laboratories that run in parallel.
    pub workers: usize,
    /// Address families of the pods.
    pub addressing: Addressing,
    /// Whether contested rows are compared too.
    pub contested: bool,
    /// Number of nodes per laboratory. The pods are spread over the nodes, which VXLAN connects.
    pub nodes: usize,
    /// Use a new laboratory and agent for every case, instead of one agent for all cases of a
    /// worker.
    pub fresh: bool,
    /// Maximum time of a step until every row is as expected.
    pub deadline: Duration,
    /// Directory in which to keep state and log of each agent; `None` for a temporary folder that
    /// is removed afterwards.
    pub keep: Option<PathBuf>,
}

impl Options {
    /// Returns options for all bundled cases with one worker.
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

/// Runs the cases and compares every row. The report holds all failures of an agent, including its
/// death.
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
    let is_selected = |case: &Case| options.filter.as_ref().is_none_or(|text| case.file.contains(text));
    Ok(all
        .into_iter()
        .filter(is_selected)
        .enumerate()
        .filter(|(position, _)| options.shard.contains(*position))
        .map(|(_, case)| case.readdressed(options.addressing))
        .collect())
}

#[cfg(test)]
mod tests;
