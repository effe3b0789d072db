//! Which items match which keyed selectors.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use tortie_model::{Labels, ProfileName};
use tortie_selector::Selector;

use crate::list::position;
use crate::match_events::Told;
use crate::match_sets::{Fingerprint, MatchSets};
use crate::matcher::Matcher;
use crate::slab::{GroupId, ItemId, KeyId, KeyTable, SelId, SideTable};
use crate::types::{MatchChanges, MatchEvent, MatchSetId, ParentLabels, Stats};

/// Items with inherited labels against keyed selectors.
///
/// Changes are taken at any time and in any order; [`MatchIndex::flush`] matches them. The index is to be asked after
/// a flush and before the next change.
#[derive(Clone, Debug)]
pub struct MatchIndex<I, S> {
    matcher: Matcher,
    /// Items, with the match set of each at the last flush.
    items: KeyTable<ItemId, I, Option<MatchSetId>>,
    /// Items that were put into a group since the last flush.
    moved: Vec<ItemId>,
    keys: KeyTable<KeyId, S, KeyUse>,
    /// The keys of each selector.
    keys_of: SideTable<SelId, Keys>,
    /// Keys that were added, changed or removed since the last flush.
    touched: Vec<KeyId>,
    sets: MatchSets,
    /// Since [`MatchIndex::flush_events`] was called first.
    told: Option<Box<Told<I, S>>>,
}

/// The keys of a selector: nearly always one.
#[derive(Clone, Debug, Default)]
enum Keys {
    #[default]
    None,
    One(KeyId),
    Several(Box<(Vec<KeyId>, Fingerprint)>),
}

impl Keys {
    fn ids(&self) -> &[KeyId] {
        match self {
            Self::None => &[],
            Self::One(id) => std::slice::from_ref(id),
            Self::Several(keys) => &keys.0,
        }
    }

    /// Adds a key and tells its place.
    fn add(&mut self, id: KeyId) -> u32 {
        match self {
            Self::None => *self = Self::One(id),
            Self::One(first) => {
                let ids = vec![*first, id];
                let fingerprint = Fingerprint::of(&ids);
                *self = Self::Several(Box::new((ids, fingerprint)));
            }
            Self::Several(keys) => {
                keys.0.push(id);
                keys.1.add(id);
            }
        }
        position(self.ids().len() - 1)
    }

    /// Removes the key at this place; gives back the one that took the place.
    fn remove(&mut self, id: KeyId, at: u32) -> Option<KeyId> {
        let at = at as usize;
        match self {
            Self::Several(keys) => {
                keys.0.swap_remove(at);
                keys.1.remove(id);
                if let [only] = keys.0[..] {
                    *self = Self::One(only);
                }
            }
            _ => *self = Self::None,
        }
        self.ids().get(at).copied()
    }

    fn fingerprint(&self) -> Fingerprint {
        match self {
            Self::Several(keys) => keys.1,
            _ => Fingerprint::of(self.ids()),
        }
    }
}

/// What a key stands for.
#[derive(Clone, Copy, Debug, Default)]
struct KeyUse {
    /// The selector and the place among its keys; `None` if the key was removed.
    selector: Option<(SelId, u32)>,
    /// The selector at the last flush.
    flushed: Option<SelId>,
    /// Whether some item matched at the last flush.
    active: bool,
}

impl<I, S> Default for MatchIndex<I, S> {
    fn default() -> Self {
        Self {
            matcher: Matcher::default(),
            items: KeyTable::default(),
            moved: Vec::new(),
            keys: KeyTable::default(),
            keys_of: SideTable::default(),
            touched: Vec::new(),
            sets: MatchSets::default(),
            told: None,
        }
    }
}

impl<I: Clone + Eq + Hash + Ord, S: Clone + Eq + Hash + Ord> MatchIndex<I, S> {
    /// An empty index.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces an item without parents.
    pub fn set_item(&mut self, key: &I, labels: &Labels) {
        self.set_item_with_parents(key, labels, &Arc::default(), &());
    }

    /// Adds or replaces an item: its own labels, and its parents from the most to the least specific, whose labels are
    /// among the `known` ones unless they have none.
    pub fn set_item_with_parents(
        &mut self,
        key: &I,
        labels: &Labels,
        parents: &Arc<[ProfileName]>,
        known: &impl ParentLabels,
    ) {
        let (item, _) = self.items.find_or_insert(Cow::Borrowed(key), || None);
        let target = self.matcher.target(labels, parents, known);
        if self.matcher.group_of(item) != Some(target) {
            self.moved.push(item);
        }
        self.matcher.move_item(item, labels, target);
    }

