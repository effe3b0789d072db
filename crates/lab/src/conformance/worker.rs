//! A laboratory with an agent on each node that runs one case after another.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{
    Mismatch, NodeUnderTest, Options, ReportedFlow, RunningAgent, State, StepReport,
    agent::AgentError,
    canary::Canary,
    flows::{FlowFault, FlowMismatch, ReportedFlows, Row, Tracer},
    problems,
};
use crate::{
    cases::{Case, Cluster, FlowVerdict, Step},
    netns::NetnsError,
    pods::{Flow, FlowOutcome, Lab, LabOptions, Reachability, Timing, node_name},
};

/// Maximum time of an agent's start.
const START_UP: Duration = Duration::from_secs(60);

/// Maximum delay of a flow: an agent gathers packets for 100 ms and lets flows settle for 300 ms.
const FLOW_PATIENCE: Duration = Duration::from_millis(2500);

/// Number of consecutive failed starts after which the remaining cases fail immediately.
const GIVE_UP: usize = 3;

/// Error that prevents the measurement of a step.
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
    #[error("an agent reported no flows within {0:?}")]
    NoFlows(Duration),
    #[error("{0} cannot be traced")]
    Untraceable(Flow),
    #[error("given up: the agent failed to come up {GIVE_UP} times in a row")]
    GivenUp,
}

/// A laboratory with running agents. The agents stop first.
struct Site {
    agents: Vec<Box<dyn RunningAgent>>,
    lab: Lab,
    /// One for each node.
    folders: Vec<PathBuf>,
    canary: Canary,
    /// Source of the expected hits, if agents report flows.
    tracer: Option<Tracer>,
}

/// Result of a measurement.
struct Measurement {
    mismatches: Vec<Mismatch>,
    measured: Reachability,
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

    /// Runs the steps of a case in order. After an error, the remaining steps are skipped, and the
    /// next case gets a new laboratory.
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
                flows: 0,
                flow_mismatches: Vec::new(),
                flow_retries: Vec::new(),
                problems: Vec::new(),
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
        let mut cluster = step.cluster.clone();
        cluster.spread(self.options.nodes);
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
        site.canary.join(&mut cluster);
        site.canary.toggle();
        let mut expected: Vec<(Flow, FlowVerdict)> = step
            .expected
            .iter()
            .filter(|(flow, _)| self.options.contested || !step.contested.contains(flow))
            .cloned()
            .collect();
        expected.extend(site.canary.expected());
        let mut policies = step.policies.clone();
        policies.extend(site.canary.policies(&step.policies));
        report.rows = expected.len();

        site.lab.set_pods(&cluster.lab_pods())?;
        let written = Instant::now();
        site.apply(&cluster, &policies, &expected)?;
        // The time to write to the datastore is not the agent's.
        let arrived = site.await_canary(Instant::now() + self.options.deadline);
        report.latency = written.elapsed();
        // Also without the canary's answer: differing rows are more informative.
        let measured = site.measure(&expected, self.options.deadline, report);
        site.check()?;
        let measured = measured?;
        if report.mismatches.is_empty() {
            site.compare_flows(&expected, &measured, self.options.deadline, report)?;
        }
        report.problems = problems::unexpected(&report.case, site.await_no_problems(self.options.deadline)?);
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
        let nodes = self.options.nodes.max(1);
        let options = LabOptions { node_side: self.options.agent.node_side(), ..LabOptions::default() };
        let lab = Lab::new(&[], &options.nodes(nodes))?;
        let canary = Canary::new(nodes, self.options.addressing);
        let tracer = self.options.agent.reports_flows().then(Tracer::new);
        let mut site = Site { agents: Vec::new(), lab, folders: Vec::new(), canary, tracer };
        for number in 0..nodes {
            let suffix = if number == 0 { String::new() } else { format!("-{}", node_name(number)) };
            let folder = base.join(format!("worker{}-{}{suffix}", self.number, self.sites_built));
            std::fs::create_dir_all(&folder)?;
            site.folders.push(folder.canonicalize()?);
            let agent = site.on_node(number, |node| self.options.agent.start(node))?;
            site.agents.push(agent);
        }
        site.warm_up()?;
        Ok(site)
    }
}

