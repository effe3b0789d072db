//! How long events take to reach the kernel.

use std::time::{Duration, Instant};

/// How many events are told apart.
const MAX_WAITING: usize = 10_000;

/// Events that are not in the kernel yet.
#[derive(Debug, Default)]
pub(super) struct Latency {
    /// When they were noticed, and how many changes each brought.
    waiting: Vec<(Instant, u64)>,
}

impl Latency {
    /// An event was noticed at that time.
    pub(super) fn event(&mut self, noticed: Instant, changes: usize) {
        let changes = changes as u64;
        if self.waiting.len() >= MAX_WAITING
            && let Some((_, last)) = self.waiting.last_mut()
        {
            // The kernel takes nothing for a long time; how long each has waited exactly does not matter any more.
            *last = last.saturating_add(changes);
            return;
        }
        self.waiting.push((noticed, changes));
    }

    /// Whatever was waiting waits for something else than the kernel.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
    }

    /// How many changes wait.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.iter().fold(0, |sum, (_, changes)| sum.saturating_add(*changes))
    }

    /// Whatever was waiting is in the kernel now; `observe` is told how long, and how many changes. Returns the longest wait.
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
