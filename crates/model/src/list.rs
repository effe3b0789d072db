//! Short lists within values of which a cluster has many.

use std::fmt;
use std::ops::Deref;

use thin_vec::ThinVec;

/// A list of the size of one pointer, which allocates nothing while it is empty. It is used as a
/// slice.
///
/// ```
/// use tortie_model::List;
/// let list: List<u8> = [1, 2].into();
/// assert_eq!(list[1], 2);
/// assert_eq!(std::mem::size_of::<List<u8>>(), std::mem::size_of::<usize>());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct List<T>(ThinVec<T>);

impl<T> List<T> {
    /// Returns an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self(ThinVec::new())
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut list: ThinVec<T> = items.into_iter().collect();
        list.shrink_to_fit();
        Self(list)
    }
}

impl<T, const N: usize> From<[T; N]> for List<T> {
    fn from(items: [T; N]) -> Self {
        items.into_iter().collect()
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(items: Vec<T>) -> Self {
        items.into_iter().collect()
    }
}

impl<T> From<Box<[T]>> for List<T> {
    fn from(items: Box<[T]>) -> Self {
        items.into_iter().collect()
    }
}

impl<T: Clone> From<&[T]> for List<T> {
    fn from(items: &[T]) -> Self {
        items.iter().cloned().collect()
    }
}

impl<T> IntoIterator for List<T> {
    type Item = T;
    type IntoIter = thin_vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
