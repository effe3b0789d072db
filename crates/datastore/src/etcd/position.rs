//! Position in the revision history of etcd.

/// The revision at which a watch has to begin so that no change is missed. Pure.
///
/// The changes of one revision may come in several responses, so the next watch begins at the
/// revision of the last change. Receiving its changes again is harmless, because they come in the
/// same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// First revision that may hold unknown changes; `None` if a list is required.
    next: Option<i64>,
}

impl Position {
    /// Notes that everything up to this revision is known.
    pub(super) fn listed(&mut self, revision: i64) {
        self.next = Some(revision.saturating_add(1));
    }

    /// Notes a received change of this revision.
    pub(super) fn changed(&mut self, revision: i64) {
        self.next = self.next.map(|next| next.max(revision));
    }

    /// Notes the server's report that there are no more changes up to this revision.
    pub(super) fn progressed(&mut self, revision: i64) {
        self.next = self.next.map(|next| next.max(revision.saturating_add(1)));
    }

    /// Notes that etcd has compacted the changes since this position.
    pub(super) fn lose(&mut self) {
        self.next = None;
    }

    /// Returns the revision to watch from; `None` if a list has to come first.
    pub(super) fn watch_from(self) -> Option<i64> {
        self.next
    }

    /// Reports whether a cluster at this revision can be the one that was read. Another cluster, or
    /// one restored from a backup, is at an older revision.
    pub(super) fn fits(self, revision: i64) -> bool {
        self.next.is_none_or(|next| revision.saturating_add(1) >= next)
    }
}

#[cfg(test)]
mod tests;
