//! Trail of changes.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use tortie_model::SyncStatus;

use super::{Audience, Entry, WireFormat};

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It did not exist before.
    New,
    /// It existed, with another value.
    Updated,
    /// It does not exist any more.
    Deleted,
}

/// Changed object.
#[derive(Clone, Debug)]
pub struct Delta {
    /// Its path.
    pub path: Arc<str>,
    /// The current object; `None` if it does not exist any more.
    pub entry: Option<Arc<Entry>>,
    /// Kind of the change.
    pub change: Change,
    /// Nodes that need the change.
    pub audience: Audience,
}

/// Element of a linked list of changes: the changes since the previous breadcrumb, and a link to
/// the next one (`typha/pkg/snapcache`).
///
/// A breadcrumb is immutable. A client holds the breadcrumb that it was sent last, which keeps all
/// newer ones alive; older ones are freed with their last client. The writer holds no reference to
/// clients and never waits for one.
#[derive(Debug)]
pub struct Breadcrumb {
    /// Its number. Consecutive breadcrumbs have consecutive numbers.
    pub sequence: u64,
    /// Time at which it was made.
    pub made: Instant,
    /// Time at which the source noticed the oldest of these changes.
    pub noticed: Option<Instant>,
    /// Status of the datastore as of this breadcrumb.
    pub status: SyncStatus,
    /// Whether the status differs from that of the previous breadcrumb.
    pub status_changed: bool,
    /// The changes.
    pub deltas: Box<[Delta]>,
    /// Size of the paths and values of all breadcrumbs up to this one, in bytes.
    pub bytes_so_far: u64,
    pub(super) next: OnceLock<Arc<Self>>,
    wire: [OnceLock<Bytes>; WireFormat::COUNT],
}

impl Breadcrumb {
    /// Returns the first breadcrumb of a trail.
    pub(super) fn first(made: Instant) -> Self {
        Self {
            sequence: 0,
            made,
            noticed: None,
            status: SyncStatus::WaitForDatastore,
            status_changed: false,
            deltas: Box::default(),
            bytes_so_far: 0,
            next: OnceLock::new(),
            wire: Default::default(),
        }
    }

    /// Returns the successor of this breadcrumb.
    pub(super) fn followed_by(
        &self,
        deltas: Box<[Delta]>,
        status: SyncStatus,
        made: Instant,
        noticed: Option<Instant>,
    ) -> Self {
        let bytes: usize = deltas.iter().map(|delta| delta.entry.as_ref().map_or(delta.path.len(), |e| e.size())).sum();
        Self {
            sequence: self.sequence + 1,
            made,
            noticed,
            status,
            status_changed: status != self.status,
            deltas,
            bytes_so_far: self.bytes_so_far + bytes as u64,
            next: OnceLock::new(),
            wire: Default::default(),
        }
    }

    /// Returns the next breadcrumb, if it exists.
    #[must_use]
    pub fn next(&self) -> Option<&Arc<Self>> {
        self.next.get()
    }

    /// Returns the breadcrumb in this format. The first call encodes it with `write`.
    pub fn wire(&self, format: WireFormat, write: impl FnOnce(&Self) -> Bytes) -> Bytes {
        match self.wire.get(format as usize) {
            Some(place) => place.get_or_init(|| write(self)).clone(),
            None => write(self),
        }
    }
}

impl Drop for Breadcrumb {
    /// Drops the trail iteratively: dropping a long trail recursively would need a deep stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(breadcrumb) = next {
            next = Arc::into_inner(breadcrumb).and_then(|mut breadcrumb| breadcrumb.next.take());
        }
    }
}
