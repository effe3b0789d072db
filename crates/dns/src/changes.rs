//! Changes of members since they were last taken.

use ahash::AHashMap;

use crate::types::{Action, Change, Member};

/// The number of changes for which memory is kept.
const SPARE: usize = 1_024;

/// At most one change for each member: the difference between the members at the last
/// [`Changes::take`] and the present ones.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    changes: AHashMap<Member, Action>,
    /// The number of all calls of [`Changes::note`].
    noted: usize,
}

impl Changes {
    /// Notes that a member begins or ceases to exist. A change that undoes an earlier one removes
    /// both.
    pub(crate) fn note(&mut self, member: Member, action: Action) {
        self.noted = self.noted.wrapping_add(1);
        if self.changes.remove(&member).is_none() {
            self.changes.insert(member, action);
        }
    }

    /// Returns the number of changes that were noted so far, whether they were undone or not.
    pub(crate) fn noted(&self) -> usize {
        self.noted
    }

    /// Returns the changes in order.
    pub(crate) fn take(&mut self) -> Vec<Change> {
        let mut changes: Vec<Change> = self.changes.drain().map(|(member, action)| Change { member, action }).collect();
        // The memory of a burst is returned.
        self.changes.shrink_to(SPARE);
        changes.sort_unstable();
        changes
    }

    pub(crate) fn clear(&mut self) {
        self.changes.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}