    /// Removes an item; does nothing if it is unknown. Added again, it counts as new.
    pub fn remove_item(&mut self, key: &I) {
        let Some(item) = self.items.find(key) else { return };
        self.matcher.remove_item(item);
        self.items.remove(item);
        if let Some(told) = &mut self.told {
            told.touch([key.clone()]);
        }
    }

    /// Says which labels a parent hands down now; `None` if the parent is gone. Has no effect on a parent that no item
    /// has.
    pub fn set_parent(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        self.matcher.set_parent(name, labels);
    }

    /// Adds a selector or replaces the one with this key. Many keys may have the same selector.
    pub fn set_selector(&mut self, key: &S, selector: &Selector) {
        let (id, _) = self.keys.find_or_insert(Cow::Borrowed(key), KeyUse::default);
        let new = self.matcher.acquire(selector);
        if self.selector_of(id) == Some(new) {
            self.matcher.release(new);
            return;
        }
        self.detach(id);
        self.keys[id].selector = Some((new, self.keys_of.entry(new).add(id)));
        self.touched.push(id);
    }

    /// Removes a selector; does nothing if it is unknown.
    pub fn remove_selector(&mut self, key: &S) {
        if let Some(id) = self.keys.find(key) {
            self.detach(id);
        }
    }

    fn selector_of(&self, id: KeyId) -> Option<SelId> {
        Some(self.keys[id].selector?.0)
    }

    fn detach(&mut self, id: KeyId) {
        let Some((selector, at)) = self.keys[id].selector.take() else { return };
        if let Some(moved) = self.keys_of.entry(selector).remove(id, at) {
            self.keys[moved].selector = Some((selector, at));
        }
        self.matcher.release(selector);
        self.touched.push(id);
    }

    /// Matches everything that was added or changed since the previous flush.
    pub fn flush(&mut self) -> MatchChanges<I, S> {
        let group_changes = self.matcher.flush(&|_| 0);
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        let rekeyed = self.rekeyed_selectors(&touched);
        let changed_groups = group_changes.changes.iter().map(|change| change.group);
        let changed_items = self.update_items(group_changes.new_groups.into_iter().chain(changed_groups), &rekeyed);

        let mut changed_selectors: Vec<SelId> = group_changes.changes.iter().map(|change| change.selector).collect();
        changed_selectors.append(&mut self.matcher.orphaned);
        changed_selectors.sort_unstable();
        changed_selectors.dedup();
        let mut out = MatchChanges { changed_items, ..MatchChanges::default() };
        self.update_keys(touched, &changed_selectors, &mut out);
        self.matcher.coarsen_if_due();
        if let Some(told) = &mut self.told {
            told.touch(out.changed_items.iter().cloned());
        }
        out
    }

    /// Matches as [`MatchIndex::flush`] does, and tells pair by pair what is different from the previous call of this
    /// method; nothing was so before the first. What starts and stops again in between is not told, and removed items and
    /// selectors match nothing. Sorted by item and then by selector.
    ///
    /// From the first call on the index remembers what it has told: a number for each item, and the keys of each distinct
    /// set of selectors that items match. Who never calls this pays nothing for it.
    ///
    /// ```
    /// use tortie_labelindex::{MatchEvent, MatchIndex};
    /// use tortie_model::Labels;
    /// use tortie_selector::Selector;
    ///
    /// let mut index = MatchIndex::new();
    /// index.set_selector(&"guard", &Selector::parse("app == 'web'").unwrap());
    /// index.set_item(&"web-1", &Labels::from_pairs([("app", "web")]).unwrap());
    /// assert_eq!(index.flush_events(), [MatchEvent::Started { item: "web-1", selector: "guard" }]);
    /// index.remove_item(&"web-1");
    /// assert_eq!(index.flush_events(), [MatchEvent::Stopped { item: "web-1", selector: "guard" }]);
    /// ```
    pub fn flush_events(&mut self) -> Vec<MatchEvent<I, S>> {
        let all = || Told::nothing_of(self.items.iter().map(|(id, _)| self.items.key(id).clone()));
        let mut told = self.told.take().unwrap_or_else(|| Box::new(all()));
        told.touch(self.flush().changed_items);
        let events = told.compare(|item| self.match_set(item), |set| self.matches(set).cloned().collect());
        self.told = Some(told);
        events
    }

    /// The selectors that gained or lost keys.
    fn rekeyed_selectors(&mut self, touched: &[KeyId]) -> Vec<SelId> {
        let mut rekeyed = Vec::new();
        for &id in touched {
            let key = &mut self.keys[id];
            let now = key.selector.map(|(selector, _)| selector);
            let before = std::mem::replace(&mut key.flushed, now);
            if before != now {
                rekeyed.extend([before, now].into_iter().flatten());
            }
        }
        rekeyed.sort_unstable();
        rekeyed.dedup();
        rekeyed
    }

