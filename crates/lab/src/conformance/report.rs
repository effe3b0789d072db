//! Results of a run.

use std::{fmt, time::Duration};

use super::flows::FlowMismatch;
use crate::{
    cases::FlowVerdict,
    pods::{Flow, FlowOutcome},
};

/// A row that differs from its expectation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The flow.
    pub flow: Flow,
    /// The expected verdict.
    pub expected: FlowVerdict,
    /// The measured outcome.
    pub measured: FlowOutcome,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = match (self.expected.ingress, self.expected.egress) {
            (true, true) => "allowed",
            (false, true) => "blocked by ingress",
            (true, false) => "blocked by egress",
            (false, false) => "blocked by ingress and egress",
        };
        write!(f, "{}: expected {expected}, measured {:?}", self.flow, self.measured)
    }
}

/// Result of a step.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// Short name of the case.
    pub case: String,
    /// Position of the step in the case, from 0.
    pub step: usize,
    /// Number of compared rows.
    pub rows: usize,
    /// Rows that differed until the deadline.
    pub mismatches: Vec<Mismatch>,
    /// Number of compared flows.
    pub flows: usize,
    /// Flows that differed until the deadline.
    pub flow_mismatches: Vec<FlowMismatch>,
    /// Flows whose rows were measured again.
    pub flow_retries: Vec<FlowMismatch>,
    /// Problems of the kernel that agents reported until the deadline.
    pub problems: Vec<String>,
    /// Error that prevented the measurement, if any.
    pub error: Option<String>,
    /// Time from the new state to the canary's answer, with a resolution of a few milliseconds.
    pub latency: Duration,
    /// Duration of the measurement.
    pub probing: Duration,
    /// Number of repeated measurements of rows that differed at first.
    pub reprobes: usize,
}

impl StepReport {
    /// Reports whether all rows and flows were as expected, and no agent reported a problem.
    #[must_use]
    pub fn passed(&self) -> bool {
        let differs = !self.mismatches.is_empty() || !self.flow_mismatches.is_empty();
        self.error.is_none() && !differs && self.problems.is_empty()
    }
}

/// Results of all steps, in the order of the cases.
#[derive(Debug, Clone)]
pub struct Report {
    /// Every step.
    pub steps: Vec<StepReport>,
    /// Duration of the run.
    pub elapsed: Duration,
}

impl Report {
    /// Reports whether steps ran and all of them passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.steps.is_empty() && self.failures().next().is_none()
    }

    /// Returns the failed steps.
    pub fn failures(&self) -> impl Iterator<Item = &StepReport> {
        self.steps.iter().filter(|step| !step.passed())
    }

    /// Returns the number of cases.
    #[must_use]
    pub fn cases(&self) -> usize {
        let mut names: Vec<&str> = self.steps.iter().map(|step| step.case.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }

    /// Returns the latency that this share of the steps (0 to 1) did not exceed.
    #[must_use]
    pub fn latency(&self, share: f64) -> Duration {
        let mut latencies: Vec<Duration> =
            self.steps.iter().filter(|step| step.error.is_none()).map(|step| step.latency).collect();
        latencies.sort_unstable();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank among a few thousand"
        )]
        let rank = (latencies.len() as f64 * share) as usize;
        latencies.get(rank.min(latencies.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

/// Writes every failed step with its first mismatches, then a summary.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for step in self.failures() {
            writeln!(f, "FAIL {} step {}: {} of {} rows", step.case, step.step, step.mismatches.len(), step.rows)?;
            if let Some(error) = &step.error {
                writeln!(f, "     {error}")?;
            }
            for problem in step.problems.iter().take(SHOWN) {
                writeln!(f, "     out of sync: {problem}")?;
            }
            for mismatch in step.mismatches.iter().take(SHOWN) {
                writeln!(f, "     {mismatch}")?;
            }
            if step.mismatches.len() > SHOWN {
                writeln!(f, "     … and {} more", step.mismatches.len() - SHOWN)?;
            }
            for mismatch in step.flow_mismatches.iter().take(SHOWN) {
                writeln!(f, "     {mismatch}")?;
            }
            if step.flow_mismatches.len() > SHOWN {
                writeln!(f, "     … and {} more flows", step.flow_mismatches.len() - SHOWN)?;
            }
        }
        let rows: usize = self.steps.iter().map(|step| step.rows).sum();
        let reprobes: usize = self.steps.iter().map(|step| step.reprobes).sum();
        writeln!(
            f,
            "{} cases, {} steps, {rows} rows: {} steps failed; {reprobes} re-probes; {:.1} s",
            self.cases(),
            self.steps.len(),
            self.failures().count(),
            self.elapsed.as_secs_f64(),
        )?;
        let flows: usize = self.steps.iter().map(|step| step.flows).sum();
        if flows > 0 {
            let differ: usize = self.steps.iter().map(|step| step.flow_mismatches.len()).sum();
            let retries: usize = self.steps.iter().map(|step| step.flow_retries.len()).sum();
            writeln!(f, "{flows} flows compared with packets and trace: {differ} differ; {retries} tried again")?;
            for step in self.steps.iter().filter(|step| !step.flow_retries.is_empty()) {
                let (count, first) = (step.flow_retries.len(), &step.flow_retries[0]);
                writeln!(f, "     {} step {}: {count} tried again, as {first}", step.case, step.step)?;
            }
        }
        writeln!(
            f,
            "change to enforcement: median {} ms, 99 % {} ms",
            self.latency(0.5).as_millis(),
            self.latency(0.99).as_millis()
        )
    }
}
