//! The names of one scope with their addresses, in the order of their last answers.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ahash::RandomState;
use hashbrown::HashTable;
use tortie_net::DomainName;

use crate::patterns::SetList;
use crate::slab::{Slab, Slot};
use crate::types::Millis;

/// An address in 16 bytes, without alignment; IPv4 addresses are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key([u8; 16]);

impl Key {
    pub(crate) fn new(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }

    pub(crate) fn address(self) -> IpAddr {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Ipv4Addr::new(a, b, c, d).into(),
            octets => Ipv6Addr::from(octets).into(),
        }
    }
}

/// An address of a name: 40 bytes in the slab.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) address: Key,
    pub(crate) expires: Millis,
    pub(crate) name: Slot,
    /// The address of the same name that was answered before this one.
    older: Option<Slot>,
    newer: Option<Slot>,
    /// All answers with the address came from inside of the cluster domain.
    pub(crate) is_inside: bool,
}

/// A name with its addresses as a list, the least recently answered first.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) name: DomainName,
    /// The sets of the scope that match the name.
    pub(crate) sets: SetList,
    /// The time of its last answer, by the clock of [`Names`].
    stamp: u64,
    oldest: Option<Slot>,
    newest: Option<Slot>,
    len: usize,
    /// The number of its newest addresses that its last answer had; only used during an answer,
    /// which removes none of them.
    fresh: usize,
}