    /// Gives each changed group its match set, and tells the items that have another one now.
    fn update_items(&mut self, groups: impl Iterator<Item = GroupId>, rekeyed: &[SelId]) -> Vec<I> {
        for group in std::mem::take(&mut self.matcher.freed) {
            self.sets.unset(group);
        }
        let rekeyed_groups: Vec<GroupId> =
            rekeyed.iter().flat_map(|&s| self.matcher.groups_matching(s)).copied().collect();
        let mut items = std::mem::take(&mut self.moved);
        for id in groups.chain(rekeyed_groups) {
            let Some(group) = self.matcher.group(id) else { continue };
            let selectors = group.matches.iter().map(|&(selector, _)| selector);
            let keys = selectors.clone().filter_map(|selector| self.keys_of.get(selector));
            if self.sets.set(id, Fingerprint::union(keys.map(Keys::fingerprint)), selectors) {
                items.extend(&group.items);
            }
        }
        let mut changed = Vec::new();
        for item in items {
            let Some(group) = self.matcher.group_of(item) else { continue };
            let now = self.sets.of(group);
            if std::mem::replace(&mut self.items[item], now) != now {
                changed.push(self.items.key(item).clone());
            }
        }
        self.sets.sweep();
        changed.sort_unstable();
        changed
    }

    /// Tells the keys that became active or inactive, and forgets the removed ones.
    fn update_keys(&mut self, touched: Vec<KeyId>, changed: &[SelId], out: &mut MatchChanges<I, S>) {
        let mut keys = touched;
        let removed: Vec<KeyId> = keys.iter().copied().filter(|&id| self.selector_of(id).is_none()).collect();
        keys.extend(changed.iter().filter_map(|&selector| self.keys_of.get(selector)).flat_map(Keys::ids));
        for id in keys {
            let active = self.selector_of(id).is_some_and(|s| !self.matcher.groups_matching(s).is_empty());
            if std::mem::replace(&mut self.keys[id].active, active) != active {
                let list = if active { &mut out.activated } else { &mut out.deactivated };
                list.push(self.keys.key(id).clone());
            }
        }
        for id in removed {
            self.keys.remove(id);
        }
        if self.keys.is_empty() {
            self.keys_of.clear();
        }
        out.activated.sort_unstable();
        out.deactivated.sort_unstable();
    }

    /// The selectors that an item matches; `None` for an item that is unknown or newer than the last flush.
    #[must_use]
    pub fn match_set(&self, key: &I) -> Option<MatchSetId> {
        self.items[self.items.find(key)?]
    }

    /// The keys of the selectors in a match set, each once, in no particular order; none for an id that was given out
    /// before the last flush and is not in use any more.
    pub fn matches(&self, set: MatchSetId) -> impl Iterator<Item = &S> {
        let keys = self.sets.selectors(set).iter().filter_map(|&selector| self.keys_of.get(selector));
        keys.flat_map(Keys::ids).map(|&key| self.keys.key(key))
    }

    /// The match sets that contain a selector, sorted.
    pub fn match_sets_with(&self, key: &S) -> impl Iterator<Item = MatchSetId> {
        let groups = self.groups_matching(key).iter();
        let mut sets: Vec<MatchSetId> = groups.filter_map(|&group| self.sets.of(group)).collect();
        sets.sort_unstable();
        sets.dedup();
        sets.into_iter()
    }

    /// The items that match a selector, each once, in no particular order.
    pub fn items_matching(&self, key: &S) -> impl Iterator<Item = &I> {
        let groups = self.groups_matching(key).iter();
        groups.filter_map(|&group| self.matcher.group(group)).flat_map(|g| &g.items).map(|&i| self.items.key(i))
    }

    fn groups_matching(&self, key: &S) -> &[GroupId] {
        let selector = self.keys.find(key).and_then(|id| self.selector_of(id));
        selector.map_or(&[], |selector| self.matcher.groups_matching(selector))
    }

    /// Whether nothing is held. What was removed is held until the next flush, or the next [`MatchIndex::flush_events`] if
    /// that is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let has_told_nothing = self.told.as_ref().is_none_or(|told| told.is_empty());
        self.matcher.is_empty()
            && self.items.is_empty()
            && self.keys.is_empty()
            && self.sets.is_empty()
            && has_told_nothing
    }

    /// Sizes and effort.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.matcher.stats()
    }
}
