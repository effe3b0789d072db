//! Selectors that pick the pods of an owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::inventory::Inventory;
use crate::labels::{LabelMap, PodSelector, is_excluded, is_plain, rank};
use crate::owner::Owner;
use crate::record::Record;

/// Number of labels of an owner that are tried, the known ones first.
const CANDIDATES: usize = 24;

/// Number of labels of a selector up to which the smallest set is searched. Without one, all
/// candidates are taken.
const SEARCHED: usize = 3;

/// Selectors of all owners.
#[derive(Debug, Default)]
pub(crate) struct Selectors {
    by_owner: BTreeMap<Owner, Choice>,
    /// Labels whose values differ between pods of an owner.
    pub(crate) varying: BTreeSet<Arc<str>>,
    /// Label sets of the pods of each owner.
    pub(crate) label_sets: BTreeMap<Owner, BTreeSet<LabelMap>>,
}

/// Selector of an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) selector: PodSelector,
    /// Other owners of the namespace whose pods the selector also picks.
    pub(crate) also: Vec<Owner>,
}

impl Selectors {
    /// Chooses selectors of all owners of a cluster and a record. Selectors of `base` are kept
    /// where they pick the pods of one owner.
    pub(crate) fn new(inventory: &Inventory, record: &Record, base: &BTreeSet<(Arc<str>, PodSelector)>) -> Self {
        let mut label_sets: BTreeMap<Owner, BTreeSet<LabelMap>> = BTreeMap::new();
        for pod in inventory.pods.values() {
            label_sets.entry(pod.owner.clone()).or_default().insert(pod.labels.clone());
        }
        for (owner, pods) in record.owners() {
            label_sets.entry(owner.clone()).or_default().extend(pods.label_sets.iter().cloned());
        }
        label_sets.retain(|_, sets| !sets.is_empty());
        let varying = varying(label_sets.values());
        let mut by_owner = BTreeMap::new();
        for (owner, own) in &label_sets {
            let others: Vec<(&Owner, &LabelMap)> = label_sets
                .range(Owner::first_of(&owner.namespace)..)
                .take_while(|(other, _)| other.namespace == owner.namespace)
                .filter(|(other, _)| *other != owner)
                .flat_map(|(other, sets)| sets.iter().map(move |labels| (other, labels)))
                .collect();
            let kept = base.iter().filter(|(namespace, _)| *namespace == owner.namespace).map(|(_, kept)| kept);
            let kept = kept.filter(|kept| is_allowed(kept, &varying)).find(|kept| {
                own.iter().all(|labels| kept.picks(labels)) && !others.iter().any(|(_, labels)| kept.picks(labels))
            });
            let selector = kept.cloned().unwrap_or_else(|| choose(own, &others, &varying));
            let also: BTreeSet<&Owner> =
                others.iter().filter(|(_, labels)| selector.picks(labels)).map(|(other, _)| *other).collect();
            by_owner.insert(owner.clone(), Choice { selector, also: also.into_iter().cloned().collect() });
        }
        Self { by_owner, varying, label_sets }
    }

    /// Returns the selector of an owner; `None` if no labels of its pods are known.
    pub(crate) fn of(&self, owner: &Owner) -> Option<&Choice> {
        self.by_owner.get(owner)
    }
}

/// Reports whether a selector of an earlier output has only labels that a new one may have.
fn is_allowed(selector: &PodSelector, varying: &BTreeSet<Arc<str>>) -> bool {
    let keys = || selector.equal.keys().chain(&selector.absent);
    keys().next().is_some() && keys().all(|key| !is_excluded(key) && !varying.contains(key))
}

/// Returns the labels with more than one value among the pods of an owner.
fn varying<'s>(owners: impl Iterator<Item = &'s BTreeSet<LabelMap>>) -> BTreeSet<Arc<str>> {
    let mut varying = BTreeSet::new();
    for sets in owners {
        let mut values: BTreeMap<&Arc<str>, &Arc<str>> = BTreeMap::new();
        for (key, value) in sets.iter().flatten() {
            if *values.entry(key).or_insert(value) != value {
                varying.insert(Arc::clone(key));
            }
        }
    }
    varying
}

