//! Reading of the clocks.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::store::pending::Moment;
use rustix::time::{ClockId, clock_gettime};

/// Returns the current time by the wall clock, which can be set, and by the time since boot, which
/// cannot.
#[must_use]
pub fn now() -> Moment {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let uptime = clock_gettime(ClockId::Boottime);
    let millis = |seconds: i64, nanos: i64| u64::try_from(seconds * 1_000 + nanos / 1_000_000).unwrap_or_default();
    Moment {
        // A time beyond the range is the last millisecond.
        wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
        boot: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned(),
        uptime_ms: millis(uptime.tv_sec, uptime.tv_nsec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_within_one_start_of_the_machine() {
        let (first, second) = (now(), now());
        assert!(!first.boot.is_empty() && first.boot == second.boot);
        assert!(0 < first.uptime_ms && first.uptime_ms <= second.uptime_ms);
    }
}
