//! Interned sets of the selector keys that groups match.
//!
//! Ids are never reused, so a caller may keep an id for any time.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::slab::{GroupId, KeyId, SelId, SideTable, SlotId};
use crate::types::MatchSetId;

/// Fingerprint of a set of keys: the sum of a mixed number for each key. Sets of tens of thousands
/// of keys are compared and changed without listing them. A collision of two different sets is
/// practically impossible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint(u128);

impl Fingerprint {
    /// Returns the fingerprint of some keys, each given once.
    pub(crate) fn of(keys: &[KeyId]) -> Self {
        keys.iter().fold(Self::default(), |sum, &key| Self(sum.0.wrapping_add(Self::mixed(key))))
    }

    fn mixed(key: KeyId) -> u128 {
        // Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (2014).
        let mix = |seed: u64| {
            let mut z = (u64::from(key.place()) + 1).wrapping_mul(seed);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        u128::from(mix(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(mix(0xd1b5_4a32_d192_ed03))
    }

    pub(crate) fn add(&mut self, key: KeyId) {
        self.0 = self.0.wrapping_add(Self::mixed(key));
    }

    pub(crate) fn remove(&mut self, key: KeyId) {
        self.0 = self.0.wrapping_sub(Self::mixed(key));
    }

    /// Returns the fingerprint of the union of sets without common keys.
    pub(crate) fn union(parts: impl Iterator<Item = Self>) -> Self {
        Self(parts.fold(0, |sum, part| sum.wrapping_add(part.0)))
    }
}

/// Match sets by group, by content and by id.
#[derive(Clone, Debug, Default)]
pub(crate) struct MatchSets {
    sets: FxHashMap<MatchSetId, MatchSet>,
    by_content: FxHashMap<Fingerprint, MatchSetId>,
    of_group: SideTable<GroupId, Option<MatchSetId>>,
    /// Sets that lost their last group since the last sweep.
    idle: Vec<MatchSetId>,
    last: u64,
}

#[derive(Clone, Debug)]
struct MatchSet {
    content: Fingerprint,
    /// Selectors whose keys are in the set.
    selectors: Arc<[SelId]>,
    /// Number of groups with this set.
    groups: u32,
}

impl MatchSets {
    /// Returns the match set of a group.
    pub(crate) fn of(&self, group: GroupId) -> Option<MatchSetId> {
        *self.of_group.get(group)?
    }

    /// Returns the selectors in a set.
    pub(crate) fn selectors(&self, id: MatchSetId) -> &[SelId] {
        self.sets.get(&id).map_or(&[], |set| &set.selectors)
    }

    /// Removes the match set of a group.
    #[expect(clippy::expect_used, reason = "sets are kept while groups have them")]
    pub(crate) fn unset(&mut self, group: GroupId) {
        let Some(id) = self.of_group.take(group) else { return };
        let set = self.sets.get_mut(&id).expect("sets of groups are known");
        set.groups -= 1;
        if set.groups == 0 {
            self.idle.push(id);
        }
    }

    /// Sets a group's selectors and their keys; returns whether its match set has changed.
    #[expect(clippy::expect_used, reason = "sets and their content are removed together")]
    pub(crate) fn set(
        &mut self,
        group: GroupId,
        content: Fingerprint,
        selectors: impl ExactSizeIterator<Item = SelId> + Clone,
    ) -> bool {
        let before = self.of(group);
        let known = self.by_content.get(&content).copied();
        if let Some(id) = known {
            let set = self.sets.get_mut(&id).expect("sets are known as long as their content");
            // The same keys may belong to other selectors now.
            if !set.selectors.iter().copied().eq(selectors.clone()) {
                set.selectors = selectors.collect();
            }
            if before == known {
                return false;
            }
            set.groups += 1;
            self.unset(group);
            *self.of_group.entry(group) = known;
            return true;
        }
        self.unset(group);
        self.last += 1;
        let id = MatchSetId(self.last);
        self.sets.insert(id, MatchSet { content, selectors: selectors.collect(), groups: 1 });
        self.by_content.insert(content, id);
        *self.of_group.entry(group) = Some(id);
        true
    }

    /// Removes sets without groups.
    pub(crate) fn sweep(&mut self) {
        for id in std::mem::take(&mut self.idle) {
            let Some(set) = self.sets.get(&id).filter(|set| set.groups == 0) else { continue };
            self.by_content.remove(&set.content);
            self.sets.remove(&id);
        }
        if self.sets.is_empty() {
            *self = Self { last: self.last, ..Self::default() };
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.by_content.is_empty()
    }
}
