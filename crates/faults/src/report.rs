//! Result of a fault.

use std::{fmt, path::PathBuf, time::Duration};

use super::{
    Backend, Fault,
    evaluation::{Interval, Violation, union},
    prober::Channel,
    seconds,
};

/// Number of channels that are named in full.
const NAMED: usize = 4;

/// Result of a fault with a back end.
#[derive(Debug)]
pub struct FaultReport {
    name: &'static str,
    backend: Backend,
    is_self_check: bool,
    sent: usize,
    violations: Vec<(Channel, Interval)>,
    pub(super) error: Option<String>,
    pub(super) log: String,
    pub(super) took: Duration,
    pub(super) kept_files: Option<PathBuf>,
}

/// Outcomes of one sort.
struct ViolationSummary<'a> {
    violation: Violation,
    announced: bool,
    intervals: Vec<&'a (Channel, Interval)>,
}

impl FaultReport {
    pub(super) fn new(fault: &Fault, backend: Backend) -> Self {
        Self {
            name: fault.name,
            backend,
            is_self_check: fault.is_self_check,
            sent: 0,
            violations: Vec::new(),
            error: None,
            log: String::new(),
            took: Duration::ZERO,
            kept_files: None,
        }
    }

    pub(super) fn add_outcomes(&mut self, results: Vec<(Channel, usize, Vec<Interval>)>) {
        for (channel, sent, intervals) in results {
            self.sent += sent;
            self.violations.extend(intervals.into_iter().map(|interval| (channel.clone(), interval)));
        }
    }

    /// Reports whether all requirements were met.
    #[must_use]
    pub fn passed(&self) -> bool {
        let found = |violation| !self.summary(violation, false).intervals.is_empty();
        let open_as_should_be = found(Violation::Allowed) == self.is_self_check;
        self.error.is_none() && self.sent > 0 && open_as_should_be && !found(Violation::Denied)
    }

    fn summary(&self, violation: Violation, announced: bool) -> ViolationSummary<'_> {
        let of =
            |(_, interval): &&(Channel, Interval)| interval.violation == violation && interval.announced == announced;
        ViolationSummary { violation, announced, intervals: self.violations.iter().filter(of).collect() }
    }
}

impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passed() { "passed" } else { "FAILED" };
        let summaries = [Violation::Allowed, Violation::Denied].map(|violation| self.summary(violation, false));
        write!(f, "{verdict} {:<6} {:<28} {:>6} packets", self.backend.name(), self.name, self.sent)?;
        for summary in &summaries {
            write!(f, ", {summary}")?;
        }
        for summary in [Violation::Allowed, Violation::Denied].map(|violation| self.summary(violation, true)) {
            if !summary.intervals.is_empty() {
                write!(f, "; announced: {summary}")?;
            }
        }
        write!(f, " ({})", seconds(self.took))?;
        if self.passed() {
            return Ok(());
        }
        for summary in summaries.iter().filter(|summary| !summary.intervals.is_empty()) {
            for (channel, interval) in summary.intervals.iter().take(NAMED) {
                let [first, last] = [interval.first, interval.last].map(|time| time.as_secs_f64());
                write!(f, "\n    {channel}: {} wrong at {first:.3} s to {last:.3} s", interval.probes)?;
            }
            if summary.intervals.len() > NAMED {
                write!(f, "\n    and {} more intervals", summary.intervals.len() - NAMED)?;
            }
        }
        if let Some(error) = &self.error {
            write!(f, "\n    {error}")?;
        }
        if self.is_self_check && summaries[0].intervals.is_empty() {
            f.write_str("\n    the hole was not seen: a prober that sees nothing proves nothing")?;
        }
        for line in self.log.lines() {
            write!(f, "\n    | {line}")?;
        }
        if let Some(kept_files) = &self.kept_files {
            write!(f, "\n    kept: {}", kept_files.display())?;
        }
        Ok(())
    }
}

impl fmt::Display for ViolationSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.violation {
            Violation::Allowed => "allowed",
            Violation::Denied => "denied",
        };
        let count: usize = self.intervals.iter().map(|(_, interval)| interval.probes).sum();
        if !self.announced {
            f.write_str("wrongly ")?;
        }
        write!(f, "{word} {count}")?;
        if count > 0 {
            let intervals = || self.intervals.iter().map(|(_, interval)| interval);
            let surely = union(intervals().map(|interval| (interval.first, interval.last)));
            let at_most = union(intervals().map(|interval| interval.between));
            write!(f, " in {} to {}", seconds(surely), seconds(at_most))?;
        }
        Ok(())
    }
}
