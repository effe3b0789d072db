//! Objects by number, so that lists and tables hold four bytes for each.

use std::num::NonZeroU32;

/// The place of an object in a slab; `Option<Slot>` has the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(NonZeroU32);

impl Slot {
    /// The first place in order.
    pub(crate) const FIRST: Self = Self(NonZeroU32::MIN);

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Objects with the places that are free.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<Slot>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

#[expect(clippy::expect_used, reason = "a place is freed together with its object")]
impl<T> Slab<T> {
    /// Stores an object in a free place.
    pub(crate) fn insert(&mut self, item: T) -> Slot {
        if let Some(slot) = self.free.pop() {
            *self.items.get_mut(slot.index()).expect("free places are in the slab") = Some(item);
            return slot;
        }
        self.items.push(Some(item));
        let number = u32::try_from(self.items.len()).ok().and_then(NonZeroU32::new);
        Slot(number.expect("the limits allow fewer than 2³² objects"))
    }

    /// Removes the object at a place that is in use.
    pub(crate) fn remove(&mut self, slot: Slot) -> T {
        let item = self.items.get_mut(slot.index()).and_then(Option::take).expect("the place is in use");
        self.free.push(slot);
        if self.free.len() == self.items.len() {
            // Nothing is left: the memory of a burst is returned.
            *self = Self::default();
        }
        item
    }

    /// Returns the object at a place that is in use.
    pub(crate) fn at(&self, slot: Slot) -> &T {
        self.items.get(slot.index()).and_then(Option::as_ref).expect("the place is in use")
    }

    /// Returns the object at a place that is in use.
    pub(crate) fn at_mut(&mut self, slot: Slot) -> &mut T {
        self.items.get_mut(slot.index()).and_then(Option::as_mut).expect("the place is in use")
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Returns all objects with their places, in the order of these.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        let places = (1..=u32::MAX).filter_map(NonZeroU32::new).map(Slot);
        places.zip(&self.items).filter_map(|(slot, item)| item.as_ref().map(|item| (slot, item)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_an_option_costs_nothing() {
        let mut slab = Slab::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!((slab.remove(a), *slab.at(b), slab.len()), ('a', 'b', 1));
        assert_eq!(slab.insert('c'), a);
        *slab.at_mut(b) = 'd';
        assert_eq!(slab.iter().map(|(_, item)| *item).collect::<String>(), "cd");
        assert_eq!((slab.remove(a), slab.remove(b), slab.len()), ('c', 'd', 0));
        assert_eq!(size_of::<Option<Slot>>(), 4);
    }
}