impl Site {
    fn apply(
        &mut self,
        cluster: &Cluster,
        policies: &[serde_json::Value],
        expected: &[(Flow, FlowVerdict)],
    ) -> Result<(), AgentError> {
        let state = State { cluster, nodes: self.lab.nodes(), policies, expected };
        if let Some(tracer) = &mut self.tracer {
            tracer.follow(cluster, &state.objects());
        }
        let mut agents = std::mem::take(&mut self.agents);
        let mut numbered = agents.iter_mut().enumerate();
        let result = numbered.try_for_each(|(number, agent)| self.on_node(number, |node| agent.apply(node, &state)));
        self.agents = agents;
        result
    }

    /// Calls `body` with the node of this number.
    fn on_node<T>(&self, number: usize, body: impl FnOnce(&NodeUnderTest<'_>) -> T) -> T {
        let namespace = self.lab.node_at(number).unwrap_or_else(|| self.lab.node());
        body(&NodeUnderTest { name: &node_name(number), namespace, folder: &self.folders[number] })
    }

    /// Checks that all agents are alive.
    fn check(&mut self) -> Result<(), AgentError> {
        self.agents.iter_mut().try_for_each(|agent| agent.check())
    }

    /// Waits until no agent reports a problem, and returns those still reported at the deadline. An
    /// agent that is busy until then counts as a problem.
    fn await_no_problems(&mut self, patience: Duration) -> Result<Vec<String>, AgentError> {
        let deadline = Instant::now() + patience;
        loop {
            let mut problems = Vec::new();
            for agent in &mut self.agents {
                problems.extend(agent.problems()?.unwrap_or_else(|| vec!["the agent is busy".to_owned()]));
            }
            if problems.is_empty() || Instant::now() > deadline {
                return Ok(problems);
            }
            self.check()?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Enforces the canary's policy alone, so that from then on an open port of the canary implies
    /// a new state.
    fn warm_up(&mut self) -> Result<(), StepError> {
        let mut cluster = Cluster::default();
        self.canary.join(&mut cluster);
        let expected = self.canary.expected();
        self.lab.set_pods(&cluster.lab_pods())?;
        self.apply(&cluster, &self.canary.policies(&[]), &expected)?;
        let deadline = Instant::now() + START_UP;
        let timing = Timing::patient(Duration::from_millis(60));
        while !self.compare(&expected, &timing)?.mismatches.is_empty() {
            self.check()?;
            if Instant::now() > deadline {
                return Err(StepError::Canary(START_UP));
            }
        }
        if self.tracer.is_some() { self.await_flows(&expected, &timing) } else { Ok(()) }
    }

    /// Waits until every agent reports flows, so that none is missed afterwards.
    fn await_flows(&mut self, expected: &[(Flow, FlowVerdict)], timing: &Timing) -> Result<(), StepError> {
        let deadline = Instant::now() + START_UP;
        let mut silent: Vec<usize> = (0..self.agents.len()).collect();
        while !silent.is_empty() {
            self.check()?;
            if Instant::now() > deadline {
                return Err(StepError::NoFlows(START_UP));
            }
            self.compare(expected, timing)?;
            for (node, _) in self.take_flows()? {
                silent.retain(|other| *other != node);
            }
        }
        Ok(())
    }

    /// Returns the flows that agents reported since the previous call, with the numbers of their
    /// nodes.
    fn take_flows(&mut self) -> Result<Vec<(usize, ReportedFlow)>, AgentError> {
        let mut flows = Vec::new();
        let mut agents = std::mem::take(&mut self.agents);
        let mut numbered = agents.iter_mut().enumerate();
        let result = numbered.try_for_each(|(number, agent)| {
            let reported = self.on_node(number, |node| agent.flows(node))?;
            flows.extend(reported.into_iter().map(|flow| (number, flow)));
            Ok(())
        });
        self.agents = agents;
        result.map(|()| flows)
    }

    /// Waits for the flows of all measured rows and compares them. Until the deadline, two sorts of
    /// rows are measured again. The flow of the first differs: the agent may have been applying the
    /// rest of the step. The flow of the second is missing for long and the packet was not
    /// answered: it may never have left the pod.
    fn compare_flows(
        &mut self,
        expected: &[(Flow, FlowVerdict)],
        measured: &Reachability,
        patience: Duration,
        report: &mut StepReport,
    ) -> Result<(), StepError> {
        if self.tracer.is_none() {
            return Ok(());
        }
        let mut measured_at = Instant::now();
        let deadline = measured_at + patience;
        let mut rows = expected.iter().map(|(flow, _)| self.row(flow, measured)).collect::<Result<Vec<Row>, _>>()?;
        report.flows = rows.iter().map(Row::flows).sum();
        let mut reported = ReportedFlows::default();
        loop {
            for (node, flow) in self.take_flows()? {
                reported.add(node, flow);
            }
            let mut mismatches: Vec<FlowMismatch> = rows.iter().flat_map(|row| row.mismatches(&reported)).collect();
            if mismatches.is_empty() || Instant::now() > deadline {
                report.flow_mismatches = mismatches;
                return Ok(());
            }
            let is_lost = measured_at.elapsed() > FLOW_PATIENCE;
            let is_retried = |mismatch: &FlowMismatch| match mismatch.fault {
                FlowFault::Differs { .. } => true,
                FlowFault::Missing => is_lost && !measured.reached(&mismatch.flow),
                FlowFault::Unexpected => false,
            };
            if mismatches.iter().all(is_retried) {
                let mut flows: Vec<Flow> = mismatches.iter().map(|mismatch| mismatch.flow.clone()).collect();
                flows.dedup();
                report.flow_retries.append(&mut mismatches);
                measured_at = Instant::now();
                let again = self.lab.probe(&flows, &Timing::patient(Duration::from_millis(600)))?;
                for row in rows.iter_mut().filter(|row| flows.contains(&row.flow)) {
                    *row = self.row(&row.flow, &again)?;
                }
            } else {
                self.check()?;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn row(&mut self, flow: &Flow, measured: &Reachability) -> Result<Row, StepError> {
        let row = self.tracer.as_mut().and_then(|tracer| tracer.row(flow, measured));
        row.ok_or_else(|| StepError::Untraceable(flow.clone()))
    }

    /// Waits until the canary's flows succeed. Returns `false` if they do not in time, or if an
    /// agent is dead.
    fn await_canary(&mut self, deadline: Instant) -> Result<bool, NetnsError> {
        let timing = Timing::patient(Duration::from_millis(40));
        let mut flows = self.canary.open_flows();
        loop {
            let measured = self.lab.probe(&flows, &timing)?;
            flows.retain(|flow| !measured.reached(flow));
            if flows.is_empty() {
                return Ok(true);
            }
            if Instant::now() > deadline || self.check().is_err() {
                return Ok(false);
            }
        }
    }

    /// Measures every row. Rows that differ are measured again until the deadline. If they then
    /// match, all rows are measured once more, because rows that matched at first may have changed
    /// meanwhile.
    fn measure(
        &mut self,
        expected: &[(Flow, FlowVerdict)],
        patience: Duration,
        report: &mut StepReport,
    ) -> Result<Reachability, NetnsError> {
        let start = Instant::now();
        let mut compared = self.compare(expected, &Timing::default())?;
        while !compared.mismatches.is_empty() && start.elapsed() < patience && self.check().is_ok() {
            report.reprobes += 1;
            std::thread::sleep(Duration::from_millis(50));
            let again: Vec<(Flow, FlowVerdict)> =
                compared.mismatches.iter().map(|mismatch| (mismatch.flow.clone(), mismatch.expected)).collect();
            compared = self.compare(&again, &Timing::patient(Duration::from_millis(600)))?;
            if compared.mismatches.is_empty() {
                compared = self.compare(expected, &Timing::default())?;
            }
        }
        report.probing = start.elapsed();
        report.mismatches = compared.mismatches;
        Ok(compared.measured)
    }

    fn compare(&self, expected: &[(Flow, FlowVerdict)], timing: &Timing) -> Result<Measurement, NetnsError> {
        let flows: Vec<Flow> = expected.iter().map(|(flow, _)| flow.clone()).collect();
        let measured = self.lab.probe(&flows, timing)?;
        let differs = |(flow, verdict): &(Flow, FlowVerdict)| {
            (measured.reached(flow) != verdict.allowed()).then(|| Mismatch {
                flow: flow.clone(),
                expected: *verdict,
                measured: measured.outcome(flow).cloned().unwrap_or(FlowOutcome::Silent),
            })
        };
        let mismatches = expected.iter().filter_map(differs).collect();
        Ok(Measurement { mismatches, measured })
    }
}
