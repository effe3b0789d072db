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
mod tests;
