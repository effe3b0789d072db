//! Sharing of values that many objects of a cluster have in common.

mod selectors;
mod share;
mod table;

use std::sync::Arc;

use ahash::RandomState;

pub use self::selectors::SelectorCache;
use self::table::{Shared, Table};
use crate::ProfileName;
use crate::labels::{Labels, LabelsError, Shape, encode};

/// Shares the values that many objects have in common: label names, sets of labels, selectors,
/// names. A decoder owns one, creates the labels of all objects with it, and passes decoded updates
/// through [`Interner::share`].
///
/// Unused values are removed each time that a table has doubled, so that the size of a long-lived
/// interner is proportional to the values in use.
///
/// ```
/// use std::sync::Arc;
/// use tortie_model::Interner;
///
/// let mut interner = Interner::new();
/// let (a, b) = (interner.labels([("app", "web")])?, interner.labels([("app", "db")])?);
/// assert!(Arc::ptr_eq(a.shape().unwrap(), b.shape().unwrap()));
/// # Ok::<(), tortie_model::LabelsError>(())
/// ```
#[derive(Debug)]
pub struct Interner {
    hasher: RandomState,
    texts: Table<Arc<str>>,
    shapes: Table<Arc<Shape>>,
    labels: Table<Labels>,
    selectors: SelectorCache,
    profiles: Table<Arc<[ProfileName]>>,
    /// Buffer for encoding the values of labels.
    values: Vec<u8>,
}

impl Default for Interner {
    fn default() -> Self {
        Self::new()
    }
}

impl Interner {
    /// In some clusters hardly two objects have the same labels, and keeping all of them gains
    /// nothing.
    const MOST_LABELS: usize = 1 << 16;

    /// Returns an empty interner.
    #[must_use]
    pub fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            texts: Table::new(usize::MAX),
            shapes: Table::new(usize::MAX),
            labels: Table::new(Self::MOST_LABELS),
            selectors: SelectorCache::default(),
            profiles: Table::new(usize::MAX),
            values: Vec::new(),
        }
    }

    /// Returns labels; a later pair replaces an earlier one of the same name.
    ///
    /// # Errors
    /// [`LabelsError::TooLong`] if the values exceed the limit.
    pub fn labels<K, V>(&mut self, pairs: impl IntoIterator<Item = (K, V)>) -> Result<Labels, LabelsError>
    where
        K: AsRef<str>,
        V: AsRef<str>,
    {
        let pairs = pairs.into_iter().map(|(name, value)| (self.text(name.as_ref()), value));
        let mut pairs: Vec<(Arc<str>, V)> = pairs.collect();
        // The sort is stable, and the first pair of a name is kept.
        pairs.reverse();
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        pairs.dedup_by(|(a, _), (b, _)| a == b);
        if pairs.is_empty() {
            return Ok(Labels::default());
        }
        self.values.clear();
        encode(&mut self.values, pairs.iter().map(|(_, value)| value.as_ref().as_bytes()))?;
        let shape = self.shape(pairs.into_iter().map(|(name, _)| name).collect());
        let values = &self.values[..];
        let hash = hash_of_labels(&self.hasher, &shape, values);
        Ok(self.labels.get_or_insert(
            &self.hasher,
            hash,
            |labels| labels.is_made_of(&shape, values),
            || Labels::of_parts(Arc::clone(&shape), values),
        ))
    }

    fn shape(&mut self, names: Box<[Arc<str>]>) -> Arc<Shape> {
        let hash = hash_of_names(&self.hasher, &names);
        let same = |shape: &Arc<Shape>| {
            shape.keys().len() == names.len() && shape.keys().iter().zip(&names).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        if let Some(shape) = self.shapes.get(hash, same) {
            return shape.clone();
        }
        let shape = Arc::new(Shape::of_sorted(names));
        self.shapes.insert(&self.hasher, hash, Arc::clone(&shape));
        shape
    }

    /// Returns the cache of selectors, with which a decoder parses each of them only once.
    pub fn selectors(&mut self) -> &mut SelectorCache {
        &mut self.selectors
    }

    /// Returns the equal text that is in use, or else a new one.
    #[must_use]
    pub fn text(&mut self, text: &str) -> Arc<str> {
        let hash = self.hasher.hash_one(text);
        self.texts.get_or_insert(&self.hasher, hash, |known| **known == *text, || text.into())
    }

    /// Returns the number of values: those in use, and unused ones that have not been removed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len() + self.shapes.len() + self.labels.len() + self.selectors.len() + self.profiles.len()
    }

    /// Reports whether the interner is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn hash_of_labels(hasher: &RandomState, shape: &Arc<Shape>, values: &[u8]) -> u64 {
    hasher.hash_one((Arc::as_ptr(shape).addr(), values))
}

/// Hashes names by their addresses: they are interned before shapes, so that equal names have one
/// address.
fn hash_of_names(hasher: &RandomState, names: &[Arc<str>]) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut state = hasher.build_hasher();
    for name in names {
        state.write_usize(name.as_ptr().addr());
    }
    state.finish()
}

impl Shared for Arc<str> {
    fn is_in_use(&self) -> bool {
        Arc::strong_count(self) > 1
    }

    fn hash(&self, hasher: &RandomState) -> u64 {
        hasher.hash_one(&**self)
    }
}

impl Shared for Arc<Shape> {
    fn is_in_use(&self) -> bool {
        Arc::strong_count(self) > 1
    }

    fn hash(&self, hasher: &RandomState) -> u64 {
        hash_of_names(hasher, self.keys())
    }
}

impl Shared for Labels {
    fn is_in_use(&self) -> bool {
        Labels::is_shared(self)
    }

    fn hash(&self, hasher: &RandomState) -> u64 {
        self.parts().map_or(0, |(shape, values)| hash_of_labels(hasher, shape, values))
    }
}

impl Shared for Arc<[ProfileName]> {
    fn is_in_use(&self) -> bool {
        Arc::strong_count(self) > 1
    }

    fn hash(&self, hasher: &RandomState) -> u64 {
        hasher.hash_one(&**self)
    }
}

#[cfg(test)]
mod tests;
