//! Counts of connections that were cut, which metrics read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Counts of connections that were cut.
#[derive(Clone, Copy, Debug, Default)]
pub struct CutCounts {
    /// Established connections that were cut because policy denies them now.
    pub cut: u64,
    /// Time of the last comparison of connections with policy, since 1970.
    pub last_check: Option<Duration>,
}

/// [`CutCounts`] of the cutters of all sessions of an agent.
#[derive(Clone, Debug, Default)]
pub struct SharedCutCounts(Arc<Mutex<CutCounts>>);

impl SharedCutCounts {
    /// Reads or writes them.
    pub fn lock(&self) -> MutexGuard<'_, CutCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
