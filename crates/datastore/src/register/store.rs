//! The objects, by number and by name.

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::HashTable;
use tortie_model::Update;
use tortie_resources::manifest::{Contributions, ObjectId};

use crate::Fallback;

/// Updates that an object puts in force.
#[derive(Clone, Debug, Default)]
pub(super) struct InForce(Option<Arc<[Update]>>);

impl std::ops::Deref for InForce {
    type Target = [Update];

    fn deref(&self) -> &[Update] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<Contributions> for InForce {
    fn from(contributions: Contributions) -> Self {
        Self((!contributions.is_empty()).then(|| contributions.into()))
    }
}

/// One update that an object contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) slot: u32,
    pub(super) index: u32,
}

#[derive(Debug)]
pub(super) struct Object {
    pub(super) id: ObjectId,
    pub(super) in_force: InForce,
    pub(super) fallback: Fallback,
    /// The listing in which it was last seen.
    pub(super) listing: u32,
}

/// Objects in numbered, reused slots.
#[derive(Debug, Default)]
pub(super) struct Store {
    slots: Vec<Option<Object>>,
    free: Vec<u32>,
    /// Versions by slot, up to the last known one.
    versions: Vec<Option<Arc<str>>>,
    names: HashTable<u32>,
    hasher: RandomState,
}

impl Store {
    pub(super) fn find(&self, id: &ObjectId) -> Option<u32> {
        self.names.find(self.hasher.hash_one(id), |slot| self.object(*slot).id == *id).copied()
    }

    /// Adds an object with nothing in force; its name must be new.
    pub(super) fn insert(&mut self, id: ObjectId) -> u32 {
        let hash = self.hasher.hash_one(&id);
        let object = Some(Object { id, in_force: InForce::default(), fallback: Fallback::Nothing, listing: 0 });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.set(slot, object);
                slot
            }
            None => {
                self.slots.push(object);
                number_of_last(&self.slots)
            }
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.names.insert_unique(hash, slot, |slot| hasher.hash_one(&object_in(slots, *slot).id));
        slot
    }

    /// Removes an object, which must not have claims any more.
    pub(super) fn remove(&mut self, slot: u32) {
        let hash = self.hasher.hash_one(&self.object(slot).id);
        if let Ok(entry) = self.names.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.set(slot, None);
        if let Some(version) = self.versions.get_mut(slot as usize) {
            *version = None;
        }
        self.free.push(slot);
        if self.free.len() == self.slots.len() {
            // The store is empty; its memory is released.
            *self = Self { hasher: self.hasher.clone(), ..Self::default() };
        }
    }

    pub(super) fn object(&self, slot: u32) -> &Object {
        object_in(&self.slots, slot)
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.slots.iter().flatten()
    }

    pub(super) fn version(&self, slot: u32) -> Option<&Arc<str>> {
        self.versions.get(slot as usize)?.as_ref()
    }

    pub(super) fn set_version(&mut self, slot: u32, version: Arc<str>) {
        let place = slot as usize;
        if self.versions.len() <= place {
            self.versions.resize(place + 1, None);
        }
        if let Some(of_slot) = self.versions.get_mut(place) {
            *of_slot = Some(version);
        }
    }

    pub(super) fn note(&mut self, slot: u32, fallback: Fallback, listing: u32) {
        if let Some(Some(object)) = self.slots.get_mut(slot as usize) {
            (object.fallback, object.listing) = (fallback, listing);
        }
    }

    pub(super) fn put(&mut self, slot: u32, in_force: InForce) {
        if let Some(Some(object)) = self.slots.get_mut(slot as usize) {
            object.in_force = in_force;
        }
    }

    /// Returns the claims of an object.
    #[expect(clippy::expect_used, reason = "2^32 claims do not fit into memory")]
    pub(super) fn claims(&self, slot: u32) -> impl Iterator<Item = Claim> + use<> {
        let count = u32::try_from(self.object(slot).in_force.len()).expect("fewer than 2^32 claims");
        (0..count).map(move |index| Claim { slot, index })
    }

    #[expect(clippy::indexing_slicing, reason = "claims of an object are removed before it puts others in force")]
    pub(super) fn claimed(&self, claim: Claim) -> &Update {
        &self.object(claim.slot).in_force[claim.index as usize]
    }

    fn set(&mut self, slot: u32, object: Option<Object>) {
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = object;
        }
    }
}

#[expect(clippy::expect_used, reason = "2^32 objects do not fit into memory")]
fn number_of_last(slots: &[Option<Object>]) -> u32 {
    u32::try_from(slots.len() - 1).expect("fewer than 2^32 objects")
}

#[expect(clippy::expect_used, clippy::indexing_slicing, reason = "slots are named only while they are in use")]
fn object_in(slots: &[Option<Object>], slot: u32) -> &Object {
    slots[slot as usize].as_ref().expect("a slot in use")
}
