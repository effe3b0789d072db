//! Queue between a source and its consumer.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ahash::RandomState;
use tortie_model::{Key, SyncStatus, Update};

/// Queue length below which no sweep takes place.
const SWEEP_FROM: usize = 1024;

/// Updates on their way from a source to its consumer: at most one for each key, the newest. Pure.
///
/// The buffer records which objects the consumer knows. So it drops the deletion of an object that
/// the consumer never received, and finds the objects that a resync did not list
/// (`libcalico-go/lib/backend/syncersv1/dedupebuffer`).
///
/// A status never overtakes an update that was queued before it. An update may overtake a status:
/// if its key is already queued before the status, the newer value replaces the older one there. Of
/// consecutive statuses without updates between them, those that lead back to an earlier one are
/// dropped: a consumer that has not seen a resync does not need to see two.
#[derive(Debug, Default)]
pub struct DedupeBuffer {
    /// May contain entries of updates that have been withdrawn.
    queue: VecDeque<Waiting>,
    pending: HashMap<Key, Pending, RandomState>,
    /// The objects that exist according to the source, and those that the consumer has received.
    known: HashMap<Key, KnownKey, RandomState>,
    resync: u32,
    tickets: u64,
    /// Updates that follow the versions returned last.
    versioned: Option<(Vec<Update>, Instant)>,
}

#[derive(Debug)]
enum Waiting {
    Update { key: Key, ticket: u64 },
    Status(SyncStatus),
}

#[derive(Debug)]
struct Pending {
    update: Update,
    version: Option<Arc<str>>,
    noticed: Instant,
    /// Distinguishes the valid queue entry from withdrawn ones.
    ticket: u64,
}

#[derive(Clone, Copy, Debug)]
struct KnownKey {
    /// The resync in which the source last reported it.
    resync: u32,
    /// Whether it exists according to the source.
    exists: bool,
    /// Whether the consumer has received it as existing.
    taken: bool,
}

/// Next item of a [`DedupeBuffer`].
#[derive(Debug, PartialEq)]
pub enum Next {
    /// Datastore versions of the objects in the updates that come next, as far as they are known.
    Versions(Vec<(Key, Arc<str>)>),
    /// Changed objects, each once, and the time when the oldest of these changes was noticed.
    Updates(Vec<Update>, Instant),
    /// Progress of reading the datastore.
    Status(SyncStatus),
}

