//! Records are written by a separate thread, so that a slow disk does not delay the source.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tortie_model::with_causes;
use tortie_resources::manifest::Options;

use super::{Record, Store};
use crate::history::{Recorder, TextChange};
use crate::unknown::Scope;

/// Interval between attempts to write after a failure.
const RETRY: Duration = Duration::from_secs(10);

/// Change of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was taken with this content, and these scopes are closed because of it.
    Taken(String, BTreeSet<Scope>),
    /// It cannot be read; its previous definitions stay in force.
    Unreadable(BTreeSet<Scope>),
    /// It is gone.
    Gone,
}

/// Queues changes for the writing thread.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The unwritten changes of each file, in order.
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
    pub fn start(store: Store, options: Options, history: Option<Recorder>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let queue = Arc::clone(&shared);
        let work = move || Work { store, options, history, failed: BTreeMap::new() }.run(&queue);
        thread::Builder::new().name("last-good".into()).spawn(work)?;
        Ok(Self { shared })
    }

    /// Queues changes that were taken together, by their paths below the directory.
    pub fn enqueue(&self, changes: impl IntoIterator<Item = (String, Change)>) {
        let mut queue = self.shared.lock();
        for (path, change) in changes {
            let changes = queue.changes.entry(path).or_default();
            if change == Change::Gone {
                changes.clear();
            }
            changes.push(change);
        }
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

/// State of the writing thread.
struct Work {
    store: Store,
    options: Options,
    history: Option<Recorder>,
    /// Records that could not be written, to be retried.
    failed: BTreeMap<String, Option<Record>>,
}

impl Work {
    fn run(mut self, shared: &Shared) {
        while let Some(next) = next(shared, !self.failed.is_empty()) {
            match next {
                Next::Changes(changes) => self.take(changes),
                Next::Retry => {
                    if let Some((path, record)) = self.failed.pop_first() {
                        self.write(path, record);
                    }
                }
            }
        }
    }

    /// Writes changes that were taken together.
    fn take(&mut self, changes: BTreeMap<String, Vec<Change>>) {
        let is_first = self.history.as_ref().is_some_and(Recorder::is_empty);
        let mut records = Vec::with_capacity(changes.len());
        let mut kept = Vec::new();
        for (path, changes) in changes {
            let before = self.failed.remove(&path).unwrap_or_else(|| self.store.get(&path));
            if let (None, Some(history), true) = (&before, &self.history, self.store.is_in_doubt(&path)) {
                history.note_gap();
            }
            let old = before.as_ref().filter(|_| self.history.is_some()).map(|record| record.text.clone());
            let record = after(before, &path, changes, &self.options);
            if let Some(history) = self.history.as_ref().filter(|_| !is_first) {
                let new = record.as_ref().map(|record| record.text.as_str());
                match history.keep(&TextChange { path: &path, before: old.as_deref(), after: new }) {
                    Ok(change) => kept.extend(change),
                    Err(error) => missed(history, &error),
                }
            }
            records.push((path, record));
        }
        // Writing a record overwrites the previous text, so the history entry comes first.
        if let Some(history) = self.history.as_ref().filter(|_| is_first || !kept.is_empty()) {
            history.add(kept).unwrap_or_else(|error| missed(history, &error));
        }
        for (path, record) in records {
            self.write(path, record);
        }
        if let Some(history) = &self.history {
            history.prune().unwrap_or_else(|error| {
                tracing::warn!(error = %with_causes(&error), "old states of the history of the manifests cannot be removed");
            });
        }
    }

    fn write(&mut self, path: String, record: Option<Record>) {
        let was_failing = !self.failed.is_empty();
        match write(&self.store, &path, record.as_ref()) {
            Ok(()) if was_failing => tracing::debug!(file = path, "the last good state can be written again"),
            Ok(()) => {}
            Err(error) => {
                if !was_failing {
                    tracing::warn!(
                        file = path, error = %with_causes(&error),
                        "the last good state cannot be written; enforcement goes on, and a restart may not know it"
                    );
                }
                self.failed.insert(path, record);
            }
        }
    }
}

fn missed(history: &Recorder, error: &io::Error) {
    history.note_gap();
    tracing::warn!(error = %with_causes(error), "a change of the manifests is missing in the history; enforcement goes on");
}

enum Next {
    Changes(BTreeMap<String, Vec<Change>>),
    Retry,
}

/// Returns the next task; `None` once the source is closed.
fn next(shared: &Shared, has_failed: bool) -> Option<Next> {
    let mut queue = shared.lock();
    loop {
        if !queue.changes.is_empty() {
            return Some(Next::Changes(std::mem::take(&mut queue.changes)));
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

/// Returns the record of a file after changes.
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

/// Writes or removes the record of a file.
fn write(store: &Store, path: &str, record: Option<&Record>) -> io::Result<()> {
    match record {
        Some(record) if store.get(path).as_ref() == Some(record) => Ok(()),
        Some(record) => store.put(record),
        None => store.remove(path),
    }
}

#[cfg(test)]
mod tests;
