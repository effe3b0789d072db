//! The labels that a selector is evaluated against.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

use crate::text::same;

/// A set of labels: names with values, each name at most once.
///
/// Implemented for maps of strings, and for slices, arrays and vectors of pairs. A slice is
/// searched from its start, which is faster than hashing for the few labels of an object; of a
/// repeated name the first value is used.
pub trait LabelSource {
    /// Returns the value of label `key`, or `None` if there is no such label.
    fn get(&self, key: &str) -> Option<&str>;
}

impl<T: LabelSource + ?Sized> LabelSource for &T {
    #[inline]
    fn get(&self, key: &str) -> Option<&str> {
        (**self).get(key)
    }
}

impl<K, V, S> LabelSource for HashMap<K, V, S>
where
    K: Borrow<str> + Eq + Hash,
    V: AsRef<str>,
    S: BuildHasher,
{
    #[inline]
    fn get(&self, key: &str) -> Option<&str> {
        HashMap::get(self, key).map(AsRef::as_ref)
    }
}

impl<K, V> LabelSource for BTreeMap<K, V>
where
    K: Borrow<str> + Ord,
    V: AsRef<str>,
{
    #[inline]
    fn get(&self, key: &str) -> Option<&str> {
        BTreeMap::get(self, key).map(AsRef::as_ref)
    }
}

impl<K: AsRef<str>, V: AsRef<str>> LabelSource for [(K, V)] {
    #[inline]
    fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(name, _)| same(name.as_ref(), key)).map(|(_, value)| value.as_ref())
    }
}

impl<K: AsRef<str>, V: AsRef<str>, const N: usize> LabelSource for [(K, V); N] {
    #[inline]
    fn get(&self, key: &str) -> Option<&str> {
        LabelSource::get(self.as_slice(), key)
    }
}

impl<K: AsRef<str>, V: AsRef<str>> LabelSource for Vec<(K, V)> {
    #[inline]
    fn get(&self, key: &str) -> Option<&str> {
        LabelSource::get(self.as_slice(), key)
    }
}
