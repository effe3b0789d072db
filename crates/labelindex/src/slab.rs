//! Storage by small numbers: slots with stable ids, and hash tables that hold ids instead of keys.
//!
//! Every object of the indexes is a `u32` here: half the size of a pointer, and two objects that refer to each other
//! need no reference counts.

use std::hash::Hash;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use ahash::RandomState;
use hashbrown::HashTable;

/// A small number that names a slot.
pub(crate) trait SlotId: Copy {
    fn from_u32(raw: u32) -> Self;
    fn index(self) -> usize;
}

macro_rules! slot_ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) struct $name(pub(crate) u32);

        impl SlotId for $name {
            fn from_u32(raw: u32) -> Self {
                Self(raw)
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

slot_ids! {
    /// An item of an index.
    ItemId
    /// A label name.
    NameId
    /// A label name with a value.
    TermId
    /// A list of label names.
    ShapeId
    /// A parent.
    ParentId
    /// A list of parents.
    ListId
    /// A group of items that no selector can tell apart.
    GroupId
    /// A distinct selector.
    SelId
    /// A selector's key.
    KeyId
    /// An IP set.
    SetId
}

/// A list that grows in pieces, so that it never has to be copied and little of it is spare.
#[derive(Clone, Debug)]
struct Chunks<T> {
    full: Vec<Vec<T>>,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { full: Vec::new() }
    }
}

impl<T> Chunks<T> {
    const BITS: u32 = 10;
    const SIZE: usize = 1 << Self::BITS;

    fn len(&self) -> usize {
        self.full.last().map_or(0, |last| (self.full.len() - 1) * Self::SIZE + last.len())
    }

    fn push(&mut self, value: T) {
        match self.full.last_mut() {
            Some(last) if last.len() < Self::SIZE => last.push(value),
            Some(_) => {
                let mut next = Vec::with_capacity(Self::SIZE);
                next.push(value);
                self.full.push(next);
            }
            // The first one may well stay small.
            None => self.full.push(vec![value]),
        }
    }

    fn get(&self, index: usize) -> Option<&T> {
        self.full.get(index >> Self::BITS)?.get(index & (Self::SIZE - 1))
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.full.get_mut(index >> Self::BITS)?.get_mut(index & (Self::SIZE - 1))
    }

    fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.full.iter().flatten()
    }
}

/// Values by id; ids of removed values are used again.
#[derive(Clone, Debug)]
pub(crate) struct Slab<K, T> {
    slots: Chunks<Option<T>>,
    free: Vec<u32>,
    id: PhantomData<K>,
}

impl<K, T> Default for Slab<K, T> {
    fn default() -> Self {
        Self { slots: Chunks::default(), free: Vec::new(), id: PhantomData }
    }
}

impl<K: SlotId, T> Slab<K, T> {
    pub(crate) fn insert(&mut self, value: T) -> K {
        if let Some(raw) = self.free.pop() {
            if let Some(slot) = self.slots.get_mut(raw as usize) {
                *slot = Some(value);
            }
            return K::from_u32(raw);
        }
        let raw = u32::try_from(self.slots.len()).expect("fewer than 2^32 objects fit into memory");
        self.slots.push(Some(value));
        K::from_u32(raw)
    }

    /// Takes a value out; keeps no memory once nothing is left.
    pub(crate) fn remove(&mut self, id: K) -> Option<T> {
        let value = self.slots.get_mut(id.index())?.take()?;
        if self.free.len() + 1 == self.slots.len() {
            *self = Self::default();
        } else {
            self.free.push(u32::try_from(id.index()).unwrap_or(u32::MAX));
        }
        Some(value)
    }

    pub(crate) fn get(&self, id: K) -> Option<&T> {
        self.slots.get(id.index())?.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every id in use, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = K> + Clone + '_ {
        self.slots.iter().zip(0..).filter(|(slot, _)| slot.is_some()).map(|(_, raw)| K::from_u32(raw))
    }
}

impl<K: SlotId, T> Index<K> for Slab<K, T> {
    type Output = T;
    fn index(&self, id: K) -> &T {
        self.get(id).expect("ids are dropped together with what they name")
    }
}

impl<K: SlotId, T> IndexMut<K> for Slab<K, T> {
    fn index_mut(&mut self, id: K) -> &mut T {
        self.slots.get_mut(id.index()).and_then(Option::as_mut).expect("ids are dropped together with what they name")
    }
}

/// A hash table of ids. The hash is stored beside the id, so that growing looks at no key.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdTable {
    entries: HashTable<(u32, u32)>,
}

