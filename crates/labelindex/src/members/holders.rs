//! Look-up of items by address.

use std::hash::Hash;
use std::net::IpAddr;

use tortie_model::Cidr;

use super::addresses::Addresses;
use super::item_members::ItemMembers;
use crate::slab::{ItemId, KeyTable};

/// Look-up of the items of an index by address, from
/// [`MemberIndex::holders`](crate::MemberIndex::holders).
#[derive(Debug)]
pub struct Holders<'i, I> {
    pub(super) addresses: &'i Addresses,
    pub(super) items: &'i KeyTable<ItemId, I, ItemMembers>,
}

impl<'i, I: Clone + Eq + Hash> Holders<'i, I> {
    /// Returns the keys of the items with this address, in no particular order. A network that
    /// contains the address does not count.
    pub fn of(&self, address: IpAddr) -> impl Iterator<Item = &'i I> + use<'i, I> {
        let (items, net) = (self.items, Cidr::host(address));
        let has_it = move |item: &ItemId| items[*item].has_net(net);
        self.addresses.items(net).filter(has_it).map(|item| items.key(item))
    }
}
