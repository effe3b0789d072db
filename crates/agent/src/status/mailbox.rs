//! What waits for the thread that writes: no more than there are endpoints, however slow it is.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tortie_dataplane::StatusChange;
use tortie_model::{HostEndpointName, WorkloadEndpointId};

use super::{StatusNews, StatusSettings};
use crate::engine::ProcessStatus;

/// What has happened, in the order in which it is to be told. What came before the latest beginning of a session means
/// nothing any more.
#[derive(Debug, Default, PartialEq)]
pub(super) struct News {
    pub(super) begin: Option<StatusSettings>,
    /// The latest of each endpoint.
    pub(super) changes: BTreeMap<Endpoint, StatusChange>,
    pub(super) process_status: Option<ProcessStatus>,
    pub(super) in_force: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Endpoint {
    Workload(WorkloadEndpointId),
    Host(HostEndpointName),
}

impl Endpoint {
    fn of(change: &StatusChange) -> Self {
        match change {
            StatusChange::Workload(id, _) => Self::Workload(id.clone()),
            StatusChange::Host(name, _) => Self::Host(name.clone()),
        }
    }
}

impl News {
    fn add(&mut self, news: StatusNews) {
        match news {
            StatusNews::Begin(settings) => {
                let process_status = self.process_status.take();
                *self = Self { begin: Some(settings), process_status, ..Self::default() };
            }
            StatusNews::Changes(changes) => {
                self.changes.extend(changes.into_iter().map(|change| (Endpoint::of(&change), change)));
            }
            StatusNews::ProcessStatus(sign) => self.process_status = Some(sign),
            StatusNews::InForce => self.in_force = true,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    news: News,
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No holder leaves anything half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where news are put. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Mailbox(Arc<Slot>);

/// Closes the mailbox when the last of those who put something there is gone.
#[derive(Debug)]
struct Slot(Arc<Shared>);

/// Where news are taken from.
#[derive(Debug)]
pub(super) struct Opened(Arc<Shared>);

/// Both ends of a new mailbox.
pub(super) fn mailbox() -> (Mailbox, Opened) {
    let shared = Arc::new(Shared::default());
    (Mailbox(Arc::new(Slot(Arc::clone(&shared)))), Opened(shared))
}

impl Mailbox {
    pub(super) fn put(&self, news: StatusNews) {
        let shared = &self.0.0;
        shared.lock().news.add(news);
        shared.changed.notify_one();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl Opened {
    /// Waits for news, but no longer than this; `None` when there will be no more.
    pub(super) fn take(&self, time: Duration) -> Option<News> {
        let end = Instant::now() + time;
        let mut state = self.0.lock();
        loop {
            let news = mem::take(&mut state.news);
            if news != News::default() {
                return Some(news);
            }
            let left = end.saturating_duration_since(Instant::now());
            if state.closed {
                return None;
            }
            if left.is_zero() {
                return Some(news);
            }
            (state, _) = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests;
