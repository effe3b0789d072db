//! Flows that are to be sent to a receiver, and flows that were sent recently.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::proto::Flow;
use crate::flows::ReceiverMetrics;

/// Maximum number of flows that wait for a receiver that is slow or gone; about 1 KiB each.
pub(super) const WAITING: usize = 10_000;
/// Maximum number of received flows that are kept, to be sent again.
const SENT: usize = 20_000;
/// Time for which they are kept: as long as Goldmane keeps flows.
pub(super) const KEPT: Duration = Duration::from_secs(5 * 60);

#[derive(Clone, Debug, PartialEq)]
struct Sending {
    flow: Arc<Flow>,
    received: Option<Instant>,
}

/// One flow is in flight at a time. Recently received flows are sent again on a new connection, in
/// order and first, so that a restarted server gets them; a server drops flows that it already has.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Arc<Flow>>,
    in_flight: Option<Sending>,
    /// Received flows that have not been sent on this connection yet; older than all of `sent`
    /// after them.
    again: VecDeque<(Instant, Arc<Flow>)>,
    sent: VecDeque<(Instant, Arc<Flow>)>,
    received: u64,
    received_again: u64,
    dropped: u64,
}

impl Outbox {
    /// Adds a flow. Without room, the oldest waiting flow is dropped.
    pub(super) fn push(&mut self, flow: Arc<Flow>) {
        self.waiting.push_back(flow);
        if self.waiting.len() > WAITING {
            self.waiting.pop_front();
            self.dropped += 1;
        }
    }

    pub(super) fn next(&mut self, now: Instant) -> Option<Arc<Flow>> {
        self.drop_expired(now);
        let next = match self.again.pop_front() {
            Some((received, flow)) => Sending { flow, received: Some(received) },
            None => Sending { flow: self.waiting.pop_front()?, received: None },
        };
        let flow = Arc::clone(&next.flow);
        self.in_flight = Some(next);
        Some(flow)
    }

    pub(super) fn received(&mut self, now: Instant) {
        let Some(Sending { flow, received }) = self.in_flight.take() else { return };
        match received {
            Some(_) => self.received_again += 1,
            None => self.received += 1,
        }
        self.sent.push_back((received.unwrap_or(now), flow));
        if self.sent.len() > SENT {
            self.sent.pop_front();
        }
        self.drop_expired(now);
    }

    /// Begins a new connection: recently received flows are sent again, and so is the flow in
    /// flight.
    pub(super) fn begin_again(&mut self) {
        let mut again = std::mem::take(&mut self.sent);
        match self.in_flight.take() {
            Some(Sending { flow, received: Some(received) }) => again.push_back((received, flow)),
            Some(Sending { flow, received: None }) => self.waiting.push_front(flow),
            None => {}
        }
        again.append(&mut self.again);
        self.again = again;
    }

    fn clear(&mut self) {
        self.waiting.clear();
        self.again.clear();
        self.sent.clear();
        self.in_flight = None;
    }

    fn is_drained(&self) -> bool {
        self.waiting.is_empty() && self.again.is_empty() && self.in_flight.is_none()
    }

    fn drop_expired(&mut self, now: Instant) {
        for received in [&mut self.again, &mut self.sent] {
            while received.front().is_some_and(|(at, _)| *at + KEPT <= now) {
                received.pop_front();
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct SharedOutbox {
    state: Mutex<State>,
    filled: Notify,
    /// A flow has been received, or none can be received now.
    emptied: Notify,
}

#[derive(Debug)]
struct State {
    outbox: Outbox,
    is_wanted: bool,
    is_connected: bool,
}

impl State {
    fn has_nothing_to_do(&self) -> bool {
        !self.is_connected || self.outbox.is_drained()
    }
}

impl Default for SharedOutbox {
    fn default() -> Self {
        let state = State { outbox: Outbox::default(), is_wanted: true, is_connected: false };
        Self { state: Mutex::new(state), filled: Notify::new(), emptied: Notify::new() }
    }
}

impl SharedOutbox {
    pub(super) fn is_wanted(&self) -> bool {
        self.lock().is_wanted
    }

    /// Sets whether flows for this receiver are kept; if not, the kept ones are dropped.
    pub(super) fn set_wanted(&self, is_wanted: bool) {
        let mut state = self.lock();
        state.is_wanted = is_wanted;
        if !is_wanted {
            state.outbox.clear();
        }
    }

    pub(super) fn push(&self, flows: impl Iterator<Item = Arc<Flow>>) {
        let mut state = self.lock();
        if state.is_wanted {
            flows.for_each(|flow| state.outbox.push(flow));
        }
        drop(state);
        self.filled.notify_one();
    }

    /// Waits for the next flow to send, which is in flight then.
    pub(super) async fn next(&self) -> Arc<Flow> {
        loop {
            if let Some(flow) = self.lock().outbox.next(Instant::now()) {
                return flow;
            }
            // A notification that came before this wait is not lost.
            self.filled.notified().await;
        }
    }

    pub(super) fn received(&self) {
        let mut state = self.lock();
        state.is_connected = true;
        state.outbox.received(Instant::now());
        drop(state);
        self.emptied.notify_waiters();
    }

    /// The connection has ended, or there is none.
    pub(super) fn disconnected(&self) {
        let mut state = self.lock();
        state.is_connected = false;
        state.outbox.begin_again();
        drop(state);
        self.emptied.notify_waiters();
    }

    /// Waits until all flows have been received, or none can be received now.
    pub(super) async fn drained(&self) {
        loop {
            // Notifications from here on are not missed.
            let emptied = self.emptied.notified();
            if self.lock().has_nothing_to_do() {
                return;
            }
            emptied.await;
        }
    }

    pub(super) fn metrics(&self, receiver: &str) -> ReceiverMetrics {
        let state = self.lock();
        ReceiverMetrics {
            receiver: receiver.to_owned(),
            is_connected: state.is_connected,
            waiting: state.outbox.waiting.len() as u64,
            received: state.outbox.received,
            received_again: state.outbox.received_again,
            dropped: state.outbox.dropped,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
