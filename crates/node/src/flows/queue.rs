//! Messages to the collecting thread, in a bounded queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use tortie_evaluate::State;
use tortie_model::Update;
use tortie_model::desired::DesiredUpdate;

/// Maximum number of waiting changes: more than a large cluster has objects, since all of them come
/// at the start.
pub(super) const WAITING: usize = 1_000_000;

#[derive(Debug)]
pub(super) enum CollectorMessage {
    Object(Update),
    Desired(Box<State>, Vec<DesiredUpdate>),
}

impl CollectorMessage {
    fn count(&self) -> usize {
        match self {
            Self::Object(_) => 1,
            Self::Desired(_, changes) => 1 + changes.len(),
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    waiting: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Debug)]
pub(super) struct MessageSender {
    sender: Sender<CollectorMessage>,
    counts: Arc<Counts>,
    limit: usize,
}

#[derive(Debug)]
pub(super) struct MessageReceiver {
    receiver: Receiver<CollectorMessage>,
    counts: Arc<Counts>,
}

/// A queue with room for so many changes. It allocates no memory for them in advance.
pub(super) fn message_queue(limit: usize) -> (MessageSender, MessageReceiver) {
    let ((sender, receiver), counts) = (channel(), Arc::<Counts>::default());
    (MessageSender { sender, counts: Arc::clone(&counts), limit }, MessageReceiver { receiver, counts })
}

impl MessageSender {
    /// Sends changes, without waiting. Changes without room are dropped and counted.
    pub(super) fn send(&self, message: CollectorMessage) {
        let counts = &self.counts;
        let count = message.count();
        // Only one thread sends, so the count cannot grow between the check and the change.
        if counts.waiting.load(Ordering::Acquire) >= self.limit {
            if counts.dropped.fetch_add(count as u64, Ordering::Relaxed) == 0 {
                tracing::error!(
                    waiting = self.limit,
                    "the queue of the flow collector is full; flows may lack names, rules and staged policies"
                );
            }
            return;
        }
        counts.waiting.fetch_add(count, Ordering::AcqRel);
        // A thread that has ended has logged the reason.
        let _ = self.sender.send(message);
    }
}

impl MessageReceiver {
    pub(super) fn next(&self) -> Result<CollectorMessage, TryRecvError> {
        let message = self.receiver.try_recv()?;
        self.counts.waiting.fetch_sub(message.count(), Ordering::AcqRel);
        Ok(message)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use tortie_model::PolicyId;
    use tortie_model::PolicyKind::NetworkPolicy;

    use super::*;

    fn change(name: &str) -> CollectorMessage {
        CollectorMessage::Object(Update::Policy(PolicyId::new(NetworkPolicy, "shop", name), None))
    }

    #[test]
    fn changes_over_the_limit_are_dropped_and_counted_without_waiting() {
        let (sender, receiver) = message_queue(2);
        for name in ["a", "b", "c", "d"] {
            sender.send(change(name));
        }
        assert_eq!(receiver.dropped(), 2);
        assert!(receiver.next().is_ok());
        sender.send(change("e"));
        let names: Vec<String> = std::iter::from_fn(|| match receiver.next() {
            Ok(CollectorMessage::Object(Update::Policy(id, _))) => Some(id.name.to_string()),
            _ => None,
        })
        .collect();
        assert_eq!((names, receiver.dropped()), (vec!["b".to_owned(), "e".to_owned()], 2));
        drop(sender);
        assert_eq!(receiver.next().err(), Some(TryRecvError::Disconnected));
    }
}
