//! Histogram of latencies.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A step, in microseconds.
const STEP: u64 = 50;
const STEPS: usize = 400_000;

/// Number of latencies of each length, in steps. Latencies above 20 s count as 20 s.
#[derive(Debug)]
pub(crate) struct Latencies(Vec<AtomicU32>);

impl Default for Latencies {
    fn default() -> Self {
        Self((0..STEPS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Latencies {
    /// Counts the time from `began`, a value of [`now`], to the present.
    pub(crate) fn add(&self, began: u64) {
        let step = usize::try_from(now().saturating_sub(began) / STEP).unwrap().min(STEPS - 1);
        self.0[step].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the latencies that the given shares of all do not exceed, in milliseconds.
    pub(crate) fn quantiles<const N: usize>(&self, shares: [f64; N]) -> [f64; N] {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Ordering::Relaxed).into()).collect();
        let total: u64 = counts.iter().sum();
        shares.map(|share| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
            let wanted = (total as f64 * share) as u64;
            let mut so_far = 0;
            let step = counts.iter().position(|count| {
                so_far += count;
                so_far >= wanted
            });
            (step.unwrap_or(0) as u64 * STEP) as f64 / 1e3
        })
    }

    /// Returns all latencies by step and resets them.
    pub(crate) fn take(&self) -> Vec<(usize, u32)> {
        let counts = self.0.iter().map(|count| count.swap(0, Ordering::Relaxed));
        counts.enumerate().filter(|&(_, count)| count > 0).collect()
    }

    /// Adds latencies from [`Latencies::take`].
    pub(crate) fn merge(&self, taken: &[(usize, u32)]) {
        for &(step, count) in taken {
            self.0[step.min(STEPS - 1)].fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// Microseconds since 1970: the same clock for all processes.
pub(crate) fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}
