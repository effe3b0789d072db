//! Times of the parts of a run.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Observer;

/// Returns the processor time of this thread, including system calls. On an idle machine it equals
/// elapsed time; on a busy one it still approximates the cost of this thread.
fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Measures the parts of a run, without the counting of messages.
#[derive(Debug)]
pub struct Stopwatch {
    last: Duration,
    parts: Vec<(&'static str, Duration)>,
}

/// Times of the parts of a run.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// The parts in order.
    pub parts: Vec<(&'static str, Duration)>,
}

impl Stopwatch {
    /// Starts the measurement.
    #[must_use]
    pub fn start() -> Self {
        Self { last: now(), parts: Vec::new() }
    }

    /// Returns the measured times.
    #[must_use]
    pub fn stop(self) -> Timing {
        Timing { parts: self.parts }
    }
}

impl Observer for Stopwatch {
    fn done(&mut self, part: &'static str) {
        let time = now();
        if part != "count" {
            self.parts.push((part, time - self.last));
        }
        self.last = now();
    }
}

impl Timing {
    /// Returns the total of all parts, in milliseconds.
    #[must_use]
    pub fn millis(&self) -> f64 {
        self.millis_of(|_| true)
    }

    /// Returns the total of these parts, in milliseconds.
    #[must_use]
    pub fn millis_of(&self, is_selected: impl Fn(&str) -> bool) -> f64 {
        let selected = self.parts.iter().filter(|(part, _)| is_selected(part));
        selected.map(|(_, time)| *time).sum::<Duration>().as_secs_f64() * 1e3
    }

    /// Returns the fastest of these.
    #[must_use]
    pub fn fastest(timings: &[Self]) -> Self {
        timings.iter().min_by(|a, b| a.millis().total_cmp(&b.millis())).cloned().unwrap_or_default()
    }

    /// Returns the median of their totals, in milliseconds.
    #[must_use]
    pub fn median_millis(timings: &[Self]) -> f64 {
        let mut millis: Vec<f64> = timings.iter().map(Self::millis).collect();
        millis.sort_unstable_by(f64::total_cmp);
        millis.get(millis.len() / 2).copied().unwrap_or_default()
    }
}

impl std::fmt::Display for Timing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, (part, time)) in self.parts.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{part} {:.1}", time.as_secs_f64() * 1e3)?;
        }
        Ok(())
    }
}
