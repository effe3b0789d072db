//! The sets of patterns of all scopes.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use tortie_net::{DomainName, DomainPattern, IpSetId};

use crate::patterns::{Patterns, SetList};
use crate::slab::{Slab, Slot};

/// A set that has patterns, or that a scope uses.
#[derive(Debug)]
struct Set {
    id: IpSetId,
    patterns: Option<Arc<[DomainPattern]>>,
    /// The scopes that use it.
    users: BTreeSet<Slot>,
}

/// Sets by number, with their patterns in one trie.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    numbers: AHashMap<IpSetId, Slot>,
    sets: Slab<Set>,
    patterns: Patterns,
}

impl Sets {
    pub(crate) fn find(&self, id: &IpSetId) -> Option<Slot> {
        self.numbers.get(id).copied()
    }

    pub(crate) fn id(&self, set: Slot) -> &IpSetId {
        &self.sets.at(set).id
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.patterns.is_empty()
    }

    /// Returns the sets of `among` (in order) that match a name, in order.
    pub(crate) fn matching(&self, name: &DomainName, among: &[Slot]) -> SetList {
        self.patterns.matching(name, among)
    }

    /// Replaces the patterns of a set. Returns its number if they have changed.
    pub(crate) fn set_patterns(&mut self, id: &IpSetId, patterns: Option<Arc<[DomainPattern]>>) -> Option<Slot> {
        let number = if patterns.is_some() { self.number(id) } else { self.find(id)? };
        let before = std::mem::replace(&mut self.sets.at_mut(number).patterns, patterns.clone());
        if before == patterns {
            return None;
        }
        let (old, new) = (before.unwrap_or_default(), patterns.unwrap_or_default());
        let kept: AHashSet<&DomainPattern> = new.iter().collect();
        for pattern in old.iter().filter(|pattern| !kept.contains(pattern)) {
            self.patterns.remove(pattern, number);
        }
        new.iter().for_each(|pattern| self.patterns.insert(pattern, number));
        Some(number)
    }

    pub(crate) fn has_patterns(&self, set: Slot) -> bool {
        self.sets.at(set).patterns.is_some()
    }

    /// Returns the scopes that use a set.
    pub(crate) fn users(&self, set: Slot) -> Vec<Slot> {
        self.sets.at(set).users.iter().copied().collect()
    }

    /// Notes that a scope uses a set, and returns its number.
    pub(crate) fn begin_use(&mut self, id: &IpSetId, user: Slot) -> Slot {
        let number = self.number(id);
        self.sets.at_mut(number).users.insert(user);
        number
    }

    /// Notes that a scope no longer uses a set.
    pub(crate) fn end_use(&mut self, set: Slot, user: Slot) {
        self.sets.at_mut(set).users.remove(&user);
        self.release(set);
    }

    /// Removes a set without patterns and scopes.
    pub(crate) fn release(&mut self, number: Slot) {
        let set = self.sets.at(number);
        if set.patterns.is_none() && set.users.is_empty() {
            let set = self.sets.remove(number);
            self.numbers.remove(&set.id);
        }
    }

    fn number(&mut self, id: &IpSetId) -> Slot {
        if let Some(number) = self.find(id) {
            return number;
        }
        let number = self.sets.insert(Set { id: id.clone(), patterns: None, users: BTreeSet::new() });
        self.numbers.insert(id.clone(), number);
        number
    }
}
