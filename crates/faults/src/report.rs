//! Result of a fault.

use std::{fmt, path::PathBuf, time::Duration};

use super::{
    Backend, Fault,
    judge::{Interval, Wrong, union},
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
    wrong: Vec<(Channel, Interval)>,
    pub(super) trouble: Option<String>,
    pub(super) log: String,
    pub(super) took: Duration,
    pub(super) kept: Option<PathBuf>,
}

/// Outcomes of one sort.
struct Sum<'a> {
    wrong: Wrong,
    excused: bool,
    intervals: Vec<&'a (Channel, Interval)>,
}

impl FaultReport {
    pub(super) fn new(fault: &Fault, backend: Backend) -> Self {
        Self {
            name: fault.name,
            backend,
            is_self_check: fault.is_self_check,
            sent: 0,
            wrong: Vec::new(),
            trouble: None,
            log: String::new(),
            took: Duration::ZERO,
            kept: None,
        }
    }

    pub(super) fn judged(&mut self, judged: Vec<(Channel, usize, Vec<Interval>)>) {
        for (channel, sent, intervals) in judged {
            self.sent += sent;
            self.wrong.extend(intervals.into_iter().map(|interval| (channel.clone(), interval)));
        }
    }

    /// Reports whether all requirements were met.
    #[must_use]
    pub fn passed(&self) -> bool {
        let found = |wrong| !self.sum(wrong, false).intervals.is_empty();
        let open_as_should_be = found(Wrong::Allowed) == self.is_self_check;
        self.trouble.is_none() && self.sent > 0 && open_as_should_be && !found(Wrong::Denied)
    }

    fn sum(&self, wrong: Wrong, excused: bool) -> Sum<'_> {
        let of = |(_, interval): &&(Channel, Interval)| interval.wrong == wrong && interval.excused == excused;
        Sum { wrong, excused, intervals: self.wrong.iter().filter(of).collect() }
    }
}

impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passed() { "passed" } else { "FAILED" };
        let sums = [Wrong::Allowed, Wrong::Denied].map(|wrong| self.sum(wrong, false));
        write!(f, "{verdict} {:<6} {:<28} {:>6} packets", self.backend.name(), self.name, self.sent)?;
        for sum in &sums {
            write!(f, ", {sum}")?;
        }
        for sum in [Wrong::Allowed, Wrong::Denied].map(|wrong| self.sum(wrong, true)) {
            if !sum.intervals.is_empty() {
                write!(f, "; announced: {sum}")?;
            }
        }
        write!(f, " ({})", seconds(self.took))?;
        if self.passed() {
            return Ok(());
        }
        for sum in sums.iter().filter(|sum| !sum.intervals.is_empty()) {
            for (channel, interval) in sum.intervals.iter().take(NAMED) {
                let [first, last] = [interval.first, interval.last].map(|time| time.as_secs_f64());
                write!(f, "\n    {channel}: {} wrong at {first:.3} s to {last:.3} s", interval.probes)?;
            }
            if sum.intervals.len() > NAMED {
                write!(f, "\n    and {} more intervals", sum.intervals.len() - NAMED)?;
            }
        }
        if let Some(trouble) = &self.trouble {
            write!(f, "\n    {trouble}")?;
        }
        if self.is_self_check && sums[0].intervals.is_empty() {
            f.write_str("\n    the hole was not seen: a prober that sees nothing proves nothing")?;
        }
        for line in self.log.lines() {
            write!(f, "\n    | {line}")?;
        }
        if let Some(kept) = &self.kept {
            write!(f, "\n    kept: {}", kept.display())?;
        }
        Ok(())
    }
}

impl fmt::Display for Sum<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.wrong {
            Wrong::Allowed => "allowed",
            Wrong::Denied => "denied",
        };
        let count: usize = self.intervals.iter().map(|(_, interval)| interval.probes).sum();
        if !self.excused {
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
