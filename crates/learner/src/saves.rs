//! When the cache of learned addresses is saved.

use std::time::Duration;

use tortie_dns::Millis;

/// The times of saves, with at most one draft and one running save.
///
/// A draft goes to the file only once the kernel has followed the state that it describes. So a
/// crash never leaves a file that names the new owner of a scope beside members of the former one,
/// which a restart would keep for the new owner. The opposite order, members of a new owner beside
/// a file with the former one, closes these members at the restart.
#[derive(Debug)]
pub(super) struct Saves {
    /// Interval between two saves; `None` if the file must not be written.
    interval: Option<Duration>,
    at: Millis,
    is_requested: bool,
    /// The batch that the kernel must have, and the state to save.
    draft: Option<(u64, Vec<u8>)>,
    is_running: bool,
}

impl Saves {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval: Some(interval), at: Millis(0), is_requested: false, draft: None, is_running: false }
    }

    /// Leaves the file as it is from now on.
    pub(super) fn disable(&mut self) {
        (self.interval, self.draft) = (None, None);
    }

    /// Has the state saved as soon as possible, such as for a new owner of a scope.
    pub(super) fn request(&mut self) {
        self.is_requested = true;
    }

    /// Reports whether a draft of the present state is to be made.
    pub(super) fn wants_draft(&self, now: Millis) -> bool {
        let is_due = self.is_requested || self.at <= now;
        self.interval.is_some() && is_due && self.draft.is_none() && !self.is_running
    }

    /// Takes the present state, which the kernel follows once it has the batch `needs`.
    pub(super) fn set_draft(&mut self, now: Millis, needs: u64, state: Vec<u8>) {
        self.at = now.after(self.interval.unwrap_or_default());
        self.is_requested = false;
        self.draft = Some((needs, state));
    }

    /// Returns the state to save now, if the kernel has followed it. Its save runs until
    /// [`Saves::finish`].
    pub(super) fn begin(&mut self, done: u64, has_refused_removals: bool) -> Option<Vec<u8>> {
        let (_, state) = self.draft.take_if(|(needs, _)| *needs <= done && !has_refused_removals)?;
        self.is_running = true;
        Some(state)
    }

    /// Notes that the running save has ended.
    pub(super) fn finish(&mut self) {
        self.is_running = false;
    }

    /// Reports whether a state waits for the kernel or for the running save.
    pub(super) fn is_waiting(&self) -> bool {
        self.interval.is_some() && (self.is_requested || self.draft.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_waits_for_the_kernel_and_for_the_running_save() {
        let mut saves = Saves::new(Duration::from_secs(60));
        assert!(saves.wants_draft(Millis(5)), "the first one is due");
        saves.set_draft(Millis(5), 3, vec![1]);
        assert!(!saves.wants_draft(Millis(100_000)), "one at a time");
        assert_eq!((saves.begin(2, false), saves.begin(3, true)), (None, None));
        assert_eq!(saves.begin(3, false), Some(vec![1]));
        assert_eq!(saves.begin(4, false), None, "once");
        saves.request();
        assert!(!saves.wants_draft(Millis(100_000)) && saves.is_waiting(), "a slow disk has one state at most");
        saves.finish();
        assert!(saves.wants_draft(Millis(6)));
        saves.set_draft(Millis(6), 4, vec![2]);
        assert_eq!(saves.begin(4, false), Some(vec![2]));
        saves.finish();
        assert!(!saves.wants_draft(Millis(60_005)) && saves.wants_draft(Millis(60_006)) && !saves.is_waiting());
    }

    #[test]
    fn a_foreign_file_is_never_written() {
        let mut saves = Saves::new(Duration::ZERO);
        saves.set_draft(Millis(0), 0, vec![1]);
        saves.disable();
        saves.request();
        assert!(!saves.wants_draft(Millis(1)) && !saves.is_waiting());
        assert_eq!(saves.begin(9, false), None);
    }
}
