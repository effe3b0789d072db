//! What a datastore says.

use crate::{Key, Value};

/// One object's current value. Only eventual convergence is promised: values may repeat, be skipped, or go back, and an
/// object may be deleted that was never set.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// Which object.
    pub key: Key,
    /// Its value; `None` if it does not exist, or is invalid.
    pub value: Option<Value>,
}

impl Update {
    /// The object exists and has this value.
    #[must_use]
    pub fn set(key: Key, value: Value) -> Self {
        Self { key, value: Some(value) }
    }

    /// The object does not exist.
    #[must_use]
    pub fn delete(key: Key) -> Self {
        Self { key, value: None }
    }
}

/// How far the datastore has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SyncStatus {
    /// No contact yet.
    WaitForDatastore,
    /// A snapshot is being read; what has been seen is incomplete.
    Resync,
    /// Every object has been seen at least once.
    InSync,
}
