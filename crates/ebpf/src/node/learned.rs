//! Addresses that endpoints learned from DNS answers, as entries of a hash map.
//!
//! Only normal egress policy of the endpoint at an interface, or of host endpoints, looks for them.
//! An entry holds the class of the address for each value of the roots. A flush first gives the
//! entries the classes that belong to the new roots, and removes those that are no longer wanted;
//! then the roots come into force. So a packet finds the class that belongs to the roots that it
//! uses, and no class of roots that are no longer in use matters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_classes::{Classes, LearnedId};
use tortie_model::{InterfaceName, IpSetId, WorkloadEndpoint, WorkloadEndpointId};

use crate::layout::{LearnedKey, LearnedRecord, ROOTS, set_number};

/// Function that returns the number of the holder of an interface with an index. Another number
/// than before means that nothing is learned yet.
pub type OwnerNumber = fn(&WorkloadEndpointId, &WorkloadEndpoint, u32) -> u64;

/// Endpoint that learns addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "made by the reader of answers")]
pub enum Learner {
    /// The workload at an interface.
    Workload {
        /// Name of the interface.
        interface: InterfaceName,
        /// The [`OwnerNumber`] of the workload. Addresses of another one do not count.
        owner: u64,
    },
    /// The host itself.
    Host,
}

/// A learned address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(clippy::exhaustive_structs, reason = "made by the reader of answers")]
pub struct LearnedMember {
    /// The endpoint.
    pub learner: Learner,
    /// Set of domains that has the address for the endpoint.
    pub set: IpSetId,
    /// The address.
    pub address: IpAddr,
}

/// Write of an entry of [`MapKind::Learned`](crate::layout::MapKind::Learned).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct LearnedWrite {
    /// The key.
    pub key: LearnedKey,
    /// The value; `None` removes the entry.
    pub value: Option<LearnedRecord>,
}

/// Learned addresses with their entries.
#[derive(Debug, Default)]
pub(super) struct Learned {
    members: BTreeMap<Learner, BTreeMap<IpAddr, BTreeSet<IpSetId>>>,
    /// Numbers of the learners that are in place, [`LearnedKey::endpoint`].
    places: BTreeMap<Learner, u32>,
    entries: BTreeMap<LearnedKey, Entry>,
    /// Entries that differ from their last write.
    dirty: BTreeSet<LearnedKey>,
    /// Entries for which the kernel has no room.
    refused: BTreeSet<LearnedKey>,
    /// Entries of a former process, until the first flush.
    adopted: BTreeMap<LearnedKey, LearnedRecord>,
}

#[derive(Debug)]
struct Entry {
    id: LearnedId,
    record: LearnedRecord,
}

impl Learned {
    /// Adopts the entries of a former process. Those of known endpoints and sets count as members
    /// from the first flush on; the others are removed.
    pub(super) fn adopt(&mut self, entries: BTreeMap<LearnedKey, LearnedRecord>) {
        self.adopted = entries;
    }

