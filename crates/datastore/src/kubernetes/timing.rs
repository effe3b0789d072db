//! Times and sizes of lists and watches.

use std::time::Duration;

use super::error::ApiError;
use crate::Backoff;

/// Times and sizes of lists and watches; the default is meant for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Most objects in a page of a list; 500 by default.
    pub page: usize,
    /// Duration of a watch that is requested from the server, which may take up to twice as long;
    /// 300 s by default.
    pub watch: Duration,
    /// Longest silence of a watch; 150 s by default. Servers send a bookmark about every minute.
    pub idle: Duration,
    /// Shortest time between two lists; 0.5 s by default.
    pub resync: Duration,
    /// Time between two reads of a list that cannot be watched; 5 s by default.
    pub poll: Duration,
    /// Shortest and longest pause after a failure; 0.5 s and 30 s by default.
    pub retry: (Duration, Duration),
    /// Shortest and longest time between two checks for a missing kind; 10 s and 300 s by default.
    pub missing: (Duration, Duration),
}

impl Timing {
    /// Returns the pause after another failure, not shorter than the server's `Retry-After`.
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
