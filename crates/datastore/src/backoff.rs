//! Pauses between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Exponential backoff: the pause doubles after each failure, between two bounds. Up to half of a
/// pause is random, so that clients that fail at the same moment do not retry together. Pure: the
/// random number is an argument.
///
/// ```
/// use std::time::Duration;
/// use tortie_datastore::Backoff;
///
/// let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// assert_eq!(backoff.fail(1.0), Duration::from_millis(500));
/// assert_eq!(backoff.fail(1.0), Duration::from_secs(1));
/// // Half of a pause is left to chance.
/// assert_eq!(backoff.fail(0.0), Duration::from_secs(1));
/// backoff.succeed();
/// assert_eq!(backoff.fail(1.0), Duration::from_millis(500));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Returns a backoff without failures; pauses are between half of `min` and `max`.
    #[must_use]
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, failures: 0 }
    }

    /// Counts a failed attempt and returns the pause before the next one; `chance` is between 0 and
    /// 1, see [`chance`].
    #[must_use]
    pub fn fail(&mut self, chance: f64) -> Duration {
        let doublings = self.failures.min(31);
        self.failures = self.failures.saturating_add(1);
        let whole = self.min.saturating_mul(1 << doublings).min(self.max);
        whole.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }

    /// Resets the pause after a successful attempt.
    pub fn succeed(&mut self) {
        self.failures = 0;
    }

    /// Returns the number of consecutive failures.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// Returns a random number between 0 and 1; not for secrets.
#[must_use]
pub fn chance() -> f64 {
    // The state is seeded by the operating system once, and then counts up.
    let random = u32::try_from(RandomState::new().hash_one(0_u8) >> 32).unwrap_or_default();
    f64::from(random) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pauses_are_between_half_and_all_of_the_due_time(
            min in 1..5_000_u64,
            more in 0..60_000_u64,
            attempts in prop::collection::vec((0.0..=1.0, any::<bool>()), 1..40),
        ) {
            let (min, max) = (Duration::from_millis(min), Duration::from_millis(min + more));
            let mut backoff = Backoff::new(min, max);
            let mut failures = 0_u32;
            for (chance, succeeds) in attempts {
                if succeeds {
                    backoff.succeed();
                    failures = 0;
                }
                let due = min.saturating_mul(2_u32.saturating_pow(failures)).min(max);
                let pause = backoff.fail(chance);
                prop_assert!(pause <= due && pause >= due / 2, "{pause:?} of {due:?}");
                failures += 1;
                prop_assert_eq!(backoff.failures(), failures);
            }
        }
    }

    #[test]
    fn pauses_grow_to_the_bound_and_restart_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let pauses: Vec<u64> = (0..5).map(|_| backoff.fail(1.0).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        assert_eq!(backoff.failures(), 5);
        for _ in 0..100 {
            assert_eq!(backoff.fail(1.0), Duration::from_secs(5));
        }
        backoff.succeed();
        assert_eq!(backoff.fail(1.0), Duration::from_secs(1));
    }

    #[test]
    fn chance_is_spread() {
        let drawn: Vec<f64> = (0..64).map(|_| chance()).collect();
        assert!(drawn.iter().all(|chance| (0.0..=1.0).contains(chance)));
        assert!(drawn.iter().any(|chance| *chance < 0.5) && drawn.iter().any(|chance| *chance > 0.5));
    }
}
