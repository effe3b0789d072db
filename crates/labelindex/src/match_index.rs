//! Index of items and the keyed selectors that match them.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use tortie_model::{Labels, ProfileName};
use tortie_selector::Selector;

use crate::list::position;
use crate::match_events::ReportedMatches;
use crate::match_sets::{Fingerprint, MatchSets};
use crate::matcher::Matcher;
use crate::slab::{GroupId, ItemId, KeyId, KeyTable, SelId, SideTable};
use crate::types::{MatchChanges, MatchEvent, MatchSetId, ParentLabels, Stats};

/// Index of items with inherited labels and keyed selectors.
///
/// Changes may be made at any time and in any order; [`MatchIndex::flush`] matches them. Queries
/// are valid after a flush and before the next change.
#[derive(Clone, Debug)]
pub struct MatchIndex<I, S> {
    matcher: Matcher,
    /// Items, with the match set of each at the last flush.
    items: KeyTable<ItemId, I, Option<MatchSetId>>,
    /// Items that entered a group since the last flush.
    moved: Vec<ItemId>,
    keys: KeyTable<KeyId, S, KeyUse>,
    /// Keys of each selector.
    keys_of: SideTable<SelId, Keys>,
    /// Keys that were added, changed or removed since the last flush.
    touched: Vec<KeyId>,
    sets: MatchSets,
    /// Emitted matches; `None` before the first call of [`MatchIndex::flush_events`].
    reported: Option<Box<ReportedMatches<I, S>>>,
}

/// The keys of a selector, nearly always one.
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

    /// Adds a key and returns its position.
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

    /// Removes the key at position `at`; returns the key that took the position, if any.
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

/// State of a key.
#[derive(Clone, Copy, Debug, Default)]
struct KeyUse {
    /// The selector and the position among its keys; `None` if the key was removed.
    selector: Option<(SelId, u32)>,
    /// The selector at the last flush.
    flushed: Option<SelId>,
    /// Whether an item matched at the last flush.
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
            reported: None,
        }
    }
}

impl<I: Clone + Eq + Hash + Ord, S: Clone + Eq + Hash + Ord> MatchIndex<I, S> {
    /// Returns an empty index.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces an item without parents.
    pub fn set_item(&mut self, key: &I, labels: &Labels) {
        self.set_item_with_parents(key, labels, &Arc::default(), &());
    }

    /// Adds or replaces an item. `parents` are in descending precedence; `known` contains the
    /// labels of those that have labels.
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

    /// Removes an item; does nothing if it is unknown. An item that is added again counts as new.
    pub fn remove_item(&mut self, key: &I) {
        let Some(item) = self.items.find(key) else { return };
        self.matcher.remove_item(item);
        self.items.remove(item);
        if let Some(reported) = &mut self.reported {
            reported.touch([key.clone()]);
        }
    }

    /// Sets the labels that items inherit from a parent; `None` if the parent is removed. Has no
    /// effect on a parent that no item has.
    pub fn set_parent(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        self.matcher.set_parent(name, labels);
    }

    /// Adds a selector or replaces the one with this key. Several keys may have the same selector.
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

    /// Matches all changes since the previous flush and returns their effect.
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
        if let Some(reported) = &mut self.reported {
            reported.touch(out.changed_items.iter().cloned());
        }
        out
    }

    /// Matches as [`MatchIndex::flush`] does, and returns the pairs of items and selectors that
    /// differ from the previous call of this method, sorted by item and then by selector. Before
    /// the first call no pair matches. Matches that start and stop again in between are not
    /// reported. Removed items and selectors match nothing.
    ///
    /// From the first call on, the index keeps the emitted state: a number for each item, and the
    /// keys of each distinct set of selectors that items match. An index on which this method is
    /// never called has no such cost.
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
        let all = || ReportedMatches::nothing_of(self.items.iter().map(|(id, _)| self.items.key(id).clone()));
        let mut reported = self.reported.take().unwrap_or_else(|| Box::new(all()));
        reported.touch(self.flush().changed_items);
        let events = reported.compare(|item| self.match_set(item), |set| self.matches(set).cloned().collect());
        self.reported = Some(reported);
        events
    }

    /// Returns the selectors that gained or lost keys.
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

    /// Updates the match set of each changed group; returns the items whose match set has changed.
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

    /// Reports the keys that became active or inactive, and removes the deleted ones.
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

    /// Returns the match set of an item; `None` for an item that is unknown or newer than the last
    /// flush.
    #[must_use]
    pub fn match_set(&self, key: &I) -> Option<MatchSetId> {
        self.items[self.items.find(key)?]
    }

    /// Returns the keys of the selectors in a match set, each once, in no particular order. A match
    /// set from before the last flush that is no longer in use has none.
    pub fn matches(&self, set: MatchSetId) -> impl Iterator<Item = &S> {
        let keys = self.sets.selectors(set).iter().filter_map(|&selector| self.keys_of.get(selector));
        keys.flat_map(Keys::ids).map(|&key| self.keys.key(key))
    }

    /// Returns the match sets that contain a selector, sorted.
    pub fn match_sets_with(&self, key: &S) -> impl Iterator<Item = MatchSetId> {
        let groups = self.groups_matching(key).iter();
        let mut sets: Vec<MatchSetId> = groups.filter_map(|&group| self.sets.of(group)).collect();
        sets.sort_unstable();
        sets.dedup();
        sets.into_iter()
    }

    /// Returns the items that match a selector, each once, in no particular order.
    pub fn items_matching(&self, key: &S) -> impl Iterator<Item = &I> {
        let groups = self.groups_matching(key).iter();
        groups.filter_map(|&group| self.matcher.group(group)).flat_map(|g| &g.items).map(|&i| self.items.key(i))
    }

    fn groups_matching(&self, key: &S) -> &[GroupId] {
        let selector = self.keys.find(key).and_then(|id| self.selector_of(id));
        selector.map_or(&[], |selector| self.matcher.groups_matching(selector))
    }

    /// Reports whether the index holds no data. Removed objects are held until the next flush, or
    /// the next [`MatchIndex::flush_events`] if that method is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let has_reported_nothing = self.reported.as_ref().is_none_or(|reported| reported.is_empty());
        self.matcher.is_empty()
            && self.items.is_empty()
            && self.keys.is_empty()
            && self.sets.is_empty()
            && has_reported_nothing
    }

    /// Returns sizes and effort.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.matcher.stats()
    }
}
