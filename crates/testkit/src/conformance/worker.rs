//! One laboratory with one agent, going from case to case.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{Mismatch, NodeUnderTest, Options, RunningAgent, State, StepReport, agent::AgentError, canary::Canary};
use crate::{
    cases::{Addressing, Case, Cluster, Step, Verdict},
    lab::{Flow, FlowOutcome, Lab, LabOptions, Timing},
    netns::NetnsError,
};

const NODE: &str = "node1";
/// An agent may take this long to come up.
const START_UP: Duration = Duration::from_secs(60);

/// After this many failures in a row to come up, the rest of the cases fails at once.
const GIVE_UP: usize = 3;

/// Why a step could not be measured.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Lab(#[from] NetnsError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("no folder for the agent: {0}")]
    Folder(#[from] std::io::Error),
    #[error("the canary's policy was not in force after {0:?}")]
    Canary(Duration),
    #[error("given up: the agent failed to come up {GIVE_UP} times in a row")]
    GivenUp,
}

/// A laboratory whose agent runs. The agent stops first.
struct Site {
    agent: Box<dyn RunningAgent>,
    lab: Lab,
    folder: PathBuf,
    canary: Canary,
}

pub(super) struct Worker<'a> {
    options: &'a Options,
    number: usize,
    sites_built: usize,
    failed_starts: usize,
    site: Option<Site>,
    scratch: Option<TempDir>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(options: &'a Options, number: usize) -> Self {
        Self { options, number, sites_built: 0, failed_starts: 0, site: None, scratch: None }
    }

    /// Runs the steps of a case in order. After an error the rest of the case is left out, and the next case gets a
    /// new laboratory.
    pub(super) fn run_case(&mut self, case: &Case) -> Vec<StepReport> {
        if self.options.fresh {
            self.site = None;
        }
        let mut reports = Vec::new();
        for (number, step) in case.steps.iter().enumerate() {
            let mut report = StepReport {
                case: case.file.clone(),
                step: number,
                rows: 0,
                mismatches: Vec::new(),
                error: None,
                latency: Duration::ZERO,
                probing: Duration::ZERO,
                reprobes: 0,
            };
            let result = self.run_step(step, &mut report);
            report.error = result.err().map(|error| error.to_string());
            let broken = report.error.is_some();
            reports.push(report);
            if broken {
                self.site = None;
                break;
            }
        }
        reports
    }

    fn run_step(&mut self, step: &Step, report: &mut StepReport) -> Result<(), StepError> {
        let addressing = self.options.addressing;
        let mut cluster = step.cluster.clone();
        Canary::join(&mut cluster, addressing);
        let mut site = match self.site.take() {
            Some(site) => site,
            None if self.failed_starts >= GIVE_UP => return Err(StepError::GivenUp),
            None => {
                self.failed_starts += 1;
                let site = self.build_site()?;
                self.failed_starts = 0;
                site
            }
        };
        site.canary.toggle();
        let mut expected: Vec<(Flow, Verdict)> = step
            .expected
            .iter()
            .filter(|(flow, _)| self.options.contested || !step.contested.contains(flow))
            .cloned()
            .collect();
        expected.extend(site.canary.expected(addressing));
        let mut policies = step.policies.clone();
        policies.extend(site.canary.policies(&step.policies));
        report.rows = expected.len();

        site.lab.set_pods(&cluster.lab_pods())?;
        let told = Instant::now();
        site.apply(&cluster, &policies, &expected)?;
        // Telling a datastore takes its time, too, and is not the agent's.
        let arrived = site.await_canary(&site.canary.open_flow(addressing), Instant::now() + self.options.deadline);
        report.latency = told.elapsed();
        // Also after a missing canary: the rows that differ say more than the canary does.
        let measured = site.measure(&expected, self.options.deadline, report);
        site.agent.check()?;
        measured?;
        if !arrived? && report.mismatches.is_empty() {
            return Err(StepError::Canary(self.options.deadline));
        }
        self.site = Some(site);
        Ok(())
    }

    fn build_site(&mut self) -> Result<Site, StepError> {
        let base = match (&self.options.keep, &self.scratch) {
            (Some(folder), _) => folder.clone(),
            (None, Some(scratch)) => scratch.path().to_owned(),
            (None, None) => self.scratch.insert(TempDir::new()?).path().to_owned(),
        };
        self.sites_built += 1;
        let folder = base.join(format!("worker{}-{}", self.number, self.sites_built));
        std::fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?;
        let options = LabOptions { node_side: self.options.agent.node_side() };
        let lab = Lab::new(&[], &options)?;
        let node = NodeUnderTest { name: NODE, namespace: lab.node(), folder: &folder };
        let agent = self.options.agent.start(&node)?;
        let mut site = Site { agent, lab, folder, canary: Canary::default() };
        site.warm_up(self.options.addressing)?;
        Ok(site)
    }
}

