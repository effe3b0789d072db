//! All policies, by id and by slot.

use ahash::RandomState;
use hashbrown::HashTable;
use tortie_model::PolicyId;

use super::{PolicyEntry, PolicySlot};

/// Policies in slots. Ids stand there alone; they are found by slots with the hash of the id, so that growing looks at
/// no id.
#[derive(Debug, Default)]
pub(super) struct PolicyTable {
    slots: HashTable<(u32, PolicySlot)>,
    /// In blocks, so that growing copies nothing and little is spare.
    blocks: Vec<Vec<Option<PolicyEntry>>>,
    free: Vec<PolicySlot>,
    hasher: RandomState,
}

/// So many entries are in each block but the last.
const BLOCK: usize = 1_024;

/// Spreads the kept bits over the low ones, which pick the bucket, and the high ones, which tag it.
fn spread(&(hash, _): &(u32, PolicySlot)) -> u64 {
    u64::from(hash) | u64::from(hash) << 32
}

impl PolicyTable {
    fn hash(&self, id: &PolicyId) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "that many bits are kept")]
        let hash = self.hasher.hash_one(id) as u32;
        hash
    }

    pub(super) fn find(&self, id: &PolicyId) -> Option<PolicySlot> {
        let hash = self.hash(id);
        let is = |&(other, slot): &(u32, PolicySlot)| other == hash && self.get(slot).is_some_and(|e| e.id == *id);
        self.slots.find(spread(&(hash, PolicySlot(0))), is).map(|&(_, slot)| slot)
    }

    /// Adds a policy that is not there.
    pub(super) fn insert(&mut self, entry: PolicyEntry) -> PolicySlot {
        let hash = self.hash(&entry.id);
        let slot = self.free.pop().unwrap_or_else(|| self.add_slot());
        if let Some(place) = self.place(slot) {
            *place = Some(entry);
        }
        self.slots.insert_unique(spread(&(hash, slot)), (hash, slot), spread);
        slot
    }

    fn add_slot(&mut self) -> PolicySlot {
        // Fewer than 2^32 policies fit into memory.
        let slot = PolicySlot(u32::try_from(self.slot_count()).unwrap_or(u32::MAX));
        match self.blocks.last_mut() {
            Some(last) if last.len() < BLOCK => last.push(None),
            Some(_) => {
                let mut next = Vec::with_capacity(BLOCK);
                next.push(None);
                self.blocks.push(next);
            }
            // The first one may well stay small.
            None => self.blocks.push(vec![None]),
        }
        slot
    }

    fn place(&mut self, slot: PolicySlot) -> Option<&mut Option<PolicyEntry>> {
        self.blocks.get_mut(slot.index() / BLOCK)?.get_mut(slot.index() % BLOCK)
    }

    /// Takes a policy out. Its slot stays taken until it is given back.
    pub(super) fn remove(&mut self, id: &PolicyId) -> Option<(PolicySlot, PolicyEntry)> {
        let slot = self.find(id)?;
        let link = (self.hash(id), slot);
        if let Ok(found) = self.slots.find_entry(spread(&link), |other| *other == link) {
            found.remove();
        }
        Some((slot, self.place(slot)?.take()?))
    }

    /// Slots of removed policies may be used again.
    pub(super) fn give_back(&mut self, slots: &mut Vec<PolicySlot>) {
        self.free.append(slots);
        if self.slots.is_empty() {
            *self = Self { hasher: self.hasher.clone(), ..Self::default() };
        }
    }

    pub(super) fn get(&self, slot: PolicySlot) -> Option<&PolicyEntry> {
        self.blocks.get(slot.index() / BLOCK)?.get(slot.index() % BLOCK)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: PolicySlot) -> Option<&mut PolicyEntry> {
        self.place(slot)?.as_mut()
    }

    /// One more than the highest slot in use.
    pub(super) fn slot_count(&self) -> usize {
        self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len())
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.blocks.is_empty()
    }
}
