//! Addresses that endpoints learned for sets of domains.
//!
//! A set of domains has no members that count for every endpoint: an address is in it for the
//! endpoints only that resolved it. So each pair of an address and the sets that have it for some
//! endpoint is one *learned address* with a class, however many endpoints share the pair. The
//! caller knows who learned it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use smallvec::SmallVec;
use tortie_model::{Cidr, IpSetId};

use crate::addresses::Addresses;
use crate::ids::{AtomId, ClassId, EntryId, LearnedId, Slab};
use crate::sets::Sets;

type LearnedKey = (IpAddr, Box<[IpSetId]>);

#[derive(Clone, Debug)]
struct LearnedAddress {
    key: Arc<LearnedKey>,
    users: u32,
    entry: EntryId,
}

/// All learned addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct LearnedAddresses {
    by_id: Slab<LearnedId, LearnedAddress>,
    ids: AHashMap<Arc<LearnedKey>, LearnedId>,
    /// Version of the sets of domains whose atoms the addresses have.
    version: u64,
}

impl LearnedAddresses {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.len() == 0 && self.ids.is_empty()
    }

    /// Adds a user of an address that is in these sets of domains.
    pub(crate) fn learn(
        &mut self,
        (address, sets): (IpAddr, &BTreeSet<IpSetId>),
        known: &Sets,
        addresses: &mut Addresses,
    ) -> LearnedId {
        let key: LearnedKey = (address, sets.iter().cloned().collect());
        if let Some(id) = self.ids.get(&key) {
            self.by_id.at_mut(*id).users += 1;
            return *id;
        }
        let entry = addresses.learn(Cidr::host(address), atoms(&key.1, known));
        let key = Arc::new(key);
        let id = self.by_id.insert(LearnedAddress { key: Arc::clone(&key), users: 1, entry });
        self.ids.insert(key, id);
        id
    }

    /// Removes a user of an address, and the address with its last user.
    pub(crate) fn forget(&mut self, id: LearnedId, addresses: &mut Addresses) {
        let learned = self.by_id.at_mut(id);
        learned.users -= 1;
        if learned.users == 0 {
            let LearnedAddress { key, entry, .. } = self.by_id.remove(id);
            self.ids.remove(&key);
            addresses.unlearn(entry);
        }
    }

    /// Returns the class of an address; `None` if that takes a flush first.
    pub(crate) fn class(&self, id: LearnedId, known: &Sets, addresses: &Addresses) -> Option<ClassId> {
        if self.version != known.domains_version() {
            return None;
        }
        addresses.class_of_learned(self.by_id.get(id)?.entry)
    }

    /// Gives learned addresses the atoms that their sets have now.
    pub(crate) fn follow(&mut self, sets: &Sets, addresses: &mut Addresses) {
        if self.version == sets.domains_version() {
            return;
        }
        self.version = sets.domains_version();
        for (_, learned) in self.by_id.iter() {
            addresses.relearn(learned.entry, atoms(&learned.key.1, sets));
        }
    }
}

fn atoms(ids: &[IpSetId], sets: &Sets) -> SmallVec<[AtomId; 2]> {
    let mut atoms: SmallVec<[AtomId; 2]> = ids.iter().filter_map(|id| sets.domains_atom(id)).collect();
    atoms.sort_unstable();
    atoms.dedup();
    atoms
}
