//! Pending changes of one kind of object.

use std::hash::Hash;

use ahash::AHashMap;

/// At most one pending change for each object, and which objects the dataplane has.
///
/// An object that is added and removed between two flushes is never sent; one that is removed and
/// added again is sent once, as an update.
#[derive(Debug)]
pub(crate) struct Outbox<K, V> {
    objects: AHashMap<K, Object<V>>,
    /// Objects with a pending update; may name objects that have none any more.
    updated: Vec<K>,
    /// Objects with a pending removal; likewise.
    removed: Vec<K>,
}

#[derive(Debug)]
struct Object<V> {
    sent: bool,
    pending: Pending<V>,
}

#[derive(Debug)]
enum Pending<V> {
    Nothing,
    Update(V),
    Removal,
}

impl<K, V> Default for Outbox<K, V> {
    fn default() -> Self {
        Self { objects: AHashMap::new(), updated: Vec::new(), removed: Vec::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord, V> Outbox<K, V> {
    /// Sets the value of an object.
    pub(crate) fn update(&mut self, key: K, value: V) {
        let object = match self.objects.get_mut(&key) {
            Some(object) => object,
            None => self.objects.entry(key.clone()).or_insert(Object { sent: false, pending: Pending::Nothing }),
        };
        let was = std::mem::replace(&mut object.pending, Pending::Update(value));
        if !matches!(was, Pending::Update(_)) {
            self.updated.push(key);
        }
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, key: K) {
        let Some(object) = self.objects.get_mut(&key) else { return };
        if !object.sent {
            self.objects.remove(&key);
            return;
        }
        let was = std::mem::replace(&mut object.pending, Pending::Removal);
        if !matches!(was, Pending::Removal) {
            self.removed.push(key);
        }
    }

    pub(super) fn send_updates(&mut self, mut send: impl FnMut(K, V)) {
        for key in sorted(&mut self.updated) {
            let Some(object) = self.objects.get_mut(&key) else { continue };
            match std::mem::replace(&mut object.pending, Pending::Nothing) {
                Pending::Update(value) => {
                    object.sent = true;
                    send(key, value);
                }
                other => object.pending = other,
            }
        }
    }

    pub(super) fn send_removals(&mut self, mut send: impl FnMut(K)) {
        for key in sorted(&mut self.removed) {
            if self.objects.get(&key).is_some_and(|object| matches!(object.pending, Pending::Removal)) {
                self.objects.remove(&key);
                send(key);
            }
        }
        if self.objects.is_empty() {
            self.objects = AHashMap::new();
        }
    }

    /// Returns an upper bound of the number of waiting messages.
    pub(super) fn pending(&self) -> usize {
        self.updated.len() + self.removed.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.updated.is_empty() && self.removed.is_empty()
    }
}

fn sorted<K: Ord>(keys: &mut Vec<K>) -> Vec<K> {
    let mut keys = std::mem::take(keys);
    // Keys often arrive nearly sorted, for which a stable sort is fast.
    keys.sort();
    keys.dedup();
    keys
}

#[cfg(test)]
mod tests;
