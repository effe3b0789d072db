//! Schedule of the checks of a table without changes of the desired state.

use std::time::Duration;

/// Interval from which on checks after a write end; the refresh continues.
const LAST_POST_WRITE_CHECK: Duration = Duration::from_secs(60 * 60);
const MIN_POST_WRITE_INTERVAL: Duration = Duration::from_millis(50);

/// Re-reads the table at fixed intervals, and at doubling intervals after each write, because other
/// programs overwrite tables most often at the start of the system.
#[derive(Debug)]
pub(super) struct Schedule {
    refresh: Option<Duration>,
    first_post_write: Duration,
    post_write: Duration,
    last_read: Option<Duration>,
    last_write: Option<Duration>,
    peak_save: Duration,
    peak_restore: Duration,
}

impl Schedule {
    pub(super) fn new(refresh: Option<Duration>, post_write: Duration) -> Self {
        let post_write = post_write.max(MIN_POST_WRITE_INTERVAL);
        Self {
            refresh: refresh.filter(|interval| !interval.is_zero()),
            first_post_write: post_write,
            post_write,
            last_read: None,
            last_write: None,
            peak_save: Duration::ZERO,
            peak_restore: Duration::ZERO,
        }
    }

    /// Reports whether the table should be read again at `now`. Each post-write check is due once.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        // The start counts as a write.
        let last_write = *self.last_write.get_or_insert(now);
        let mut due = match (self.refresh, self.last_read) {
            (Some(interval), Some(last_read)) => now.saturating_sub(last_read) >= interval,
            _ => false,
        };
        while self.post_write < LAST_POST_WRITE_CHECK && now >= last_write + self.post_write {
            self.post_write *= 2;
            due = true;
        }
        due
    }

    /// Returns the time from `now` to the next check of the table.
    pub(super) fn next(&self, now: Duration) -> Option<Duration> {
        let refresh = self.refresh.map(|interval| (self.last_read.unwrap_or(now) + interval).saturating_sub(now));
        let post_write = (self.post_write < LAST_POST_WRITE_CHECK).then(|| {
            let due = self.last_write.unwrap_or(now) + self.post_write;
            due.saturating_sub(now).max(Duration::from_millis(1))
        });
        refresh.into_iter().chain(post_write).min()
    }

    pub(super) fn refresh_interval(&self) -> Option<Duration> {
        self.refresh
    }

    pub(super) fn save_started(&mut self, now: Duration) {
        self.last_read = Some(now);
    }

    /// Records that the table is unchanged since it was last read.
    pub(super) fn confirmed(&mut self, now: Duration) {
        self.last_read = Some(now);
    }

    pub(super) fn save_took(&mut self, duration: Duration) {
        raise(&mut self.peak_save, duration);
    }

    pub(super) fn restore_took(&mut self, duration: Duration) {
        raise(&mut self.peak_restore, duration);
    }

    pub(super) fn wrote(&mut self, now: Duration) {
        self.last_write = Some(now);
        self.post_write = self.first_post_write;
    }

    /// Increases the interval of the checks on a machine on which reads and writes take long.
    pub(super) fn spread_checks(&mut self) {
        self.post_write = self.post_write.max((self.peak_save + self.peak_restore) * 2);
    }
}

/// Raises a peak immediately, or lets it decay slowly.
fn raise(peak: &mut Duration, duration: Duration) {
    *peak = (*peak * 99 / 100).max(duration);
}
