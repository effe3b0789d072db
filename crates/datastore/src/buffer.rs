//! What waits to be taken by the consumer of a source.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ahash::RandomState;
use tortie_model::{Key, SyncStatus, Update};

/// How long the queue may be, whatever waits in it.
const SWEEP_FROM: usize = 1024;

/// Updates on their way from a source to its consumer: at most one for each key, the newest. Pure.
///
/// The buffer knows which objects the consumer has been told of. So it can drop the deletion of what the consumer never
/// heard of, and find out after a resync what is gone (`libcalico-go/lib/backend/syncersv1/dedupebuffer`).
///
/// A status never overtakes an update that was there before it. An update may overtake a status: its key then waits
/// before the status already, with an older value that nobody will miss. Of statuses with nothing between them, those that
/// lead back to an earlier one are left out: a consumer that has not heard of a resync need not hear of two.
#[derive(Debug, Default)]
pub struct DedupeBuffer {
    /// May name updates that have been withdrawn.
    queue: VecDeque<Waiting>,
    pending: HashMap<Key, Pending, RandomState>,
    /// The objects that exist as far as the source has told, and those that the consumer has been told of.
    known: HashMap<Key, Known, RandomState>,
    resync: u32,
    tickets: u64,
    /// What comes after the versions that were given out last.
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
    /// Tells the place in the queue that counts from those that were given up.
    ticket: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The resync in which the source last told of it.
    resync: u32,
    /// Whether it exists, as far as the source has told.
    exists: bool,
    /// Whether the consumer has been told that it exists.
    taken: bool,
}

/// What is next in a [`DedupeBuffer`].
#[derive(Debug, PartialEq)]
pub enum Next {
    /// At which version of the datastore the objects of the updates are that come next, as far as that is known.
    Versions(Vec<(Key, Arc<str>)>),
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
        self.versioned.is_none()
            && self.pending.is_empty()
            && self.queue.iter().all(|waiting| matches!(waiting, Waiting::Update { .. }))
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
        let is_gone = |known: &Known| known.exists && known.resync != current;
        let mut gone: Vec<Key> =
            self.known.iter().filter(|(_, known)| is_gone(known)).map(|(key, _)| key.clone()).collect();
        gone.sort_unstable();
        for key in gone {
            self.update(Update::delete(key), now);
        }
        self.status(SyncStatus::InSync);
    }

    /// Takes a change that was noticed at this time.
    pub fn update(&mut self, update: Update, noticed: Instant) {
        self.update_at(update, None, noticed);
    }

    /// As [`DedupeBuffer::update`], of an object that is at this version.
    pub fn update_at(&mut self, update: Update, version: Option<Arc<str>>, noticed: Instant) {
        let (key, resync, exists) = (update.key(), self.resync, update.exists());
        match self.known.entry(key.clone()) {
            Entry::Vacant(_) if !exists => return,
            Entry::Vacant(entry) => {
                entry.insert(Known { resync, exists, taken: false });
            }
            Entry::Occupied(mut known) => {
                let taken = known.get().taken;
                if !exists && !taken {
                    // The consumer never heard of it, and need not.
                    known.remove();
                    self.pending.remove(&key);
                    return;
                }
                known.insert(Known { resync, exists, taken });
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

    /// Whether a status is next.
    #[must_use]
    pub fn begins_with_status(&self) -> bool {
        let live = |waiting: &&Waiting| match waiting {
            Waiting::Update { key, ticket } => waits(&self.pending, key, *ticket),
            Waiting::Status(_) => true,
        };
        self.versioned.is_none() && matches!(self.queue.iter().find(live), Some(Waiting::Status(_)))
    }

    /// Takes a status.
    pub fn status(&mut self, status: SyncStatus) {
        push_status(&mut self.queue, status);
        self.sweep();
    }

    /// Gives out what is next: at most `limit` updates, before them their versions if any are known, or a status.
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
        if versions.is_empty() {
            return Some(Next::Updates(updates, oldest));
        }
        self.versioned = Some((updates, oldest));
        Some(Next::Versions(versions))
    }

    /// Forgets everything, for a consumer that restarts.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Frees the places of withdrawn updates, and of the statuses that these leave without anything between them, once
    /// there are many more places than updates that wait.
    fn sweep(&mut self) {
        // What is left has at most three statuses before each update, and as many at the end.
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

/// Adds a status; if it is among those at the end already, what came after it is dropped instead.
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
