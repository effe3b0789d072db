//! What waits to be taken by the consumer of a source.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use ahash::RandomState;
use tortie_model::{Key, SyncStatus, Update, Value};

/// How many dead places in the queue are left alone before it is swept.
const SWEEP_FROM: usize = 1024;

/// Updates on their way from a source to its consumer: at most one for each key, the newest. Pure.
///
/// The buffer knows which objects the consumer has been told of. So it can drop the deletion of what the consumer never
/// heard of, and find out after a resync what is gone (`libcalico-go/lib/backend/syncersv1/dedupebuffer`).
///
/// A status never overtakes an update that was there before it. An update may overtake a status: its key then waits
/// before the status already, with an older value that nobody will miss.
#[derive(Debug, Default)]
pub struct DedupeBuffer {
    queue: VecDeque<Waiting>,
    pending: HashMap<Key, Pending, RandomState>,
    /// The objects that exist as far as the consumer has been told, or will have been when the queue is empty, with the
    /// resync in which they were last seen.
    known: HashMap<Key, Known, RandomState>,
    resync: u32,
    /// Places in the queue whose updates have been withdrawn.
    dead: usize,
    tickets: u64,
}

#[derive(Debug)]
enum Waiting {
    Update { key: Key, ticket: u64 },
    Status(SyncStatus),
}

#[derive(Debug)]
struct Pending {
    value: Option<Value>,
    noticed: Instant,
    ticket: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    resync: u32,
    /// Whether the consumer has taken it; otherwise it waits.
    taken: bool,
}

/// What is next in a [`DedupeBuffer`].
#[derive(Debug, PartialEq)]
pub enum Next {
    /// Changed objects, each once, and when the oldest of these changes was noticed.
    Updates(Vec<Update>, Instant),
    /// How far the datastore has been read.
    Status(SyncStatus),
}

impl DedupeBuffer {
    /// How many updates wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.queue.iter().all(|waiting| matches!(waiting, Waiting::Update { .. }))
    }

    /// Whether an update of this key waits, so that another one takes no room.
    #[must_use]
    pub fn holds(&self, key: &Key) -> bool {
        self.pending.contains_key(key)
    }

    /// Everything will be told again: what has not been by [`DedupeBuffer::end_resync`] is gone.
    pub fn begin_resync(&mut self) {
        self.resync = self.resync.wrapping_add(1);
        self.status(SyncStatus::Resync);
    }

    /// Everything has been told. Deletes, in the order of keys, what was not.
    pub fn end_resync(&mut self, now: Instant) {
        let current = self.resync;
        let mut gone: Vec<Key> =
            self.known.iter().filter(|(_, known)| known.resync != current).map(|(key, _)| key.clone()).collect();
        gone.sort_unstable();
        for key in gone {
            self.update(Update::delete(key), now);
        }
        self.status(SyncStatus::InSync);
    }

    /// Takes a change that was noticed at this time.
    pub fn update(&mut self, update: Update, noticed: Instant) {
        let Update { key, value } = update;
        match (value.is_some(), self.known.entry(key.clone())) {
            (true, Entry::Occupied(mut known)) => known.get_mut().resync = self.resync,
            (true, Entry::Vacant(entry)) => {
                entry.insert(Known { resync: self.resync, taken: false });
            }
            (false, Entry::Occupied(known)) => {
                let taken = known.remove().taken;
                if !taken && self.pending.remove(&key).is_some() {
                    // The consumer never heard of it, and need not.
                    self.dead += 1;
                    return self.sweep();
                }
            }
            (false, Entry::Vacant(_)) => return,
        }
        match self.pending.entry(key) {
            Entry::Occupied(mut pending) => pending.get_mut().value = value,
            Entry::Vacant(entry) => {
                self.tickets += 1;
                let ticket = self.tickets;
                self.queue.push_back(Waiting::Update { key: entry.key().clone(), ticket });
                entry.insert(Pending { value, noticed, ticket });
            }
        }
    }

    /// Whether a status is next.
    #[must_use]
    pub fn begins_with_status(&self) -> bool {
        matches!(self.queue.front(), Some(Waiting::Status(_)))
    }

    /// Takes a status.
    pub fn status(&mut self, status: SyncStatus) {
        if !matches!(self.queue.back(), Some(Waiting::Status(last)) if *last == status) {
            self.queue.push_back(Waiting::Status(status));
        }
    }

    /// Gives out what is next: at most `limit` updates, or a status.
    pub fn take(&mut self, limit: usize) -> Option<Next> {
        let mut updates = Vec::new();
        let mut oldest = None::<Instant>;
        while updates.len() < limit {
            match self.queue.front() {
                None => break,
                Some(Waiting::Status(_)) if !updates.is_empty() => break,
                Some(_) => {}
            }
            match self.queue.pop_front() {
                Some(Waiting::Status(status)) => return Some(Next::Status(status)),
                Some(Waiting::Update { key, ticket }) => match self.pending.entry(key) {
                    Entry::Occupied(pending) if pending.get().ticket == ticket => {
                        let (key, Pending { value, noticed, .. }) = pending.remove_entry();
                        if let Some(known) = self.known.get_mut(&key) {
                            known.taken = true;
                        }
                        oldest = Some(oldest.map_or(noticed, |oldest| oldest.min(noticed)));
                        updates.push(Update { key, value });
                    }
                    _ => self.dead -= 1,
                },
                None => break,
            }
        }
        oldest.map(|oldest| Next::Updates(updates, oldest))
    }

    /// Forgets everything, for a consumer that begins anew.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Frees places of withdrawn updates once there are more of them than of others.
    fn sweep(&mut self) {
        if self.dead < SWEEP_FROM || self.dead < self.queue.len() / 2 {
            return;
        }
        let pending = &self.pending;
        self.queue.retain(|waiting| match waiting {
            Waiting::Update { key, ticket } => pending.get(key).is_some_and(|pending| pending.ticket == *ticket),
            Waiting::Status(_) => true,
        });
        self.dead = 0;
    }
}

#[cfg(test)]
mod tests;
