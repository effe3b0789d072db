//! Items by the addresses that they have.

use std::hash::Hash;
use std::net::IpAddr;

use tortie_model::Cidr;

use super::addresses::Addresses;
use super::item_members::ItemMembers;
use crate::slab::{ItemId, KeyTable};

/// The items of an index by the addresses that they have, from [`MemberIndex::holders`](crate::MemberIndex::holders).
#[derive(Debug)]
pub struct Holders<'i, I> {
    pub(super) addresses: &'i Addresses,
    pub(super) items: &'i KeyTable<ItemId, I, ItemMembers>,
}

impl<'i, I: Clone + Eq + Hash> Holders<'i, I> {
    /// The keys of the items that have this address, in no order. A network around the address does not count.
    pub fn of(&self, address: IpAddr) -> impl Iterator<Item = &'i I> + use<'i, I> {
        let (items, net) = (self.items, Cidr::host(address));
        let has_it = move |item: &ItemId| items[*item].has_net(net);
        self.addresses.items(net).filter(has_it).map(|item| items.key(item))
    }
}
