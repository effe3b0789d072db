//! Events of an enforcement on their way to its session.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::Input;

/// Sends the events of one enforcement to its session, which it wakes.
#[derive(Debug)]
pub struct EventSender<T> {
    events: SyncSender<T>,
    wake: SyncSender<Input>,
}

/// A queue with room for so many events of an enforcement. The session of the enforcement receives the inputs that `wake` sends.
#[must_use]
pub fn event_queue<T>(room: usize, wake: SyncSender<Input>) -> (EventSender<T>, Receiver<T>) {
    let (events, receiver) = sync_channel(room);
    (EventSender { events, wake }, receiver)
}

impl<T> EventSender<T> {
    /// Sends an event, and waits while there is no room for it. Returns false if the session has ended.
    pub fn send(&self, event: T) -> bool {
        let is_sent = self.events.send(event).is_ok();
        // A full queue wakes the session as well.
        let _ = self.wake.try_send(Input::Wake);
        is_sent
    }
}

impl<T> Clone for EventSender<T> {
    fn clone(&self) -> Self {
        Self { events: self.events.clone(), wake: self.wake.clone() }
    }
}
