//! Lists that mostly have one entry.

use std::ops::{Deref, DerefMut};

/// A list in 16 bytes. Most of the very many lists have at most one entry and need no allocation.
#[derive(Clone, Debug, Default)]
pub(crate) enum List<T> {
    #[default]
    Empty,
    One(T),
    /// More than one.
    #[expect(clippy::box_collection, reason = "a vector takes 24 bytes")]
    Many(Box<Vec<T>>),
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Empty => &[],
            Self::One(entry) => std::slice::from_ref(entry),
            Self::Many(entries) => entries,
        }
    }
}

impl<T> DerefMut for List<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Empty => &mut [],
            Self::One(entry) => std::slice::from_mut(entry),
            Self::Many(entries) => entries,
        }
    }
}

impl<T: Copy> List<T> {
    /// Adds an entry at the end and returns its position.
    pub(crate) fn push(&mut self, entry: T) -> u32 {
        let at = self.len();
        self.insert(at, entry);
        position(at)
    }

    /// Adds an entry before position `at`, or at the end.
    pub(crate) fn insert(&mut self, at: usize, entry: T) {
        match self {
            Self::Empty => *self = Self::One(entry),
            Self::One(first) => {
                let pair = if at == 0 { vec![entry, *first] } else { vec![*first, entry] };
                *self = Self::Many(Box::new(pair));
            }
            Self::Many(entries) => {
                if entries.len() == entries.capacity() {
                    // Long lists keep little spare capacity.
                    entries.reserve_exact(entries.len() / if entries.len() < 64 { 2 } else { 4 } + 1);
                }
                entries.insert(at, entry);
            }
        }
    }

    /// Removes the entry at `at`; the others keep their order.
    #[expect(clippy::expect_used, reason = "as with any index: a place without an entry is a bug of this crate")]
    pub(crate) fn remove(&mut self, at: usize) -> T {
        let removed = *self.get(at).expect("places of entries are known");
        match self {
            Self::Many(entries) => {
                entries.remove(at);
            }
            _ => *self = Self::Empty,
        }
        self.tighten();
        removed
    }

    /// Removes the entry at `at`; returns the entry that took its position, if any.
    pub(crate) fn swap_remove(&mut self, at: u32) -> Option<T> {
        let at = at as usize;
        match self {
            Self::Many(entries) => {
                entries.swap_remove(at);
                self.tighten();
            }
            _ => {
                self.remove(at);
            }
        }
        self.get(at).copied()
    }

    /// Keeps the entries for which `keep` returns true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        match self {
            Self::One(entry) if !keep(entry) => *self = Self::Empty,
            Self::Empty | Self::One(_) => {}
            Self::Many(entries) => entries.retain(keep),
        }
        self.tighten();
    }

    fn tighten(&mut self) {
        if let Self::Many(entries) = self {
            match entries[..] {
                [] => *self = Self::Empty,
                [entry] => *self = Self::One(entry),
                _ => {}
            }
        }
    }
}

impl<T: Copy> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut list = Self::Empty;
        for entry in entries {
            list.push(entry);
        }
        list
    }
}

impl<'a, T> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Updates the link to an object after the linking object has moved to another position in the
/// object's list.
#[expect(clippy::expect_used, reason = "links are made and removed on both sides at once")]
pub(crate) fn relink<K: Copy + PartialEq>(links: &mut [(K, u32)], to: K, at: u32) {
    links.iter_mut().find(|link| link.0 == to).expect("objects that list each other are linked both ways").1 = at;
}

/// Converts an index to a position in a list.
///
/// Lists whose entries refer to each other store positions. So a removal takes constant time on
/// both sides. The last entry moves to the position of the removed one, and its link must be
/// updated.
#[expect(clippy::expect_used, reason = "2^32 objects do not fit into memory")]
pub(crate) fn position(index: usize) -> u32 {
    u32::try_from(index).expect("there are fewer than 2^32 objects, each at the most once in a list")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_the_items_of_a_vector() {
        let mut list = List::default();
        let mut expected = Vec::new();
        for n in 0..6_u32 {
            assert_eq!(list.push(n), n);
            expected.push(n);
        }
        list.insert(2, 9);
        expected.insert(2, 9);
        assert_eq!(list[..], expected);
        assert_eq!(list.remove(0), 0);
        assert_eq!(list.swap_remove(1), Some(5));
        assert_eq!(list.swap_remove(4), None);
        assert_eq!(list[..], [1, 5, 2, 3]);
        list.retain(|&n| n < 3);
        assert_eq!(list[..], [1, 2]);
        assert_eq!(list.swap_remove(0), Some(2));
        assert!(matches!(list, List::One(2)));
        assert_eq!(list.remove(0), 2);
        assert!(matches!(list, List::Empty));
        assert_eq!(List::from_iter([3, 4])[..], [3, 4]);
    }

    #[test]
    fn a_list_takes_16_bytes() {
        assert_eq!(size_of::<List<u32>>(), 16);
        assert_eq!(size_of::<List<(u32, u32)>>(), 16);
    }
}
