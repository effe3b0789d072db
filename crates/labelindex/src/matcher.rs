//! Common part of both indexes: the matches of items and selectors.
//!
//! Items may be added and removed at any time, and are assigned to groups at once. Selectors wait
//! for [`Matcher::flush`] (`matching.rs`): it makes the compared labels visible (`visibility.rs`),
//! files the selectors, and matches new selectors with all groups and new groups with all
//! selectors. Until then the matches of a group are those of the last flush, so the owner of the
//! matcher can count each change exactly once.

use smallvec::SmallVec;
use std::sync::Arc;
use tortie_model::{LabelValues, Labels, ProfileName};
use tortie_selector::{LabelSource, Selector};

use crate::facts::Facts;
use crate::groups::{Group, Groups};
use crate::list::{List, relink};
use crate::parents::Parents;
use crate::selectors::Selectors;
use crate::shapes::{ShapeUse, Shapes};
use crate::slab::{GroupId, ItemId, ListId, SelId, ShapeId, SideTable, TermId};
use crate::types::{ParentLabels, Scans, Stats};

/// A group started or stopped matching a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) group: GroupId,
    pub(crate) selector: SelId,
    pub(crate) matches: bool,
}

/// The values of an item's labels, and its place. The shape of the labels is the group's.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemPlacement {
    pub(crate) values: Option<LabelValues>,
    /// The group, and the position among its items.
    pub(crate) place: Option<(GroupId, u32)>,
}

/// Effective labels of the items of a group: own labels, otherwise those of the first parent in the
/// list that has the label (`felix/labelindex/label_inheritance_index.go`).
pub(crate) struct Effective<'a> {
    shape: &'a ShapeUse,
    values: Option<&'a LabelValues>,
    parents: &'a Parents,
    shapes: &'a Shapes,
    list: ListId,
}

impl LabelSource for Effective<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let own = self.shape.value(self.values, key);
        own.or_else(|| self.parents.value(self.shapes, self.list, key))
    }
}

/// Returns the terms of the visible labels. The caller must link new terms at once.
pub(crate) fn visible_terms(
    facts: &mut Facts,
    shapes: &Shapes,
    shape: ShapeId,
    values: Option<&LabelValues>,
) -> SmallVec<[TermId; 8]> {
    let shape = &shapes.uses[shape];
    let term = |(name, value)| facts.term(name, value);
    shape.visible_values(values).map(term).collect()
}

/// Items, parents and selectors, and the matches of groups of items with selectors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Matcher {
    pub(crate) facts: Facts,
    pub(crate) shapes: Shapes,
    pub(crate) parents: Parents,
    pub(crate) groups: Groups,
    pub(crate) selectors: Selectors,
    pub(crate) items: SideTable<ItemId, ItemPlacement>,
    pub(crate) item_count: usize,
    /// Groups that must be matched against the filed selectors: new ones, and those with changed
    /// parents.
    pub(crate) waiting: Vec<GroupId>,
    /// Groups that were removed since the owner last took this list.
    pub(crate) freed: Vec<GroupId>,
    /// Selectors that lost their last group by such a removal.
    pub(crate) orphaned: Vec<SelId>,
    /// Number of stale names: visible, although no selector compares their values.
    pub(crate) stale_names: usize,
    /// Work done since the last check whether groups can be merged.
    pub(crate) churn: usize,
    pub(crate) evaluations: u64,
    pub(crate) scans: Scans,
}

impl Matcher {
    /// Returns the group for an item with these labels and parents. If the group is new, the caller
    /// must move an item there at once.
    pub(crate) fn target(
        &mut self,
        labels: &Labels,
        parents: &Arc<[ProfileName]>,
        known: &impl ParentLabels,
    ) -> GroupId {
        let shape = self.shapes.intern(&mut self.facts, labels.shape());
        let list = self.parents.intern(&mut self.facts, &mut self.shapes, parents, known);
        let terms = visible_terms(&mut self.facts, &self.shapes, shape, labels.values());
        let hash = Groups::hash(shape, list, terms.iter().copied());
        if let Some(group) = self.groups.find(hash, shape, list, &terms) {
            return group;
        }
        let group = self.create_group(hash, shape, list, &terms);
        self.groups.slab[group].waiting = true;
        self.waiting.push(group);
        group
    }

