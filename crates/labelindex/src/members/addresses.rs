//! Who holds an address.
//!
//! Items are entered under the hash of each address of theirs, nothing else is stored: eight bytes for an address, and
//! the holders found by hash are asked whether they really have it.

use ahash::RandomState;
use tortie_model::Cidr;

use super::holdings::Holdings;
use crate::slab::{IdTable, ItemId};

/// Items by address.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    table: IdTable,
    hasher: RandomState,
}

impl Addresses {
    /// Enters an item under all its addresses.
    pub(super) fn add(&mut self, item: ItemId, holdings: &Holdings) {
        hashes(&self.hasher, holdings).for_each(|hash| self.table.insert(hash, item.0));
    }

    /// The opposite of [`Addresses::add`].
    pub(super) fn remove(&mut self, item: ItemId, holdings: &Holdings) {
        hashes(&self.hasher, holdings).for_each(|hash| self.table.remove(hash, item.0));
    }

    /// The items that may hold an address.
    pub(super) fn items(&self, net: Cidr) -> impl Iterator<Item = ItemId> {
        self.table.find_all(hash(&self.hasher, net)).map(ItemId)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// Prefix lengths do not enter into it: named ports are about the address alone.
fn hash(hasher: &RandomState, net: Cidr) -> u32 {
    IdTable::fold(hasher.hash_one((net.bits(), net.family())))
}

fn hashes(hasher: &RandomState, holdings: &Holdings) -> impl Iterator<Item = u32> {
    let mut last = None;
    holdings.nets().iter().filter_map(move |&net| {
        // Networks of the same address and different length stand side by side.
        let is_new = last.replace(net.to_host()) != Some(net.to_host());
        is_new.then(|| hash(hasher, net))
    })
}
