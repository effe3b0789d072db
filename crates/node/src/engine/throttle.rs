//! Rate limit of writes to the kernel.

use std::time::Duration;

/// Token bucket: some applies may follow each other at once, many are spread out
/// (`felix/dataplane/linux/int_dataplane.go`).
#[derive(Debug)]
pub(super) struct Throttle {
    tokens: u32,
    refilled: Duration,
}

const CAPACITY: u32 = 10;
const REFILL: Duration = Duration::from_millis(100);

impl Throttle {
    pub(super) fn new(now: Duration) -> Self {
        Self { tokens: 1, refilled: now }
    }

    /// Takes a token, or returns the time until there is one.
    pub(super) fn admit(&mut self, now: Duration) -> Result<(), Duration> {
        while self.tokens < CAPACITY && self.refilled + REFILL <= now {
            self.tokens += 1;
            self.refilled += REFILL;
        }
        if self.tokens == CAPACITY {
            self.refilled = now;
        }
        if self.tokens == 0 {
            return Err((self.refilled + REFILL).saturating_sub(now));
        }
        self.tokens -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
