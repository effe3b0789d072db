//! The objects, the updates that each puts in force, and the resolution of conflicts between them.

mod claims;
mod contests;
mod store;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use ahash::RandomState;
use tortie_model::{Hostname, Interner, Key, Update};
use tortie_resources::manifest::{Contributions, ObjectId, Outcome, SyncerType};

use crate::{Fallback, built_in};
use claims::Claims;
pub(crate) use claims::Conflict;
use contests::Contests;
use store::{Claim, InForce, Store};

/// The objects of a datastore and the updates that result from them. Pure.
///
/// An invalid object keeps its last valid version or, without one, gets its substitute. If two
/// objects claim one key, the one that sorts first takes effect. The objects that every datastore
/// has are present from the beginning.
///
/// A cluster has hundreds of thousands of pods, so each key is held once, by the object that claims
/// it.
#[derive(Debug)]
pub(crate) struct Register {
    store: Store,
    claims: Claims,
    contests: Contests,
    /// State in force before, for the keys that have been touched since the updates were last
    /// taken.
    before: HashMap<Key, InForceBefore, RandomState>,
    /// Whether versions of objects are kept.
    keeps_versions: bool,
    /// Shares the texts of the objects' namespaces.
    interner: Interner,
    /// Node for which the objects are kept: endpoints of other nodes keep only the data that it
    /// needs.
    node: Option<Hostname>,
    /// Whether the built-in objects are present.
    built_in: bool,
}

/// State in force for a key.
#[derive(Debug, Default)]
struct InForceBefore {
    value: Option<Update>,
    /// Whether an object claimed it, so that it had a version.
    is_claimed: bool,
}

impl Register {
    /// Returns a register of the built-in objects; an empty one for a syncer without them.
    pub(crate) fn new(node: Option<Hostname>, syncer: SyncerType) -> Self {
        let built_in = syncer == SyncerType::Felix;
        let mut register = Self {
            store: Store::default(),
            claims: Claims::default(),
            contests: Contests::new(),
            before: HashMap::default(),
            keeps_versions: false,
            interner: Interner::new(),
            node,
            built_in,
        };
        register.before = register.built_in().map(|object| (object.key(), InForceBefore::default())).collect();
        register
    }

    fn built_in(&self) -> impl Iterator<Item = Update> {
        self.built_in.then(built_in::objects).into_iter().flatten()
    }

    /// Sets the outcome of parsing an object; `listing` marks it for [`Register::sweep`]. Returns
    /// the resulting fallback.
    pub(crate) fn put(&mut self, id: &ObjectId, outcome: Outcome, listing: u32) -> Fallback {
        let slot = match self.store.find(id) {
            Some(slot) => slot,
            None => {
                let namespace = self.interner.text(&id.namespace);
                self.store.insert(ObjectId { namespace, name: Arc::clone(&id.name), kind: id.kind })
            }
        };
        let object = self.store.object(slot);
        let (fallback, contributions) = match outcome {
            Outcome::Valid(contributions) => (Fallback::NotNeeded, Some(contributions)),
            Outcome::Unknown => (Fallback::NotNeeded, Some(Contributions::new())),
            Outcome::Invalid { substitute } => {
                let fallback = Fallback::of_unusable(Some(object.fallback), substitute.is_some());
                (fallback, substitute.filter(|_| fallback == Fallback::Denied))
            }
        };
        self.store.note(slot, fallback, listing);
        if let Some(contributions) = contributions {
            let contributions = self.compact(contributions);
            if *self.store.object(slot).in_force != contributions[..] {
                self.replace(slot, contributions.into());
            }
        }
        fallback
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, id: &ObjectId) {
        if let Some(slot) = self.store.find(id) {
            self.replace(slot, InForce::default());
            self.store.remove(slot);
        }
    }

    /// Removes the objects for which `keep` is false, given their listing; returns them.
    pub(crate) fn sweep(&mut self, keep: impl Fn(&ObjectId, u32) -> bool) -> Vec<ObjectId> {
        let denials: BTreeSet<&ObjectId> = self.contests.values().collect();
        let gone: Vec<ObjectId> = self
            .store
            .objects()
            .filter(|object| !keep(&object.id, object.listing) && !denials.contains(&object.id))
            .map(|object| object.id.clone())
            .collect();
        for id in &gone {
            self.remove(id);
        }
        gone
    }

