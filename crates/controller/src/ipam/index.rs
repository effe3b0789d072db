//! Several values for each key.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

/// Several values for each key; keys without values are not held.
#[derive(Debug)]
pub(super) struct Index<K, V>(BTreeMap<K, BTreeSet<V>>);

impl<K, V> Default for Index<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V: Ord> Index<K, V> {
    pub(super) fn insert(&mut self, key: K, value: V) {
        self.0.entry(key).or_default().insert(value);
    }

    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q, value: &V)
    where
        K: Borrow<Q>,
    {
        if let Some(values) = self.0.get_mut(key) {
            values.remove(value);
            if values.is_empty() {
                self.0.remove(key);
            }
        }
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> impl Iterator<Item = &V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key).into_iter().flatten()
    }

    pub(super) fn has<Q: Ord + ?Sized>(&self, key: &Q, value: &V) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.get(key).is_some_and(|values| values.contains(value))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().flat_map(|(key, values)| values.iter().map(move |value| (key, value)))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (&K, usize)> {
        self.0.iter().map(|(key, values)| (key, values.len()))
    }
}
