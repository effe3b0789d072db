//! Replies that wait for their members, or for the end of their time.

use std::collections::{BTreeMap, BTreeSet};

use tortie_dns::Millis;

/// A reply that the kernel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The kernel's number of the packet.
    pub(super) id: u32,
    /// When it came.
    pub(super) since: Millis,
    /// When it is let go at the latest.
    pub(super) until: Millis,
    /// The batch of changes that it waits for.
    pub(super) needs: u64,
}

/// The held replies.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// By the order in which they came.
    held: BTreeMap<u64, Held>,
    by_need: BTreeSet<(u64, u64)>,
    by_end: BTreeSet<(Millis, u64)>,
    next: u64,
}

impl Holding {
    /// Adds a reply. Cost: logarithmic.
    pub(super) fn hold(&mut self, held: Held) {
        let order = self.next;
        self.next += 1;
        self.held.insert(order, held);
        self.by_need.insert((held.needs, order));
        self.by_end.insert((held.until, order));
    }

    /// Takes the replies whose batch is among those that are done.
    pub(super) fn take_written(&mut self, done: u64) -> Vec<Held> {
        let mut taken = Vec::new();
        while let Some((_, order)) = self.by_need.first().copied().filter(|(needs, _)| *needs <= done) {
            taken.extend(self.remove(order));
        }
        taken
    }

    /// Takes the replies whose time has ended.
    pub(super) fn take_overdue(&mut self, now: Millis) -> Vec<Held> {
        let mut taken = Vec::new();
        while let Some((_, order)) = self.by_end.first().copied().filter(|(until, _)| *until <= now) {
            taken.extend(self.remove(order));
        }
        taken
    }

    /// Takes all replies in the order in which they came.
    pub(super) fn take_all(&mut self) -> Vec<Held> {
        let held = std::mem::take(self).held;
        held.into_values().collect()
    }

    /// Returns the time at which the first reply is let go.
    pub(super) fn next_end(&self) -> Option<Millis> {
        self.by_end.first().map(|(until, _)| *until)
    }

    /// Returns the number of held replies.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    fn remove(&mut self, order: u64) -> Option<Held> {
        let held = self.held.remove(&order)?;
        self.by_need.remove(&(held.needs, order));
        self.by_end.remove(&(held.until, order));
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_leave_by_need_by_time_or_together_and_once() {
        let mut holding = Holding::default();
        let held = |id, since, needs| Held { id, since: Millis(since), until: Millis(since + 1_000), needs };
        let ids = |held: Vec<Held>| held.into_iter().map(|held| held.id).collect::<Vec<_>>();
        for (id, since, needs) in [(1, 0, 2), (2, 10, 1), (3, 20, 3), (4, 20, 1), (5, 30, 9)] {
            holding.hold(held(id, since, needs));
        }
        assert_eq!(ids(holding.take_written(0)), [0_u32; 0]);
        assert_eq!(ids(holding.take_written(1)), [2, 4]);
        assert_eq!(holding.next_end(), Some(Millis(1_000)));
        assert_eq!(ids(holding.take_overdue(Millis(1_000))), [1]);
        assert_eq!(ids(holding.take_written(2)), [0_u32; 0]);
        assert_eq!(ids(holding.take_all()), [3, 5]);
        assert_eq!((holding.len(), holding.next_end()), (0, None));
        assert!(holding.by_need.is_empty());
    }
}
