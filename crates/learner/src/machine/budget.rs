//! Processor time that a scope may take of the thread.

use std::time::Duration;

use tortie_dns::Millis;

/// Processor time of one scope in each period: a tenth.
pub(super) const ALLOWED: Duration = Duration::from_millis(100);
const PERIOD: Duration = Duration::from_secs(1);

/// The processor time that a scope has taken in the present period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    ends: Millis,
    spent: Duration,
}

impl Budget {
    /// Reports whether the scope may take more. The packet that exceeds the budget is the last one.
    pub(super) fn has_rest(&self, now: Millis) -> bool {
        self.ends <= now || self.spent < ALLOWED
    }

    /// Notes time that was taken.
    pub(super) fn charge(&mut self, now: Millis, time: Duration) {
        if self.ends <= now {
            *self = Self { ends: now.after(PERIOD), spent: Duration::ZERO };
        }
        self.spent += time;
    }
}
