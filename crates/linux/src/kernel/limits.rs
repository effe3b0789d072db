//! How long programs may take.

use std::time::Duration;

/// How long each kind of program may take before it is killed and counts as failed.
///
/// Restore programs wait up to 10 s for the lock of iptables before they begin, so that nothing that reads or writes
/// tables or sets may be given less. There is no parameter for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// The save and restore programs of iptables; 60 s.
    pub tables: Duration,
    /// `ipset`; 60 s.
    pub sets: Duration,
    /// `conntrack`; 20 s.
    pub conntrack: Duration,
    /// Programs that only print their version; 15 s.
    pub probe: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            tables: Duration::from_secs(60),
            sets: Duration::from_secs(60),
            conntrack: Duration::from_secs(20),
            probe: Duration::from_secs(15),
        }
    }
}

impl TimeLimits {
    /// The limit for a program of the dataplane.
    pub(super) fn of(&self, program: &str) -> Duration {
        match program {
            "ipset" => self.sets,
            "conntrack" => self.conntrack,
            _ => self.tables,
        }
    }
}
