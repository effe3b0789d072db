//! Known state of followed resources.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tortie_resources::stored::{ResourceKey, Revision};

use crate::store::{StoredResource, WatchEvent};

/// Last known resources, and the events that follow from lists and changes of them.
#[derive(Debug, Default)]
pub(crate) struct Known {
    resources: BTreeMap<ResourceKey, StoredResource>,
    /// Versions of unreadable resources.
    unreadable: BTreeMap<ResourceKey, Revision>,
    /// During a list: known resources that the list has not contained so far.
    unmentioned: Option<BTreeSet<ResourceKey>>,
    events: VecDeque<WatchEvent>,
}

impl Known {
    pub(crate) fn pop(&mut self) -> Option<WatchEvent> {
        self.events.pop_front()
    }

    pub(crate) fn unavailable(&mut self, why: String) {
        self.events.push_back(WatchEvent::Unavailable(why));
    }

    pub(crate) fn list_begins(&mut self) {
        self.unmentioned = Some(self.resources.keys().cloned().collect());
    }

    pub(crate) fn list_ends(&mut self) {
        for key in self.unmentioned.take().unwrap_or_default() {
            self.remove(&key);
        }
        self.events.push_back(WatchEvent::Complete);
    }

    pub(crate) fn set(&mut self, resource: StoredResource) {
        if let Some(unmentioned) = &mut self.unmentioned {
            unmentioned.remove(&resource.key);
        }
        self.unreadable.remove(&resource.key);
        let before = self.resources.insert(resource.key.clone(), resource.clone());
        if before.is_none_or(|before| before.revision != resource.revision) {
            self.events.push_back(WatchEvent::Changed(resource));
        }
    }

    /// Records a resource that cannot be read; its last readable state stays known.
    pub(crate) fn unreadable(&mut self, key: ResourceKey, revision: Revision, why: String) {
        if let Some(unmentioned) = &mut self.unmentioned {
            unmentioned.remove(&key);
        }
        if self.unreadable.insert(key.clone(), revision) != Some(revision) {
            self.events.push_back(WatchEvent::Unreadable(key, why));
        }
    }

    pub(crate) fn remove(&mut self, key: &ResourceKey) {
        self.unreadable.remove(key);
        self.events.extend(self.resources.remove(key).map(WatchEvent::Deleted));
    }
}

#[cfg(test)]
mod tests;
