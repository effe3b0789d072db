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
mod tests;
