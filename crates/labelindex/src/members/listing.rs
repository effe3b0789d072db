//! Listing of set members from matching items.

use std::hash::Hash;

use smallvec::SmallVec;
use tortie_model::Cidr;
use tortie_model::desired::IpPortMember;

use super::MemberIndex;
use super::item_members::ItemMembers;
use crate::slab::{GroupId, SelId, SetId, SideTable};
use crate::types::NamedPort;

/// Sorts members and removes duplicates.
pub(super) fn sort<T: Ord>(members: &mut Vec<T>) {
    members.sort();
    members.dedup();
}

impl<I: Clone + Eq + Hash + Ord> MemberIndex<I> {
    /// Returns the networks of each new set, unsorted and possibly with duplicates; none for a set
    /// of named ports.
    pub(super) fn list_new(&self, new: &[SetId]) -> Vec<Vec<Cidr>> {
        let selectors: Vec<Option<SelId>> = new.iter().map(|&id| self.selector_for_nets(id)).collect();
        // Most items have one network.
        let mut lists: Vec<Vec<Cidr>> =
            selectors.iter().map(|selector| Vec::with_capacity(selector.map_or(0, |s| self.count_items(s)))).collect();
        // Matching items are scattered in memory. If they are many, one pass over all items in
        // memory order is faster.
        if lists.iter().map(Vec::capacity).sum::<usize>() < self.items.len() / 4 {
            for (list, selector) in lists.iter_mut().zip(selectors) {
                let items = selector.into_iter().flat_map(|selector| self.item_members_matching(selector));
                items.for_each(|item_members| list.extend(item_members.nets()));
            }
            return lists;
        }
        let mut lists_of: SideTable<GroupId, SmallVec<[u32; 4]>> = SideTable::default();
        for (place, selector) in (0..).zip(selectors) {
            for &group in selector.map_or(&[][..], |selector| self.matcher.groups_matching(selector)) {
                lists_of.entry(group).push(place);
            }
        }
        for (item, item_members) in self.items.iter() {
            let lists_of_item = self.matcher.group_of(item).and_then(|group| lists_of.get(group));
            for &place in lists_of_item.into_iter().flatten() {
                lists[place as usize].extend(item_members.nets());
            }
        }
        lists
    }

    fn selector_for_nets(&self, id: SetId) -> Option<SelId> {
        let set = self.sets.get(id)?.as_ref()?;
        (!set.live && set.named_port.is_none()).then_some(set.selector)
    }

    fn count_items(&self, selector: SelId) -> usize {
        let groups = self.matcher.groups_matching(selector).iter();
        groups.map(|&group| self.matcher.groups.slab[group].items.len()).sum()
    }

    fn item_members_matching(&self, selector: SelId) -> impl Iterator<Item = &ItemMembers> {
        let groups = self.matcher.groups_matching(selector).iter();
        groups.flat_map(|&group| &self.matcher.groups.slab[group].items).map(|&item| &self.items[item])
    }

    /// Returns the networks of all matching items, sorted, each once.
    pub(super) fn list_nets(&self, selector: SelId) -> Vec<Cidr> {
        let mut nets = Vec::with_capacity(self.count_items(selector));
        for item_members in self.item_members_matching(selector) {
            nets.extend(item_members.nets());
        }
        sort(&mut nets);
        nets
    }

    /// Returns the named ports of all matching items, sorted, each once.
    pub(super) fn list_ports(&self, selector: SelId, named: &NamedPort) -> Vec<IpPortMember> {
        let mut members = Vec::new();
        for item_members in self.item_members_matching(selector) {
            item_members.each_member(Some(named), |member| members.extend(member.with_port()));
        }
        sort(&mut members);
        members
    }
}
