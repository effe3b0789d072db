//! The trail of changes.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use tortie_model::SyncStatus;

use super::{Audience, Entry, WireFormat};

/// How an object has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It did not exist before.
    New,
    /// It existed, with another value.
    Updated,
    /// It does not exist any more.
    Deleted,
}

/// An object that has changed.
#[derive(Clone, Debug)]
pub struct Delta {
    /// Its path.
    pub path: Arc<str>,
    /// What it is now; `None` if it does not exist any more.
    pub entry: Option<Arc<Entry>>,
    /// How it has changed.
    pub change: Change,
    /// Who has to know.
    pub audience: Audience,
}

/// One entry of a linked list of changes: what has changed since the breadcrumb before, and a link to the next one
/// (`typha/pkg/snapcache`).
///
/// A breadcrumb is immutable. A client holds the breadcrumb that it was sent last, which keeps all newer ones alive; older
/// ones are freed with their last client. The writer holds no reference to clients and never waits for one.
#[derive(Debug)]
pub struct Breadcrumb {
    /// Its number; the next breadcrumb's is one more.
    pub sequence: u64,
    /// When it was made.
    pub made: Instant,
    /// When the source noticed the oldest of these changes.
    pub noticed: Option<Instant>,
    /// How far the datastore has been read as of this breadcrumb.
    pub status: SyncStatus,
    /// Whether it had been read less, or more, as of the breadcrumb before.
    pub status_changed: bool,
    /// What has changed.
    pub deltas: Box<[Delta]>,
    /// The bytes of paths and values of all breadcrumbs up to this one.
    pub bytes_so_far: u64,
    pub(super) next: OnceLock<Arc<Self>>,
    wire: [OnceLock<Bytes>; WireFormat::COUNT],
}

impl Breadcrumb {
    /// The first breadcrumb, with nothing before it.
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

    /// What comes after this breadcrumb.
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

    /// The next breadcrumb, if it has been laid.
    #[must_use]
    pub fn next(&self) -> Option<&Arc<Self>> {
        self.next.get()
    }

    /// The breadcrumb in this format, as `write` writes it the first time that somebody asks.
    pub fn wire(&self, format: WireFormat, write: impl FnOnce(&Self) -> Bytes) -> Bytes {
        match self.wire.get(format as usize) {
            Some(place) => place.get_or_init(|| write(self)).clone(),
            None => write(self),
        }
    }
}

impl Drop for Breadcrumb {
    /// One after the other: a long trail that its last holder lets go would need a deep stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(breadcrumb) = next {
            next = Arc::into_inner(breadcrumb).and_then(|mut breadcrumb| breadcrumb.next.take());
        }
    }
}
