//! A table that forgets what nobody uses any more.

use ahash::RandomState;
use hashbrown::HashTable;

/// What can be held by a table and by others.
pub(super) trait Shared: Clone {
    /// Whether anybody besides the table holds it.
    fn is_in_use(&self) -> bool;

    /// The hash by which it is found.
    fn hash(&self, hasher: &RandomState) -> u64;
}

#[derive(Debug)]
pub(super) struct Table<T> {
    entries: HashTable<T>,
    /// How many entries there are before it is looked which are in use.
    sweep_at: usize,
    most: usize,
}

/// Fewer entries than this are not worth a look.
const FEW: usize = 256;

impl<T: Shared> Table<T> {
    /// A table that is emptied rather than hold more than `most`.
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

    /// Takes time for each entry, of which at least half came since the last time.
    fn sweep(&mut self, hasher: &RandomState) {
        self.entries.retain(|entry| entry.is_in_use());
        if self.entries.len() >= self.most {
            self.entries.clear();
        }
        self.sweep_at = FEW.max(2 * self.entries.len()).min(self.most);
        self.entries.shrink_to(self.sweep_at, |known| known.hash(hasher));
    }
}
