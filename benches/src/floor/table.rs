//! Places of things in a list, found by hash.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// It holds half of each hash, so that growing reads nothing of what is listed.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: HashTable<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    place: u32,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Where it is, or `next` if that is where it will be.
    pub(super) fn find_or_insert(&mut self, hash: u64, next: usize, is_it: impl Fn(usize) -> bool) -> usize {
        let hash = half(hash);
        let is_it = |slot: &Slot| slot.hash == hash && is_it(slot.place as usize);
        match self.slots.entry(spread(hash), is_it, |slot| spread(slot.hash)) {
            Entry::Occupied(entry) => entry.get().place as usize,
            Entry::Vacant(entry) => {
                entry.insert(Slot { hash, place: place(next) });
                next
            }
        }
    }

    /// Where it was.
    pub(super) fn remove(&mut self, hash: u64, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let hash = half(hash);
        let is_it = |slot: &Slot| slot.hash == hash && is_it(slot.place as usize);
        let entry = self.slots.find_entry(spread(hash), is_it).ok()?;
        Some(entry.remove().0.place as usize)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a part of a hash is one")]
fn half(hash: u64) -> u32 {
    hash as u32
}

/// The table looks at both ends of a hash.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// An index into something that has fewer than 2^32 of them.
pub(super) fn place(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32")
}
