//! Records are written on a thread of their own, so that a slow disk delays nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tortie_resources::manifest::Options;

use super::{Record, Store};
use crate::dir_state::Scope;

/// How soon it is tried again to write what could not be written.
const RETRY: Duration = Duration::from_secs(10);

/// What has become of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It was taken with this content, and this is kept closed on its account.
    Taken(String, BTreeSet<Scope>),
    /// It cannot be read; what it held before stays in force.
    Unreadable(BTreeSet<Scope>),
    /// It is gone.
    Gone,
}

/// Takes changes and writes them in its own time.
#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The changes of each file that are not written yet, in their order.
    changes: BTreeMap<String, Vec<Change>>,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(store: Store, options: Options) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let queue = Arc::clone(&shared);
        thread::Builder::new().name("last-good".into()).spawn(move || work(&queue, &store, &options))?;
        Ok(Self { shared })
    }

    /// What has become of a file, by its path below the directory.
    pub(crate) fn tell(&self, path: String, change: Change) {
        let mut queue = self.shared.lock();
        let changes = queue.changes.entry(path).or_default();
        if change == Change::Gone {
            changes.clear();
        }
        changes.push(change);
        drop(queue);
        self.shared.filled.notify_one();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.filled.notify_one();
    }
}

fn work(shared: &Shared, store: &Store, options: &Options) {
    // What could not be written, to be tried again.
    let mut failed: BTreeMap<String, Option<Record>> = BTreeMap::new();
    loop {
        let Some(next) = next(shared, !failed.is_empty()) else { return };
        let (path, record) = match next {
            Next::Changes(path, changes) => {
                let before = failed.remove(&path).unwrap_or_else(|| store.get(&path));
                let record = after(before, &path, changes, options);
                (path, record)
            }
            Next::Retry => match failed.pop_first() {
                Some(failed) => failed,
                None => continue,
            },
        };
        let was_failing = !failed.is_empty();
        match write(store, &path, record.as_ref()) {
            Ok(()) if was_failing => tracing::debug!(file = path, "the last good state can be written again"),
            Ok(()) => {}
            Err(error) => {
                if !was_failing {
                    tracing::warn!(
                        file = path, %error,
                        "the last good state cannot be written; enforcement goes on, and a restart may not know it"
                    );
                }
                failed.insert(path, record);
            }
        }
    }
}

enum Next {
    Changes(String, Vec<Change>),
    Retry,
}

/// What there is to do next; `None` if nothing will come any more.
fn next(shared: &Shared, has_failed: bool) -> Option<Next> {
    let mut queue = shared.lock();
    loop {
        if let Some((path, changes)) = queue.changes.pop_first() {
            return Some(Next::Changes(path, changes));
        }
        if queue.closed {
            return None;
        }
        if has_failed {
            let (after, waited) = shared.filled.wait_timeout(queue, RETRY).unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                return Some(Next::Retry);
            }
            queue = after;
        } else {
            queue = shared.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The record of a file after what has become of it.
fn after(before: Option<Record>, path: &str, changes: Vec<Change>, options: &Options) -> Option<Record> {
    changes.into_iter().fold(before, |record, change| {
        let last = record.unwrap_or_else(|| Record { path: path.to_owned(), ..Record::default() });
        match change {
            Change::Taken(text, closed) => Some(last.then(text, closed, options)),
            Change::Unreadable(closed) => Some(last.with_closed(closed)),
            Change::Gone => None,
        }
    })
}

/// Brings the record of a file up to date.
fn write(store: &Store, path: &str, record: Option<&Record>) -> io::Result<()> {
    match record {
        Some(record) if store.get(path).as_ref() == Some(record) => Ok(()),
        Some(record) => store.put(record),
        None => store.remove(path),
    }
}
