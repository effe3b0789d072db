//! Hash table of ids.

use std::hash::Hash;

use ahash::RandomState;
use hashbrown::HashTable;

/// Hash table of ids whose keys lie elsewhere. The hash is stored beside the id, so that growing
/// reads no key.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdTable(HashTable<(u32, u32)>);

/// The 32 bits of a key's hash that are kept.
pub(crate) fn hash_of(hasher: &RandomState, key: impl Hash) -> u32 {
    fold(hasher.hash_one(key))
}

/// The 32 bits of a hash that are kept.
pub(crate) fn fold(hash: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "folding is meant")]
    let folded = (hash ^ (hash >> 32)) as u32;
    folded
}

/// The table takes the bucket from the low bits and a tag from the high ones.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl IdTable {
    /// Returns the id with this hash for which `is` holds.
    pub(crate) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.0.find(spread(hash), |&(other, id)| other == hash && is(id)).map(|&(_, id)| id)
    }

    /// Returns every id with this hash.
    pub(crate) fn find_all(&self, hash: u32) -> impl Iterator<Item = u32> {
        self.0.iter_hash(spread(hash)).filter(move |entry| entry.0 == hash).map(|&(_, id)| id)
    }

    /// Makes room for so many ids in all.
    pub(crate) fn reserve(&mut self, ids: usize) {
        self.0.reserve(ids.saturating_sub(self.0.len()), |&(hash, _)| spread(hash));
    }

    /// Adds an id without looking for an equal one.
    pub(crate) fn insert(&mut self, hash: u32, id: u32) {
        self.0.insert_unique(spread(hash), (hash, id), |&(hash, _)| spread(hash));
    }

    /// Removes an id once; keeps no memory once nothing is left.
    #[expect(clippy::expect_used, reason = "as with any index: an unknown id is a bug of this crate")]
    pub(crate) fn remove(&mut self, hash: u32, id: u32) {
        let entry = self.0.find_entry(spread(hash), |&entry| entry == (hash, id));
        entry.expect("ids that are removed were inserted").remove();
        if self.0.is_empty() {
            *self = Self::default();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns hashes of which many are equal, or equal in the low or the high bits.
    fn crowded(n: u32) -> u32 {
        match n % 4 {
            0 => u32::MAX - n % 3,
            1 => n % 5,
            2 => 0x8000_0000,
            _ => n.wrapping_mul(0x9e37_79b9),
        }
    }

    fn check(table: &IdTable, expected: &BTreeSet<(u32, u32)>) {
        for &(hash, id) in expected {
            assert_eq!(table.find(hash, |other| other == id), Some(id), "{hash:x} {id}");
            let mut all: Vec<u32> = table.find_all(hash).collect();
            all.sort_unstable();
            assert!(all.iter().eq(expected.range((hash, 0)..=(hash, u32::MAX)).map(|(_, id)| id)));
        }
        assert_eq!(table.is_empty(), expected.is_empty());
    }

    #[test]
    fn ids_are_found_until_they_are_removed() {
        let (mut table, mut expected) = (IdTable::default(), BTreeSet::new());
        for id in 0..2_000 {
            assert_eq!(table.find(crowded(id), |other| other == id), None);
            table.insert(crowded(id), id);
            expected.insert((crowded(id), id));
            if id % 3 == 0 {
                let gone = id * 7 / 11;
                table.remove(crowded(gone), gone);
                expected.remove(&(crowded(gone), gone));
            }
            if id % 250 == 0 {
                check(&table, &expected);
            }
        }
        for id in 0..2_000 {
            if expected.remove(&(crowded(id), id)) {
                table.remove(crowded(id), id);
            }
            if id % 250 == 0 {
                check(&table, &expected);
            }
        }
        check(&table, &expected);
        assert_eq!(table.0.capacity(), 0);
    }

    #[test]
    fn reserved_room_is_for_as_many_ids_in_all() {
        let (mut table, mut expected) = (IdTable::default(), BTreeSet::new());
        for (already, ids) in [(0, 100), (100, 1_000), (1_000, 50), (1_000, 2_000)] {
            table.reserve(ids as usize);
            let capacity = table.0.capacity();
            for id in already..ids {
                table.insert(crowded(id), id);
                expected.insert((crowded(id), id));
            }
            assert_eq!(table.0.capacity(), capacity, "{already} of {ids}");
            check(&table, &expected);
        }
    }
}
