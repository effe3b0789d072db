//! Slot storage with small, stable ids.
//!
//! Every object of the indexes is identified by a `u32`. That is half the size of a pointer, and
//! objects that refer to each other need no reference counts.

use std::borrow::Cow;
use std::hash::Hash;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use ahash::RandomState;

use crate::id_table::{IdTable, hash_of};

/// A small number that identifies a slot.
pub(crate) trait SlotId: Copy {
    /// Returns the id of the slot at this position.
    fn from_place(place: u32) -> Self;
    /// Returns the position of the slot.
    fn place(self) -> u32;

    /// Returns the position of the slot as an index.
    fn index(self) -> usize {
        self.place() as usize
    }
}

macro_rules! slot_ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        // The position plus one, so that an optional id needs no additional memory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) struct $name(NonZeroU32);

        impl SlotId for $name {
            fn from_place(place: u32) -> Self {
                Self(NonZeroU32::MIN.checked_add(place).expect("there are fewer than 2^32 objects"))
            }
            fn place(self) -> u32 {
                self.0.get() - 1
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
    /// A group of items that no selector can distinguish.
    GroupId
    /// A distinct selector.
    SelId
    /// The key of a selector.
    KeyId
    /// An IP set.
    SetId
}

/// A list that grows in chunks, so that entries are never moved and little memory is unused.
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
            // The first chunk often stays small, so its capacity is not reserved.
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

/// Values by id; the ids of removed values are reused.
#[derive(Clone, Debug)]
pub(crate) struct Slab<K, T> {
    slots: Chunks<Option<T>>,
    free: Vec<K>,
}

impl<K, T> Default for Slab<K, T> {
    fn default() -> Self {
        Self { slots: Chunks::default(), free: Vec::new() }
    }
}

impl<K: SlotId, T> Slab<K, T> {
    #[expect(clippy::expect_used, reason = "2^32 objects do not fit into memory")]
    pub(crate) fn insert(&mut self, value: T) -> K {
        if let Some(id) = self.free.pop() {
            *self.slots.get_mut(id.index()).expect("free ids are places in the slab") = Some(value);
            return id;
        }
        let id = K::from_place(u32::try_from(self.slots.len()).expect("there are fewer than 2^32 objects"));
        self.slots.push(Some(value));
        id
    }

    /// Removes a value; frees the memory with the last value.
    #[expect(clippy::expect_used, reason = "as with any index: an id that is not in use is a bug of this crate")]
    pub(crate) fn remove(&mut self, id: K) -> T {
        let value = self.slots.get_mut(id.index()).and_then(Option::take).expect("ids in use are removed, once");
        if self.free.len() + 1 == self.slots.len() {
            *self = Self::default();
        } else {
            self.free.push(id);
        }
        value
    }

    pub(crate) fn get(&self, id: K) -> Option<&T> {
        self.slots.get(id.index())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: K) -> Option<&mut T> {
        self.slots.get_mut(id.index())?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns a bound: the positions of all ids in use are below it.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all ids in use with their values, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> + Clone {
        self.slots.iter().zip(0..).filter_map(|(slot, place)| Some((K::from_place(place), slot.as_ref()?)))
    }

    /// Returns all ids in use, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = K> + Clone {
        self.iter().map(|(id, _)| id)
    }
}

impl<K: SlotId, T> Index<K> for Slab<K, T> {
    type Output = T;
    #[expect(clippy::expect_used, reason = "as with any index: an id that is not in use is a bug of this crate")]
    fn index(&self, id: K) -> &T {
        self.get(id).expect("an id is removed together with its object")
    }
}

impl<K: SlotId, T> IndexMut<K> for Slab<K, T> {
    #[expect(clippy::expect_used, reason = "as with any index: an id that is not in use is a bug of this crate")]
    fn index_mut(&mut self, id: K) -> &mut T {
        self.get_mut(id).expect("an id is removed together with its object")
    }
}

/// Ids for the keys of a caller, with a value for each.
#[derive(Clone, Debug)]
pub(crate) struct KeyTable<K, T, V> {
    entries: Slab<K, (T, V)>,
    table: IdTable,
    hasher: RandomState,
}

impl<K, T, V> Default for KeyTable<K, T, V> {
    fn default() -> Self {
        Self { entries: Slab::default(), table: IdTable::default(), hasher: RandomState::new() }
    }
}

impl<K: SlotId, T: Clone + Eq + Hash, V> KeyTable<K, T, V> {
    fn find_hashed(&self, hash: u32, key: &T) -> Option<K> {
        let is = |place| self.entries[K::from_place(place)].0 == *key;
        self.table.find(hash, is).map(K::from_place)
    }

    pub(crate) fn find(&self, key: &T) -> Option<K> {
        if self.table.is_empty() {
            return None;
        }
        self.find_hashed(hash_of(&self.hasher, key), key)
    }

    /// Returns the id of a key and whether it is new. A new key gets the result of `value`.
    pub(crate) fn find_or_insert(&mut self, key: Cow<'_, T>, value: impl FnOnce() -> V) -> (K, bool) {
        let hash = hash_of(&self.hasher, &*key);
        if let Some(id) = self.find_hashed(hash, &key) {
            return (id, false);
        }
        let id = self.entries.insert((key.into_owned(), value()));
        self.table.insert(hash, id.place());
        (id, true)
    }

    pub(crate) fn remove(&mut self, id: K) -> V {
        let (key, value) = self.entries.remove(id);
        self.table.remove(hash_of(&self.hasher, &key), id.place());
        value
    }

    /// Returns all ids in use with their values, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> + Clone {
        self.entries.iter().map(|(id, (_, value))| (id, value))
    }

    pub(crate) fn key(&self, id: K) -> &T {
        &self.entries[id].0
    }

    pub(crate) fn get(&self, id: K) -> Option<&V> {
        self.entries.get(id).map(|(_, value)| value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.table.is_empty()
    }
}

impl<K: SlotId, T, V> Index<K> for KeyTable<K, T, V> {
    type Output = V;
    fn index(&self, id: K) -> &V {
        &self.entries[id].1
    }
}

impl<K: SlotId, T, V> IndexMut<K> for KeyTable<K, T, V> {
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.entries[id].1
    }
}

/// Values by the id of an object in another slab; missing values are the default.
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
    #[expect(clippy::expect_used, reason = "the loop makes room")]
    pub(crate) fn entry(&mut self, id: K) -> &mut T {
        for _ in self.values.len()..=id.index() {
            self.values.push(T::default());
        }
        self.values.get_mut(id.index()).expect("there is a free slot now")
    }

    pub(crate) fn get(&self, id: K) -> Option<&T> {
        self.values.get(id.index())
    }

    pub(crate) fn take(&mut self, id: K) -> T {
        self.values.get_mut(id.index()).map(std::mem::take).unwrap_or_default()
    }

    /// Frees the memory; for use when the other slab is empty.
    pub(crate) fn clear(&mut self) {
        self.values = Chunks::default();
    }
}
