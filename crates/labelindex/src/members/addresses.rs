//! Who holds an address.
//!
//! Items are entered under the hash of each address of theirs, nothing else is stored: eight bytes for an address, and
//! the holders found by hash are asked whether they really have it. The table is made when a live set changes for the
//! first time, or a caller asks for holders: while a snapshot is read there is no live set, and no caller asks.

use ahash::RandomState;
use tortie_model::Cidr;

use super::item_members::ItemMembers;
use crate::id_table::{IdTable, hash_of};
use crate::slab::{ItemId, SlotId};

/// Items by address.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    table: IdTable,
    is_made: bool,
    hasher: RandomState,
}

impl Addresses {
    /// Makes the table, if it is not there, of these items, which are all.
    pub(super) fn make<'a>(&mut self, items: impl Iterator<Item = (ItemId, &'a ItemMembers)> + Clone) {
        if self.is_made {
            return;
        }
        self.is_made = true;
        self.table.reserve(items.clone().map(|(_, item_members)| item_members.nets().len()).sum());
        items.for_each(|(item, item_members)| self.add(item, item_members));
    }

    /// Forgets the table.
    pub(super) fn clear(&mut self) {
        *self = Self { hasher: self.hasher.clone(), ..Self::default() };
    }

    /// Enters an item under all its addresses, if there is a table.
    pub(super) fn add(&mut self, item: ItemId, item_members: &ItemMembers) {
        if self.is_made {
            hashes(&self.hasher, item_members).for_each(|hash| self.table.insert(hash, item.place()));
        }
    }

    /// The opposite of [`Addresses::add`].
    pub(super) fn remove(&mut self, item: ItemId, item_members: &ItemMembers) {
        if self.is_made {
            hashes(&self.hasher, item_members).for_each(|hash| self.table.remove(hash, item.place()));
        }
    }

    /// The items that may hold an address.
    pub(super) fn items(&self, net: Cidr) -> impl Iterator<Item = ItemId> {
        self.table.find_all(hash(&self.hasher, net)).map(ItemId::from_place)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// Prefix lengths do not enter into it: named ports are about the address alone.
fn hash(hasher: &RandomState, net: Cidr) -> u32 {
    hash_of(hasher, (net.bits(), net.family()))
}

fn hashes(hasher: &RandomState, item_members: &ItemMembers) -> impl Iterator<Item = u32> {
    let mut last = None;
    item_members.nets().filter_map(move |net| {
        // Networks of the same address and different length stand side by side.
        let is_new = last.replace(net.to_host()) != Some(net.to_host());
        is_new.then(|| hash(hasher, net))
    })
}
