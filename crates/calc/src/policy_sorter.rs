//! The order of tiers, and of policies within them (`felix/calc/policy_sorter.go`).

use std::cmp::Ordering;

use ahash::AHashMap;
use tortie_model::{Order, PolicyId, Tier, TierDefaultAction, TierName};

use crate::policies::{Policies, PolicySlot};

/// Ranks the policies that match endpoints, by tiers.
#[derive(Debug, Default)]
pub(crate) struct PolicySorter {
    tiers: AHashMap<TierName, Tier>,
    /// Ranks of policies by slot; valid only for matched policies.
    ranks: Vec<u32>,
    tiers_changed: bool,
}

impl PolicySorter {
    /// Records a tier; `None` removes it.
    pub(crate) fn on_tier(&mut self, name: &TierName, tier: Option<&Tier>) {
        let was = match tier {
            Some(tier) => self.tiers.insert(name.clone(), tier.clone()),
            None => self.tiers.remove(name),
        };
        self.tiers_changed |= was.as_ref() != tier;
    }

    /// Reports whether a tier has changed since the last call.
    pub(crate) fn take_tiers_changed(&mut self) -> bool {
        std::mem::take(&mut self.tiers_changed)
    }

    /// Ranks all matched policies again.
    #[expect(clippy::expect_used, reason = "nothing changes while policies are ranked")]
    pub(crate) fn rank(&mut self, policies: &Policies) {
        let tier_ranks = self.tier_ranks(policies);
        let mut sorted: Vec<_> = policies
            .matched()
            .map(|(slot, entry)| {
                let tier = *tier_ranks.get(&entry.policy.tier).expect("tiers of matched policies are ranked");
                (tier, entry.policy.order, &entry.id, slot)
            })
            .collect();
        // Slots are assigned in the order in which policies arrived, which is often nearly this
        // order.
        sorted.sort_unstable_by_key(|&(_, _, _, slot)| slot);
        sorted.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| compare_orders(a.1, b.1)).then_with(|| compare_ids(a.2, b.2)));
        self.ranks.clear();
        self.ranks.resize(policies.slot_count(), u32::MAX);
        for (rank, (_, _, _, slot)) in (0..).zip(sorted) {
            *self.ranks.get_mut(slot.index()).expect("there is a place for each slot") = rank;
        }
    }

    /// Returns the place of a matched policy among all matched policies.
    #[expect(clippy::expect_used, reason = "matched policies are ranked before endpoints list them")]
    pub(crate) fn rank_of(&self, slot: PolicySlot) -> u32 {
        *self.ranks.get(slot.index()).expect("the policies of an endpoint are matched, and so ranked")
    }

    pub(crate) fn knows_tier(&self, tier: &TierName) -> bool {
        self.tiers.contains_key(tier)
    }

    /// Returns the action at the end of a tier; `None` if the tier does not exist.
    pub(crate) fn default_action(&self, tier: &TierName) -> Option<TierDefaultAction> {
        self.tiers.get(tier)?.default_action
    }

    /// Ranks the tiers: known ones come first, then those with an order, then by order, then by
    /// name.
    fn tier_ranks<'a>(&self, policies: &'a Policies) -> AHashMap<&'a TierName, usize> {
        let mut ranks: AHashMap<&TierName, usize> =
            policies.matched().map(|(_, entry)| (&entry.policy.tier, 0)).collect();
        let mut names: Vec<_> = ranks.keys().copied().collect();
        let key = |name: &&TierName| {
            let tier = self.tiers.get(*name);
            let order = tier.and_then(|t| t.order);
            (tier.is_none(), order.is_none(), order)
        };
        names.sort_unstable_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.cmp(b)));
        for (rank, name) in names.into_iter().enumerate() {
            ranks.insert(name, rank);
        }
        ranks
    }

    pub(crate) fn tiers_len(&self) -> usize {
        self.tiers.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }
}

/// Compares two orders; a missing one is plus infinity.
fn compare_orders(a: Option<Order>, b: Option<Order>) -> Ordering {
    let number = |order: Option<Order>| order.map_or(f64::INFINITY, Order::get);
    number(a).partial_cmp(&number(b)).unwrap_or(Ordering::Equal)
}

/// Compares two policies as the texts `name/namespace/kind` compare.
fn compare_ids(a: &PolicyId, b: &PolicyId) -> Ordering {
    let common = a.name.len().min(b.name.len());
    let (start_a, start_b) = (a.name.as_bytes().get(..common), b.name.as_bytes().get(..common));
    start_a.cmp(&start_b).then_with(|| text_after(a, common).cmp(text_after(b, common)))
}

fn text_after(id: &PolicyId, skipped: usize) -> impl Iterator<Item = u8> + '_ {
    id.name
        .bytes()
        .skip(skipped)
        .chain([b'/'])
        .chain(id.namespace.bytes())
        .chain([b'/'])
        .chain(id.kind.as_str().bytes())
}

#[cfg(test)]
mod tests;
