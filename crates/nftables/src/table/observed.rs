//! The observed state of the kernel.

use std::collections::{BTreeMap, BTreeSet};

use tortie_net::InterfaceName;
use tortie_netfilter::RuleHash;

use crate::digest::Digest;
use crate::expression::RuleVerdict;
use crate::names::LayeredName;
use crate::render::hash_in;
use crate::set::Key;
use crate::transaction::BaseChain;
use crate::wire::{ObservedSet, SetShape, Snapshot};

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) exists: bool,
    /// No table that is made here has any.
    pub(super) flags: u32,
    pub(super) chains: BTreeMap<LayeredName, Chain>,
    pub(super) sets: BTreeMap<String, Set>,
    /// Flow tables, with their interfaces.
    pub(super) flow_tables: BTreeMap<String, BTreeSet<InterfaceName>>,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// `Some(None)` for a base chain of a kind that is never made here.
    pub(super) base: Option<Option<BaseChain>>,
    pub(super) rules: Vec<Rule>,
}

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Its handle; unknown for a rule that was written and not read since.
    pub(super) handle: Option<u64>,
    /// The hash in its comment; `None` for rules of other programs.
    pub(super) hash: Option<RuleHash>,
    pub(super) digest: Digest,
}

/// A set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) shape: SetShape,
    pub(super) elements: Elements,
    pub(super) verdicts: BTreeMap<Vec<u8>, RuleVerdict>,
}

impl Set {
    pub(super) fn new(shape: SetShape) -> Self {
        Self { shape, elements: Elements::default(), verdicts: BTreeMap::new() }
    }
}

/// Fewer changed elements of a set are found one by one, which compares few of the others.
const FEW_CHANGES: usize = 32;

/// Elements of a set, in order. Most sets have few, for which a node of a tree would be too large.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Elements(Vec<(Key, Option<Key>)>);

impl Elements {
    pub(super) fn contains(&self, element: &(Key, Option<Key>)) -> bool {
        self.0.binary_search(element).is_ok()
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, (Key, Option<Key>)> {
        self.0.iter()
    }

    pub(super) fn add(&mut self, elements: impl ExactSizeIterator<Item = (Key, Option<Key>)>) {
        if elements.len() < FEW_CHANGES && !self.0.is_empty() {
            for element in elements {
                if let Err(at) = self.0.binary_search(&element) {
                    self.0.insert(at, element);
                }
            }
            return;
        }
        if self.0.is_empty() {
            self.0.reserve_exact(elements.len());
        }
        self.0.extend(elements);
        // Linear in the known elements, which are a sorted run.
        self.0.sort();
        self.0.dedup();
    }

    pub(super) fn remove(&mut self, gone: &BTreeSet<(Key, Option<Key>)>) {
        if gone.len() < FEW_CHANGES {
            for element in gone {
                if let Ok(at) = self.0.binary_search(element) {
                    self.0.remove(at);
                }
            }
            return;
        }
        self.0.retain(|element| !gone.contains(element));
    }
}

impl From<ObservedSet> for Set {
    fn from(set: ObservedSet) -> Self {
        let key = |bytes: &[u8]| Key::from_bytes(bytes);
        let mut elements = Elements::default();
        elements.add(set.elements.iter().map(|(begin, end)| (key(begin), end.as_deref().map(key))));
        Self { shape: set.shape, elements, verdicts: set.verdicts }
    }
}

impl Observed {
    pub(super) fn new(snapshot: Option<Snapshot>) -> Self {
        let Some(snapshot) = snapshot else { return Self::default() };
        let rule = |rule: &crate::wire::ObservedRule| Rule {
            handle: Some(rule.handle),
            hash: hash_in(&rule.comment),
            digest: Digest::of(&rule.expressions, &rule.comment),
        };
        let chains = snapshot.chains.into_iter().map(|(name, chain)| {
            let rules = chain.rules.iter().map(rule).collect();
            (name, Chain { base: chain.base, rules })
        });
        let sets = snapshot.sets.into_iter().map(|(name, set)| (name, set.into()));
        Self {
            exists: true,
            flags: snapshot.flags,
            chains: chains.collect(),
            sets: sets.collect(),
            flow_tables: snapshot.flow_tables,
        }
    }

    /// Reports whether another reading is equal, including handles of rules.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same_number = |(one, other): (&Rule, &Rule)| one.handle.is_none() || one.handle == other.handle;
        let same_numbers = |(name, chain): (&LayeredName, &Chain)| {
            other.chains.get(name).is_some_and(|other| chain.rules.iter().zip(&other.rules).all(same_number))
        };
        self.exists == other.exists && self.differences(other) == 0 && self.chains.iter().all(same_numbers)
    }

    /// Counts the objects that differ in another reading.
    pub(super) fn differences(&self, other: &Self) -> usize {
        let plain = |chain: &Chain| {
            let rules: Vec<_> = chain.rules.iter().map(|rule| (rule.hash, rule.digest)).collect();
            (chain.base, rules)
        };
        let chains: BTreeSet<_> = self.chains.keys().chain(other.chains.keys()).collect();
        let differs = |name: &&&LayeredName| self.chains.get(**name).map(plain) != other.chains.get(**name).map(plain);
        let sets: BTreeSet<_> = self.sets.keys().chain(other.sets.keys()).collect();
        chains.iter().filter(differs).count()
            + usize::from(self.flags != other.flags)
            // Interfaces leave them by themselves.
            + usize::from(!self.flow_tables.keys().eq(other.flow_tables.keys()))
            + sets.iter().filter(|name| self.sets.get(**name) != other.sets.get(**name)).count()
    }
}

#[cfg(test)]
mod tests;