impl Site {
    fn apply(
        &mut self,
        cluster: &Cluster,
        policies: &[serde_json::Value],
        expected: &[(Flow, Verdict)],
    ) -> Result<(), AgentError> {
        let node = NodeUnderTest { name: NODE, namespace: self.lab.node(), folder: &self.folder };
        self.agent.apply(&node, &State { cluster, policies, expected })
    }

    /// Enforces the canary's policy alone, so that from now on an open port of the canary always means a new state.
    fn warm_up(&mut self, addressing: Addressing) -> Result<(), StepError> {
        let mut cluster = Cluster::default();
        Canary::join(&mut cluster, addressing);
        let expected = self.canary.expected(addressing);
        self.lab.set_pods(&cluster.lab_pods())?;
        self.apply(&cluster, &self.canary.policies(&[]), &expected)?;
        let deadline = Instant::now() + START_UP;
        while !self.compare(&expected, &Timing::patient(Duration::from_millis(60)))?.is_empty() {
            self.agent.check()?;
            if Instant::now() > deadline {
                return Err(StepError::Canary(START_UP));
            }
        }
        Ok(())
    }

    /// Waits until the canary's flow comes through. `false` if it does not in time, or if the agent is dead.
    fn await_canary(&mut self, flow: &Flow, deadline: Instant) -> Result<bool, NetnsError> {
        let timing = Timing::patient(Duration::from_millis(40));
        while !self.lab.probe(std::slice::from_ref(flow), &timing)?.reached(flow) {
            if Instant::now() > deadline || self.agent.check().is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Measures every row. Rows that differ are measured again until the deadline; if they come right, everything is
    /// measured once more, because what was right at first may have become wrong meanwhile.
    fn measure(
        &mut self,
        expected: &[(Flow, Verdict)],
        patience: Duration,
        report: &mut StepReport,
    ) -> Result<(), NetnsError> {
        let start = Instant::now();
        report.mismatches = self.compare(expected, &Timing::default())?;
        while !report.mismatches.is_empty() && start.elapsed() < patience && self.agent.check().is_ok() {
            report.reprobes += 1;
            std::thread::sleep(Duration::from_millis(50));
            let again: Vec<(Flow, Verdict)> =
                report.mismatches.iter().map(|mismatch| (mismatch.flow.clone(), mismatch.expected)).collect();
            report.mismatches = self.compare(&again, &Timing::patient(Duration::from_millis(600)))?;
            if report.mismatches.is_empty() {
                report.mismatches = self.compare(expected, &Timing::default())?;
            }
        }
        report.probing = start.elapsed();
        Ok(())
    }

    fn compare(&self, expected: &[(Flow, Verdict)], timing: &Timing) -> Result<Vec<Mismatch>, NetnsError> {
        let flows: Vec<Flow> = expected.iter().map(|(flow, _)| flow.clone()).collect();
        let measured = self.lab.probe(&flows, timing)?;
        let differs = |(flow, verdict): &(Flow, Verdict)| {
            (measured.reached(flow) != verdict.allowed()).then(|| Mismatch {
                flow: flow.clone(),
                expected: *verdict,
                measured: measured.outcome(flow).cloned().unwrap_or(FlowOutcome::Silent),
            })
        };
        Ok(expected.iter().filter_map(differs).collect())
    }
}
