//! Values by key, and the changes that subscribers have not seen.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::Bound::{Excluded, Unbounded};

const FEW: usize = 64;

/// Values, and the keys that changed since a subscriber last read. A subscriber holds a
/// [`Progress`], and no values.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    values: BTreeMap<K, V>,
    /// The last change of each key that a subscriber may not have seen, by its number.
    changes: BTreeMap<u64, K>,
    changed: HashMap<K, u64>,
    last: u64,
    subscribers: usize,
    /// Number of changes from which a review is due, which drops those that are not needed any
    /// more.
    review_at: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress<K> {
    /// The values up to this key; the changes after `since` follow after the other values.
    Listing { since: u64, after: Option<K> },
    /// All values, with the changes up to this one.
    Following { since: u64 },
}

pub(super) type TableChanges<'a, K, V> = Vec<(&'a K, Option<&'a V>)>;

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

    /// Adds a subscriber, which must [end](Table::end) its subscription.
    pub(super) fn begin(&mut self) -> Progress<K> {
        self.subscribers += 1;
        Progress::Listing { since: self.last, after: None }
    }

    pub(super) fn end(&mut self) {
        self.subscribers = self.subscribers.saturating_sub(1);
        if self.subscribers == 0 {
            self.drop_changes_up_to(self.last);
            self.review_at = FEW;
        }
    }

    pub(super) fn is_up_to_date(&self, progress: &Progress<K>) -> bool {
        *progress == Progress::Following { since: self.last }
    }

    /// The next existing values, then changes, at most so many. The listing ends with fewer than
    /// `at_most`.
    pub(super) fn next(&self, progress: &mut Progress<K>, at_most: usize) -> TableChanges<'_, K, V> {
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

    pub(super) fn wants_review(&self) -> bool {
        self.changes.len() >= self.review_at
    }

    /// Drops changes that all have seen. Returns subscribers more than `bound` behind, which must
    /// [end](Table::end).
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
            self.drop_changes_up_to(since);
            if self.changes.len() <= bound {
                break;
            }
            too_slow.push(id);
        }
        self.review_at = FEW.max(2 * self.changes.len());
        too_slow
    }

    fn drop_changes_up_to(&mut self, number: u64) {
        let kept = self.changes.split_off(&(number + 1));
        let dropped = std::mem::replace(&mut self.changes, kept);
        for key in dropped.values() {
            self.changed.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
