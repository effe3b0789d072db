//! Values by key, and who has been told what of them.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::Bound::{Excluded, Unbounded};

/// As many changes are never too many.
const FEW: usize = 64;

/// Values, and which of them have changed since somebody was told. Those who are told hold a [`Progress`] each, and no values.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    values: BTreeMap<K, V>,
    /// The last change of each key that somebody may not have been told of, by its number.
    changes: BTreeMap<u64, K>,
    /// The same the other way round.
    changed: HashMap<K, u64>,
    last: u64,
    subscribers: usize,
    /// How many changes there must be before it is looked whether they are still needed.
    review_at: usize,
}

/// How far somebody has been told what is in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress<K> {
    /// The values up to this key; what changed after `since` is told after the others.
    Listing { since: u64, after: Option<K> },
    /// Everything, with the changes up to this one.
    Following { since: u64 },
}

/// Keys and their values now, without one if they are gone.
pub(super) type News<'a, K, V> = Vec<(&'a K, Option<&'a V>)>;

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            changes: BTreeMap::new(),
            changed: HashMap::new(),
            last: 0,
            subscribers: 0,
            review_at: FEW,
        }
    }
}

impl<K> Progress<K> {
    fn since(&self) -> u64 {
        let (Self::Listing { since, .. } | Self::Following { since }) = self;
        *since
    }

    /// Whether nothing has been told yet.
    pub(super) fn is_new(&self) -> bool {
        matches!(self, Self::Listing { after: None, .. })
    }
}

impl<K: Clone + Ord + Hash, V: PartialEq> Table<K, V> {
    pub(super) fn has_subscribers(&self) -> bool {
        self.subscribers > 0
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.values.keys()
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.values.get(&key) != Some(&value) {
            self.note(&key);
            self.values.insert(key, value);
        }
    }

    pub(super) fn remove(&mut self, key: &K) {
        if self.values.remove(key).is_some() {
            self.note(key);
        }
    }

    /// Has these values and no others from now on.
    pub(super) fn replace(&mut self, values: BTreeMap<K, V>) {
        if self.has_subscribers() {
            let gone: Vec<K> = self.values.keys().filter(|key| !values.contains_key(key)).cloned().collect();
            gone.iter().for_each(|key| self.note(key));
            let new = values.iter().filter(|(key, value)| self.values.get(key) != Some(value));
            let new: Vec<K> = new.map(|(key, _)| key.clone()).collect();
            new.iter().for_each(|key| self.note(key));
        }
        self.values = values;
    }

    fn note(&mut self, key: &K) {
        if !self.has_subscribers() {
            return;
        }
        self.last += 1;
        if let Some(before) = self.changed.insert(key.clone(), self.last) {
            self.changes.remove(&before);
        }
        self.changes.insert(self.last, key.clone());
    }

    /// Somebody wants to be told, who has to say when this ends.
    pub(super) fn begin(&mut self) -> Progress<K> {
        self.subscribers += 1;
        Progress::Listing { since: self.last, after: None }
    }

    /// One who was told wants nothing more.
    pub(super) fn end(&mut self) {
        self.subscribers = self.subscribers.saturating_sub(1);
        if self.subscribers == 0 {
            self.forget_up_to(self.last);
            self.review_at = FEW;
        }
    }

    /// Whether there is nothing to tell.
    pub(super) fn is_told(&self, progress: &Progress<K>) -> bool {
        *progress == Progress::Following { since: self.last }
    }

