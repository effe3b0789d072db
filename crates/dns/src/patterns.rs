//! Patterns of many sets in a trie of reversed labels.

use ahash::AHashMap;
use smallvec::SmallVec;
use tortie_net::{DomainName, DomainPattern};

use crate::slab::Slot;

/// The sets of one name, in order.
pub(crate) type SetList = SmallVec<[Slot; 4]>;

/// A node of the trie: the labels on the way to it, from right to left.
///
/// At a `*`, the way goes on in the node `any`, by the labels before the `*` from left to right.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    children: AHashMap<Box<str>, Patterns>,
    any: Option<Box<Patterns>>,
    /// The sets with the pattern that ends here, in order.
    sets: Vec<Slot>,
}

/// A step of the way of a pattern.
#[derive(Clone, Copy)]
enum Step<'p> {
    Label(&'p str),
    Star,
}

/// Returns the way of a pattern through the trie.
fn steps(pattern: &DomainPattern) -> SmallVec<[Step<'_>; 8]> {
    let reversed = |text| str::rsplit(text, '.').map(Step::Label);
    match pattern.around_star() {
        None => reversed(pattern.as_str()).collect(),
        Some((before, after)) => {
            let before = before.split('.').filter(|label| !label.is_empty()).map(Step::Label);
            reversed(after).chain([Step::Star]).chain(before).collect()
        }
    }
}

impl Patterns {
    /// Adds a pattern to a set; idempotent.
    pub(crate) fn insert(&mut self, pattern: &DomainPattern, set: Slot) {
        let mut node = self;
        for step in steps(pattern) {
            node = match step {
                Step::Label(label) => node.children.entry(label.into()).or_default(),
                Step::Star => node.any.get_or_insert_default(),
            };
        }
        if let Err(place) = node.sets.binary_search(&set) {
            node.sets.insert(place, set);
        }
    }

    /// Removes a pattern from a set; idempotent.
    pub(crate) fn remove(&mut self, pattern: &DomainPattern, set: Slot) {
        self.remove_steps(&steps(pattern), set);
    }

    /// Recurs once for each label, at most 127 times.
    fn remove_steps(&mut self, steps: &[Step<'_>], set: Slot) {
        match steps {
            [] => {
                if let Ok(place) = self.sets.binary_search(&set) {
                    self.sets.remove(place);
                }
            }
            [Step::Label(label), rest @ ..] => {
                if let Some(child) = self.children.get_mut(*label) {
                    child.remove_steps(rest, set);
                    if child.is_empty() {
                        self.children.remove(*label);
                    }
                }
            }
            [Step::Star, rest @ ..] => {
                if let Some(any) = &mut self.any {
                    any.remove_steps(rest, set);
                    self.any.take_if(|any| any.is_empty());
                }
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.children.is_empty() && self.any.is_none() && self.sets.is_empty()
    }

    /// Returns the sets of `among` (in order) with a pattern that matches, in order.
    ///
    /// Cost: for a name with n labels, at most n²/2 probes, but n where no pattern on the way has
    /// labels before a `*`; at each pattern that matches, the number of its sets or of `among`,
    /// whichever is smaller. The number of patterns does not count.
    pub(crate) fn matching(&self, name: &DomainName, among: &[Slot]) -> SetList {
        let mut found = SetList::new();
        if among.is_empty() {
            return found;
        }
        let labels: SmallVec<[&str; 8]> = name.labels().collect();
        let mut node = self;
        let mut before = labels.as_slice();
        while let Some((label, rest)) = before.split_last() {
            let Some(child) = node.children.get(*label) else { break };
            (node, before) = (child, rest);
            if let (Some(any), Some((_, before_star))) = (&node.any, before.split_last()) {
                any.collect(before_star, among, &mut found);
            }
        }
        if before.is_empty() {
            intersect(&node.sets, among, &mut found);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Collects the sets whose labels before a `*` are the first ones of `labels`.
    fn collect(&self, labels: &[&str], among: &[Slot], found: &mut SetList) {
        let mut node = self;
        intersect(&node.sets, among, found);
        for label in labels {
            let Some(child) = node.children.get(*label) else { break };
            node = child;
            intersect(&node.sets, among, found);
        }
    }
}

/// Adds the common elements of two lists in order, at the cost of the shorter one.
fn intersect(sets: &[Slot], among: &[Slot], found: &mut SetList) {
    let (short, long) = if sets.len() <= among.len() { (sets, among) } else { (among, sets) };
    found.extend(short.iter().copied().filter(|set| long.binary_search(set).is_ok()));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::slab::Slab;

    fn slots(number: usize) -> Vec<Slot> {
        let mut slab = Slab::default();
        (0..number).map(|_| slab.insert(())).collect()
    }

    fn pattern() -> impl Strategy<Value = DomainPattern> {
        let texts = proptest::string::string_regex("((a|b|\\*)\\.){0,3}(a|b)").unwrap();
        texts.prop_filter_map("at most one star", |text| text.parse().ok())
    }

    fn name() -> impl Strategy<Value = DomainName> {
        proptest::string::string_regex("((a|b|c)\\.){0,4}(a|b)").unwrap().prop_map(|text| text.parse().unwrap())
    }

    proptest! {
        #[test]
        fn the_trie_matches_as_each_pattern_does(
            patterns in prop::collection::vec((pattern(), 0..4usize), 0..12),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            names in prop::collection::vec(name(), 1..6),
            among in prop::collection::btree_set(0..4usize, 0..4),
        ) {
            let slots = slots(4);
            let (mut trie, mut left) = (Patterns::default(), patterns);
            for (pattern, set) in &left {
                trie.insert(pattern, slots[*set]);
            }
            for index in removed {
                if left.is_empty() {
                    break;
                }
                let (pattern, set) = left[index.index(left.len())].clone();
                trie.remove(&pattern, slots[set]);
                left.retain(|other| *other != (pattern.clone(), set));
            }
            let among: Vec<Slot> = among.iter().map(|set| slots[*set]).collect();
            for name in names {
                let matching = left.iter().filter(|(pattern, _)| pattern.matches(&name)).map(|(_, set)| slots[*set]);
                let mut expected: Vec<Slot> = matching.filter(|set| among.contains(set)).collect();
                expected.sort_unstable();
                expected.dedup();
                prop_assert_eq!(trie.matching(&name, &among).to_vec(), expected);
            }
            for (pattern, set) in &left {
                trie.remove(pattern, slots[*set]);
            }
            prop_assert!(trie.is_empty());
        }
    }
}
