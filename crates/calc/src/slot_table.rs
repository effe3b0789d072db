//! Objects by id and by slot.

use std::hash::Hash;

use ahash::RandomState;
use hashbrown::HashTable;

/// A place in a [`SlotTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(u32);

impl Slot {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// An object that holds its id.
pub(crate) trait Identified {
    type Id: Eq + Hash;
    fn id(&self) -> &Self::Id;
}

/// The part of an id's hash that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdHash(u32);

/// Objects in slots. Ids stand there alone; they are found by slots with the hash of the id, so that growing looks at no id.
#[derive(Debug)]
pub(crate) struct SlotTable<T> {
    slots: HashTable<(IdHash, Slot)>,
    /// In blocks, so that growing copies nothing and little is spare.
    blocks: Vec<Vec<Option<T>>>,
    free: Vec<Slot>,
    hasher: RandomState,
}

/// So many objects are in each block but the last.
const BLOCK: usize = 1_024;

/// Spreads the kept bits over the low ones, which pick the bucket, and the high ones, which tag it.
fn spread(&(IdHash(hash), _): &(IdHash, Slot)) -> u64 {
    u64::from(hash) | u64::from(hash) << 32
}

impl<T> Default for SlotTable<T> {
    fn default() -> Self {
        Self { slots: HashTable::new(), blocks: Vec::new(), free: Vec::new(), hasher: RandomState::new() }
    }
}

impl<T: Identified> SlotTable<T> {
    fn hash(&self, id: &T::Id) -> IdHash {
        #[expect(clippy::cast_possible_truncation, reason = "that many bits are kept")]
        let hash = self.hasher.hash_one(id) as u32;
        IdHash(hash)
    }

    /// Where the object with this id is; if there is none, the hash with which it may be inserted.
    pub(crate) fn find(&self, id: &T::Id) -> Result<Slot, IdHash> {
        let hash = self.hash(id);
        let is =
            |&(other, slot): &(IdHash, Slot)| other == hash && self.get(slot).is_some_and(|known| known.id() == id);
        self.slots.find(spread(&(hash, Slot(0))), is).map(|&(_, slot)| slot).ok_or(hash)
    }

    /// Adds an object that [`SlotTable::find`] did not find.
    pub(crate) fn insert(&mut self, hash: IdHash, object: T) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| self.add_slot());
        if let Some(place) = self.place(slot) {
            *place = Some(object);
        }
        self.slots.insert_unique(spread(&(hash, slot)), (hash, slot), spread);
        slot
    }

    fn add_slot(&mut self) -> Slot {
        // Fewer than 2^32 objects fit into memory.
        let slot = Slot(u32::try_from(self.slot_count()).unwrap_or(u32::MAX));
        match self.blocks.last_mut() {
            Some(last) if last.len() < BLOCK => last.push(None),
            Some(_) => {
                let mut next = Vec::with_capacity(BLOCK);
                next.push(None);
                self.blocks.push(next);
            }
            // The first one may well stay small.
            None => self.blocks.push(vec![None]),
        }
        slot
    }

    fn place(&mut self, slot: Slot) -> Option<&mut Option<T>> {
        self.blocks.get_mut(slot.index() / BLOCK)?.get_mut(slot.index() % BLOCK)
    }

    /// Takes an object out. Its slot stays taken until it is given back.
    pub(crate) fn take(&mut self, id: &T::Id) -> Option<(Slot, T)> {
        let slot = self.find(id).ok()?;
        let link = (self.hash(id), slot);
        if let Ok(found) = self.slots.find_entry(spread(&link), |other| *other == link) {
            found.remove();
        }
        Some((slot, self.place(slot)?.take()?))
    }

    /// Takes an object out, and gives its slot back.
    pub(crate) fn remove(&mut self, id: &T::Id) -> Option<T> {
        let (slot, object) = self.take(id)?;
        self.give_back([slot]);
        Some(object)
    }

    /// Slots of objects that were taken out may be used again.
    pub(crate) fn give_back(&mut self, slots: impl IntoIterator<Item = Slot>) {
        self.free.extend(slots);
        if self.slots.is_empty() {
            *self = Self { hasher: self.hasher.clone(), ..Self::default() };
        }
    }

    pub(crate) fn get_by_id(&self, id: &T::Id) -> Option<&T> {
        self.get(self.find(id).ok()?)
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        self.blocks.get(slot.index() / BLOCK)?.get(slot.index() % BLOCK)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.place(slot)?.as_mut()
    }

    /// One more than the highest slot in use.
    pub(crate) fn slot_count(&self) -> usize {
        self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len())
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.blocks.is_empty()
    }
}

#[cfg(test)]
mod tests;