    /// Creates an empty group without matches.
    pub(crate) fn create_group(&mut self, hash: u32, shape: ShapeId, list: ListId, terms: &[TermId]) -> GroupId {
        let id = self.groups.slab.insert(Group {
            shape,
            list,
            at_shape: 0,
            at_list: 0,
            hash,
            nets: 0,
            waiting: false,
            terms: List::Empty,
            items: List::Empty,
            matches: List::Empty,
        });
        self.groups.slab[id].at_shape = self.shapes.uses[shape].groups.push(id);
        self.groups.slab[id].at_list = self.parents.lists[list].groups.push(id);
        self.link_terms(id, terms);
        self.groups.enter(id);
        self.churn += 1;
        id
    }

    /// Adds a group to the lists of its terms.
    pub(crate) fn link_terms(&mut self, group: GroupId, terms: &[TermId]) {
        let link = |&term: &TermId| (term, self.facts.terms[term].groups.push(group));
        self.groups.slab[group].terms = terms.iter().map(link).collect();
    }

    /// Removes a group from the lists of its terms. Returns the terms, for [`Facts::release_term`].
    pub(crate) fn unlink_terms(&mut self, group: GroupId) -> SmallVec<[TermId; 2]> {
        let terms = std::mem::take(&mut self.groups.slab[group].terms);
        for &(term, at) in &terms {
            if let Some(moved) = self.facts.terms[term].groups.swap_remove(at) {
                relink(&mut self.groups.slab[moved].terms, term, at);
            }
        }
        terms.iter().map(|&(term, _)| term).collect()
    }

    /// Assigns an item, new or not, to a group and sets its labels. The item's former group is
    /// removed if it becomes empty.
    pub(crate) fn move_item(&mut self, item: ItemId, labels: &Labels, to: GroupId) {
        let placed = self.items.entry(item);
        placed.values = labels.values().cloned();
        let from = placed.place;
        if from.is_some_and(|(group, _)| group == to) {
            return;
        }
        placed.place = Some((to, self.groups.slab[to].items.push(item)));
        match from {
            Some((group, at)) => self.leave(group, at),
            None => self.item_count += 1,
        }
        self.churn += 1;
    }

    /// Adds `change` to the number of networks of an item's group and of the selectors that the
    /// group matched at the last flush.
    #[expect(clippy::expect_used, reason = "items are counted while they are in a group, each network once")]
    pub(crate) fn change_nets(&mut self, item: ItemId, change: i64) {
        let group = self.group_of(item).expect("items with networks are in a group");
        let group = &mut self.groups.slab[group];
        let selectors = group.matches.iter().map(|&(selector, _)| selector);
        let change = |nets: &mut u64| *nets = nets.checked_add_signed(change).expect("each network is counted once");
        change(&mut group.nets);
        selectors.for_each(|selector| change(&mut self.selectors.uses[selector].nets));
    }

    pub(crate) fn remove_item(&mut self, item: ItemId) {
        if let Some((group, at)) = self.items.take(item).place {
            self.leave(group, at);
            self.item_count -= 1;
            self.churn += 1;
            if self.item_count == 0 {
                self.items.clear();
            }
        }
    }

    fn leave(&mut self, group: GroupId, at: u32) {
        let items = &mut self.groups.slab[group].items;
        match items.swap_remove(at) {
            Some(moved) => self.items.entry(moved).place = Some((group, at)),
            None if items.is_empty() => self.free_group(group),
            None => {}
        }
    }

    /// Removes an empty group, with all objects that only this group used.
    pub(crate) fn free_group(&mut self, id: GroupId) {
        self.groups.withdraw(id);
        for term in self.unlink_terms(id) {
            self.facts.release_term(term);
        }
        for &(selector, at) in &std::mem::take(&mut self.groups.slab[id].matches) {
            self.unlink_match(selector, at);
            if self.selectors.uses[selector].groups.is_empty() {
                self.orphaned.push(selector);
            }
        }
        let group = self.groups.slab.remove(id);
        if let Some(moved) = self.shapes.uses[group.shape].groups.swap_remove(group.at_shape) {
            self.groups.slab[moved].at_shape = group.at_shape;
        }
        if let Some(moved) = self.parents.lists[group.list].groups.swap_remove(group.at_list) {
            self.groups.slab[moved].at_list = group.at_list;
        }
        self.stale_names -= self.shapes.release(&mut self.facts, group.shape);
        self.stale_names -= self.parents.release_list(&mut self.facts, &mut self.shapes, group.list);
        self.freed.push(id);
    }

