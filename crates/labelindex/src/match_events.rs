//! Events for pairs of an item and a selector that start or stop to match, for callers that ask for
//! them.
//!
//! The emitted state is kept by match set, not by pair: the match set of each item, and the keys of
//! each match set. Match sets never change, so all items that change from one set to another share
//! one comparison.

use std::collections::HashMap;
use std::hash::{Hash, RandomState};

use rustc_hash::FxHashMap;

use crate::types::{MatchEvent, MatchSetId};

/// The matches that [`crate::MatchIndex::flush_events`] has emitted.
#[derive(Clone, Debug)]
pub(crate) struct ReportedMatches<I, S> {
    /// The match set of each item.
    items: HashMap<I, MatchSetId, RandomState>,
    sets: FxHashMap<MatchSetId, ReportedSet<S>>,
    /// Items whose match set may have changed.
    touched: Vec<I>,
}

/// An emitted match set.
#[derive(Clone, Debug)]
struct ReportedSet<S> {
    /// Sorted.
    keys: Vec<S>,
    /// Number of items. During a comparison, sets without items are kept.
    items: usize,
}

impl<I: Clone + Eq + Hash + Ord, S: Clone + Eq + Hash + Ord> ReportedMatches<I, S> {
    /// Returns an empty state in which these items are yet to be compared.
    pub(crate) fn nothing_of(items: impl Iterator<Item = I>) -> Self {
        Self { items: HashMap::default(), sets: FxHashMap::default(), touched: items.collect() }
    }

    /// Marks items to be compared.
    pub(crate) fn touch(&mut self, items: impl IntoIterator<Item = I>) {
        self.touched.extend(items);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.sets.is_empty() && self.touched.is_empty()
    }

    /// Returns the difference between the current and the emitted matches, and makes the current
    /// ones the emitted ones. `match_set` returns the match set of an item, `keys` the keys of a
    /// match set.
    pub(crate) fn compare(
        &mut self,
        match_set: impl Fn(&I) -> Option<MatchSetId>,
        keys: impl Fn(MatchSetId) -> Vec<S>,
    ) -> Vec<MatchEvent<I, S>> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        let mut events = Vec::new();
        let mut steps: FxHashMap<_, Vec<(S, bool)>> = FxHashMap::default();
        for item in touched {
            let now = match_set(&item);
            let before = self.replace(&item, now, &keys);
            if before == now {
                continue;
            }
            for (selector, starts) in steps.entry((before, now)).or_insert_with(|| self.step(before, now)) {
                let (item, selector) = (item.clone(), selector.clone());
                let event = if *starts {
                    MatchEvent::Started { item, selector }
                } else {
                    MatchEvent::Stopped { item, selector }
                };
                events.push(event);
            }
        }
        self.sets.retain(|_, set| set.items > 0);
        events
    }

    /// Stores the match set of an item, and returns the one that was emitted before.
    fn replace(
        &mut self,
        item: &I,
        now: Option<MatchSetId>,
        keys: impl Fn(MatchSetId) -> Vec<S>,
    ) -> Option<MatchSetId> {
        let before = match now {
            Some(set) => self.items.insert(item.clone(), set),
            None => self.items.remove(item),
        };
        if let Some(set) = before.and_then(|set| self.sets.get_mut(&set)) {
            set.items -= 1;
        }
        if let Some(set) = now {
            self.sets.entry(set).or_insert_with(|| ReportedSet { keys: sorted(keys(set)), items: 0 }).items += 1;
        }
        before
    }

    /// Returns the keys that only one of the sets contains, sorted, each with whether that is the
    /// second set.
    fn step(&self, before: Option<MatchSetId>, now: Option<MatchSetId>) -> Vec<(S, bool)> {
        let keys = |set: Option<MatchSetId>| set.and_then(|set| self.sets.get(&set)).map_or(&[][..], |set| &set.keys);
        let (before, now) = (keys(before), keys(now));
        let stopped = before.iter().filter(|key| now.binary_search(key).is_err()).map(|key| (key.clone(), false));
        let started = now.iter().filter(|key| before.binary_search(key).is_err()).map(|key| (key.clone(), true));
        let mut step: Vec<(S, bool)> = stopped.chain(started).collect();
        step.sort_unstable();
        step
    }
}

fn sorted<S: Ord>(mut keys: Vec<S>) -> Vec<S> {
    keys.sort_unstable();
    keys
}
