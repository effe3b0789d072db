//! What the objects of a cluster have in common, held once.

mod selectors;
mod share;
mod table;

use std::sync::Arc;

use ahash::RandomState;

pub use self::selectors::SelectorCache;
use self::table::{Shared, Table};
use crate::ProfileName;
use crate::labels::{Labels, LabelsError, Shape, encode};

/// Holds once what many objects have in common: label names, sets of labels, selectors, names. A decoder owns one, makes the
/// labels of all objects with it, and passes what it has read through [`Interner::share`].
///
/// What nobody uses any more is forgotten each time that a table has doubled, so that an interner that is fed for ever stays
/// as large as what is in use.
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
    /// Where the values of labels are put together.
    values: Vec<u8>,
}

impl Default for Interner {
    fn default() -> Self {
        Self::new()
    }
}

impl Interner {
    /// In some clusters hardly two objects have the same labels, and remembering all of them gains nothing.
    const MOST_LABELS: usize = 1 << 16;

    /// An empty interner.
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

    /// The labels; a later pair replaces an earlier one of the same name.
    ///
    /// # Errors
    /// [`LabelsError::TooLong`] if the values cannot be held.
    pub fn labels<K, V>(&mut self, pairs: impl IntoIterator<Item = (K, V)>) -> Result<Labels, LabelsError>
    where
        K: AsRef<str>,
        V: AsRef<str>,
    {
        let pairs = pairs.into_iter().map(|(name, value)| (self.text(name.as_ref()), value));
        let mut pairs: Vec<(Arc<str>, V)> = pairs.collect();
        // The sort is stable, and the first of a name stays.
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

    /// The selectors. A decoder parses with them, so that none is parsed twice.
    pub fn selectors(&mut self) -> &mut SelectorCache {
        &mut self.selectors
    }

    /// The equal text that is in use, or else a new one.
    #[must_use]
    pub fn text(&mut self, text: &str) -> Arc<str> {
        let hash = self.hasher.hash_one(text);
        self.texts.get_or_insert(&self.hasher, hash, |known| **known == *text, || text.into())
    }

    /// How many things are held: what is in use, and what was in use not long ago.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len() + self.shapes.len() + self.labels.len() + self.selectors.len() + self.profiles.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn hash_of_labels(hasher: &RandomState, shape: &Arc<Shape>, values: &[u8]) -> u64 {
    hasher.hash_one((Arc::as_ptr(shape).addr(), values))
}

/// Names are interned before shapes are, so that equal ones have one address.
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
