//! Time limits of programs.

use std::time::Duration;

/// Time limit for each kind of program, after which it is killed and counts as failed.
///
/// Restore programs wait up to 10 s for the iptables lock before they begin. Programs that read or
/// write tables or sets must have more time than that. There is no parameter for these limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// `iptables` save and restore programs; 60 s.
    pub tables: Duration,
    /// `ipset`; 60 s.
    pub sets: Duration,
    /// Programs that only print their version; 15 s.
    pub probe: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self { tables: Duration::from_secs(60), sets: Duration::from_secs(60), probe: Duration::from_secs(15) }
    }
}

impl TimeLimits {
    /// Returns the limit for a program of the dataplane.
    pub(super) fn of(&self, program: &str) -> Duration {
        match program {
            "ipset" => self.sets,
            _ => self.tables,
        }
    }
}