impl Name {
    /// Returns the number of addresses.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Names and addresses of one scope. Each operation on one of them takes constant time, or
/// logarithmic time in the number of names where it changes their order.
#[derive(Debug, Default)]
pub(crate) struct Names {
    names: Slab<Name>,
    by_name: HashTable<Slot>,
    entries: Slab<Entry>,
    /// By name and address.
    by_address: HashTable<Slot>,
    /// The order of eviction: names without a set first, then by their last answer.
    order: BTreeSet<(bool, u64, Slot)>,
    /// Counts the names of all answers.
    clock: u64,
    /// The clock before the present answer.
    before: u64,
    hasher: RandomState,
}

impl Names {
    pub(crate) fn names(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn addresses(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn name(&self, name: Slot) -> &Name {
        self.names.at(name)
    }

    pub(crate) fn entry(&self, entry: Slot) -> &Entry {
        self.entries.at(entry)
    }

    /// Returns the places of all names in the order of eviction.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = Slot> {
        self.order.iter().map(|(_, _, name)| *name)
    }

    /// Returns the places of all names, least recently answered first.
    pub(crate) fn by_answer(&self) -> Vec<Slot> {
        let mut places: Vec<(u64, Slot)> = self.order.iter().map(|(_, stamp, name)| (*stamp, *name)).collect();
        places.sort_unstable();
        places.into_iter().map(|(_, name)| name).collect()
    }

    /// Returns the places of the addresses of a name, least recently answered first.
    pub(crate) fn entries(&self, name: Slot) -> impl Iterator<Item = Slot> {
        let mut next = self.names.at(name).oldest;
        std::iter::from_fn(move || {
            let entry = next?;
            next = self.entries.at(entry).newer;
            Some(entry)
        })
    }

    pub(crate) fn find_name(&self, name: &DomainName) -> Option<Slot> {
        let hash = self.hasher.hash_one(name);
        self.by_name.find(hash, |slot| self.names.at(*slot).name == *name).copied()
    }

    pub(crate) fn find(&self, name: Slot, address: Key) -> Option<Slot> {
        let hash = self.hasher.hash_one((name, address));
        let is_it = |slot: &Slot| {
            let entry = self.entries.at(*slot);
            entry.name == name && entry.address == address
        };
        self.by_address.find(hash, is_it).copied()
    }

    /// Begins an answer: until the next one, the names and addresses that it has are not evicted.
    pub(crate) fn begin_answer(&mut self) {
        self.before = self.clock;
    }

    /// Adds a name that is not there, without addresses, as the most recently answered one.
    pub(crate) fn insert_name(&mut self, name: DomainName, sets: SetList) -> Slot {
        self.clock += 1;
        let (hash, is_matched, stamp) = (self.hasher.hash_one(&name), !sets.is_empty(), self.clock);
        let slot = self.names.insert(Name { name, sets, stamp, oldest: None, newest: None, len: 0, fresh: 0 });
        self.by_name.insert_unique(hash, slot, |slot| self.hasher.hash_one(&self.names.at(*slot).name));
        self.order.insert((is_matched, stamp, slot));
        slot
    }

    /// Removes a name without addresses.
    pub(crate) fn remove_name(&mut self, slot: Slot) {
        let name = self.names.remove(slot);
        debug_assert!(name.len == 0, "a name with addresses");
        self.order.remove(&(!name.sets.is_empty(), name.stamp, slot));
        if let Ok(found) = self.by_name.find_entry(self.hasher.hash_one(&name.name), |other| *other == slot) {
            found.remove();
        }
    }

    /// Makes a name the most recently answered one. Repeated in the same answer, it has no effect.
    pub(crate) fn touch(&mut self, slot: Slot) {
        let name = self.names.at_mut(slot);
        if name.stamp > self.before {
            return;
        }
        self.clock += 1;
        let is_matched = !name.sets.is_empty();
        self.order.remove(&(is_matched, name.stamp, slot));
        (name.stamp, name.fresh) = (self.clock, 0);
        self.order.insert((is_matched, self.clock, slot));
    }

    /// Replaces the sets of a name.
    pub(crate) fn set_sets(&mut self, slot: Slot, sets: SetList) {
        let name = self.names.at_mut(slot);
        self.order.remove(&(!name.sets.is_empty(), name.stamp, slot));
        name.sets = sets;
        self.order.insert((!name.sets.is_empty(), name.stamp, slot));
    }

    /// Adds an address that the name lacks, as its most recently answered one.
    pub(crate) fn insert(&mut self, name: Slot, address: Key, expires: Millis, is_inside: bool) -> Slot {
        let slot = self.entries.insert(Entry { address, expires, name, older: None, newer: None, is_inside });
        let hash = self.hasher.hash_one((name, address));
        let rehash = |slot: &Slot| {
            let entry = self.entries.at(*slot);
            self.hasher.hash_one((entry.name, entry.address))
        };
        self.by_address.insert_unique(hash, slot, rehash);
        self.link(slot, name);
        slot
    }

    /// Removes an address; the name stays.
    pub(crate) fn remove(&mut self, slot: Slot) -> Entry {
        self.unlink(slot);
        let entry = self.entries.remove(slot);
        let hash = self.hasher.hash_one((entry.name, entry.address));
        if let Ok(found) = self.by_address.find_entry(hash, |other| *other == slot) {
            found.remove();
        }
        entry
    }

    /// Makes an address the most recently answered one of its name.
    pub(crate) fn renew(&mut self, slot: Slot) {
        self.unlink(slot);
        self.link(slot, self.entries.at(slot).name);
    }

    /// Extends the lifetime of an address, and returns its former and its present time of expiry,
    /// which is never earlier.
    pub(crate) fn extend(&mut self, slot: Slot, expires: Millis, is_inside: bool) -> (Millis, Millis) {
        let entry = self.entries.at_mut(slot);
        let former = entry.expires;
        entry.expires = former.max(expires);
        entry.is_inside &= is_inside;
        (former, entry.expires)
    }

    /// Notes that no address comes from inside of the cluster domain, since this has changed.
    pub(crate) fn end_inside(&mut self) {
        let entries: Vec<Slot> = self.in_order().flat_map(|name| self.entries(name)).collect();
        entries.into_iter().for_each(|entry| self.entries.at_mut(entry).is_inside = false);
    }

    /// Returns the name to evict: the least recently answered one, but one without a set before all
    /// others. Names of the present answer are excepted.
    pub(crate) fn victim_name(&self) -> Option<Slot> {
        // At most the names of one answer are passed over.
        self.order.iter().find(|(_, stamp, _)| *stamp <= self.before).map(|(_, _, name)| *name)
    }

    /// Returns the address to evict: the least recently answered one of [`Names::victim_name`]; if
    /// there is no such name, of the names of the present answer, which keep the addresses that it
    /// has.
    pub(crate) fn victim(&self) -> Option<Slot> {
        match self.victim_name() {
            Some(name) => self.names.at(name).oldest,
            None => self.in_order().find_map(|name| self.oldest_stale(name)),
        }
    }

    /// Returns the address to evict as [`Names::victim`] does, but of names with a set only.
    pub(crate) fn victim_matched(&self) -> Option<Slot> {
        let mut matched = self.order.range((true, 0, Slot::FIRST)..).map(|(_, stamp, name)| (*stamp, *name));
        match matched.clone().next().filter(|(stamp, _)| *stamp <= self.before) {
            Some((_, name)) => self.names.at(name).oldest,
            None => matched.find_map(|(_, name)| self.oldest_stale(name)),
        }
    }

    /// Returns the least recently answered address of a name, unless the last answer had them all.
    pub(crate) fn oldest_stale(&self, name: Slot) -> Option<Slot> {
        let name = self.names.at(name);
        name.oldest.filter(|_| name.len > name.fresh)
    }

    /// Appends an address to the list of its name, as one of the last answer.
    fn link(&mut self, slot: Slot, name: Slot) {
        let name = self.names.at_mut(name);
        let older = name.newest.replace(slot);
        name.len += 1;
        name.fresh += 1;
        if older.is_none() {
            name.oldest = Some(slot);
        }
        let entry = self.entries.at_mut(slot);
        (entry.older, entry.newer) = (older, None);
        if let Some(older) = older {
            self.entries.at_mut(older).newer = Some(slot);
        }
    }

    fn unlink(&mut self, slot: Slot) {
        let entry = self.entries.at(slot);
        let (older, newer, name) = (entry.older, entry.newer, entry.name);
        match older {
            Some(older) => self.entries.at_mut(older).newer = newer,
            None => self.names.at_mut(name).oldest = newer,
        }
        match newer {
            Some(newer) => self.entries.at_mut(newer).older = older,
            None => self.names.at_mut(name).newest = older,
        }
        self.names.at_mut(name).len -= 1;
    }
}
