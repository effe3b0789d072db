//! Events that wait for a writing thread: no more than there are endpoints, however slow it is.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct State<N> {
    content: N,
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared<N> {
    state: Mutex<State<N>>,
    changed: Condvar,
}

impl<N> Shared<N> {
    fn lock(&self) -> MutexGuard<'_, State<N>> {
        // No holder leaves anything half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct Mailbox<N>(Arc<Slot<N>>);

impl<N> Clone for Mailbox<N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Closes the mailbox when the last sending end is dropped.
#[derive(Debug)]
struct Slot<N>(Arc<Shared<N>>);

#[derive(Debug)]
pub(super) struct MailboxReader<N>(Arc<Shared<N>>);

pub(super) fn mailbox<N: Default>() -> (Mailbox<N>, MailboxReader<N>) {
    let shared = Arc::new(Shared::default());
    (Mailbox(Arc::new(Slot(Arc::clone(&shared)))), MailboxReader(shared))
}

impl<N> Mailbox<N> {
    pub(super) fn put(&self, add: impl FnOnce(&mut N)) {
        let shared = &self.0.0;
        add(&mut shared.lock().content);
        shared.changed.notify_one();
    }
}

impl<N> Drop for Slot<N> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl<N: Default + PartialEq> MailboxReader<N> {
    /// Waits for events, but no longer than this; `None` when there will be no more.
    pub(super) fn take(&self, time: Duration) -> Option<N> {
        let end = Instant::now() + time;
        let mut state = self.0.lock();
        loop {
            let content = mem::take(&mut state.content);
            if content != N::default() {
                return Some(content);
            }
            let left = end.saturating_duration_since(Instant::now());
            if state.closed {
                return None;
            }
            if left.is_zero() {
                return Some(content);
            }
            (state, _) = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
