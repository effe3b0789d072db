//! Groups: items that no selector can distinguish.
//!
//! Items of a group have the same shape, the same parents, and the same values of the visible
//! labels. A selector is evaluated once for all of them, on the first item.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::id_table::{IdTable, fold};
use crate::list::List;
use crate::slab::{GroupId, ItemId, ListId, SelId, ShapeId, Slab, SlotId, TermId};

/// A group. It has items, except during an update.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) shape: ShapeId,
    pub(crate) list: ListId,
    /// Position among the groups of the shape.
    pub(crate) at_shape: u32,
    /// Position among the groups of the parent list.
    pub(crate) at_list: u32,
    pub(crate) hash: u32,
    /// Number of networks of the items.
    pub(crate) nets: u64,
    /// Whether the next flush must match the group with the filed selectors.
    pub(crate) waiting: bool,
    /// Terms of the items' own visible labels in the order of the shape, each with the position of
    /// the group among the term's groups.
    pub(crate) terms: List<(TermId, u32)>,
    pub(crate) items: List<ItemId>,
    /// Selectors that matched at the last flush, sorted, each with the position of the group among
    /// the selector's groups.
    pub(crate) matches: List<(SelId, u32)>,
}

impl Group {
    /// Returns the position of a selector among the matches, or the position to insert it.
    pub(crate) fn find(&self, selector: SelId) -> Result<usize, usize> {
        self.matches.binary_search_by_key(&selector, |&(s, _)| s)
    }
}

/// All groups, indexed by shape, parents and visible values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    pub(crate) slab: Slab<GroupId, Group>,
    table: IdTable,
}

impl Groups {
    pub(crate) fn hash(shape: ShapeId, list: ListId, terms: impl Iterator<Item = TermId>) -> u32 {
        let mut hasher = FxHasher::default();
        (shape, list).hash(&mut hasher);
        terms.for_each(|term| term.hash(&mut hasher));
        fold(hasher.finish())
    }

    pub(crate) fn find(&self, hash: u32, shape: ShapeId, list: ListId, terms: &[TermId]) -> Option<GroupId> {
        let is = |place| {
            let group = &self.slab[GroupId::from_place(place)];
            group.shape == shape
                && group.list == list
                && group.terms.len() == terms.len()
                && group.terms.iter().zip(terms).all(|(&(a, _), &b)| a == b)
        };
        self.table.find(hash, is).map(GroupId::from_place)
    }

    /// Adds a group to the hash table.
    pub(crate) fn enter(&mut self, id: GroupId) {
        self.table.insert(self.slab[id].hash, id.place());
    }

    /// Removes a group from the hash table.
    pub(crate) fn withdraw(&mut self, id: GroupId) {
        self.table.remove(self.slab[id].hash, id.place());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slab.is_empty() && self.table.is_empty()
    }
}
