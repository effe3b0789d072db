//! The members of IP sets.
//!
//! Membership is derived, not stored: a set consists of the groups that match its selector, and its
//! members are the networks or ports of their items. A new set is listed from them when it is
//! emitted, and costs nothing until then. For a *live* set, one that was emitted, each join and
//! departure of an item is counted (`member_deltas.rs`). At the flush, the counts and the current
//! number of holders show whether a member existed before and exists now. An address may have
//! several holders; `addresses.rs` finds them.

mod addresses;
mod cover;
mod holders;
mod item_members;
mod listing;
mod member;
mod member_deltas;

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashSet;
use tortie_model::desired::{IpPortMember, IpSetDelta, IpSetType, IpSetUpdate, Members};
use tortie_model::{Cidr, CidrList, EndpointPort, IpSetId, Labels, ProfileName};
use tortie_selector::Selector;

use crate::list::List;
use crate::matcher::{Change, Matcher};
use crate::slab::{ItemId, KeyTable, SelId, SetId, SideTable};
use crate::types::{NamedPort, Overlap, ParentLabels, SetChange, SetDefinition, Stats};

use addresses::Addresses;
use cover::Cover;
pub use holders::Holders;
pub use item_members::ItemNets;

use item_members::ItemMembers;
use listing::sort;
use member::Member;
use member_deltas::MemberDeltas;

/// Index of items with inherited labels and the IP sets to which they contribute.
///
/// Changes may be made at any time and in any order; [`MemberIndex::flush`] returns the resulting
/// changes of the sets.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Arc;
/// use tortie_labelindex::{MemberIndex, Overlap, SetChange, SetDefinition};
/// use tortie_model::desired::Members;
/// use tortie_model::{Cidr, IpSetId, Labels};
/// use tortie_selector::Selector;
///
/// let mut index = MemberIndex::new(Overlap::Keep);
/// let selector = Selector::parse("app == 'web'").unwrap();
/// let id = IpSetId::new(selector.id().as_str());
/// index.add_set(&id, SetDefinition { selector, named_port: None });
///
/// let address: Cidr = "10.0.0.1/32".parse().unwrap();
/// let labels = Labels::from_pairs([("app", "web")]).unwrap();
/// index.set_item("web-1", &labels, &Arc::default(), &HashMap::new(), [address], &[]);
///
/// let mut changes = Vec::new();
/// index.flush(&mut changes);
/// let [SetChange::Full(set)] = &changes[..] else { panic!() };
/// assert_eq!(set.members, Members::Nets(vec![address]));
/// ```
#[derive(Clone, Debug)]
pub struct MemberIndex<I> {
    overlap: Overlap,
    matcher: Matcher,
    items: KeyTable<ItemId, I, ItemMembers>,
    addresses: Addresses,
    sets: KeyTable<SetId, IpSetId, Option<Set>>,
    sets_of: SideTable<SelId, List<SetId>>,
    /// Sets that must be emitted in full.
    new: Vec<SetId>,
    /// Live sets with pending member deltas.
    booked: Vec<SetId>,
    /// Emitted sets that were removed since the last flush.
    dying: FxHashSet<IpSetId>,
    /// Number of live sets.
    live: usize,
    /// Number of networks of all items.
    nets: u64,
}

/// A selector whose networks are counted, whether or not a set uses it.
#[derive(Debug)]
#[must_use = "the index keeps the selector until this is given back"]
pub struct CountedSelector(SelId);

/// Result of setting an item.
#[derive(Debug)]
#[non_exhaustive]
pub struct ItemChange<'i, I> {
    /// The item's key, as stored in the index.
    pub key: &'i I,
    /// Whether the item was unknown.
    pub is_new: bool,
    /// Networks of the item before the change.
    pub nets_before: ItemNets,
}

#[derive(Clone, Debug)]
struct Set {
    selector: SelId,
    named_port: Option<NamedPort>,
    /// Whether it was emitted.
    live: bool,
    member_deltas: MemberDeltas,
    /// All members, for a set that contains a network.
    cover: Option<Box<Cover>>,
}

