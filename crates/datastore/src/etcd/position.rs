//! How much of a datastore's history has been seen.

/// Where a watch has to begin so that nothing is missed. Pure.
///
/// The changes of one revision may come in several answers, so the revision of the last change seen is not done with: to
/// see its changes again does no harm, because they come in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The first revision that may hold something new; `None` if only a list can tell what there is.
    next: Option<i64>,
}

impl Position {
    /// Everything up to this revision is known.
    pub(super) fn listed(&mut self, revision: i64) {
        self.next = Some(revision.saturating_add(1));
    }

    /// A change of this revision has been seen.
    pub(super) fn changed(&mut self, revision: i64) {
        self.next = self.next.map(|next| next.max(revision));
    }

    /// The datastore says that there is nothing more up to this revision.
    pub(super) fn progressed(&mut self, revision: i64) {
        self.next = self.next.map(|next| next.max(revision.saturating_add(1)));
    }

    /// What is between here and now cannot be had any more.
    pub(super) fn lose(&mut self) {
        self.next = None;
    }

    /// Where to watch from; `None` if a list has to come first.
    pub(super) fn watch_from(self) -> Option<i64> {
        self.next
    }

    /// Whether a cluster at this revision can be the one that was read: another one, or one restored from a backup, is
    /// behind what has been seen.
    pub(super) fn fits(self, revision: i64) -> bool {
        self.next.is_none_or(|next| revision.saturating_add(1) >= next)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_revision_is_done_with_when_the_datastore_says_so() {
        let mut position = Position::default();
        position.changed(4);
        assert_eq!(position.watch_from(), None);
        position.listed(7);
        assert_eq!(position.watch_from(), Some(8));
        position.changed(8);
        assert_eq!(position.watch_from(), Some(8));
        position.progressed(8);
        assert_eq!(position.watch_from(), Some(9));
        assert!(position.fits(8) && !position.fits(7));
        position.lose();
        assert_eq!(position.watch_from(), None);
        assert!(position.fits(0));
    }

    proptest! {
        /// Wherever a connection breaks, what has not been seen comes after where the next watch begins.
        #[test]
        fn nothing_is_skipped(listed in 0..50_i64, sizes in prop::collection::vec(1..4_usize, 0..20), cuts in prop::collection::vec(1..5_usize, 1..20)) {
            // Revision `listed + 1 + i` holds `sizes[i]` changes.
            let history: Vec<(i64, usize)> = (listed + 1..).zip(&sizes).flat_map(|(revision, size)| (0..*size).map(move |n| (revision, n))).collect();
            let mut position = Position::default();
            position.listed(listed);
            let mut seen = std::collections::BTreeSet::new();
            for cut in cuts.iter().copied().chain([usize::MAX]) {
                let from = position.watch_from().expect("a position");
                for change in history.iter().filter(|(revision, _)| *revision >= from).take(cut) {
                    position.changed(change.0);
                    seen.insert(*change);
                }
                // Each cut lets at least one revision through, or the history would never end.
                if cut != usize::MAX { continue }
            }
            prop_assert_eq!(seen.into_iter().collect::<Vec<_>>(), history);
        }
    }
}
