//! Division of the trees of addresses among namespaces.
//!
//! While the networks of all policies fit, each policy has its networks in the tries. Over the
//! bound, the policy with the most blocks is refused, in the namespace with the most, and so on
//! until the rest fits. Policies of the platform are refused last. A list of networks and an IP set
//! count for each namespace that has them, as if they shared no block with others. So a namespace
//! that takes no more than its equal share of the blocks that the platform leaves loses nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tortie_model::Cidr;

use crate::addresses::trees::TrieNetwork;

/// The namespace of the platform's policies.
const PLATFORM: &str = "";

/// Networks, in no order. They are in the tries while a claimant that is not refused has them, or
/// if no claimant ever had them.
pub(crate) type Holding = Vec<Cidr>;

/// A policy with its holdings, by number and without repetition.
#[derive(Clone, Debug)]
pub(crate) struct Claimant<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) holdings: Vec<usize>,
}

/// Result of a division.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Division {
    /// Numbers of the claimants to refuse, the first one first.
    pub(crate) refused: Vec<usize>,
    /// Blocks that the last one would add to the trees.
    pub(crate) needed: usize,
}

/// Divides so many blocks among claimants.
#[expect(clippy::indexing_slicing, reason = "claimants and holdings are named by their places")]
pub(crate) fn divide(blocks: usize, holdings: &[Holding], claimants: &[Claimant<'_>]) -> Division {
    let mut forest = Forest::new(holdings);
    let mut division = Division::default();
    if forest.blocks <= blocks {
        return division;
    }
    let mut users = vec![0_usize; holdings.len()];
    for number in claimants.iter().flat_map(|claimant| &claimant.holdings) {
        users[*number] += 1;
    }
    for number in in_order(&forest.sizes(), claimants) {
        let before = forest.blocks;
        for holding in &claimants[number].holdings {
            users[*holding] -= 1;
            if users[*holding] == 0 {
                forest.remove(*holding);
            }
        }
        division.refused.push(number);
        division.needed = before - forest.blocks;
        if forest.blocks <= blocks {
            break;
        }
    }
    division
}

/// Claimants in the order in which they are refused.
#[expect(clippy::expect_used, reason = "each namespace is queued by its name")]
fn in_order(sizes: &[usize], claimants: &[Claimant<'_>]) -> Vec<usize> {
    let mut namespaces: BTreeMap<&str, Namespace> = BTreeMap::new();
    for (number, claimant) in claimants.iter().enumerate() {
        let namespace = namespaces.entry(claimant.namespace).or_default();
        namespace.claimants.push(number);
        for holding in &claimant.holdings {
            *namespace.users.entry(*holding).or_default() += 1;
        }
    }
    for namespace in namespaces.values_mut() {
        namespace.settle(sizes, claimants);
    }
    let platform = namespaces.remove(PLATFORM);
    let mut by_total: BinaryHeap<(usize, Reverse<&str>)> =
        namespaces.iter().map(|(name, namespace)| (namespace.total, Reverse(*name))).collect();
    let mut order = Vec::new();
    while let Some((_, Reverse(name))) = by_total.pop() {
        let namespace = namespaces.get_mut(name).expect("a queued namespace");
        if let Some(number) = namespace.refuse(sizes, claimants) {
            order.push(number);
            by_total.push((namespace.total, Reverse(name)));
        }
    }
    order.extend(platform.into_iter().flat_map(|platform| platform.claimants.into_iter().rev()));
    order
}

/// The claimants of a namespace that are not refused, the largest last.
#[derive(Default)]
struct Namespace {
    claimants: Vec<usize>,
    /// Number of these claimants with a holding.
    users: BTreeMap<usize, usize>,
    /// Blocks of all holdings, each as if it shared none with others.
    total: usize,
}

#[expect(clippy::indexing_slicing, reason = "claimants and holdings are named by their places")]
impl Namespace {
    fn settle(&mut self, sizes: &[usize], claimants: &[Claimant<'_>]) {
        self.total = self.users.keys().map(|holding| sizes[*holding]).sum();
        let share = |holding: &usize| sizes[*holding] / self.users[holding];
        let charge = |number: &usize| {
            let holdings = &claimants[*number].holdings;
            (holdings.iter().map(share).sum::<usize>(), Reverse(*number))
        };
        self.claimants.sort_by_cached_key(charge);
    }

    /// Removes the largest claimant.
    #[expect(clippy::expect_used, reason = "users of holdings are counted by claimants")]
    fn refuse(&mut self, sizes: &[usize], claimants: &[Claimant<'_>]) -> Option<usize> {
        let number = self.claimants.pop()?;
        for holding in &claimants[number].holdings {
            let users = self.users.get_mut(holding).expect("the claimant is one of its users");
            *users -= 1;
            if *users == 0 {
                self.total -= sizes[*holding];
            }
        }
        Some(number)
    }
}

/// The places of all holdings, in order.
struct Forest {
    places: Vec<TrieNetwork>,
    /// Numbers of the holdings that a place is in.
    counts: Vec<usize>,
    /// Neighbours of a place, among the remaining ones.
    before: Vec<Option<u32>>,
    after: Vec<Option<u32>>,
    /// The places of each holding, ascending.
    of: Vec<Vec<u32>>,
    blocks: usize,
}

#[expect(clippy::indexing_slicing, reason = "places and holdings are numbered from 0")]
impl Forest {
    fn new(holdings: &[Holding]) -> Self {
        let places_of = |(holding, nets): (u32, &Holding)| {
            let places = nets.iter().copied().flat_map(TrieNetwork::of);
            places.map(move |place| (place, holding)).collect::<Vec<_>>()
        };
        let mut all: Vec<(TrieNetwork, u32)> = (0..).zip(holdings).flat_map(places_of).collect();
        all.sort_unstable();
        all.dedup();
        let mut forest = Self {
            places: Vec::new(),
            counts: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            of: vec![Vec::new(); holdings.len()],
            blocks: 0,
        };
        let mut end = 0;
        for (number, same) in (0..).zip(all.chunk_by(|(one, _), (other, _)| one == other)) {
            let place = same[0].0;
            forest.blocks += place.blocks_after(forest.places.last().copied());
            forest.places.push(place);
            forest.counts.push(same.len());
            for (_, holding) in same {
                forest.of[*holding as usize].push(number);
            }
            end = number + 1;
        }
        forest.before = (0..end).map(|number| number.checked_sub(1)).collect();
        forest.after = (1..=end).map(|number| (number < end).then_some(number)).collect();
        forest
    }

    /// Blocks of each holding alone.
    fn sizes(&self) -> Vec<usize> {
        let size = |of: &Vec<u32>| {
            let places = of.iter().map(|number| self.places[*number as usize]);
            let blocks = places.scan(None, |before, place| Some(place.blocks_after(before.replace(place))));
            blocks.sum()
        };
        self.of.iter().map(size).collect()
    }

    /// Blocks of a place that the one before it does not have.
    fn blocks_at(&self, number: u32) -> usize {
        let before = self.before[number as usize].map(|before| self.places[before as usize]);
        self.places[number as usize].blocks_after(before)
    }

    fn remove(&mut self, holding: usize) {
        for number in std::mem::take(&mut self.of[holding]) {
            self.counts[number as usize] -= 1;
            if self.counts[number as usize] == 0 {
                self.unlink(number);
            }
        }
    }

    fn unlink(&mut self, number: u32) {
        let (before, after) = (self.before[number as usize], self.after[number as usize]);
        self.blocks -= self.blocks_at(number) + after.map_or(0, |after| self.blocks_at(after));
        if let Some(before) = before {
            self.after[before as usize] = after;
        }
        if let Some(after) = after {
            self.before[after as usize] = before;
        }
        self.blocks += after.map_or(0, |after| self.blocks_at(after));
    }
}

#[cfg(test)]
mod tests;
