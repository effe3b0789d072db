//! What was collected lately, for whoever asks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tortie_flows::Event;

/// How much news of connections is kept.
const KEPT: usize = 10_000;
/// How many batches of news wait for one who follows slowly; those that come then are lost to it.
const QUEUE: usize = 256;

/// When a rule decided last, and how often it did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastHit {
    /// RFC 3339 with milliseconds, UTC.
    pub time: String,
    /// How often.
    pub hits: u64,
}

/// Batches of news that somebody follows.
pub type Followed = Receiver<Arc<[Event]>>;

/// What was collected lately. Plain data: the collecting thread writes, those who answer read.
#[derive(Clone, Debug, Default)]
pub struct SharedFlows(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_collecting: bool,
    recent: VecDeque<Arc<[Event]>>,
    /// How many events these batches have.
    kept: usize,
    followers: Vec<SyncSender<Arc<[Event]>>>,
    /// By the text of policies' ids.
    last_hits: BTreeMap<String, LastHit>,
}

impl SharedFlows {
    /// The news of late, oldest first; `None` while nothing is collected.
    #[must_use]
    pub fn recent(&self) -> Option<Vec<Event>> {
        let state = self.lock();
        state.is_collecting.then(|| state.recent.iter().flat_map(|batch| batch.iter().cloned()).collect())
    }

    /// The news from now on; `None` while nothing is collected.
    #[must_use]
    pub fn follow(&self) -> Option<Followed> {
        let mut state = self.lock();
        let (follower, news) = sync_channel(QUEUE);
        state.is_collecting.then(|| {
            state.followers.push(follower);
            news
        })
    }

    /// When a rule of this policy decided last.
    #[must_use]
    pub fn last_hit(&self, policy: &str) -> Option<LastHit> {
        self.lock().last_hits.get(policy).cloned()
    }

    /// From now on flows are collected.
    pub(crate) fn begin(&self) {
        self.lock().is_collecting = true;
    }

    /// Nothing is collected any more. Those who follow see the end.
    pub(crate) fn end(&self) {
        *self.lock() = State::default();
    }

    pub(super) fn set_last_hits(&self, last_hits: BTreeMap<String, LastHit>) {
        self.lock().last_hits = last_hits;
    }

    /// Tells news to those who follow, and keeps it for a while.
    pub(crate) fn publish(&self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        let batch: Arc<[Event]> = events.into();
        let mut state = self.lock();
        state.followers.retain(|follower| {
            // One who is slow misses some.
            !matches!(follower.try_send(Arc::clone(&batch)), Err(TrySendError::Disconnected(_)))
        });
        state.kept += batch.len();
        state.recent.push_back(batch);
        while state.kept > KEPT
            && state.recent.len() > 1
            && let Some(oldest) = state.recent.pop_front()
        {
            state.kept -= oldest.len();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
