//! Recently collected flows, for readers on other threads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tortie_flows::Event;

use super::FlowMetrics;

const KEPT: usize = 10_000;
/// Number of batches that wait for a slow subscriber; further ones are lost to it, and counted.
const QUEUE: usize = 256;

/// Time of the last decision of a rule, and number of decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastHit {
    /// RFC 3339 with milliseconds, UTC.
    pub time: String,
    /// Number of hits.
    pub hits: u64,
}

/// A batch of events for a subscriber.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The events.
    pub events: Arc<[Event]>,
    /// Number of earlier events that this subscriber lost because it was too slow.
    pub lost: u64,
}

/// Batches of events for a subscriber.
pub type FlowReceiver = Receiver<Batch>;

/// Recently collected flows. Plain data: the collecting thread writes, other threads read.
#[derive(Clone, Debug, Default)]
pub struct SharedFlows(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_collecting: bool,
    recent: VecDeque<Arc<[Event]>>,
    recent_events: usize,
    subscriptions: Vec<Subscription>,
    lost: u64,
    last_hits: BTreeMap<String, LastHit>,
    metrics: Option<FlowMetrics>,
}

#[derive(Debug)]
struct Subscription {
    sender: SyncSender<Batch>,
    /// Number of events that it has lost since a batch last reported its losses.
    lost: u64,
}

impl SharedFlows {
    /// Returns the recent events, oldest first; `None` while nothing is collected.
    #[must_use]
    pub fn recent(&self) -> Option<Vec<Event>> {
        let state = self.lock();
        state.is_collecting.then(|| state.recent.iter().flat_map(|batch| batch.iter().cloned()).collect())
    }

    /// Subscribes to the events from now on; `None` while nothing is collected.
    #[must_use]
    pub fn follow(&self) -> Option<FlowReceiver> {
        let mut state = self.lock();
        let (sender, receiver) = sync_channel(QUEUE);
        state.is_collecting.then(|| {
            state.subscriptions.push(Subscription { sender, lost: 0 });
            receiver
        })
    }

    /// Returns the last decision of a rule of this policy.
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

    pub(super) fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Returns recent metrics; `None` while nothing is collected.
    #[must_use]
    pub fn metrics(&self) -> Option<FlowMetrics> {
        self.lock().metrics.clone()
    }

    pub(crate) fn set_totals(&self, last_hits: BTreeMap<String, LastHit>, metrics: FlowMetrics) {
        let mut state = self.lock();
        state.last_hits = last_hits;
        state.metrics = Some(metrics);
    }

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
                // A slow subscriber misses some; the next batch reports their number.
                Err(TrySendError::Full(_)) => {
                    subscription.lost += count;
                    *lost += count;
                }
                Err(TrySendError::Disconnected(_)) => return false,
            }
            true
        });
        state.recent_events += batch.len();
        state.recent.push_back(batch);
        while state.recent_events > KEPT
            && state.recent.len() > 1
            && let Some(oldest) = state.recent.pop_front()
        {
            state.recent_events -= oldest.len();
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
    fn a_slow_subscriber_receives_the_number_of_lost_flows() {
        let shared = SharedFlows::default();
        shared.begin();
        let (slow, quick) = (shared.follow().unwrap(), shared.follow().unwrap());
        let events = events();
        assert_eq!(events.len(), 2);
        let mut received = 0;
        for _ in 0..QUEUE + 3 {
            shared.publish(&events);
            received += quick.try_iter().map(|batch| batch.events.len()).sum::<usize>();
        }
        assert_eq!((received, shared.lost()), (2 * (QUEUE + 3), 6));
        let waiting: Vec<Batch> = slow.try_iter().collect();
        assert!(waiting.len() == QUEUE && waiting.iter().all(|batch| batch.lost == 0));
        shared.publish(&events);
        shared.publish(&events);
        let lost: Vec<u64> = slow.try_iter().map(|batch| batch.lost).collect();
        assert_eq!(lost, [6, 0]);
        drop(slow);
        shared.publish(&events);
        assert_eq!(shared.lost(), 6, "a client that is gone loses nothing");
    }
}
