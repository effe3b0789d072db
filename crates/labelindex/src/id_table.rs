//! A hash table of ids.

use std::hash::Hash;

use ahash::RandomState;

/// A hash and an id.
type Entry = (u32, u32);

const VACANT: Entry = (u32::MAX, u32::MAX);

/// A hash table of ids, without what they stand for.
///
/// The hash is stored beside the id, so that growing looks at no key. Entries lie in the order of their hashes, with gaps
/// between them (linear probing, sorted): growing reads and writes in one direction, and a search that finds nothing ends
/// at the first larger hash. The table doubles while it is small; then it grows by half, so that at least seven of twelve slots
/// are in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdTable {
    /// As many as `buckets`, and those that had no place left at the end.
    slots: Vec<Entry>,
    buckets: usize,
    len: usize,
}

/// The 32 bits of a key's hash that are kept.
pub(crate) fn hash_of(hasher: &RandomState, key: impl Hash) -> u32 {
    fold(hasher.hash_one(key))
}

/// The 32 bits of a hash that are kept. All of them must depend on the whole key, as the high ones pick the slot.
pub(crate) fn fold(hash: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "folding is meant")]
    let folded = (hash ^ (hash >> 32)) as u32;
    folded
}

impl IdTable {
    const SMALLEST: usize = 8;
    const SMALL: usize = 1_024;

    /// Where entries with this hash begin, or behind that if others are in the way.
    fn bucket(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.buckets as u64) >> 32) as usize
    }

    /// The entries with this hash, each with its slot.
    fn with_hash(&self, hash: u32) -> impl Iterator<Item = (usize, u32)> {
        let from = self.bucket(hash);
        let run = self.slots[from..].iter().zip(from..);
        run.take_while(move |&(&entry, _)| entry != VACANT && entry.0 <= hash)
            .filter(move |&(&(other, _), _)| other == hash)
            .map(|(&(_, id), slot)| (slot, id))
    }

    /// The id with this hash for which `is` holds.
    pub(crate) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.with_hash(hash).map(|(_, id)| id).find(|&id| is(id))
    }

    /// Every id with this hash.
    pub(crate) fn find_all(&self, hash: u32) -> impl Iterator<Item = u32> {
        self.with_hash(hash).map(|(_, id)| id)
    }

    /// Makes room for so many ids in all.
    pub(crate) fn reserve(&mut self, ids: usize) {
        let buckets = ids.max(self.len) + ids / 4 + 1;
        if buckets > self.buckets {
            self.rebuild(buckets);
        }
    }

    /// Adds an id without looking for an equal one.
    pub(crate) fn insert(&mut self, hash: u32, id: u32) {
        if (self.len + 1) * 8 > self.buckets * 7 {
            let more = if self.buckets < Self::SMALL { self.buckets } else { self.buckets / 2 };
            self.rebuild((self.buckets + more).max(Self::SMALLEST));
        }
        self.len += 1;
        // Everything from the place of the entry to the next gap moves on by one.
        let mut pushed = (hash, id);
        let from = self.bucket(hash);
        for slot in &mut self.slots[from..] {
            if *slot == VACANT {
                *slot = pushed;
                return;
            }
            if slot.0 > pushed.0 {
                std::mem::swap(slot, &mut pushed);
            }
        }
        self.push(pushed);
    }

    /// Adds a slot at the end, where few come to lie.
    fn push(&mut self, entry: Entry) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(self.slots.len() / 64 + 4);
        }
        self.slots.push(entry);
    }

    fn rebuild(&mut self, buckets: usize) {
        let old = std::mem::take(&mut self.slots);
        self.buckets = buckets;
        self.slots = Vec::with_capacity(buckets + 4);
        self.slots.resize(buckets, VACANT);
        let mut next = 0;
        for entry in old.into_iter().filter(|&entry| entry != VACANT) {
            let at = self.bucket(entry.0).max(next);
            match self.slots.get_mut(at) {
                Some(slot) => *slot = entry,
                None => self.push(entry),
            }
            next = at + 1;
        }
    }

    /// Removes an id once; keeps no memory once nothing is left.
    #[expect(clippy::expect_used, reason = "as with any index: an id that is not there is a mistake of this crate")]
    pub(crate) fn remove(&mut self, hash: u32, id: u32) {
        let (mut gap, _) = self.with_hash(hash).find(|&(_, other)| other == id).expect("ids leave that were entered");
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
            return;
        }
        // Everything from there to the next gap that is not where it belongs moves back by one.
        while let Some(&next) = self.slots.get(gap + 1)
            && next != VACANT
            && self.bucket(next.0) <= gap
        {
            self.slots[gap] = next;
            gap += 1;
        }
        self.slots[gap] = VACANT;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests;