impl DedupeBuffer {
    /// Returns the number of queued updates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Reports whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.versioned.is_none()
            && self.pending.is_empty()
            && self.queue.iter().all(|waiting| matches!(waiting, Waiting::Update { .. }))
    }

    /// Reports whether an update of this key is queued, so that another one takes no further space.
    #[must_use]
    pub fn holds(&self, key: &Key) -> bool {
        self.pending.contains_key(key)
    }

    /// Begins a resync: the source sends every object again. Objects not sent by
    /// [`DedupeBuffer::end_resync`] are deleted.
    pub fn begin_resync(&mut self) {
        self.resync = self.resync.wrapping_add(1);
        self.status(SyncStatus::Resync);
    }

    /// Ends a resync. Deletes, in the order of keys, the objects that the source did not send.
    pub fn end_resync(&mut self, now: Instant) {
        let current = self.resync;
        let is_gone = |known: &KnownKey| known.exists && known.resync != current;
        let mut gone: Vec<Key> =
            self.known.iter().filter(|(_, known)| is_gone(known)).map(|(key, _)| key.clone()).collect();
        gone.sort_unstable();
        for key in gone {
            self.update(Update::delete(key), now);
        }
        self.status(SyncStatus::InSync);
    }

    /// Queues a change that was noticed at this time.
    pub fn update(&mut self, update: Update, noticed: Instant) {
        self.update_at(update, None, noticed);
    }

    /// As [`DedupeBuffer::update`], for an object at this datastore version.
    pub fn update_at(&mut self, update: Update, version: Option<Arc<str>>, noticed: Instant) {
        let (key, resync, exists) = (update.key(), self.resync, update.exists());
        match self.known.entry(key.clone()) {
            Entry::Vacant(_) if !exists => return,
            Entry::Vacant(entry) => {
                entry.insert(KnownKey { resync, exists, taken: false });
            }
            Entry::Occupied(mut known) => {
                let taken = known.get().taken;
                if !exists && !taken {
                    // The consumer never received it, so no deletion is needed.
                    known.remove();
                    self.pending.remove(&key);
                    return;
                }
                known.insert(KnownKey { resync, exists, taken });
            }
        }
        match self.pending.entry(key) {
            Entry::Occupied(mut pending) => {
                let pending = pending.get_mut();
                (pending.update, pending.version) = (update, version);
            }
            Entry::Vacant(entry) => {
                self.tickets += 1;
                let ticket = self.tickets;
                self.queue.push_back(Waiting::Update { key: entry.key().clone(), ticket });
                entry.insert(Pending { update, version, noticed, ticket });
                self.sweep();
            }
        }
    }

    /// Reports whether the next item is a status.
    #[must_use]
    pub fn begins_with_status(&self) -> bool {
        let live = |waiting: &&Waiting| match waiting {
            Waiting::Update { key, ticket } => waits(&self.pending, key, *ticket),
            Waiting::Status(_) => true,
        };
        self.versioned.is_none() && matches!(self.queue.iter().find(live), Some(Waiting::Status(_)))
    }

    /// Queues a status.
    pub fn status(&mut self, status: SyncStatus) {
        push_status(&mut self.queue, status);
        self.sweep();
    }

    /// Removes and returns the next item: a status, or at most `limit` updates, preceded by their
    /// versions if any are known.
    pub fn take(&mut self, limit: usize) -> Option<Next> {
        if let Some((updates, noticed)) = self.versioned.take() {
            return Some(Next::Updates(updates, noticed));
        }
        let (mut updates, mut versions) = (Vec::new(), Vec::new());
        let mut oldest = None::<Instant>;
        while updates.len() < limit {
            let Waiting::Update { key, ticket } = (match self.queue.pop_front() {
                None => break,
                Some(Waiting::Status(status)) if updates.is_empty() => return Some(Next::Status(status)),
                Some(status @ Waiting::Status(_)) => {
                    self.queue.push_front(status);
                    break;
                }
                Some(update) => update,
            }) else {
                break;
            };
            // An entry of the queue stays when its update is cancelled or replaced.
            let Entry::Occupied(pending) = self.pending.entry(key) else { continue };
            if pending.get().ticket != ticket {
                continue;
            }
            let (key, Pending { update, version, noticed, .. }) = pending.remove_entry();
            match self.known.get_mut(&key) {
                Some(known) if update.exists() => known.taken = true,
                _ => {
                    self.known.remove(&key);
                }
            }
            oldest = Some(oldest.map_or(noticed, |oldest| oldest.min(noticed)));
            updates.push(update);
            versions.extend(version.map(|version| (key, version)));
        }
        let oldest = oldest?;
        if self.pending.is_empty() {
            // A resync needs room for all objects, later changes for few.
            self.pending.shrink_to(SWEEP_FROM);
            self.queue.shrink_to(SWEEP_FROM);
        }
        if versions.is_empty() {
            return Some(Next::Updates(updates, oldest));
        }
        self.versioned = Some((updates, oldest));
        Some(Next::Versions(versions))
    }

    /// Clears all state, for a consumer that restarts.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Removes entries of withdrawn updates, and statuses that are then redundant, once the queue
    /// has many more entries than pending updates.
    fn sweep(&mut self) {
        // After a sweep at most three statuses remain before each update, and as many at the end.
        if self.queue.len() < SWEEP_FROM + 8 * self.pending.len() {
            return;
        }
        let mut swept = VecDeque::new();
        for waiting in self.queue.drain(..) {
            match waiting {
                Waiting::Update { key, ticket } if waits(&self.pending, &key, ticket) => {
                    swept.push_back(Waiting::Update { key, ticket });
                }
                Waiting::Update { .. } => {}
                Waiting::Status(status) => push_status(&mut swept, status),
            }
        }
        self.queue = swept;
    }
}

fn waits(pending: &HashMap<Key, Pending, RandomState>, key: &Key, ticket: u64) -> bool {
    pending.get(key).is_some_and(|pending| pending.ticket == ticket)
}

/// Adds a status. If the statuses at the end of the queue already contain it, those after it are
/// dropped instead.
fn push_status(queue: &mut VecDeque<Waiting>, status: SyncStatus) {
    let run = queue.iter().rev().map_while(|waiting| match waiting {
        Waiting::Status(status) => Some(*status),
        Waiting::Update { .. } => None,
    });
    match run.into_iter().position(|earlier| earlier == status) {
        Some(after) => queue.truncate(queue.len() - after),
        None => queue.push_back(Waiting::Status(status)),
    }
}

#[cfg(test)]
mod tests;