impl IdTable {
    /// The 32 bits of a hash that are kept.
    pub(crate) fn fold(hash: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "folding is meant")]
        let folded = (hash ^ (hash >> 32)) as u32;
        folded
    }

    /// Spreads the kept bits over the low ones, which pick the bucket, and the high ones, which tag it.
    fn spread(hash: u32) -> u64 {
        u64::from(hash) | u64::from(hash) << 32
    }

    /// The id with this hash for which `is` holds.
    pub(crate) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.entries.find(Self::spread(hash), |&(h, id)| h == hash && is(id)).map(|&(_, id)| id)
    }

    /// Every id with this hash.
    pub(crate) fn find_all(&self, hash: u32) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter_hash(Self::spread(hash)).filter(move |&&(h, _)| h == hash).map(|&(_, id)| id)
    }

    /// Makes room for so many more ids.
    pub(crate) fn reserve(&mut self, additional: usize) {
        self.entries.reserve(additional, |&(h, _)| Self::spread(h));
    }

    /// Adds an id without looking for an equal one.
    pub(crate) fn insert(&mut self, hash: u32, id: u32) {
        self.entries.insert_unique(Self::spread(hash), (hash, id), |&(h, _)| Self::spread(h));
    }

    /// Removes an id once; keeps no memory once nothing is left.
    pub(crate) fn remove(&mut self, hash: u32, id: u32) {
        if let Ok(entry) = self.entries.find_entry(Self::spread(hash), |&e| e == (hash, id)) {
            entry.remove();
        }
        if self.entries.is_empty() {
            self.entries = HashTable::new();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Ids for the keys of a user.
#[derive(Clone, Debug)]
pub(crate) struct KeyTable<T, K> {
    keys: Slab<K, T>,
    table: IdTable,
    hasher: RandomState,
}

impl<T, K> Default for KeyTable<T, K> {
    fn default() -> Self {
        Self { keys: Slab::default(), table: IdTable::default(), hasher: RandomState::new() }
    }
}

impl<T: Clone + Eq + Hash, K: SlotId> KeyTable<T, K> {
    fn hash(&self, key: &T) -> u32 {
        IdTable::fold(self.hasher.hash_one(key))
    }

    pub(crate) fn find(&self, key: &T) -> Option<K> {
        self.table.find(self.hash(key), |id| self.keys[K::from_u32(id)] == *key).map(K::from_u32)
    }

    /// The id of a key and whether it is new.
    pub(crate) fn find_or_insert(&mut self, key: &T) -> (K, bool) {
        let hash = self.hash(key);
        if let Some(id) = self.table.find(hash, |id| self.keys[K::from_u32(id)] == *key) {
            return (K::from_u32(id), false);
        }
        let id = self.keys.insert(key.clone());
        self.table.insert(hash, u32::try_from(id.index()).unwrap_or(u32::MAX));
        (id, true)
    }

    pub(crate) fn remove(&mut self, id: K) {
        if let Some(key) = self.keys.remove(id) {
            self.table.remove(self.hash(&key), u32::try_from(id.index()).unwrap_or(u32::MAX));
        }
    }

    /// Every id in use, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = K> + Clone + '_ {
        self.keys.ids()
    }

    pub(crate) fn key(&self, id: K) -> &T {
        &self.keys[id]
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.table.is_empty()
    }
}

/// A position in a posting list.
///
/// Lists that point at each other store where: removal is then O(1) on both sides, however long they are. The last
/// entry takes the place of the removed one and has to be told.
pub(crate) fn position(len: usize) -> u32 {
    u32::try_from(len).expect("fewer than 2^32 objects fit into memory")
}

/// Values by the id of something that lives in another slab; missing ones read as the default.
#[derive(Clone, Debug)]
pub(crate) struct SideTable<K, T> {
    values: Chunks<T>,
    id: PhantomData<K>,
}

impl<K, T> Default for SideTable<K, T> {
    fn default() -> Self {
        Self { values: Chunks::default(), id: PhantomData }
    }
}

impl<K: SlotId, T: Default> SideTable<K, T> {
    pub(crate) fn entry(&mut self, id: K) -> &mut T {
        for _ in self.values.len()..=id.index() {
            self.values.push(T::default());
        }
        self.values.get_mut(id.index()).expect("there is room now")
    }

    pub(crate) fn get(&self, id: K) -> Option<&T> {
        self.values.get(id.index())
    }

    /// The value, if there is room for it already.
    pub(crate) fn entry_if(&mut self, id: K) -> Option<&mut T> {
        self.values.get_mut(id.index())
    }

    pub(crate) fn take(&mut self, id: K) -> T {
        self.values.get_mut(id.index()).map(std::mem::take).unwrap_or_default()
    }

    /// Gives the memory back; for when the other slab is empty.
    pub(crate) fn clear(&mut self) {
        self.values = Chunks::default();
    }
}