    /// Returns the updates that result from the changes since the last call, without redundant
    /// ones, in the order of their keys.
    pub(crate) fn take_updates(&mut self) -> Vec<Update> {
        self.close_contests();
        let before = std::mem::take(&mut self.before);
        let changed = before.into_iter().filter_map(|(key, old)| {
            let new = self.value(&key);
            // An object that equals a built-in one has a version nevertheless.
            let has_version = self.keeps_versions && self.is_claimed(&key) != old.is_claimed;
            (new != old.value || has_version).then(|| new.unwrap_or_else(|| Update::delete(key)))
        });
        sorted(changed.collect())
    }

    /// Returns everything that is in force, in the order of keys.
    pub(crate) fn snapshot(&self) -> Vec<Update> {
        let built_in = self.built_in().filter(|object| self.claims.winner(&object.key(), &self.store).is_none());
        let claimed = self.claims.winners().map(|claim| self.store.claimed(claim).clone());
        sorted(claimed.chain(built_in).collect())
    }

    /// Returns the keys that more than one object claims.
    pub(crate) fn conflicts(&self) -> impl Iterator<Item = Conflict<'_>> {
        self.claims.conflicts(&self.store)
    }

    /// Reports whether any key is claimed by more than one object.
    pub(crate) fn is_in_conflict(&self) -> bool {
        self.claims.is_in_conflict()
    }

    /// Makes the register keep versions.
    pub(crate) fn keep_versions(&mut self) {
        self.keeps_versions = true;
    }

    /// Sets the version of a known object.
    pub(crate) fn set_version(&mut self, id: &ObjectId, version: impl fmt::Display) {
        if let Some(slot) = self.store.find(id).filter(|_| self.keeps_versions) {
            self.store.set_version(slot, version.to_string().into());
        }
    }

    /// Returns the version of the object that an update results from; `None` if no object claims
    /// its key, or the version is unknown.
    pub(crate) fn version(&self, update: &Update) -> Option<&Arc<str>> {
        if !self.keeps_versions || !update.exists() {
            return None;
        }
        self.store.version(self.claims.winner(&update.key(), &self.store)?.slot)
    }

    /// Returns the fallback of an object; `None` if it is unknown.
    pub(crate) fn fallback(&self, id: &ObjectId) -> Option<Fallback> {
        self.store.find(id).map(|slot| self.store.object(slot).fallback)
    }

    /// Returns the contributions of an object that are in force; none if it is unknown.
    pub(crate) fn in_force(&self, id: &ObjectId) -> &[Update] {
        self.store.find(id).map_or(&[], |slot| &self.store.object(slot).in_force)
    }

    /// Returns the number of objects, without denials of conflicts.
    pub(crate) fn len(&self) -> usize {
        self.store.objects().count() - self.contests.len()
    }

    /// Reports whether only built-in objects are left.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && self.claims.winners().next().is_none() && !self.is_in_conflict() && self.before.is_empty()
    }

    fn value(&self, key: &Key) -> Option<Update> {
        match self.claims.winner(key, &self.store) {
            Some(claim) => Some(self.store.claimed(claim).clone()),
            None if self.built_in => built_in::object(key),
            None => None,
        }
    }

    fn is_claimed(&self, key: &Key) -> bool {
        self.claims.winner(key, &self.store).is_some()
    }

    /// Replaces the keys and values that an object claims.
    fn replace(&mut self, slot: u32, with: InForce) {
        for claim in self.store.claims(slot) {
            self.touch(&claim);
            self.claims.remove(claim, &self.store);
        }
        self.store.put(slot, with);
        for claim in self.store.claims(slot) {
            self.touch(&claim);
            self.claims.add(claim, &self.store);
        }
    }

    fn touch(&mut self, claim: &Claim) {
        let key = self.store.claimed(*claim).key();
        if !self.before.contains_key(&key) {
            let before = InForceBefore { value: self.value(&key), is_claimed: self.is_claimed(&key) };
            self.before.insert(key, before);
        }
    }

    /// Reduces contributions to the needed data, with each key once.
    fn compact(&mut self, contributions: Contributions) -> Contributions {
        let mut compact = Contributions::with_capacity(contributions.len());
        for update in contributions {
            let update = match update {
                Update::WorkloadEndpoint(key, Some(endpoint))
                    if self.node.as_ref().is_some_and(|node| node.as_str() != key.host()) =>
                {
                    Update::WorkloadEndpoint(key, Some(endpoint.for_other_node()))
                }
                other => other,
            };
            let key = update.key();
            match compact.iter_mut().find(|earlier| earlier.is_about(&key)) {
                Some(earlier) => *earlier = update,
                None => compact.push(update),
            }
        }
        compact
    }
}

fn sorted(mut updates: Vec<Update>) -> Vec<Update> {
    updates.sort_by_cached_key(Update::key);
    updates
}
