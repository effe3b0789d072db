//! How long events take to reach the kernel.

use std::time::{Duration, Instant};

use crate::metrics::Histogram;

/// Events that are not in the kernel yet.
#[derive(Debug, Default)]
pub(super) struct Latency {
    /// When they were noticed, and how many changes each brought.
    waiting: Vec<(Instant, u64)>,
}

impl Latency {
    /// An event was noticed at that time.
    pub(super) fn event(&mut self, noticed: Instant, changes: usize) {
        self.waiting.push((noticed, u64::try_from(changes).unwrap_or(u64::MAX)));
    }

    /// Whatever was waiting waits for something else than the kernel.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
    }

    /// Whatever was waiting is in the kernel now. Returns the longest wait.
    pub(super) fn applied(&mut self, now: Instant, histogram: &mut Histogram) -> Option<Duration> {
        let mut longest = None;
        for (noticed, changes) in self.waiting.drain(..) {
            let latency = now.saturating_duration_since(noticed);
            histogram.observe_many(latency, changes);
            longest = longest.max(Some(latency));
        }
        longest
    }
}
