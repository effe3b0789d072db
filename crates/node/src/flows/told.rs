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

/// Message to the collecting thread.
#[derive(Debug)]
pub(super) enum Told {
    /// An object of the cluster has changed.
    Object(Update),
    /// The new desired state, and the changes of rules and endpoints that led to it.
    Desired(Box<State>, Vec<DesiredUpdate>),
}

impl Told {
    /// The number of changes.
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

/// The sending end.
#[derive(Debug)]
pub(super) struct Teller {
    sender: Sender<Told>,
    counts: Arc<Counts>,
    limit: usize,
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Listener {
    receiver: Receiver<Told>,
    counts: Arc<Counts>,
}

/// A queue with room for so many changes. It allocates no memory for them in advance.
pub(super) fn queue(limit: usize) -> (Teller, Listener) {
    let ((sender, receiver), counts) = (channel(), Arc::<Counts>::default());
    (Teller { sender, counts: Arc::clone(&counts), limit }, Listener { receiver, counts })
}

impl Teller {
    /// Sends changes, without waiting. Changes without room are dropped and counted.
    pub(super) fn tell(&self, told: Told) {
        let counts = &self.counts;
        let count = told.count();
        // Only one thread sends, so the count cannot grow between the check and the change.
        if counts.waiting.load(Ordering::Acquire) >= self.limit {
            if counts.dropped.fetch_add(count as u64, Ordering::Relaxed) == 0 {
                let what = "changes come faster than the flow collector takes them; some flows are reported without names, rules and staged policies";
                tracing::error!(waiting = self.limit, "{what}");
            }
            return;
        }
        counts.waiting.fetch_add(count, Ordering::AcqRel);
        // A thread that has ended has logged the reason.
        let _ = self.sender.send(told);
    }
}

impl Listener {
    /// Returns the next waiting message.
    ///
    /// # Errors
    /// If none waits, or the sending end is dropped.
    pub(super) fn next(&self) -> Result<Told, TryRecvError> {
        let told = self.receiver.try_recv()?;
        self.counts.waiting.fetch_sub(told.count(), Ordering::AcqRel);
        Ok(told)
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

    fn change(name: &str) -> Told {
        Told::Object(Update::Policy(PolicyId::new(NetworkPolicy, "shop", name), None))
    }

    #[test]
    fn what_there_is_no_room_for_is_dropped_and_counted_and_holds_nobody_up() {
        let (teller, listener) = queue(2);
        for name in ["a", "b", "c", "d"] {
            teller.tell(change(name));
        }
        assert_eq!(listener.dropped(), 2);
        assert!(listener.next().is_ok());
        teller.tell(change("e"));
        let names: Vec<String> = std::iter::from_fn(|| match listener.next() {
            Ok(Told::Object(Update::Policy(id, _))) => Some(id.name.to_string()),
            _ => None,
        })
        .collect();
        assert_eq!((names, listener.dropped()), (vec!["b".to_owned(), "e".to_owned()], 2));
        drop(teller);
        assert_eq!(listener.next().err(), Some(TryRecvError::Disconnected));
    }
}
