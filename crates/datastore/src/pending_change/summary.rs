//! What is said of a change that waits.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// A change that is taken back unless it is confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingSummary {
    /// Who has made it.
    pub by: String,
    /// `applying`, `waiting` or `rolling back`.
    pub state: String,
    /// For how many seconds it may still be confirmed.
    pub seconds_left: u64,
    /// What it changes, each as `Kind/namespace/name`.
    pub resources: Vec<String>,
}

impl PendingSummary {
    /// The change that waits below this state directory, if one does and can be read.
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    #[must_use]
    pub fn of(state: &Path) -> Option<Self> {
        use crate::store::pending::{FileJournal, Journal as _};
        let change = FileJournal::find(state).ok()??.load().ok()??;
        Self::of_change(&change, &super::now())
    }

    /// No change can be made that waits.
    #[cfg(not(any(feature = "etcd", feature = "kubernetes")))]
    #[must_use]
    pub fn of(_: &Path) -> Option<Self> {
        None
    }

    /// What is said of a change; `None` once it is settled.
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    pub(crate) fn of_change(
        change: &crate::store::pending::PendingChange,
        now: &crate::store::pending::Moment,
    ) -> Option<Self> {
        use crate::store::pending::Phase;
        let (state, seconds_left) = match change.phase {
            Phase::Applying => ("applying", 0),
            Phase::Waiting => ("waiting", change.remaining_ms(now).div_ceil(1_000)),
            Phase::RollingBack { .. } => ("rolling back", 0),
            Phase::Confirmed { .. } | Phase::RolledBack { .. } => return None,
        };
        let resources = change.writes.iter().map(|write| write.key().to_string()).collect();
        Some(Self { by: change.by.clone(), state: state.to_owned(), seconds_left, resources })
    }
}
