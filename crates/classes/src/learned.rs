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
use crate::classes::Classes;
use crate::compiled::Compiled;
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

impl Classes {
    /// Compiles rules by domain name from now on: the destination of a rule that allows is, beside
    /// its other sets, any address that the endpoint learned for one of its sets of domains. Until
    /// then such rules match by their other sets only. Call it before the first update.
    pub fn set_learns(&mut self) {
        self.owners.set_learns();
    }

    /// Adds a user of an address that is in these sets of domains for some endpoint. Each call must
    /// be followed by one of [`Self::forget`]. Sets that do not exist count once they do.
    ///
    /// Memory: about 200 bytes for each pair of an address and sets, and a class, with a row in the
    /// tables of policies that name one of the sets, for each kind of addresses among them.
    pub fn learn(&mut self, address: IpAddr, sets: &BTreeSet<IpSetId>) -> LearnedId {
        let Self { learned: LearnedAddresses { by_id, ids, .. }, sets: known, addresses, .. } = self;
        let key: LearnedKey = (address, sets.iter().cloned().collect());
        if let Some(id) = ids.get(&key) {
            by_id.at_mut(*id).users += 1;
            return *id;
        }
        let entry = addresses.learn(Cidr::host(address), atoms(&key.1, known));
        let key = Arc::new(key);
        let id = by_id.insert(LearnedAddress { key: Arc::clone(&key), users: 1, entry });
        ids.insert(key, id);
        id
    }

    /// Removes a user of a learned address. The address is removed with its last user.
    pub fn forget(&mut self, id: LearnedId) {
        let Self { learned: LearnedAddresses { by_id, ids, .. }, addresses, .. } = self;
        let learned = by_id.at_mut(id);
        learned.users -= 1;
        if learned.users == 0 {
            let LearnedAddress { key, entry, .. } = by_id.remove(id);
            ids.remove(&key);
            addresses.unlearn(entry);
        }
    }

    /// Returns the class of a learned address; `None` if that takes a [flush](Self::flush) first.
    /// It need not wait for one if another address had the same class at the last flush, and
    /// nothing has changed since.
    #[must_use]
    pub fn learned_class(&self, id: LearnedId) -> Option<ClassId> {
        if self.learned.version != self.sets.domains_version() {
            return None;
        }
        self.addresses.class_of_learned(self.learned.by_id.get(id)?.entry)
    }

    /// Returns the ids of all sets of domains, in no order.
    pub fn domain_sets(&self) -> impl Iterator<Item = &IpSetId> {
        self.sets.domains()
    }
}

impl Compiled<'_> {
    /// Returns the class of a learned address; `None` for an unknown one.
    #[must_use]
    pub fn learned_class(&self, id: LearnedId) -> Option<ClassId> {
        self.classes.learned_class(id)
    }
}
