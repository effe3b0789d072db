//! Events of an enforcement on their way to its session.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::Input;

/// Sends the events of one enforcement to its session, which it wakes.
#[derive(Debug)]
pub struct EventSender<T> {
    events: SyncSender<T>,
    wake: SyncSender<Input>,
}

/// A queue with room for so many events of an enforcement. The session of the enforcement receives
/// the inputs that `wake` sends.
#[must_use]
pub fn event_queue<T>(room: usize, wake: SyncSender<Input>) -> (EventSender<T>, Receiver<T>) {
    let (events, receiver) = sync_channel(room);
    (EventSender { events, wake }, receiver)
}

impl<T> EventSender<T> {
    /// Sends an event, and waits while there is no room for it. Returns false if the session has
    /// ended.
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

    use super::*;

    #[test]
    fn each_event_arrives_in_order_and_wakes_the_session() {
        let (wake, inputs) = sync_channel(1);
        let (sender, events) = event_queue(8, wake);
        // The second finds the queue of inputs full, and is received with the first.
        assert!(sender.send(1) && sender.send(2));
        assert!(matches!(inputs.try_recv(), Ok(Input::Wake)));
        assert!(matches!(inputs.try_recv(), Err(TryRecvError::Empty)));
        assert_eq!(events.try_iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn events_of_an_ended_session_reach_no_other_one() {
        let (wake, _inputs) = sync_channel(8);
        let (sender, ended) = event_queue(1, wake.clone());
        let (_, events) = event_queue::<u8>(1, wake);
        assert!(sender.send(1));
        // Its queue is full: a sender waits, until the session is gone.
        let waiting = std::thread::spawn(move || sender.send(2) || sender.send(3));
        drop(ended);
        assert!(!waiting.join().unwrap());
        assert!(matches!(events.try_recv(), Err(TryRecvError::Disconnected)));
    }
}
