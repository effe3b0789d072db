//! A table that removes unused entries.

use ahash::RandomState;
use hashbrown::HashTable;

/// Values that a table shares with other holders.
pub(super) trait Shared: Clone {
    /// Reports whether there is a holder besides the table.
    fn is_in_use(&self) -> bool;

    /// Returns the hash by which the value is found.
    fn hash(&self, hasher: &RandomState) -> u64;
}

#[derive(Debug)]
pub(super) struct Table<T> {
    entries: HashTable<T>,
    /// Number of entries at which unused ones are removed.
    sweep_at: usize,
    most: usize,
}

/// Minimum of `sweep_at`; sweeping fewer entries is not worthwhile.
const FEW: usize = 256;

impl<T: Shared> Table<T> {
    /// Returns a table of at most `most` entries; it is cleared if more are in use.
    pub(super) fn new(most: usize) -> Self {
        Self { entries: HashTable::new(), sweep_at: FEW, most }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.entries.find(hash, is_it)
    }

    pub(super) fn insert(&mut self, hasher: &RandomState, hash: u64, value: T) {
        if self.entries.len() >= self.sweep_at {
            self.sweep(hasher);
        }
        self.entries.insert_unique(hash, value, |known| known.hash(hasher));
    }

    pub(super) fn get_or_insert(
        &mut self,
        hasher: &RandomState,
        hash: u64,
        is_it: impl FnMut(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> T {
        if let Some(known) = self.get(hash, is_it) {
            return known.clone();
        }
        let value = make();
        self.insert(hasher, hash, value.clone());
        value
    }

    /// Removes unused entries. This takes time for each entry, at least half of which are new since
    /// the last sweep.
    fn sweep(&mut self, hasher: &RandomState) {
        self.entries.retain(|entry| entry.is_in_use());
        if self.entries.len() >= self.most {
            self.entries.clear();
        }
        self.sweep_at = FEW.max(2 * self.entries.len()).min(self.most);
        self.entries.shrink_to(self.sweep_at, |known| known.hash(hasher));
    }
}
