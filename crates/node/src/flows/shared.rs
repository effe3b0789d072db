//! What was collected lately, for whoever asks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tortie_flows::Event;

use super::FlowMetrics;

/// How much news of connections is kept.
const KEPT: usize = 10_000;
/// How many batches of news wait for one who follows slowly; those that come then are lost to it, and counted.
const QUEUE: usize = 256;

/// When a rule decided last, and how often it did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastHit {
    /// RFC 3339 with milliseconds, UTC.
    pub time: String,
    /// How often.
    pub hits: u64,
}

/// News that somebody follows.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The news.
    pub events: Arc<[Event]>,
    /// How much news before it was lost to this reader, who was too slow.
    pub lost: u64,
}

/// Batches of news that somebody follows.
pub type Followed = Receiver<Batch>;

/// What was collected lately. Plain data: the collecting thread writes, those who answer read.
#[derive(Clone, Debug, Default)]
pub struct SharedFlows(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_collecting: bool,
    recent: VecDeque<Arc<[Event]>>,
    kept: usize,
    subscriptions: Vec<Subscription>,
    /// How much news all of them were too slow for.
    lost: u64,
    /// By the text of policies' ids.
    last_hits: BTreeMap<String, LastHit>,
    metrics: Option<FlowMetrics>,
}

#[derive(Debug)]
struct Subscription {
    sender: SyncSender<Batch>,
    /// How much news was lost to it since it was told of losses last.
    lost: u64,
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
        let (sender, news) = sync_channel(QUEUE);
        state.is_collecting.then(|| {
            state.subscriptions.push(Subscription { sender, lost: 0 });
            news
        })
    }

    /// When a rule of this policy decided last.
    #[must_use]
    pub fn last_hit(&self, policy: &str) -> Option<LastHit> {
        self.lock().last_hits.get(policy).cloned()
    }

    pub(crate) fn begin(&self) {
        self.lock().is_collecting = true;
    }

    pub(crate) fn end(&self) {
        *self.lock() = State::default();
    }

    /// How much news those who follow were too slow for, all together.
    pub(super) fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Measures as of late; `None` while nothing is collected.
    #[must_use]
    pub fn metrics(&self) -> Option<FlowMetrics> {
        self.lock().metrics.clone()
    }

    pub(crate) fn set_totals(&self, last_hits: BTreeMap<String, LastHit>, metrics: FlowMetrics) {
        let mut state = self.lock();
        state.last_hits = last_hits;
        state.metrics = Some(metrics);
    }

    /// Tells news to those who follow, and keeps it for a while.
    pub(crate) fn publish(&self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        let batch: Arc<[Event]> = events.into();
        let mut state = self.lock();
        let State { subscriptions, lost, .. } = &mut *state;
        let count = batch.len() as u64;
        subscriptions.retain_mut(|subscription| {
            match subscription.sender.try_send(Batch { events: Arc::clone(&batch), lost: subscription.lost }) {
                Ok(()) => subscription.lost = 0,
                // One who is slow misses some, and learns how many.
                Err(TrySendError::Full(_)) => {
                    subscription.lost += count;
                    *lost += count;
                }
                Err(TrySendError::Disconnected(_)) => return false,
            }
            true
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

#[cfg(test)]
mod tests {
    use tortie_evaluate::{Packet, Settings};
    use tortie_flows::{Collector, Decision, FlowId, Limits, LoggedPacket, Time};
    use tortie_rules::no_profile_prefix;

    use super::*;

    fn events() -> Vec<Event> {
        let mut collector = Collector::new(Settings::default(), false, Limits::default());
        let prefix = no_profile_prefix(tortie_model::Direction::Ingress);
        for port in [1, 2] {
            let ends = (("10.0.0.1".parse().unwrap(), 40000), ("10.0.0.2".parse().unwrap(), port));
            let id = FlowId { packet: Packet::tcp(ends.0, ends.1).unwrap(), icmp_id: 0 };
            collector.on_packet(&LoggedPacket { id, length: 60, by: Decision::Prefix(&prefix) }, Time::from_secs(1));
        }
        collector.take_events(Time::from_secs(10))
    }

    #[test]
    fn one_who_is_too_slow_is_told_how_much_it_has_missed() {
        let shared = SharedFlows::default();
        shared.begin();
        let (slow, quick) = (shared.follow().unwrap(), shared.follow().unwrap());
        let events = events();
        assert_eq!(events.len(), 2);
        let mut told = 0;
        for _ in 0..QUEUE + 3 {
            shared.publish(&events);
            told += quick.try_iter().map(|batch| batch.events.len()).sum::<usize>();
        }
        assert_eq!((told, shared.lost()), (2 * (QUEUE + 3), 6));
        let waiting: Vec<Batch> = slow.try_iter().collect();
        assert!(waiting.len() == QUEUE && waiting.iter().all(|batch| batch.lost == 0));
        shared.publish(&events);
        shared.publish(&events);
        let lost: Vec<u64> = slow.try_iter().map(|batch| batch.lost).collect();
        assert_eq!(lost, [6, 0]);
        drop(slow);
        shared.publish(&events);
        assert_eq!(shared.lost(), 6, "nothing is lost to one who is gone");
    }
}
