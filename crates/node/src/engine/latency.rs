//! Latency from an event to the kernel.

use std::time::{Duration, Instant};

/// Maximum number of waiting events that are recorded separately.
const MAX_WAITING: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Latency {
    waiting: Vec<(Instant, u64)>,
}

impl Latency {
    pub(super) fn event(&mut self, noticed: Instant, changes: usize) {
        let changes = changes as u64;
        if self.waiting.len() >= MAX_WAITING
            && let Some((_, last)) = self.waiting.last_mut()
        {
            // The kernel has taken nothing for a long time; the exact latency of each event does
            // not matter any more.
            *last = last.saturating_add(changes);
            return;
        }
        self.waiting.push((noticed, changes));
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting.iter().fold(0, |sum, (_, changes)| sum.saturating_add(*changes))
    }

    /// Takes all waiting events, calls `observe` with each latency and number of changes, and
    /// returns the longest.
    pub(super) fn applied(&mut self, now: Instant, mut observe: impl FnMut(Duration, u64)) -> Option<Duration> {
        let mut longest = None;
        for (noticed, changes) in self.waiting.drain(..) {
            let latency = now.saturating_duration_since(noticed);
            observe(latency, changes);
            longest = longest.max(Some(latency));
        }
        longest
    }
}