/// Chooses a selector for pods with some label sets, and for no others if possible.
fn choose(own: &BTreeSet<LabelMap>, others: &[(&Owner, &LabelMap)], varying: &BTreeSet<Arc<str>>) -> PodSelector {
    let candidates = candidates(own, varying);
    let keys: Vec<&Arc<str>> = candidates.keys().map(|(_, key)| key).collect();
    let known: Vec<&Arc<str>> = keys.iter().copied().filter(|key| rank(key).is_some()).collect();
    let value = |key: &Arc<str>| candidates.get(&(rank(key).unwrap_or(usize::MAX), Arc::clone(key)));
    // An other pod differs in these labels; equal sets of labels count once.
    let differences = |keys: &[&Arc<str>]| -> BTreeSet<Vec<bool>> {
        let differs = |labels: &LabelMap, key: &Arc<str>| labels.get(key) != value(key);
        others.iter().map(|(_, labels)| keys.iter().map(|key| differs(labels, key)).collect()).collect()
    };
    for keys in [&known, &keys] {
        if let Some(found) = smallest(keys.len(), &differences(keys)) {
            let chosen = found.into_iter().filter_map(|at| keys.get(at));
            let equal = chosen.filter_map(|key| Some((Arc::clone(key), Arc::clone(value(key)?))));
            return PodSelector { equal: equal.collect(), absent: Vec::new() };
        }
    }
    let equal = keys.iter().filter_map(|key| Some((Arc::clone(key), Arc::clone(value(key)?)))).collect();
    let mut selector = PodSelector { equal, absent: Vec::new() };
    selector.absent = absent(&selector, own, others, varying);
    selector
}

/// Returns the labels with one value in all pods of an owner, by rank and name.
fn candidates(own: &BTreeSet<LabelMap>, varying: &BTreeSet<Arc<str>>) -> BTreeMap<(usize, Arc<str>), Arc<str>> {
    let Some(first) = own.first() else { return BTreeMap::new() };
    let mut candidates: BTreeMap<(usize, Arc<str>), Arc<str>> = first
        .iter()
        .filter(|(key, value)| is_plain(key) && is_plain(value) && !is_excluded(key) && !varying.contains(*key))
        .filter(|(key, value)| own.iter().all(|labels| labels.get(*key) == Some(value)))
        .map(|(key, value)| ((rank(key).unwrap_or(usize::MAX), Arc::clone(key)), Arc::clone(value)))
        .collect();
    while candidates.len() > CANDIDATES {
        candidates.pop_last();
    }
    candidates
}

/// Returns the first of the smallest sets of labels in which each other pod differs; at least one
/// label, and `None` beyond the number that is searched.
fn smallest(keys: usize, differences: &BTreeSet<Vec<bool>>) -> Option<Vec<usize>> {
    (1..=SEARCHED.min(keys)).find_map(|size| {
        let mut chosen: Vec<usize> = (0..size).collect();
        loop {
            let differs = |row: &Vec<bool>| chosen.iter().any(|at| row.get(*at) == Some(&true));
            if differences.iter().all(differs) {
                return Some(chosen);
            }
            if !next_combination(&mut chosen, keys) {
                return None;
            }
        }
    })
}

/// Turns a combination of numbers below `bound` into the next one in lexicographic order.
fn next_combination(chosen: &mut [usize], bound: usize) -> bool {
    let size = chosen.len();
    let movable = chosen.iter().enumerate().rev().find(|(place, number)| **number + size < bound + place);
    let Some((place, number)) = movable.map(|(place, number)| (place, *number)) else { return false };
    for (steps, later) in chosen.iter_mut().skip(place).enumerate() {
        *later = number + 1 + steps;
    }
    true
}

