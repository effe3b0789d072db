//! A memory budget that the namespaces of a node share.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Memory bounds on the tables of a node, in bytes.
///
/// A group whose table exceeds [`Budget::group`] is refused; other groups keep their tables. If all
/// tables together exceed [`Budget::node`], the largest table of the namespace with the most bytes
/// is refused, and so on until the rest fits. So a namespace that uses no more than the node's
/// limit divided by the number of namespaces keeps its tables, regardless of other namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a caller that sets bounds must set both")]
pub struct Budget {
    /// Bytes of one group's table; 256 MiB by default.
    pub group: usize,
    /// Bytes of the tables of all groups; 1 GiB by default. While a table is built, up to the
    /// group's limit is needed in addition.
    pub node: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Budget {
    /// 256 MiB a group, 1 GiB a node.
    pub const DEFAULT: Self = Self { group: 256 << 20, node: 1 << 30 };

    /// Bytes of the compiled rules of one policy in one direction: an eighth of a group's.
    #[must_use]
    pub const fn policy(self) -> usize {
        self.group / 8
    }
}

#[derive(Clone, Debug)]
struct Holder {
    namespace: Arc<str>,
    bytes: usize,
    /// Bytes that a refused table needs.
    refused: Option<usize>,
}

/// The bytes of a [`Budget`] that each table uses, by the table's key.
#[derive(Clone, Debug)]
pub struct Ledger<K> {
    budget: Budget,
    holders: BTreeMap<K, Holder>,
    used: usize,
    refused: usize,
}

impl<K> Default for Ledger<K> {
    fn default() -> Self {
        Self { budget: Budget::default(), holders: BTreeMap::new(), used: 0, refused: 0 }
    }
}

impl<K: Copy + Ord> Ledger<K> {
    /// Returns the limits.
    #[must_use]
    pub const fn budget(&self) -> Budget {
        self.budget
    }

    /// Replaces the bounds. Returns the tables that exceed the bound of a group, and those that
    /// were refused.
    pub fn set_budget(&mut self, budget: Budget) -> Vec<K> {
        self.budget = budget;
        let concerns = |holder: &Holder| holder.refused.is_some() || holder.bytes > budget.group;
        self.holders.iter().filter(|(_, holder)| concerns(holder)).map(|(key, _)| *key).collect()
    }

    /// Bytes of all tables.
    #[must_use]
    pub const fn used(&self) -> usize {
        self.used
    }

    /// Reports whether no table is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Bytes of a table; 0 for one that is unknown or refused.
    #[must_use]
    pub fn held(&self, key: K) -> usize {
        self.holders.get(&key).map_or(0, |holder| holder.bytes)
    }

    /// Returns the refused tables, ascending, and the limit that each exceeds.
    pub fn refused(&self) -> impl Iterator<Item = (K, usize)> + '_ {
        let limit = |needed| if needed > self.budget.group { self.budget.group } else { self.budget.node };
        self.holders.iter().filter_map(move |(key, holder)| holder.refused.map(|needed| (*key, limit(needed))))
    }

    /// Notes the size of a table of this namespace, in bytes.
    pub fn hold(&mut self, key: K, namespace: &str, bytes: usize) {
        self.set(key, namespace, bytes, None);
    }

    /// Notes the new size of a known table, in bytes.
    pub fn resize(&mut self, key: K, bytes: usize) {
        if let Some(holder) = self.holders.get_mut(&key) {
            let before = std::mem::replace(&mut holder.bytes, bytes);
            self.used = self.used.saturating_sub(before).saturating_add(bytes);
        }
    }

    /// Notes that a table of this namespace is refused, and the minimum of bytes that it needs.
    pub fn refuse(&mut self, key: K, namespace: &str, needed: usize) {
        self.set(key, namespace, 0, Some(needed));
    }

    fn set(&mut self, key: K, namespace: &str, bytes: usize, refused: Option<usize>) {
        let known = self.holders.get(&key).map(|holder| Arc::clone(&holder.namespace));
        let namespace = known.filter(|known| **known == *namespace).unwrap_or_else(|| namespace.into());
        self.remove(key);
        self.used = self.used.saturating_add(bytes);
        self.refused += usize::from(refused.is_some());
        self.holders.insert(key, Holder { namespace, bytes, refused });
    }

