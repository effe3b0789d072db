//! Lower bound of the time of any engine.
//!
//! Given the same [`Update`]s, it does the work that every engine has to do, whatever it
//! calculates:
//!
//! - hash each key and store it once, with its value;
//! - intern each label name, once per shape, as shapes are shared by all labels of the same origin;
//! - intern the value of each label, and store its id;
//! - hash each address and store it once.
//!
//! It matches no selectors, keeps no order and sends nothing. It has no advance information, not
//! even the number of updates. Each step is done for all updates of a feed before the next step, in
//! tight loops.

mod table;

use std::sync::Arc;

use ahash::RandomState;
use rustc_hash::FxHashMap;
use tortie_model::{Cidr, Labels, Update};

use crate::{Input, LATER_PARTS, Observer};
use table::Table;

/// Stored data of the inputs.
#[derive(Debug, Default)]
pub struct Floor {
    hasher: RandomState,
    /// Indexes into `objects`.
    keys: Table,
    objects: Vec<Option<Update>>,
    /// Label names of each shape, by its address, which `objects` keeps alive.
    shapes: FxHashMap<usize, Box<[u32]>>,
    texts: Interner,
    /// Label values, concatenated.
    values: Vec<u32>,
    /// Indexes into `nets`.
    addresses: Table,
    nets: Vec<Cidr>,
}

/// Numbers of stored items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Objects that exist.
    pub objects: usize,
    /// Distinct label names and values.
    pub texts: usize,
    /// Label values.
    pub values: usize,
    /// Distinct addresses and networks.
    pub addresses: usize,
}

/// Stores the feeds, then the changes.
pub fn floor(input: Input, observer: &mut impl Observer) -> Floor {
    let mut floor = Floor::default();
    for (part, updates) in input.feeds {
        floor.store(updates);
        observer.done(part);
    }
    if !input.changes.is_empty() {
        floor.store(input.changes);
        observer.done(LATER_PARTS[0]);
    }
    floor
}

impl Floor {
    /// Returns the numbers of stored items.
    #[must_use]
    pub fn stored(&self) -> Stored {
        Stored {
            objects: self.keys.len(),
            texts: self.texts.ends.len(),
            values: self.values.len(),
            addresses: self.addresses.len(),
        }
    }

    fn store(&mut self, updates: Vec<Update>) {
        let mut indices = Vec::with_capacity(updates.len());
        for update in updates {
            if update.exists() {
                indices.push(self.store_object(update));
            } else {
                self.remove_object(&update);
            }
        }
        for &index in &indices {
            let Self { objects, shapes, texts, values, .. } = self;
            if let Some(labels) = objects[index as usize].as_ref().and_then(labels)
                && let Some(shape) = labels.shape()
            {
                let names = || shape.keys().iter().map(|key| texts.id(key.as_bytes())).collect();
                shapes.entry(Arc::as_ptr(shape).addr()).or_insert_with(names);
                values
                    .extend((0..labels.len()).filter_map(|at| labels.value_bytes_at(at)).map(|value| texts.id(value)));
            }
        }
        for &index in &indices {
            let Self { hasher, objects, addresses, nets, .. } = self;
            let store = |net: Cidr| {
                let at = addresses.find_or_insert(hasher.hash_one(net.bits()), nets.len(), |at| nets[at] == net);
                if at == nets.len() {
                    nets.push(net);
                }
            };
            for_each_address(objects[index as usize].as_ref(), store);
        }
    }

    fn store_object(&mut self, update: Update) -> u32 {
        let hash = self.hash(&update);
        let objects = &self.objects;
        let is_it = |index: usize| objects[index].as_ref().is_some_and(|object| have_same_key(object, &update));
        let index = self.keys.find_or_insert(hash, objects.len(), is_it);
        if index == objects.len() {
            self.objects.push(Some(update));
        } else {
            self.remove_addresses(index);
            self.objects[index] = Some(update);
        }
        table::to_u32(index)
    }

    fn remove_object(&mut self, update: &Update) {
        let (hash, objects) = (self.hash(update), &self.objects);
        let is_it = |index: usize| objects[index].as_ref().is_some_and(|object| have_same_key(object, update));
        if let Some(index) = self.keys.remove(hash, is_it) {
            self.remove_addresses(index);
            self.objects[index] = None;
        }
    }

    fn remove_addresses(&mut self, index: usize) {
        let Self { hasher, objects, addresses, nets, .. } = self;
        let remove = |net: Cidr| {
            addresses.remove(hasher.hash_one(net.bits()), |at| nets[at] == net);
        };
        for_each_address(objects[index].as_ref(), remove);
    }

    fn hash(&self, update: &Update) -> u64 {
        match update {
            Update::WorkloadEndpoint(key, _) => self.hasher.hash_one(key),
            Update::Policy(id, _) => self.hasher.hash_one((&id.namespace, &id.name)),
            Update::Profile(name, _) => self.hasher.hash_one((0_u8, name)),
            Update::ProfileRules(name, _) => self.hasher.hash_one((1_u8, name)),
            Update::NetworkSet(name, _) => self.hasher.hash_one((2_u8, name)),
            other => self.hasher.hash_one(other.key()),
        }
    }
}

fn have_same_key(a: &Update, b: &Update) -> bool {
    match (a, b) {
        (Update::WorkloadEndpoint(a, _), Update::WorkloadEndpoint(b, _)) => a == b,
        (Update::Policy(a, _), Update::Policy(b, _)) => a == b,
        (Update::Profile(a, _), Update::Profile(b, _)) | (Update::ProfileRules(a, _), Update::ProfileRules(b, _)) => {
            a == b
        }
        (Update::NetworkSet(a, _), Update::NetworkSet(b, _)) => a == b,
        _ => a.key() == b.key(),
    }
}

fn labels(update: &Update) -> Option<&Labels> {
    match update {
        Update::WorkloadEndpoint(_, endpoint) => endpoint.as_ref().map(|endpoint| &endpoint.labels),
        Update::Profile(_, profile) => profile.as_ref().map(|profile| &profile.labels),
        Update::NetworkSet(_, set) => set.as_ref().map(|set| &set.labels),
        Update::Node(_, node) => node.as_ref().map(|node| &node.labels),
        _ => None,
    }
}

fn for_each_address(update: Option<&Update>, found: impl FnMut(Cidr)) {
    match update {
        Some(Update::WorkloadEndpoint(_, Some(endpoint))) => endpoint.nets().for_each(found),
        Some(Update::NetworkSet(_, Some(set))) => set.nets.iter().for_each(found),
        _ => {}
    }
}

/// Distinct texts, concatenated.
#[derive(Debug, Default)]
struct Interner {
    hasher: RandomState,
    ids: Table,
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Interner {
    fn id(&mut self, text: &[u8]) -> u32 {
        let Self { hasher, ids, bytes, ends } = self;
        let nth = |n: usize| &bytes[n.checked_sub(1).map_or(0, |before| ends[before] as usize)..ends[n] as usize];
        let id = ids.find_or_insert(hasher.hash_one(text), ends.len(), |id| nth(id) == text);
        if id == ends.len() {
            bytes.extend_from_slice(text);
            ends.push(table::to_u32(bytes.len()));
        }
        table::to_u32(id)
    }
}

#[cfg(test)]
mod tests;
