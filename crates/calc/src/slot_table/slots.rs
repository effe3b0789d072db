//! Objects by slot.

use std::num::NonZeroU32;

/// A place in [`Slots`].
// The index plus one, so that an `Option` of it takes no more space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(NonZeroU32);

impl Slot {
    #[expect(clippy::expect_used, reason = "2^32 objects do not fit into memory")]
    fn at(index: usize) -> Self {
        let place = u32::try_from(index).ok().and_then(|index| NonZeroU32::MIN.checked_add(index));
        Self(place.expect("there are fewer than 2^32 objects"))
    }

    pub(crate) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Objects in slots, which are reused.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    /// In blocks, so that growing copies nothing and wastes little memory.
    blocks: Vec<Vec<Option<T>>>,
    free: Vec<Slot>,
}

/// So many objects are in each block but the last.
const BLOCK: usize = 1_024;

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    #[expect(clippy::expect_used, reason = "slots are given back that were given out")]
    pub(crate) fn insert(&mut self, object: T) -> Slot {
        if let Some(slot) = self.free.pop() {
            *self.place(slot).expect("free slots are places in the blocks") = Some(object);
            return slot;
        }
        let slot = Slot::at(self.slot_count());
        match self.blocks.last_mut() {
            Some(last) if last.len() < BLOCK => last.push(Some(object)),
            Some(_) => {
                let mut next = Vec::with_capacity(BLOCK);
                next.push(Some(object));
                self.blocks.push(next);
            }
            // The first block often stays small, so its capacity is not reserved.
            None => self.blocks.push(vec![Some(object)]),
        }
        slot
    }

    fn place(&mut self, slot: Slot) -> Option<&mut Option<T>> {
        self.blocks.get_mut(slot.index() / BLOCK)?.get_mut(slot.index() % BLOCK)
    }

    /// Removes an object. Its slot stays reserved until it is given back.
    #[expect(clippy::expect_used, reason = "as with any index: a slot without an object is a mistake of this crate")]
    pub(crate) fn take(&mut self, slot: Slot) -> T {
        self.place(slot).and_then(Option::take).expect("objects are taken out of their slots once")
    }

    /// Frees the slot of a removed object.
    pub(crate) fn give_back(&mut self, slot: Slot) {
        self.free.push(slot);
        if self.free.len() == self.slot_count() {
            *self = Self::default();
        }
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        self.blocks.get(slot.index() / BLOCK)?.get(slot.index() % BLOCK)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.place(slot)?.as_mut()
    }

    /// Returns the object in a slot that has one.
    #[expect(clippy::expect_used, reason = "as with any index: a slot without an object is a mistake of this crate")]
    pub(crate) fn at(&self, slot: Slot) -> &T {
        self.get(slot).expect("slots are dropped together with their objects")
    }

    /// Returns the object in a slot that has one.
    #[expect(clippy::expect_used, reason = "as with any index: a slot without an object is a mistake of this crate")]
    pub(crate) fn at_mut(&mut self, slot: Slot) -> &mut T {
        self.get_mut(slot).expect("slots are dropped together with their objects")
    }

    /// Returns all objects, by ascending slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flatten().flatten()
    }

    /// Returns one more than the highest slot in use.
    pub(crate) fn slot_count(&self) -> usize {
        self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}
