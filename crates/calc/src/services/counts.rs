//! Members that have several sources.

use std::hash::Hash;

use ahash::AHashMap;

/// Number of the sources of each member, and the changes since the last flush.
#[derive(Debug)]
pub(super) struct Counts<T> {
    counts: AHashMap<T, u32>,
    /// Members that were touched since the last flush, and whether they were members then.
    touched: AHashMap<T, bool>,
}

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self { counts: AHashMap::new(), touched: AHashMap::new() }
    }
}

impl<T: Copy + Ord + Hash> Counts<T> {
    pub(super) fn add(&mut self, member: T) {
        let count = self.counts.entry(member).or_default();
        self.touched.entry(member).or_insert(*count > 0);
        *count += 1;
    }

    #[expect(clippy::expect_used, reason = "slices are withdrawn as they were applied")]
    pub(super) fn remove(&mut self, member: T) {
        let count = self.counts.get_mut(&member).expect("sources are removed that were added");
        self.touched.entry(member).or_insert(true);
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&member);
        }
    }

    /// Returns the members that were added and those that were removed since the last flush,
    /// sorted.
    pub(super) fn flush(&mut self) -> (Vec<T>, Vec<T>) {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for (member, was) in std::mem::take(&mut self.touched) {
            match (was, self.counts.contains_key(&member)) {
                (false, true) => added.push(member),
                (true, false) => removed.push(member),
                _ => {}
            }
        }
        added.sort_unstable();
        removed.sort_unstable();
        (added, removed)
    }
}
