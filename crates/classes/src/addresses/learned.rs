//! Addresses that only some endpoints have in further atoms: they learned them for domain names.
//!
//! Such an entry is beside the networks of atoms. Its bucket is that of an entry for the single
//! address with the learned atoms and with those that the address has for everyone, so that rows
//! and classes need no further distinction. No other address is in the entry, and
//! [`Addresses::prefixes`] lacks it.

use std::collections::BTreeSet;

use ahash::{AHashMap, AHashSet};
use smallvec::SmallVec;
use tortie_model::Cidr;

use super::{Addresses, Entry, key_of_bucket};
use crate::ids::{AtomId, BucketId, ClassId, EntryId, Id};

/// Entries for learned addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct LearnedEntries {
    by_id: AHashMap<EntryId, LearnedEntry>,
    by_address: BTreeSet<(Cidr, EntryId)>,
}

#[derive(Clone, Debug)]
struct LearnedEntry {
    atoms: SmallVec<[AtomId; 2]>,
    /// Removed since the last flush.
    is_removed: bool,
}

/// Atoms of a learned address, ascending.
pub(super) struct LearnedAtoms {
    pub(super) address: Cidr,
    pub(super) own: SmallVec<[AtomId; 4]>,
    /// With those that the address has for everyone.
    pub(super) all: SmallVec<[AtomId; 4]>,
}

impl LearnedEntries {
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.by_address.is_empty()
    }

    /// Returns the entries whose addresses a network covers.
    pub(super) fn within(&self, net: Cidr) -> impl Iterator<Item = EntryId> + '_ {
        let first = (net.masked(), EntryId::new(0));
        self.by_address.range(first..).take_while(move |(at, _)| *at <= net.last_host()).map(|(_, id)| *id)
    }
}

impl Addresses {
    /// Adds an address with atoms that it has only here. It has a class at once if a bucket has
    /// the same atoms and nothing is pending, else from the next flush on.
    pub(crate) fn learn(&mut self, address: Cidr, atoms: SmallVec<[AtomId; 2]>) -> EntryId {
        let entry = Entry { net: address, atoms: SmallVec::new(), bucket: None, is_pending: false };
        let id = self.entries.insert(entry);
        self.learned.by_id.insert(id, LearnedEntry { atoms, is_removed: false });
        self.learned.by_address.insert((address, id));
        self.inherited_at_most = self.inherited_at_most.saturating_add(self.wide);
        if !self.joins_at_once(id) {
            self.set_pending(id);
        }
        id
    }

    /// Replaces the atoms of a learned address.
    pub(crate) fn relearn(&mut self, id: EntryId, atoms: SmallVec<[AtomId; 2]>) {
        if let Some(entry) = self.learned.by_id.get_mut(&id)
            && entry.atoms != atoms
        {
            entry.atoms = atoms;
            self.inherited_at_most = self.inherited_at_most.saturating_add(self.wide);
            self.set_pending(id);
        }
    }

    /// Removes a learned address.
    pub(crate) fn unlearn(&mut self, id: EntryId) {
        if self.pending.is_empty() {
            self.remove_learned(id);
        } else if let Some(entry) = self.learned.by_id.get_mut(&id) {
            entry.is_removed = true;
            self.set_pending(id);
        }
    }

    /// Returns the learned addresses in order, each with its atoms as of the next flush.
    pub(super) fn learned_addresses(&self) -> impl Iterator<Item = LearnedAtoms> {
        let retired: AHashSet<AtomId> = self.retired.iter().copied().collect();
        let LearnedEntries { by_id, by_address } = &self.learned;
        by_address.iter().filter_map(move |(address, id)| {
            let entry = by_id.get(id).filter(|entry| !entry.is_removed)?;
            let mut own: SmallVec<[AtomId; 4]> = entry.atoms.iter().copied().collect();
            let mut all = self.atoms_of_learned(*id, *address)?;
            for atoms in [&mut own, &mut all] {
                atoms.retain(|atom| !retired.contains(atom));
            }
            (!own.is_empty()).then_some(LearnedAtoms { address: *address, own, all })
        })
    }

    /// Returns the class of a learned address; `None` before its first flush.
    pub(crate) fn class_of_learned(&self, id: EntryId) -> Option<ClassId> {
        let entry = self.entries.get(id)?;
        Some(self.class_of_bucket(entry.bucket.filter(|_| !entry.is_pending)?))
    }

    /// Returns the atoms of a learned address, with those that it has for everyone.
    pub(super) fn atoms_of_learned(&self, id: EntryId, net: Cidr) -> Option<SmallVec<[AtomId; 4]>> {
        let learned = self.learned.by_id.get(&id)?;
        let mut atoms: SmallVec<[AtomId; 4]> = learned.atoms.iter().copied().collect();
        if let Some(everyone) = self.by_net.get(&net) {
            atoms.extend(self.entries.at(*everyone).atoms.iter().copied());
        }
        atoms.sort_unstable();
        atoms.dedup();
        Some(atoms)
    }

    /// Removes a learned address that was removed since the last flush. Returns whether the entry
    /// is one of a learned address.
    pub(super) fn settle_learned(&mut self, id: EntryId) -> bool {
        let Some(entry) = self.learned.by_id.get(&id) else { return false };
        if entry.is_removed {
            self.remove_learned(id);
        }
        true
    }

    fn remove_learned(&mut self, id: EntryId) {
        let Entry { net, bucket, .. } = self.entries.remove(id);
        self.learned.by_id.remove(&id);
        self.learned.by_address.remove(&(net, id));
        if let Some(bucket) = bucket {
            self.leave(bucket, id, net);
        }
    }

    /// Puts a new learned address into the bucket with its atoms, if there is one.
    fn joins_at_once(&mut self, id: EntryId) -> bool {
        let net = self.entries.at(id).net;
        let Some(atoms) = self.atoms_of_learned(id, net).filter(|_| self.pending.is_empty()) else { return false };
        let key = key_of_bucket(self.covering(net), net.family(), &atoms);
        if self.bucket_keys.find(&key).is_none() {
            return false;
        }
        let bucket: BucketId = self.bucket_keys.acquire(&key).0;
        let entry = self.entries.at_mut(id);
        (entry.atoms, entry.bucket) = (atoms, Some(bucket));
        true
    }
}
