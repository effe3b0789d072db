//! Summary of a pending change.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// A change that is rolled back unless it is confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingSummary {
    /// Author of the change.
    pub by: String,
    /// `applying`, `waiting` or `rolling back`.
    pub state: String,
    /// Seconds left for a confirmation.
    pub seconds_left: u64,
    /// Changed resources, each as `Kind/namespace/name`.
    pub resources: Vec<String>,
}

impl PendingSummary {
    /// Returns the pending change below this state directory, if there is one and it can be read.
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    #[must_use]
    pub fn of(state: &Path) -> Option<Self> {
        use crate::store::pending::{FileJournal, Journal as _};
        let change = FileJournal::find(state).ok()??.load().ok()??;
        Self::of_change(&change, &super::now())
    }

    /// Returns `None`, because pending changes need etcd or Kubernetes.
    #[cfg(not(any(feature = "etcd", feature = "kubernetes")))]
    #[must_use]
    pub fn of(_: &Path) -> Option<Self> {
        None
    }

    /// Returns the summary of a change; `None` once it is settled.
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