    /// Reports whether there are any members or entries.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.entries.is_empty() && self.adopted.is_empty()
    }

    /// Reports whether the workload at an interface may have learned addresses.
    pub(super) fn concerns(&self, interface: InterfaceName) -> bool {
        let all = |owner| Learner::Workload { interface, owner };
        !self.adopted.is_empty() || self.members.range(all(0)..=all(u64::MAX)).next().is_some()
    }

    /// Returns all members, in order.
    pub(super) fn members(&self) -> impl Iterator<Item = LearnedMember> + '_ {
        self.members.iter().flat_map(|(learner, addresses)| {
            addresses.iter().flat_map(move |(address, sets)| {
                let member = |set: &IpSetId| LearnedMember { learner: *learner, set: set.clone(), address: *address };
                sets.iter().map(member)
            })
        })
    }

    /// Adds or removes a member. Returns the key of its entry, if the learner is in place.
    pub(super) fn change(
        &mut self,
        member: &LearnedMember,
        is_present: bool,
        classes: &mut Classes,
    ) -> Option<LearnedKey> {
        let LearnedMember { learner, set, address } = member;
        if is_present {
            let addresses = self.members.entry(*learner).or_default();
            addresses.entry(*address).or_default().insert(set.clone());
        } else if let Some(addresses) = self.members.get_mut(learner)
            && let Some(sets) = addresses.get_mut(address)
        {
            sets.remove(set);
            if sets.is_empty() {
                addresses.remove(address);
            }
            if addresses.is_empty() {
                self.members.remove(learner);
            }
        }
        let key = LearnedKey { endpoint: *self.places.get(learner)?, address: *address };
        self.refresh(key, learner, classes);
        Some(key)
    }

    /// Gives an entry the sets of its address.
    fn refresh(&mut self, key: LearnedKey, learner: &Learner, classes: &mut Classes) {
        self.dirty.insert(key);
        let Some(sets) = self.members.get(learner).and_then(|addresses| addresses.get(&key.address)) else {
            return self.remove(key, classes);
        };
        let id = classes.learn(key.address, sets);
        let mut numbers = [0; LearnedRecord::SETS];
        numbers.iter_mut().zip(sets.iter().map(set_number)).for_each(|(to, number)| *to = number);
        match self.entries.get_mut(&key) {
            Some(entry) => {
                classes.forget(std::mem::replace(&mut entry.id, id));
                entry.record.sets = numbers;
            }
            None => {
                let before = self.adopted.get(&key).map_or([0; ROOTS as usize], |record| record.classes);
                self.entries.insert(key, Entry { id, record: LearnedRecord { classes: before, sets: numbers } });
            }
        }
    }

    fn remove(&mut self, key: LearnedKey, classes: &mut Classes) {
        self.dirty.insert(key);
        if let Some(entry) = self.entries.remove(&key) {
            classes.forget(entry.id);
        }
    }

    /// Reports whether a learner is in place.
    pub(super) fn has_place(&self, learner: &Learner) -> bool {
        self.places.contains_key(learner)
    }

    /// Takes another learner that is in place, without members so far.
    pub(super) fn add_place(&mut self, learner: Learner, number: u32) {
        self.places.insert(learner, number);
    }

    /// Takes the learners that are in place, with their numbers. Entries of all others are removed.
    pub(super) fn set_places(&mut self, places: BTreeMap<Learner, u32>, classes: &mut Classes) {
        self.recognize(&places, classes);
        let before = std::mem::replace(&mut self.places, places);
        let is_gone = |learner: &Learner, number: u32| self.places.get(learner) != Some(&number);
        let gone_numbers: BTreeSet<u32> =
            before.iter().filter(|(of, number)| is_gone(of, **number)).map(|at| *at.1).collect();
        let gone: Vec<LearnedKey> =
            self.entries.keys().filter(|key| gone_numbers.contains(&key.endpoint)).copied().collect();
        gone.into_iter().for_each(|key| self.remove(key, classes));
        // A learner that came between two flushes may have the number of one that is gone.
        let is_new = |of: &Learner, number: &u32| before.get(of) != Some(number) || gone_numbers.contains(number);
        let new = self.places.iter().filter(|(of, number)| is_new(of, number));
        let new: Vec<(Learner, u32)> = new.map(|(learner, number)| (*learner, *number)).collect();
        for (learner, endpoint) in new {
            let addresses = self.members.get(&learner).into_iter().flat_map(BTreeMap::keys).copied();
            for address in addresses.collect::<Vec<_>>() {
                self.refresh(LearnedKey { endpoint, address }, &learner, classes);
            }
        }
    }

    /// Adds the members that adopted entries stand for.
    fn recognize(&mut self, places: &BTreeMap<Learner, u32>, classes: &Classes) {
        if self.adopted.is_empty() {
            return;
        }
        let sets: BTreeMap<u64, &IpSetId> = classes.domain_sets().map(|id| (set_number(id), id)).collect();
        let learners: BTreeMap<u32, Learner> = places.iter().map(|(learner, number)| (*number, *learner)).collect();
        for (key, record) in &self.adopted {
            self.dirty.insert(*key);
            let Some(learner) = learners.get(&key.endpoint) else { continue };
            for set in record.sets.iter().filter_map(|number| sets.get(number)) {
                let addresses = self.members.entry(*learner).or_default();
                addresses.entry(key.address).or_default().insert((*set).clone());
            }
        }
    }

    /// Returns the class numbers of adopted entries that are entries now, for roots at `slot`.
    pub(super) fn hints(&self, slot: u32) -> Vec<(LearnedId, u32)> {
        let both = self.adopted.iter().filter_map(|(key, record)| Some((self.entries.get(key)?.id, record)));
        let number = |record: &LearnedRecord| record.classes.get(slot as usize).copied();
        both.filter_map(|(id, record)| Some((id, number(record)? & !LearnedRecord::OPEN))).collect()
    }

    /// Gives an entry its class at once, in roots that are in force and that no packet uses others
    /// than. Returns whether that is possible.
    pub(super) fn settle_at_once(&mut self, key: &LearnedKey, class_of: impl Fn(LearnedId) -> Option<u32>) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return true };
        let Some(class) = class_of(entry.id) else { return false };
        entry.record.classes = [class | LearnedRecord::OPEN; ROOTS as usize];
        true
    }

    /// Gives all entries their classes, except in roots at `kept`, which packets may still use.
    /// Those without a class number have the class that the address has for everyone.
    pub(super) fn settle(&mut self, kept: &[u32], class_of: impl Fn(LearnedId, IpAddr) -> Option<u32>) {
        self.adopted.clear();
        for (key, entry) in &mut self.entries {
            let class = class_of(entry.id, key.address).map_or(0, |class| class | LearnedRecord::OPEN);
            for (slot, to) in (0..).zip(&mut entry.record.classes) {
                if *to != class && !kept.contains(&slot) {
                    *to = class;
                    self.dirty.insert(*key);
                }
            }
        }
    }

    /// Takes the entries that differ from their last write. Removals come first, since they make
    /// room for the others.
    pub(super) fn take_dirty(&mut self) -> Vec<LearnedWrite> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut writes: Vec<LearnedWrite> = dirty.into_iter().map(|key| self.write(key)).collect();
        writes.sort_by_key(|write| write.value.is_some());
        writes
    }

    fn write(&mut self, key: LearnedKey) -> LearnedWrite {
        self.refused.remove(&key);
        LearnedWrite { key, value: self.entries.get(&key).map(|entry| entry.record) }
    }

    /// Notes that the kernel has no room for an entry.
    pub(super) fn note_refused(&mut self, key: LearnedKey) {
        self.refused.insert(key);
    }

    pub(super) fn is_refused(&self, LearnedMember { learner, address, .. }: &LearnedMember) -> bool {
        let endpoint = self.places.get(learner);
        endpoint.is_some_and(|number| self.refused.contains(&LearnedKey { endpoint: *number, address: *address }))
    }

    pub(super) fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Returns all entries that the kernel should have.
    pub(super) fn all(&self) -> impl Iterator<Item = (LearnedKey, LearnedRecord)> + '_ {
        let present = self.entries.iter().filter(|(key, _)| !self.refused.contains(*key));
        present.map(|(key, entry)| (*key, entry.record))
    }
}

#[cfg(test)]
mod tests {
    use tortie_classes::evaluate::Settings;

    use super::*;

    fn learner(owner: u64) -> Learner {
        Learner::Workload { interface: "cali1".parse().unwrap(), owner }
    }

    #[test]
    fn a_learner_that_takes_the_number_of_a_former_one_between_two_flushes_keeps_its_entries() {
        let mut classes = Classes::new(Settings::default());
        let mut learned = Learned::default();
        let member = |owner, last| LearnedMember {
            learner: learner(owner),
            set: "d:a".into(),
            address: [192, 0, 2, last].into(),
        };
        learned.set_places([(learner(1), 7)].into(), &mut classes);
        learned.change(&member(1, 1), true, &mut classes).unwrap();
        learned.add_place(learner(2), 7);
        learned.change(&member(2, 2), true, &mut classes).unwrap();
        learned.set_places([(learner(2), 7)].into(), &mut classes);
        let entries: Vec<LearnedKey> = learned.all().map(|(key, _)| key).collect();
        assert_eq!(entries, [LearnedKey { endpoint: 7, address: [192, 0, 2, 2].into() }]);
    }
}