    /// Removes a table.
    pub fn remove(&mut self, key: K) {
        if let Some(holder) = self.holders.remove(&key) {
            self.used = self.used.saturating_sub(holder.bytes);
            self.refused -= usize::from(holder.refused.is_some());
        }
    }

    /// Returns the table to refuse next; `None` if all tables fit. It is the largest table of the
    /// namespace with the most bytes; among equally large ones, the table with the greatest key.
    #[must_use]
    pub fn excess(&self) -> Option<K> {
        if self.used <= self.budget.node {
            return None;
        }
        let (largest, _) = self.by_namespace().into_iter().max_by_key(|(name, bytes)| (*bytes, *name))?;
        let held = self.holders.iter().filter(|(_, holder)| &*holder.namespace == largest && holder.bytes > 0);
        held.max_by_key(|(key, holder)| (holder.bytes, **key)).map(|(key, _)| *key)
    }

    /// Returns the refused tables that fit now, or fit into the equal share of their namespace;
    /// those that need the least come first.
    #[must_use]
    pub fn with_room(&self) -> Vec<K> {
        if self.refused == 0 {
            return Vec::new();
        }
        let mut taken = self.by_namespace();
        let share = self.budget.node / taken.len().max(1);
        let waiting = self.holders.iter().filter_map(|(key, holder)| Some((holder.refused?, *key, &*holder.namespace)));
        let mut waiting: Vec<(usize, K, &str)> = waiting.filter(|(needed, ..)| *needed <= self.budget.group).collect();
        waiting.sort_unstable();
        let mut used = self.used;
        waiting.retain(|(needed, _, namespace)| {
            let of_namespace = taken.entry(namespace).or_default();
            let fits = used + needed <= self.budget.node || *of_namespace + needed <= share;
            if fits {
                used += needed;
                *of_namespace += needed;
            }
            fits
        });
        waiting.into_iter().map(|(_, key, _)| key).collect()
    }

    fn by_namespace(&self) -> BTreeMap<&str, usize> {
        let mut namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        for holder in self.holders.values() {
            *namespaces.entry(&holder.namespace).or_default() += holder.bytes;
        }
        namespaces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(held: &[(u8, &str, usize)]) -> Ledger<u8> {
        let mut ledger = Ledger::default();
        let _ = ledger.set_budget(Budget { group: 60, node: 100 });
        held.iter().for_each(|(key, namespace, bytes)| ledger.hold(*key, namespace, *bytes));
        ledger
    }

    #[test]
    fn the_largest_table_of_the_largest_namespace_goes_first() {
        let mut ledger = ledger(&[(1, "a", 45), (2, "b", 30), (3, "b", 29), (4, "c", 10)]);
        assert_eq!((ledger.used(), ledger.excess()), (114, Some(2)));
        ledger.refuse(2, "b", 30);
        assert_eq!((ledger.used(), ledger.excess()), (84, None));
        assert_eq!(ledger.refused().collect::<Vec<_>>(), [(2, 100)]);
        ledger.refuse(2, "b", 61);
        ledger.resize(1, 40);
        assert_eq!((ledger.used(), ledger.held(1), ledger.held(2)), (79, 40, 0));
        assert_eq!(ledger.refused().collect::<Vec<_>>(), [(2, 60)]);
    }

    #[test]
    fn a_refused_table_waits_for_room_or_for_its_share() {
        let mut ledger = ledger(&[(1, "a", 60), (2, "b", 35)]);
        ledger.refuse(3, "a", 6);
        ledger.refuse(4, "b", 16);
        ledger.refuse(5, "a", 61);
        assert_eq!(ledger.with_room(), [0; 0]);
        // The share of `b` is 50 bytes.
        ledger.refuse(4, "b", 15);
        assert_eq!(ledger.with_room(), [4]);
        ledger.remove(2);
        assert_eq!(ledger.with_room(), [3, 4]);
        // A table beyond the bound of a group is not tried.
        ledger.remove(1);
        assert_eq!(ledger.with_room(), [3, 4]);
        assert_eq!(ledger.set_budget(Budget { group: 100, node: 100 }), [3, 4, 5]);
        assert_eq!(ledger.with_room(), [3, 4, 5]);
    }
}
