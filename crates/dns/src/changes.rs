//! Changes of members since they were last taken.

use ahash::AHashMap;

use crate::types::{Action, Change, Member};

/// The number of changes for which memory is kept.
const SPARE: usize = 1_024;

/// At most one change for each member: the difference between the members at the last
/// [`Changes::take`] and the present ones.
#[derive(Debug, Default)]
pub(crate) struct Changes(AHashMap<Member, Action>);

impl Changes {
    /// Notes that a member begins or ceases to exist. A change that undoes an earlier one removes
    /// both.
    pub(crate) fn note(&mut self, member: Member, action: Action) {
        if self.0.remove(&member).is_none() {
            self.0.insert(member, action);
        }
    }

    /// Returns the changes in order.
    pub(crate) fn take(&mut self) -> Vec<Change> {
        let mut changes: Vec<Change> = self.0.drain().map(|(member, action)| Change { member, action }).collect();
        // The memory of a burst is returned.
        self.0.shrink_to(SPARE);
        changes.sort_unstable();
        changes
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