/// Returns labels that only other pods have, so that the selector does not pick these.
fn absent(
    selector: &PodSelector,
    own: &BTreeSet<LabelMap>,
    others: &[(&Owner, &LabelMap)],
    varying: &BTreeSet<Arc<str>>,
) -> Vec<Arc<str>> {
    let is_usable = |key: &Arc<str>| {
        is_plain(key)
            && !is_excluded(key)
            && !varying.contains(key)
            && !own.iter().any(|labels| labels.contains_key(key))
    };
    let mut chosen: BTreeSet<Arc<str>> = BTreeSet::new();
    for (_, labels) in others.iter().filter(|(_, labels)| selector.picks(labels)) {
        if labels.keys().any(|key| chosen.contains(key)) {
            continue;
        }
        let usable = labels.keys().filter(|key| is_usable(key));
        if let Some(best) = usable.min_by_key(|key| (rank(key).unwrap_or(usize::MAX), Arc::clone(key))) {
            chosen.insert(Arc::clone(best));
        }
    }
    chosen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> LabelMap {
        text.split(' ').filter_map(|pair| pair.split_once('=')).map(|(key, value)| (key.into(), value.into())).collect()
    }

    /// Chooses a selector for `own` among `others`, each a list of label sets of an owner.
    fn chosen(own: &[&str], others: &[&str]) -> String {
        let own: BTreeSet<LabelMap> = own.iter().map(|text| labels(text)).collect();
        let others: Vec<LabelMap> = others.iter().map(|text| labels(text)).collect();
        let owner = Owner::of_pod("n", "other", &LabelMap::new(), None);
        let pairs: Vec<(&Owner, &LabelMap)> = others.iter().map(|labels| (&owner, labels)).collect();
        let selector = choose(&own, &pairs, &varying([own.clone()].iter()));
        let equal = selector.equal.iter().map(|(key, value)| format!("{key}={value}"));
        equal.chain(selector.absent.iter().map(|key| format!("!{key}"))).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_smallest_set_of_known_labels_is_chosen() {
        assert_eq!(chosen(&["app=web team=a"], &["app=db team=a"]), "app=web");
        assert_eq!(chosen(&["app=web tier=front"], &["app=web tier=back", "app=db tier=front"]), "app=web tier=front");
        assert_eq!(chosen(&["name=web app=web"], &[]), "app=web");
        assert_eq!(chosen(&["team=a"], &["team=b"]), "team=a");
        // Known labels come first, even if an unknown one alone would do.
        assert_eq!(chosen(&["app=web tier=a x=1"], &["app=web tier=b x=2", "app=db tier=a x=3"]), "app=web tier=a");
        assert_eq!(chosen(&["app=web x=1"], &["app=web x=2"]), "x=1");
    }

    #[test]
    fn labels_of_rollouts_are_never_chosen() {
        let first = "app=web pod-template-hash=1 version=1 color=red";
        assert_eq!(chosen(&[first, "app=web pod-template-hash=2 version=1 color=blue"], &["app=web"]), "app=web");
        assert_eq!(chosen(&["pod-template-hash=1"], &["app=web"]), "!app");
    }

    #[test]
    fn pods_without_labels_are_those_that_lack_the_labels_of_others() {
        assert_eq!(chosen(&[""], &["app=web", "x=1 name=db"]), "!app !name");
        assert_eq!(chosen(&["app=web"], &["app=web x=1"]), "app=web !x");
        assert_eq!(chosen(&[""], &[]), "");
    }

    #[test]
    fn labels_that_could_change_the_meaning_of_a_selector_are_left_out() {
        assert_eq!(chosen(&["app=web'||all() tier=a"], &["app=db tier=b"]), "tier=a");
        assert_eq!(chosen(&[""], &["a'=1"]), "");
    }

    #[test]
    fn combinations_come_in_order() {
        let mut chosen = vec![0, 1];
        let mut seen = vec![chosen.clone()];
        while next_combination(&mut chosen, 4) {
            seen.push(chosen.clone());
        }
        assert_eq!(seen, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
    }
}
