//! Lists that mostly have one entry.

use std::fmt;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

/// A list that mostly has at most one entry, which is then stored inline. It is read as a slice.
///
/// ```
/// use tortie_model::ShortList;
///
/// let list: ShortList<&str> = ["a", "b"].into_iter().collect();
/// assert_eq!(list[1], "b");
/// assert_eq!(list, ["a", "b"].into());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShortList<T>(SmallVec<[T; 1]>);

impl<T> ShortList<T> {
    /// Returns an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self(SmallVec::new())
    }

    /// Appends an entry.
    pub fn push(&mut self, entry: T) {
        self.0.push(entry);
    }
}

impl<T> Default for ShortList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for ShortList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for ShortList<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for ShortList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> From<Vec<T>> for ShortList<T> {
    fn from(entries: Vec<T>) -> Self {
        Self(SmallVec::from_vec(entries))
    }
}

impl<T, const N: usize> From<[T; N]> for ShortList<T> {
    fn from(entries: [T; N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<T> FromIterator<T> for ShortList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl<T> Extend<T> for ShortList<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, entries: I) {
        self.0.extend(entries);
    }
}

impl<'l, T> IntoIterator for &'l ShortList<T> {
    type Item = &'l T;
    type IntoIter = std::slice::Iter<'l, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
