//! Hash table of indexes into a list.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// It stores half of each hash, so that growth does not read the list.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: HashTable<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    index: u32,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the index of the item, or stores and returns `next`.
    pub(super) fn find_or_insert(&mut self, hash: u64, next: usize, is_it: impl Fn(usize) -> bool) -> usize {
        let hash = half(hash);
        let is_it = |slot: &Slot| slot.hash == hash && is_it(slot.index as usize);
        match self.slots.entry(spread(hash), is_it, |slot| spread(slot.hash)) {
            Entry::Occupied(entry) => entry.get().index as usize,
            Entry::Vacant(entry) => {
                entry.insert(Slot { hash, index: to_u32(next) });
                next
            }
        }
    }

    /// Removes the item and returns its index.
    pub(super) fn remove(&mut self, hash: u64, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let hash = half(hash);
        let is_it = |slot: &Slot| slot.hash == hash && is_it(slot.index as usize);
        let entry = self.slots.find_entry(spread(hash), is_it).ok()?;
        Some(entry.remove().0.index as usize)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a part of a hash is one")]
fn half(hash: u64) -> u32 {
    hash as u32
}

/// Spreads the half hash over both ends, which the table uses.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Converts an index below 2^32.
pub(super) fn to_u32(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32")
}