/// Returns the definition of a set.
#[expect(clippy::expect_used, reason = "a set is defined as soon as it has an id")]
fn defined(set: &mut Option<Set>) -> &mut Set {
    set.as_mut().expect("known sets are defined")
}

/// Sorts the changes from `start` on by set id.
fn sort_from(changes: &mut [SetChange], start: usize) {
    changes.split_at_mut(start).1.sort_unstable_by(|a, b| a.id().cmp(b.id()));
}

impl<I: Clone + Eq + Hash + Ord> MemberIndex<I> {
    /// Returns an empty index.
    #[must_use]
    pub fn new(overlap: Overlap) -> Self {
        Self {
            overlap,
            matcher: Matcher::default(),
            items: KeyTable::default(),
            addresses: Addresses::default(),
            sets: KeyTable::default(),
            sets_of: SideTable::default(),
            new: Vec::new(),
            booked: Vec::new(),
            dying: FxHashSet::default(),
            live: 0,
            nets: 0,
        }
    }

    /// Adds or replaces an item with the networks and named ports that it contributes. `parents`
    /// are in descending precedence; `known` contains the labels of those that have labels. Host
    /// bits are cleared, and a zero-length prefix becomes its two halves. The prefix lengths of an
    /// endpoint do not count, so the caller must pass single addresses ([`Cidr::to_host`]).
    pub fn set_item(
        &mut self,
        key: I,
        labels: &Labels,
        parents: &Arc<[ProfileName]>,
        known: &impl ParentLabels,
        nets: impl IntoIterator<Item = Cidr>,
        ports: &[EndpointPort],
    ) -> ItemChange<'_, I> {
        self.set_members(key, labels, parents, known, ItemMembers::new(nets, ports))
    }

    /// As [`MemberIndex::set_item`], for an item with networks only. The list is shared if it is
    /// already in canonical form.
    pub fn set_network_set(
        &mut self,
        key: I,
        labels: &Labels,
        parents: &Arc<[ProfileName]>,
        known: &impl ParentLabels,
        nets: &CidrList,
    ) -> ItemChange<'_, I> {
        self.set_members(key, labels, parents, known, ItemMembers::sharing(nets))
    }

    fn set_members(
        &mut self,
        key: I,
        labels: &Labels,
        parents: &Arc<[ProfileName]>,
        known: &impl ParentLabels,
        mut item_members: ItemMembers,
    ) -> ItemChange<'_, I> {
        let target = self.matcher.target(labels, parents, known);
        let (item, is_new) = self.items.find_or_insert(Cow::Owned(key), ItemMembers::default);
        let stays = self.matcher.group_of(item) == Some(target);
        if !(stays && self.items[item] == item_members) {
            if !is_new {
                self.book_item(item, -1);
                self.change_nets(item, false);
            }
            let known = &mut self.items[item];
            self.addresses.remove(item, known);
            self.addresses.add(item, &item_members);
            std::mem::swap(known, &mut item_members);
            self.matcher.move_item(item, labels, target);
            self.change_nets(item, true);
            self.book_item(item, 1);
        } else {
            self.matcher.move_item(item, labels, target);
        }
        ItemChange { key: self.items.key(item), is_new, nets_before: item_members.into() }
    }

    /// Removes an item. Returns its networks; `None` if the item does not exist.
    pub fn remove_item(&mut self, key: &I) -> Option<ItemNets> {
        let item = self.items.find(key)?;
        self.book_item(item, -1);
        self.change_nets(item, false);
        self.matcher.remove_item(item);
        let item_members = self.items.remove(item);
        self.addresses.remove(item, &item_members);
        Some(item_members.into())
    }

    /// Sets the labels that items inherit from a parent; `None` if the parent is removed. Has no
    /// effect on a parent that no item has.
    pub fn set_parent(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        self.matcher.set_parent(name, labels);
    }

    /// Adds a set or changes its definition. After a change, the next flush emits the set in full.
    pub fn add_set(&mut self, id: &IpSetId, definition: SetDefinition) {
        let SetDefinition { selector, named_port } = definition;
        let selector = self.matcher.acquire(&selector);
        let (set, is_new) = self.sets.find_or_insert(Cow::Borrowed(id), || None);
        if let Some(known) = &self.sets[set]
            && known.selector == selector
            && known.named_port == named_port
        {
            self.matcher.release(selector);
            return;
        }
        if !is_new {
            self.drop_set(set, id);
        }
        let member_deltas = MemberDeltas::default();
        self.sets[set] = Some(Set { selector, named_port, live: false, member_deltas, cover: None });
        self.sets_of.entry(selector).push(set);
        self.new.push(set);
    }

    /// Removes a set; does nothing if it is unknown.
    pub fn remove_set(&mut self, id: &IpSetId) {
        if let Some(set) = self.sets.find(id) {
            self.drop_set(set, id);
            self.sets.remove(set);
        }
    }

    fn drop_set(&mut self, id: SetId, name: &IpSetId) {
        let set = defined(&mut self.sets[id]);
        let (selector, live) = (set.selector, set.live);
        if live {
            self.live -= 1;
            self.dying.insert(name.clone());
        }
        self.sets_of.entry(selector).retain(|&other| other != id);
        self.matcher.release(selector);
    }

    /// Counts the networks of the items that a selector matches, without a list of members. The
    /// count is valid from the next [`MemberIndex::settle`] or [`MemberIndex::flush`] on, until the
    /// result is passed to [`MemberIndex::release_count`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tortie_labelindex::{MemberIndex, Overlap};
    /// use tortie_model::Labels;
    /// use tortie_selector::Selector;
    ///
    /// let mut index = MemberIndex::new(Overlap::Keep);
    /// let net = "10.0.0.1/32".parse().unwrap();
    /// index.set_item("web-1", &Labels::from_pairs([("app", "web")]).unwrap(), &Arc::default(), &(), [net], &[]);
    /// let counted = index.count_selector(&Selector::parse("has(app)").unwrap());
    /// index.settle();
    /// assert_eq!((index.count(&counted), index.net_count()), (1, 1));
    /// index.release_count(counted);
    /// ```
    pub fn count_selector(&mut self, selector: &Selector) -> CountedSelector {
        CountedSelector(self.matcher.acquire(selector))
    }

    /// Ends a count of [`MemberIndex::count_selector`].
    pub fn release_count(&mut self, CountedSelector(selector): CountedSelector) {
        self.matcher.release(selector);
    }

    /// Returns the number of networks of the items that matched a selector at the last
    /// [`MemberIndex::settle`] or [`MemberIndex::flush`]. Later changes of these items are
    /// included. A network that several items have is counted for each of them.
    #[must_use]
    pub fn count(&self, counted: &CountedSelector) -> u64 {
        self.matcher.nets_matching(counted.0)
    }

    /// Returns the number of networks of all items.
    #[must_use]
    pub const fn net_count(&self) -> u64 {
        self.nets
    }

    /// Returns a look-up of items by address. The first call adds all items to a table, which takes
    /// 9 to 14 bytes per address and is kept up to date as long as the index has items.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tortie_labelindex::{MemberIndex, Overlap};
    /// use tortie_model::Labels;
    ///
    /// let mut index = MemberIndex::new(Overlap::Keep);
    /// let nets = |net: &str| [net.parse().unwrap()];
    /// index.set_item("web-1", &Labels::default(), &Arc::default(), &(), nets("10.0.0.1/32"), &[]);
    /// index.set_item("all", &Labels::default(), &Arc::default(), &(), nets("10.0.0.0/8"), &[]);
    /// let holders = index.holders();
    /// assert_eq!(holders.of([10, 0, 0, 1].into()).collect::<Vec<_>>(), [&"web-1"]);
    /// assert_eq!(holders.of([10, 0, 0, 2].into()).next(), None);
    /// ```
    pub fn holders(&mut self) -> Holders<'_, I> {
        self.addresses.make(self.items.iter());
        Holders { addresses: &self.addresses, items: &self.items }
    }

    /// Adds the networks of an item to the number of its group, or subtracts them.
    #[expect(clippy::expect_used, reason = "networks are added before they are taken away")]
    fn change_nets(&mut self, item: ItemId, is_added: bool) {
        let nets = self.items[item].net_count();
        if nets == 0 {
            return;
        }
        let change = i64::try_from(nets).expect("lists are shorter than 2^63");
        let change = if is_added { change } else { -change };
        self.nets = self.nets.checked_add_signed(change).expect("each network of an item is counted once");
        self.matcher.change_nets(item, change);
    }

    /// Adds `count` to the members that an item contributes to the live sets that its group matched
    /// at the last flush.
    #[expect(clippy::expect_used, reason = "items are put into a group when they are added")]
    fn book_item(&mut self, item: ItemId, count: i32) {
        if self.live == 0 {
            return;
        }
        let group = self.matcher.group_of(item).expect("items are in a group");
        let item_members = &self.items[item];
        for &(selector, _) in &self.matcher.groups.slab[group].matches {
            for &id in self.sets_of.get(selector).into_iter().flatten() {
                let set = defined(&mut self.sets[id]);
                if set.live {
                    if set.member_deltas.is_empty() {
                        self.booked.push(id);
                    }
                    set.member_deltas.book(item_members, set.named_port.as_ref(), count);
                }
            }
        }
    }

    /// Counts the contributions of all items of a group whose matches changed.
    fn book_group(&mut self, change: Change) {
        let Some(group) = self.matcher.group(change.group) else { return };
        for &id in self.sets_of.get(change.selector).into_iter().flatten() {
            let set = defined(&mut self.sets[id]);
            if !set.live {
                continue;
            }
            if set.member_deltas.is_empty() {
                self.booked.push(id);
            }
            for item_members in group.items.iter().map(|&item| &self.items[item]) {
                set.member_deltas.book(item_members, set.named_port.as_ref(), if change.matches { 1 } else { -1 });
            }
        }
    }

    /// Matches all changes without listing members, so that the counts are up to date.
    pub fn settle(&mut self) {
        let items = &self.items;
        let nets_of = |item| items[item].net_count() as u64;
        let group_changes = self.matcher.flush(&nets_of);
        if self.live > 0 {
            for change in group_changes.changes {
                self.book_group(change);
            }
        }
        self.matcher.freed = Vec::new();
        self.matcher.orphaned = Vec::new();
    }

    /// Appends the changes since the previous flush: new sets in full and the joined and departed
    /// members of other sets, sorted by id, then the removed sets, sorted by id. A set that was
    /// removed and added again is a new one.
    pub fn flush(&mut self, out: &mut Vec<SetChange>) {
        self.settle();
        self.matcher.coarsen_if_due();

        let start = out.len();
        let mut booked = std::mem::take(&mut self.booked);
        booked.sort_unstable();
        booked.dedup();
        booked.retain(|&id| matches!(self.sets.get(id), Some(Some(set)) if !set.member_deltas.is_empty()));
        if !booked.is_empty() {
            self.addresses.make(self.items.iter());
        }
        for id in booked {
            out.extend(self.delta(id).map(SetChange::Delta));
        }
        let mut new = std::mem::take(&mut self.new);
        new.sort_unstable();
        new.dedup();
        let lists = self.list_new(&new);
        for (id, nets) in new.into_iter().zip(lists) {
            if let Some(update) = self.full(id, nets) {
                self.dying.remove(&update.id);
                out.push(SetChange::Full(update));
            }
        }
        sort_from(out, start);
        let start = out.len();
        out.extend(std::mem::take(&mut self.dying).into_iter().map(SetChange::Remove));
        sort_from(out, start);
        if self.items.is_empty() {
            self.addresses.clear();
        }
        if self.sets.is_empty() {
            self.sets_of.clear();
        }
    }

    /// Makes a new set live and returns its members: the given networks, sorted, or its named
    /// ports.
    fn full(&mut self, id: SetId, mut nets: Vec<Cidr>) -> Option<IpSetUpdate> {
        // The set may have been removed again, or have been added twice.
        let set = self.sets.get(id)?.as_ref().filter(|set| !set.live)?;
        let (members, set_type, cover) = match &set.named_port {
            Some(named) => (Members::IpPorts(self.list_ports(set.selector, named)), IpSetType::IpAndPort, None),
            None => {
                sort(&mut nets);
                let mut cover = None;
                if self.overlap == Overlap::Suppress && !nets.iter().all(|net| net.is_host()) {
                    cover = Some(Box::new(Cover::of_sorted(&nets)));
                    cover::keep_maximal(&mut nets);
                }
                (Members::Nets(nets), IpSetType::Net, cover)
            }
        };
        let set = defined(&mut self.sets[id]);
        set.live = true;
        set.cover = cover;
        self.live += 1;
        Some(IpSetUpdate { id: self.sets.key(id).clone(), set_type, members })
    }

    /// Converts the member deltas of a live set to changes of the set.
    fn delta(&mut self, id: SetId) -> Option<IpSetDelta> {
        let set = defined(&mut self.sets[id]);
        let (selector, named) = (set.selector, set.named_port.clone());
        let (mut added, mut removed): (Vec<Member>, Vec<Member>) = (Vec::new(), Vec::new());
        for (member, net) in std::mem::take(&mut set.member_deltas).entries() {
            // A member that has gained `net` holders is new if it has exactly `net` holders.
            let limit = net.max(1).unsigned_abs() as usize;
            let holders = self.count_holders(selector, named.as_ref(), member, limit + 1);
            if net > 0 && holders == limit {
                added.push(member);
            } else if net < 0 && holders == 0 {
                removed.push(member);
            }
        }
        let (added, removed) = if named.is_some() {
            let list = |members: Vec<Member>| {
                let mut members: Vec<IpPortMember> = members.into_iter().filter_map(Member::with_port).collect();
                members.sort_unstable();
                Members::IpPorts(members)
            };
            (list(added), list(removed))
        } else {
            let list = |members: Vec<Member>| {
                let mut nets: Vec<Cidr> = members.into_iter().map(Member::net).collect();
                nets.sort_unstable();
                nets
            };
            let (added, removed) = self.suppress(id, list(added), list(removed));
            (Members::Nets(added), Members::Nets(removed))
        };
        let id = self.sets.key(id).clone();
        (!added.is_empty() || !removed.is_empty()).then_some(IpSetDelta { id, added, removed })
    }

    /// Returns the number of items that contribute a member to the sets of a selector, but at most
    /// `limit`.
    fn count_holders(&self, selector: SelId, named: Option<&NamedPort>, member: Member, limit: usize) -> usize {
        let groups = &self.matcher.groups.slab;
        let matches = |item| self.matcher.group_of(item).is_some_and(|group| groups[group].find(selector).is_ok());
        let holds = |item: ItemId| self.items[item].contributes(named, member);
        self.addresses.items(member.net()).filter(|&item| matches(item) && holds(item)).take(limit).count()
    }

    /// Reduces a change of a set's networks to a change of those that no other network of the set
    /// covers.
    fn suppress(&mut self, id: SetId, added: Vec<Cidr>, removed: Vec<Cidr>) -> (Vec<Cidr>, Vec<Cidr>) {
        let set = defined(&mut self.sets[id]);
        if self.overlap == Overlap::Keep || (set.cover.is_none() && added.iter().all(|net| net.is_host())) {
            return (added, removed);
        }
        let (selector, cover) = (set.selector, set.cover.take());
        let mut cover = cover.unwrap_or_else(|| {
            // The first networks in the set: until now it contained single addresses only.
            let now = self.list_nets(selector);
            let kept = now.into_iter().filter(|net| added.binary_search(net).is_err());
            let mut before: Vec<Cidr> = kept.chain(removed.iter().copied()).collect();
            before.sort_unstable();
            Box::new(Cover::of_sorted(&before))
        });
        let change = cover.change(&added, &removed);
        defined(&mut self.sets[id]).cover = Some(cover);
        change
    }

    /// Reports whether the index holds no data. Removed objects are held until the next flush.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.matcher.is_empty()
            && self.items.is_empty()
            && self.addresses.is_empty()
            && self.sets.is_empty()
            && self.new.is_empty()
            && self.booked.is_empty()
            && self.dying.is_empty()
            && self.live == 0
            && self.nets == 0
    }

    /// Returns sizes and effort.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.matcher.stats()
    }
}
