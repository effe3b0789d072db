//! Objects by id and by slot.

mod slots;

use std::hash::Hash;

use ahash::RandomState;
use hashbrown::HashTable;

pub(crate) use slots::{Slot, Slots};

/// An object that contains its id.
pub(crate) trait Identified {
    type Id: Eq + Hash + ?Sized;
    fn id(&self) -> &Self::Id;
}

/// The stored part of an id's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdHash(u32);

impl IdHash {
    /// Spreads the stored bits over the low ones, which select the bucket, and the high ones, which
    /// tag it.
    fn spread(self) -> u64 {
        u64::from(self.0) | u64::from(self.0) << 32
    }
}

/// Objects in slots. Ids are stored only there; they are found by slots with the hash of the id, so
/// growing reads no id.
#[derive(Debug)]
pub(crate) struct SlotTable<T> {
    by_id: HashTable<(IdHash, Slot)>,
    slots: Slots<T>,
    hasher: RandomState,
}

impl<T> Default for SlotTable<T> {
    fn default() -> Self {
        Self { by_id: HashTable::new(), slots: Slots::default(), hasher: RandomState::new() }
    }
}

impl<T: Identified> SlotTable<T> {
    fn hash(&self, id: &T::Id) -> IdHash {
        #[expect(clippy::cast_possible_truncation, reason = "that many bits are kept")]
        let hash = self.hasher.hash_one(id) as u32;
        IdHash(hash)
    }

    /// Returns the slot of the object with this id; if there is none, the hash with which it may be
    /// inserted.
    pub(crate) fn find(&self, id: &T::Id) -> Result<Slot, IdHash> {
        let hash = self.hash(id);
        let is = |&(other, slot): &(IdHash, Slot)| other == hash && self.at(slot).id() == id;
        self.by_id.find(hash.spread(), is).map(|&(_, slot)| slot).ok_or(hash)
    }

    /// Adds an object that [`SlotTable::find`] did not find.
    pub(crate) fn insert(&mut self, hash: IdHash, object: T) -> Slot {
        let slot = self.slots.insert(object);
        self.by_id.insert_unique(hash.spread(), (hash, slot), |(hash, _)| hash.spread());
        slot
    }

    /// Removes an object. Its slot stays reserved until it is given back.
    #[expect(clippy::expect_used, reason = "nothing happens between both searches")]
    pub(crate) fn take(&mut self, id: &T::Id) -> Option<(Slot, T)> {
        let slot = self.find(id).ok()?;
        let link = (self.hash(id), slot);
        let found = self.by_id.find_entry(link.0.spread(), |other| *other == link);
        found.expect("the object was found by this link").remove();
        if self.by_id.is_empty() {
            self.by_id = HashTable::new();
        }
        Some((slot, self.slots.take(slot)))
    }

    /// Removes an object, and gives back its slot.
    pub(crate) fn remove(&mut self, id: &T::Id) -> Option<T> {
        let (slot, object) = self.take(id)?;
        self.give_back([slot]);
        Some(object)
    }

    /// Frees slots of removed objects.
    pub(crate) fn give_back(&mut self, slots: impl IntoIterator<Item = Slot>) {
        slots.into_iter().for_each(|slot| self.slots.give_back(slot));
    }

    pub(crate) fn get_by_id(&self, id: &T::Id) -> Option<&T> {
        Some(self.at(self.find(id).ok()?))
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        self.slots.get(slot)
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.slots.get_mut(slot)
    }

    /// Returns the object in a slot that has one.
    pub(crate) fn at(&self, slot: Slot) -> &T {
        self.slots.at(slot)
    }

    /// Returns the object in a slot that has one.
    pub(crate) fn at_mut(&mut self, slot: Slot) -> &mut T {
        self.slots.at_mut(slot)
    }

    /// Returns all objects, by ascending slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter()
    }

    /// Returns one more than the highest slot in use.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.slot_count()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.slots.is_empty()
    }
}

#[cfg(test)]
mod tests;
