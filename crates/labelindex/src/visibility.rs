//! Visibility of labels: the labels whose values split groups.
//!
//! The first selector that compares the values of a label makes it visible: groups are split by the
//! value. The parts inherit the matches of the whole, so nothing is evaluated. After the removal of
//! the last such selector, the groups are finer than needed, which costs only memory. They are
//! merged some time later, so that a selector that is added and removed repeatedly does not split
//! and merge all groups of a cluster each time.

use smallvec::SmallVec;

use crate::groups::{Group, Groups};
use crate::matcher::{Matcher, visible_terms};
use crate::selectors::NewSelector;
use crate::slab::{GroupId, ItemId, ShapeId, TermId};

impl Matcher {
    /// Makes the labels visible that new selectors compare, in one pass for all selectors.
    pub(crate) fn index_values(
        &mut self,
        new: &[NewSelector],
        nets_of: &dyn Fn(ItemId) -> u64,
        new_groups: &mut Vec<GroupId>,
    ) {
        let mut shapes: Vec<ShapeId> = Vec::new();
        for &(name, compares) in new.iter().flat_map(|selector| &selector.names) {
            if !compares {
                continue;
            }
            let name = &mut self.facts.names[name];
            name.comparers += 1;
            if !name.visible {
                name.visible = true;
                shapes.extend(name.shapes.iter());
            } else if name.comparers == 1 {
                self.stale_names -= 1;
            }
        }
        shapes.sort_unstable();
        shapes.dedup();
        for shape in shapes {
            self.shapes.refresh_visible(&self.facts, shape);
            for &group in &self.shapes.uses[shape].groups.clone() {
                self.split(group, nets_of, new_groups);
            }
            self.reindex_parents(shape);
        }
    }

    fn reindex_parents(&mut self, shape: ShapeId) {
        for &parent in &self.shapes.uses[shape].parents.clone() {
            self.parents.unindex_terms(&mut self.facts, parent);
            self.parents.index_terms(&mut self.facts, &self.shapes, parent);
        }
    }

    /// Splits a group by the values that are visible now. The group keeps the items with the values
    /// of its first item.
    fn split(&mut self, id: GroupId, nets_of: &dyn Fn(ItemId) -> u64, new_groups: &mut Vec<GroupId>) {
        self.groups.withdraw(id);
        let items = std::mem::take(&mut self.groups.slab[id].items);
        // The parts together have as many networks as the whole, so the numbers of the selectors do
        // not change.
        self.groups.slab[id].nets = 0;
        let old_terms = self.unlink_terms(id);
        let Group { shape, list, waiting, ref matches, .. } = self.groups.slab[id];
        let matches = matches.clone();
        let mut keeps: Option<(GroupId, u32)> = None;
        for &item in &items {
            let values = self.items.entry(item).values.as_ref();
            let terms = visible_terms(&mut self.facts, &self.shapes, shape, values);
            let hash = Groups::hash(shape, list, terms.iter().copied());
            let target = match self.groups.find(hash, shape, list, &terms) {
                Some(target) => target,
                None if keeps.is_none() => {
                    self.groups.slab[id].hash = hash;
                    self.link_terms(id, &terms);
                    self.groups.enter(id);
                    keeps = Some((id, hash));
                    id
                }
                None => {
                    let part = self.create_group(hash, shape, list, &terms);
                    for &(selector, _) in &matches {
                        self.start_match(part, selector);
                    }
                    self.groups.slab[part].waiting = waiting;
                    if waiting {
                        self.waiting.push(part);
                    }
                    new_groups.push(part);
                    part
                }
            };
            self.assign(item, target);
            self.groups.slab[target].nets += nets_of(item);
        }
        for term in old_terms {
            self.release_term_if_there(term);
        }
    }

    /// Adds an item to a group without removing it from another one.
    fn assign(&mut self, item: ItemId, group: GroupId) {
        self.items.entry(item).place = Some((group, self.groups.slab[group].items.push(item)));
    }

    fn release_term_if_there(&mut self, term: TermId) {
        if self.facts.terms.get(term).is_some() {
            self.facts.release_term(term);
        }
    }

    /// Merges groups that are finer than needed, after enough work since the last time that the
    /// effort is negligible.
    pub(crate) fn coarsen_if_due(&mut self) {
        /// Number of flushes after which groups are merged in any case.
        const PATIENCE: usize = 64;
        if self.stale_names == 0 {
            self.churn = 0;
            return;
        }
        self.churn += self.item_count / PATIENCE + 1;
        if self.churn >= self.item_count {
            self.churn = 0;
            self.coarsen();
        }
    }

    fn coarsen(&mut self) {
        let mut shapes: Vec<ShapeId> = Vec::new();
        let names: Vec<_> = self.facts.names.ids().collect();
        for name in names {
            let name = &mut self.facts.names[name];
            if name.visible && name.comparers == 0 {
                name.visible = false;
                shapes.extend(name.shapes.iter());
            }
        }
        self.stale_names = 0;
        shapes.sort_unstable();
        shapes.dedup();
        for shape in shapes {
            self.shapes.refresh_visible(&self.facts, shape);
            for &group in &self.shapes.uses[shape].groups.clone() {
                self.merge(group);
            }
            self.reindex_parents(shape);
        }
    }

    /// Removes the terms of a group that are no longer visible. If it then equals another group,
    /// its items move there. Both groups have the same matches, because no selector could
    /// distinguish them at the last flush.
    fn merge(&mut self, id: GroupId) {
        self.groups.withdraw(id);
        let old_terms = self.unlink_terms(id);
        let Group { shape, list, .. } = self.groups.slab[id];
        let is_visible = |&term: &TermId| self.facts.names[self.facts.terms[term].name].visible;
        let terms: SmallVec<[TermId; 8]> = old_terms.iter().copied().filter(is_visible).collect();
        let hash = Groups::hash(shape, list, terms.iter().copied());
        let twin = self.groups.find(hash, shape, list, &terms);
        self.groups.slab[id].hash = hash;
        self.link_terms(id, &terms);
        self.groups.enter(id);
        for term in old_terms {
            self.release_term_if_there(term);
        }
        if let Some(twin) = twin {
            for &item in &std::mem::take(&mut self.groups.slab[id].items) {
                self.assign(item, twin);
            }
            self.groups.slab[twin].nets += std::mem::take(&mut self.groups.slab[id].nets);
            self.free_group(id);
        }
    }
}
