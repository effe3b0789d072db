//! Times and sizes of lists and watches.

use std::time::Duration;

use super::error::ApiError;
use crate::Backoff;

/// How often and how much. The default is what is good for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How many objects a page of a list holds at the most.
    pub page: usize,
    /// How long a watch lasts, by agreement with the server; up to twice as long.
    pub watch: Duration,
    /// How long a watch may be silent. Servers send a bookmark every minute or so.
    pub idle: Duration,
    /// The shortest time between two lists.
    pub resync: Duration,
    /// How often a list is read that cannot be watched.
    pub poll: Duration,
    /// The shortest and the longest pause after a failure.
    pub retry: (Duration, Duration),
    /// The shortest and the longest time after which a kind is looked for again that was not there.
    pub missing: (Duration, Duration),
}

impl Timing {
    /// How long to wait after another failure, and at least as long as the server wishes.
    pub(super) fn pause(&self, retry: &mut Backoff, error: &ApiError, chance: f64) -> Duration {
        let pause = retry.fail(chance);
        // A server that asks for more than this is not believed.
        error.retry_after().map_or(pause, |wish| pause.max(wish.min(self.retry.1.saturating_mul(4))))
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            page: 500,
            watch: Duration::from_secs(300),
            idle: Duration::from_secs(150),
            resync: Duration::from_millis(500),
            poll: Duration::from_secs(5),
            retry: (Duration::from_millis(500), Duration::from_secs(30)),
            missing: (Duration::from_secs(10), Duration::from_secs(300)),
        }
    }
}