    /// Removes the group at position `at` of a selector's groups. The group no longer lists the
    /// selector.
    #[expect(clippy::expect_used, reason = "selectors list the groups that list them")]
    pub(crate) fn unlink_match(&mut self, selector: SelId, at: u32) {
        if let Some(moved) = self.selectors.uses[selector].groups.swap_remove(at) {
            let moved = &mut self.groups.slab[moved];
            let place = moved.find(selector).expect("groups of a selector match it");
            moved.matches[place].1 = at;
        }
    }

    /// Sets or removes the labels of a parent, if an item has this parent. Its groups are matched
    /// again by the next flush if a selector mentions a label that changed.
    pub(crate) fn set_parent(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        let Some(id) = self.parents.find(name) else { return };
        let old = self.parents.labels(&self.shapes, id);
        if old.as_ref() == labels {
            return;
        }
        let none = Labels::default();
        let changed = self.is_mentioned(old.as_ref().unwrap_or(&none), labels.unwrap_or(&none));
        self.stale_names -= self.parents.unindex(&mut self.facts, &mut self.shapes, id);
        self.parents.index(&mut self.facts, &mut self.shapes, id, labels);
        if changed {
            let lists = self.parents.get(id).lists.iter();
            for &group in lists.flat_map(|&list| &self.parents.lists[list].groups) {
                if !std::mem::replace(&mut self.groups.slab[group].waiting, true) {
                    self.waiting.push(group);
                }
            }
        }
    }

    /// Reports whether a selector mentions a label in which the two differ.
    fn is_mentioned(&self, old: &Labels, new: &Labels) -> bool {
        let mentioned = |key: &str| self.facts.find_name(key).is_some_and(|name| self.facts.names[name].mentions > 0);
        old.iter().any(|(key, value)| new.get(key) != Some(value) && mentioned(key))
            || new.iter().any(|(key, _)| old.get(key).is_none() && mentioned(key))
    }

    /// Returns the effective labels of the items in a group.
    #[expect(clippy::expect_used, reason = "a group goes with its last item")]
    pub(crate) fn effective(&self, group: &Group) -> Effective<'_> {
        let first = group.items.first().and_then(|&item| self.items.get(item)).expect("groups have items");
        let (parents, shapes, values) = (&self.parents, &self.shapes, first.values.as_ref());
        Effective { shape: &shapes.uses[group.shape], values, parents, shapes, list: group.list }
    }

    /// Adds a user of a selector.
    pub(crate) fn acquire(&mut self, selector: &Selector) -> SelId {
        self.selectors.acquire(&mut self.facts, selector)
    }

    /// Removes a user of a selector.
    pub(crate) fn release(&mut self, selector: SelId) {
        self.selectors.release(selector);
    }

    /// Returns the group of an item.
    pub(crate) fn group_of(&self, item: ItemId) -> Option<GroupId> {
        Some(self.items.get(item)?.place?.0)
    }

    /// Returns a group; `None` if the id is not in use.
    pub(crate) fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.slab.get(id)
    }

    /// Returns the number of networks of the groups that matched a selector at the last flush.
    pub(crate) fn nets_matching(&self, selector: SelId) -> u64 {
        self.selectors.uses[selector].nets
    }

    /// Returns the groups that matched a selector at the last flush; none if it was removed.
    pub(crate) fn groups_matching(&self, selector: SelId) -> &[GroupId] {
        self.selectors.uses.get(selector).map_or(&[], |s| &s.groups)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.facts.is_empty()
            && self.shapes.is_empty()
            && self.parents.is_empty()
            && self.groups.is_empty()
            && self.selectors.is_empty()
            && self.item_count == 0
            && self.waiting.is_empty()
            && self.stale_names == 0
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            items: self.item_count,
            groups: self.groups.slab.len(),
            selectors: self.selectors.uses.len(),
            parents: self.parents.len(),
            evaluations: self.evaluations,
            scans: self.scans,
        }
    }
}