    /// The next to be told, at most so many: values that are there, and then what has changed. While values are listed they
    /// are followed by one call at least that tells nothing.
    pub(super) fn next(&self, progress: &mut Progress<K>, at_most: usize) -> News<'_, K, V> {
        let since = progress.since();
        if let Progress::Listing { after, .. } = progress {
            let from = after.as_ref().map_or(Unbounded, Excluded);
            let values: Vec<_> = self.values.range((from, Unbounded)).take(at_most).collect();
            *progress = match values.last() {
                Some((last, _)) if values.len() == at_most => Progress::Listing { since, after: Some((*last).clone()) },
                _ => Progress::Following { since },
            };
            return values.into_iter().map(|(key, value)| (key, Some(value))).collect();
        }
        let changes: Vec<_> = self.changes.range((Excluded(since), Unbounded)).take(at_most).collect();
        let since =
            if changes.len() == at_most { changes.last().map_or(since, |(number, _)| **number) } else { self.last };
        *progress = Progress::Following { since };
        changes.into_iter().map(|(_, key)| (key, self.values.get(key))).collect()
    }

    /// Whether it is time for [`Table::review`].
    pub(super) fn wants_review(&self) -> bool {
        self.changes.len() >= self.review_at
    }

    /// Forgets changes that everybody has been told of. Returns those who hold back more than `bound` others: they must
    /// [end](Table::end) following.
    pub(super) fn review<'a, Id: Copy>(
        &mut self,
        subscribers: impl Iterator<Item = (Id, &'a Progress<K>)>,
        bound: usize,
    ) -> Vec<Id>
    where
        K: 'a,
    {
        let mut subscribers: Vec<(u64, Id)> = subscribers.map(|(id, progress)| (progress.since(), id)).collect();
        subscribers.sort_by_key(|(since, _)| *since);
        let mut too_slow = Vec::new();
        for (since, id) in subscribers {
            self.forget_up_to(since);
            if self.changes.len() <= bound {
                break;
            }
            too_slow.push(id);
        }
        self.review_at = FEW.max(2 * self.changes.len());
        too_slow
    }

    fn forget_up_to(&mut self, number: u64) {
        let kept = self.changes.split_off(&(number + 1));
        let forgotten = std::mem::replace(&mut self.changes, kept);
        for key in forgotten.values() {
            self.changed.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FEW, Progress, Table};

    fn told(table: &Table<u32, char>, progress: &mut Progress<u32>, at_most: usize) -> Vec<(u32, Option<char>)> {
        table.next(progress, at_most).into_iter().map(|(key, value)| (*key, value.copied())).collect()
    }

    #[test]
    fn values_come_in_portions_and_what_changed_meanwhile_afterwards() {
        let mut table = Table::default();
        for (key, value) in [(1, 'a'), (2, 'b'), (3, 'c')] {
            table.insert(key, value);
        }
        let mut progress = table.begin();
        assert_eq!(told(&table, &mut progress, 2), [(1, Some('a')), (2, Some('b'))]);
        table.remove(&1);
        table.insert(4, 'd');
        table.insert(4, 'e');
        table.insert(3, 'c');
        assert_eq!(told(&table, &mut progress, 2), [(3, Some('c')), (4, Some('e'))]);
        assert_eq!(told(&table, &mut progress, 2), []);
        assert!(!table.is_told(&progress));
        assert_eq!(told(&table, &mut progress, 1), [(1, None)]);
        assert_eq!(told(&table, &mut progress, 1), [(4, Some('e'))]);
        assert!(table.is_told(&progress));
    }

    #[test]
    fn changes_are_kept_for_the_slowest_only_as_long_as_they_are_few() {
        let mut table = Table::default();
        table.insert(0, 'a');
        assert!(table.changes.is_empty(), "nobody follows");
        let (mut quick, slow) = (table.begin(), table.begin());
        for key in 0..10_000 {
            table.insert(key % 100, if key % 200 < 100 { 'x' } else { 'y' });
            told(&table, &mut quick, 10);
        }
        assert_eq!(table.changes.len(), 100, "one for each key");
        assert!(table.wants_review());
        assert_eq!(table.review([(1, &quick), (2, &slow)].into_iter(), 100), [0; 0]);
        assert!(!table.wants_review());
        assert_eq!(table.review([(1, &quick), (2, &slow)].into_iter(), 99), [2]);
        table.end();
        // It has been told of everything.
        assert_eq!(table.review([(1, &quick)].into_iter(), 0), [0; 0]);
        assert!(table.changes.is_empty() && table.changed.is_empty());
        assert_eq!(table.review_at, FEW);
        table.end();
        table.insert(5, 'z');
        assert!(table.changes.is_empty() && !table.has_subscribers());
    }

    #[test]
    fn what_replaces_is_told_as_the_difference() {
        let mut table = Table::default();
        table.replace([(1, 'a'), (2, 'b'), (3, 'c')].into());
        let mut progress = table.begin();
        told(&table, &mut progress, 10);
        assert!(table.is_told(&progress));
        table.replace([(1, 'a'), (2, 'x'), (4, 'd')].into());
        let mut news = told(&table, &mut progress, 10);
        news.sort_unstable();
        assert_eq!(news, [(2, Some('x')), (3, None), (4, Some('d'))]);
    }
}
