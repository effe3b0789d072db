//! The trail of changes.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use tortie_model::SyncStatus;

use super::Entry;

/// A form that changes and snapshots are written in, once for all clients that want it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// Our protocol, for one node: what all nodes have in common.
    OneNode,
    /// Our protocol, everything.
    AllNodes,
    /// Typha's protocol, uncompressed.
    TyphaPlain,
    /// Typha's protocol with snappy.
    TyphaSnappy,
}

impl Form {
    /// How many forms there are.
    pub const COUNT: usize = 4;
}

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
    /// Whether nodes that it does not belong to have to know.
    pub concerns_others: bool,
}

/// A place in the history of the datastore: what has changed since the crumb before, and the way to the next one.
///
/// A crumb never changes. Who follows the trail holds one crumb, and by it all newer ones; crumbs that nobody holds any
/// more are gone. So the one who lays the trail need not know who follows it, nor wait for anybody.
#[derive(Debug)]
pub struct Crumb {
    /// Its number; the next crumb's is one more.
    pub sequence: u64,
    /// When it was made.
    pub made: Instant,
    /// When the source noticed the oldest of these changes.
    pub noticed: Option<Instant>,
    /// How far the datastore has been read as of this crumb.
    pub status: SyncStatus,
    /// Whether it had been read less, or more, as of the crumb before.
    pub status_changed: bool,
    /// What has changed.
    pub deltas: Box<[Delta]>,
    /// The bytes of paths and values of all crumbs up to this one.
    pub bytes_so_far: u64,
    pub(super) next: OnceLock<Arc<Self>>,
    wire: [OnceLock<Bytes>; Form::COUNT],
}

impl Crumb {
    /// The first crumb, with nothing before it.
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

    /// What comes after this crumb.
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

    /// The next crumb, if it has been laid.
    #[must_use]
    pub fn next(&self) -> Option<&Arc<Self>> {
        self.next.get()
    }

    /// The crumb in this form, as `write` writes it the first time that somebody asks.
    pub fn wire(&self, form: Form, write: impl FnOnce(&Self) -> Bytes) -> Bytes {
        match self.wire.get(form as usize) {
            Some(place) => place.get_or_init(|| write(self)).clone(),
            None => write(self),
        }
    }
}

impl Drop for Crumb {
    /// One after the other: a long trail that its last holder lets go would need a deep stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(crumb) = next {
            next = Arc::into_inner(crumb).and_then(|mut crumb| crumb.next.take());
        }
    }
}
