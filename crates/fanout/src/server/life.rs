//! Signs of life of the threads of a server.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two signs of life of the threads that serve connections.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// A part of a server with dedicated threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The thread that follows the source.
    Cache,
    /// The threads that serve connections.
    Connections,
}

impl Part {
    const ALL: [Self; 2] = [Self::Cache, Self::Connections];
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cache => "the thread that follows the source",
            Self::Connections => "the threads that serve connections",
        })
    }
}

/// The last sign of life of each part.
#[derive(Debug)]
pub(super) struct Life {
    started: Instant,
    /// Milliseconds from the start.
    cache: AtomicU64,
    connections: AtomicU64,
}

impl Life {
    pub(super) fn new(started: Instant) -> Self {
        Self { started, cache: AtomicU64::new(0), connections: AtomicU64::new(0) }
    }

    #[expect(clippy::expect_used, reason = "no machine runs for 584 million years")]
    pub(super) fn beat(&self, part: Part, now: Instant) {
        let millis = now.saturating_duration_since(self.started).as_millis();
        self.last(part).store(u64::try_from(millis).expect("fewer than 2^64 milliseconds"), Ordering::Relaxed);
    }

    fn last(&self, part: Part) -> &AtomicU64 {
        match part {
            Part::Cache => &self.cache,
            Part::Connections => &self.connections,
        }
    }

    /// Returns the parts without a sign of life for longer than `patience`.
    pub(super) fn silent(&self, patience: Duration, now: Instant) -> Vec<Part> {
        let is_silent = |part: &Part| {
            let last = self.started + Duration::from_millis(self.last(*part).load(Ordering::Relaxed));
            now.saturating_duration_since(last) > patience
        };
        Part::ALL.into_iter().filter(is_silent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_silent_until_its_next_sign_of_life() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let life = Life::new(start);
        let silent = |now| life.silent(Duration::from_secs(60), at(now));
        assert_eq!(silent(60), []);
        life.beat(Part::Connections, at(30));
        assert_eq!(silent(61), [Part::Cache]);
        life.beat(Part::Cache, at(61));
        assert_eq!(silent(90), []);
        assert_eq!(silent(91), [Part::Connections]);
        assert_eq!(silent(122), [Part::Cache, Part::Connections]);
    }
}
