//! Division of a node's blocks among its namespaces.
//!
//! A *holder*, such as the tries of a group, is charged with the blocks that it takes alone,
//! whatever it shares with others. While all charges fit, every holder is admitted. Over the
//! budget, holders of the platform are admitted first. Then the largest holder of the namespace
//! with the most blocks is refused, and so on until the rest fits. So a namespace that takes no
//! more than its equal share of the blocks left by the platform loses nothing. The charges alone
//! determine the refused holders, not the order in which they came.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Namespace of the platform's holders.
const PLATFORM: &str = "";

/// Holders of one namespace.
#[derive(Debug)]
struct Claims<K> {
    total: u64,
    by_charge: BTreeSet<(u64, K)>,
}

/// Holders with their charges, and the last division. See the module.
#[derive(Debug)]
pub(crate) struct Shares<K> {
    budget: u64,
    holders: BTreeMap<K, (Arc<str>, u64)>,
    namespaces: BTreeMap<Arc<str>, Claims<K>>,
    /// All namespaces except the platform's, by the blocks that they request.
    by_total: BTreeSet<(u64, Arc<str>)>,
    total: u64,
    refused: BTreeSet<K>,
    /// Whether no charge has changed since the last division.
    is_settled: bool,
}

/// Holders whose state changed in a division.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShareChanges<K> {
    pub(crate) refused: Vec<K>,
    pub(crate) admitted: Vec<K>,
}

impl<K: Ord + Clone> Shares<K> {
    /// Returns an empty division of this many blocks.
    pub(crate) fn new(budget: u64) -> Self {
        Self {
            budget,
            holders: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            by_total: BTreeSet::new(),
            total: 0,
            refused: BTreeSet::new(),
            is_settled: true,
        }
    }

    /// Returns the sum of all charges, including those of refused holders.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.namespaces.is_empty() && self.by_total.is_empty() && self.refused.is_empty()
    }

    /// Returns the charge of a holder.
    pub(crate) fn charge(&self, key: &K) -> Option<u64> {
        self.holders.get(key).map(|(_, charge)| *charge)
    }

    /// Reports whether the last division refused a holder.
    pub(crate) fn is_refused(&self, key: &K) -> bool {
        self.refused.contains(key)
    }

    /// Charges a holder of a namespace with this many blocks.
    pub(crate) fn set(&mut self, key: K, namespace: &str, charge: u64) {
        if self.holders.get(&key).is_some_and(|(known, before)| **known == *namespace && *before == charge) {
            return;
        }
        self.take(&key);
        let namespace: Arc<str> = match self.namespaces.get_key_value(namespace) {
            Some((known, _)) => Arc::clone(known),
            None => namespace.into(),
        };
        let empty = || Claims { total: 0, by_charge: BTreeSet::new() };
        let claims = self.namespaces.entry(Arc::clone(&namespace)).or_insert_with(empty);
        let before = claims.total;
        claims.total += charge;
        claims.by_charge.insert((charge, key.clone()));
        if *namespace != *PLATFORM {
            let after = claims.total;
            self.by_total.remove(&(before, Arc::clone(&namespace)));
            self.by_total.insert((after, Arc::clone(&namespace)));
        }
        self.total += charge;
        self.holders.insert(key, (namespace, charge));
    }

    /// Removes a holder.
    pub(crate) fn remove(&mut self, key: &K) {
        self.take(key);
        self.refused.remove(key);
    }

    #[expect(clippy::expect_used, reason = "a namespace is known while it has holders")]
    fn take(&mut self, key: &K) {
        self.is_settled = false;
        let Some((namespace, charge)) = self.holders.remove(key) else { return };
        self.total -= charge;
        let claims = self.namespaces.get_mut(&namespace).expect("the namespace of a holder is known");
        let before = claims.total;
        claims.total -= charge;
        claims.by_charge.remove(&(charge, key.clone()));
        let after = (!claims.by_charge.is_empty()).then_some(claims.total);
        if *namespace != *PLATFORM {
            self.by_total.remove(&(before, Arc::clone(&namespace)));
            self.by_total.extend(after.map(|after| (after, Arc::clone(&namespace))));
        }
        if after.is_none() {
            self.namespaces.remove(&namespace);
        }
    }

    /// Divides the blocks by the present charges. The cost is proportional to the number of refused
    /// holders.
    pub(crate) fn settle(&mut self) -> ShareChanges<K> {
        if std::mem::replace(&mut self.is_settled, true) {
            return ShareChanges { refused: Vec::new(), admitted: Vec::new() };
        }
        let after = self.over_budget();
        let before = std::mem::take(&mut self.refused);
        let settled = ShareChanges {
            refused: after.difference(&before).cloned().collect(),
            admitted: before.difference(&after).cloned().collect(),
        };
        self.refused = after;
        settled
    }

    /// Returns the holders to refuse.
    #[expect(clippy::expect_used, reason = "totals are the sums of charges")]
    fn over_budget(&self) -> BTreeSet<K> {
        let mut refused = BTreeSet::new();
        let mut used = self.total;
        if used <= self.budget {
            return refused;
        }
        if let Some(platform) = self.namespaces.get(PLATFORM) {
            let tenants = used - platform.total;
            for (charge, key) in platform.by_charge.iter().rev() {
                if used - tenants <= self.budget {
                    break;
                }
                used -= charge;
                refused.insert(key.clone());
            }
        }
        let mut whole = self.by_total.iter().rev().map(|(total, namespace)| (*total, &**namespace)).peekable();
        // Namespaces that lose holders, by their remaining blocks, each with its remaining holders
        // from the largest on.
        let mut cut = BTreeMap::new();
        while used > self.budget {
            let most = cut.last_key_value().map(|(at, _)| *at);
            if let Some(next) = whole.next_if(|next| most.is_none_or(|most| *next > most)) {
                let claims = self.namespaces.get(next.1).expect("a namespace with a total is known");
                cut.insert(next, claims.by_charge.iter().rev());
            }
            let ((held, namespace), mut holders) = cut.pop_last().expect("holders are left that exceed the budget");
            let (charge, key) = holders.next().expect("the namespace with the most blocks has a holder");
            used -= charge;
            refused.insert(key.clone());
            cut.insert((held - charge, namespace), holders);
        }
        refused
    }
}

#[cfg(test)]
mod tests;
