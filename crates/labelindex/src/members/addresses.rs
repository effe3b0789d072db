//! Items by address.
//!
//! The table holds only the hash of each address and the item, eight bytes per entry. A look-up by
//! hash therefore returns candidates, which the caller must check. The table is built when a live
//! set changes for the first time, or a caller asks for holders. Neither happens while the initial
//! state is read, so the table costs nothing then.

use ahash::RandomState;
use tortie_model::Cidr;

use super::item_members::ItemMembers;
use crate::id_table::{IdTable, hash_of};
use crate::slab::{ItemId, SlotId};

/// Hash table of items by address.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    table: IdTable,
    is_made: bool,
    hasher: RandomState,
}

impl Addresses {
    /// Builds the table from all items, if it does not exist.
    pub(super) fn make<'a>(&mut self, items: impl Iterator<Item = (ItemId, &'a ItemMembers)> + Clone) {
        if self.is_made {
            return;
        }
        self.is_made = true;
        self.table.reserve(items.clone().map(|(_, item_members)| item_members.nets().len()).sum());
        items.for_each(|(item, item_members)| self.add(item, item_members));
    }

    /// Frees the table.
    pub(super) fn clear(&mut self) {
        *self = Self { hasher: self.hasher.clone(), ..Self::default() };
    }

    /// Adds an item under each of its addresses, if the table exists.
    pub(super) fn add(&mut self, item: ItemId, item_members: &ItemMembers) {
        if self.is_made {
            hashes(&self.hasher, item_members).for_each(|hash| self.table.insert(hash, item.place()));
        }
    }

    /// Removes an item from each of its addresses, if the table exists.
    pub(super) fn remove(&mut self, item: ItemId, item_members: &ItemMembers) {
        if self.is_made {
            hashes(&self.hasher, item_members).for_each(|hash| self.table.remove(hash, item.place()));
        }
    }

    /// Returns the items that may hold an address.
    pub(super) fn items(&self, net: Cidr) -> impl Iterator<Item = ItemId> {
        self.table.find_all(hash(&self.hasher, net)).map(ItemId::from_place)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// Returns the hash of an address, without the prefix length: named ports are looked up by address
/// alone.
fn hash(hasher: &RandomState, net: Cidr) -> u32 {
    hash_of(hasher, (net.bits(), net.family()))
}

fn hashes(hasher: &RandomState, item_members: &ItemMembers) -> impl Iterator<Item = u32> {
    let mut last = None;
    item_members.nets().filter_map(move |net| {
        // Networks with the same address and different lengths are adjacent.
        let is_new = last.replace(net.to_host()) != Some(net.to_host());
        is_new.then(|| hash(hasher, net))
    })
}
