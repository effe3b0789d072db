//! Programs that an earlier configuration attached, where chains enforce policy now.

use std::io;
use std::time::Duration;

use tortie_model::with_causes;

const PAUSE: Duration = Duration::from_secs(30);

/// Programs to detach once chains are in force. Until then, both must allow a packet.
#[derive(Debug)]
pub struct Superseded {
    netlink_timeout: Duration,
    try_at: Duration,
    failure: Option<String>,
}

impl Superseded {
    /// Creates it without any access to the kernel.
    #[must_use]
    pub fn new(netlink_timeout: Duration) -> Self {
        Self { netlink_timeout, try_at: Duration::ZERO, failure: None }
    }

    /// Detaches the programs if an attempt is due. Reports whether none are left.
    pub fn remove(&mut self, now: Duration) -> bool {
        let timeout = self.netlink_timeout;
        self.remove_by(now, || super::remove_all(timeout))
    }

    fn remove_by(&mut self, now: Duration, remove: impl FnOnce() -> io::Result<usize>) -> bool {
        if now < self.try_at {
            return false;
        }
        match remove() {
            Ok(count) => {
                if count > 0 || self.failure.is_some() {
                    tracing::info!("eBPF programs of an earlier configuration removed: chains enforce policy");
                }
                true
            }
            Err(error) => {
                let error = with_causes(&error);
                let failure = format!("eBPF programs of an earlier configuration cannot be removed: {error}");
                if self.failure.as_ref() != Some(&failure) {
                    tracing::error!(error, "eBPF programs of an earlier configuration cannot be removed; trying again");
                }
                self.failure = Some(failure);
                self.try_at = now + PAUSE;
                false
            }
        }
    }

    /// Returns the reason why they could not be detached yet.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_is_retried_until_nothing_is_left() {
        let mut superseded = Superseded::new(PAUSE);
        let now = Duration::from_secs(100);
        assert!(!superseded.remove_by(now, || Err(io::ErrorKind::PermissionDenied.into())));
        assert!(superseded.problem().is_some_and(|problem| problem.contains("permission denied")));
        assert!(!superseded.remove_by(now + PAUSE / 2, || panic!("it is too early")));
        assert!(superseded.remove_by(now + PAUSE, || Ok(1)));
        assert!(Superseded::new(PAUSE).remove_by(now, || Ok(0)));
    }
}
