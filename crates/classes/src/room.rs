//! Division of the trees of addresses among namespaces.
//!
//! While the networks of all policies fit, each has its own in the trees. Over the bound, the policy with the most blocks is
//! refused, in the namespace with the most, and so on until the rest fits; policies of the platform are refused last. A list of
//! networks and an IP set count for each namespace that has them, as if they shared no block with others. So a namespace loses
//! nothing that takes no more than its equal share of the blocks that the platform leaves.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tortie_model::Cidr;

use crate::addresses::trees::Place;

/// The namespace of the platform's policies.
const PLATFORM: &str = "";

/// Networks that are in the trees for as long as a claimant that is not refused has them, or if none ever had; in no order.
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
pub(crate) fn divide(blocks: usize, holdings: &[Holding], claimants: &[Claimant<'_>]) -> Division {
    let mut forest = Forest::new(holdings);
    let mut division = Division::default();
    if forest.blocks <= blocks {
        return division;
    }
    let mut users = vec![0_usize; holdings.len()];
    for number in claimants.iter().flat_map(|claimant| &claimant.holdings) {
        if let Some(users) = users.get_mut(*number) {
            *users += 1;
        }
    }
    for number in in_order(&forest.sizes(), claimants) {
        let before = forest.blocks;
        for holding in claimants.get(number).into_iter().flat_map(|claimant| &claimant.holdings) {
            let Some(left) = users.get_mut(*holding) else { continue };
            *left -= 1;
            if *left == 0 {
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
        let Some(namespace) = namespaces.get_mut(name) else { continue };
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

impl Namespace {
    fn settle(&mut self, sizes: &[usize], claimants: &[Claimant<'_>]) {
        let size = |holding: &usize| sizes.get(*holding).copied().unwrap_or_default();
        self.total = self.users.keys().map(size).sum();
        let share = |holding: &usize| Some(size(holding) / self.users.get(holding)?);
        let charge = |number: &usize| {
            let of = claimants.get(*number).into_iter().flat_map(|claimant| &claimant.holdings);
            (of.filter_map(share).sum::<usize>(), Reverse(*number))
        };
        self.claimants.sort_by_cached_key(charge);
    }

    /// Takes the largest claimant away.
    fn refuse(&mut self, sizes: &[usize], claimants: &[Claimant<'_>]) -> Option<usize> {
        let number = self.claimants.pop()?;
        for holding in claimants.get(number).into_iter().flat_map(|claimant| &claimant.holdings) {
            let Some(users) = self.users.get_mut(holding) else { continue };
            *users -= 1;
            if *users == 0 {
                self.total -= sizes.get(*holding).copied().unwrap_or_default();
            }
        }
        Some(number)
    }
}

/// The places of all holdings, in order.
struct Forest {
    places: Vec<Place>,
    /// Numbers of the holdings that a place is in.
    counts: Vec<usize>,
    /// Neighbours of a place, among those that are still there.
    before: Vec<Option<u32>>,
    after: Vec<Option<u32>>,
    /// The places of each holding, ascending.
    of: Vec<Vec<u32>>,
    blocks: usize,
}

impl Forest {
    fn new(holdings: &[Holding]) -> Self {
        let places_of = |(holding, nets): (u32, &Holding)| {
            let places = nets.iter().copied().flat_map(Place::of);
            places.map(move |place| (place, holding)).collect::<Vec<_>>()
        };
        let mut all: Vec<(Place, u32)> = (0..).zip(holdings).flat_map(places_of).collect();
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
            let Some((place, _)) = same.first() else { continue };
            forest.blocks += place.blocks_after(forest.places.last().copied());
            forest.places.push(*place);
            forest.counts.push(same.len());
            for (_, holding) in same {
                if let Some(of) = forest.of.get_mut(*holding as usize) {
                    of.push(number);
                }
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
            let places = of.iter().filter_map(|number| self.place(*number));
            let blocks = places.scan(None, |before, place| Some(place.blocks_after(before.replace(place))));
            blocks.sum()
        };
        self.of.iter().map(size).collect()
    }

    fn place(&self, number: u32) -> Option<Place> {
        self.places.get(number as usize).copied()
    }

    /// Blocks of a place that the one before it does not have.
    fn blocks_at(&self, number: u32) -> usize {
        let before = self.before.get(number as usize).copied().flatten().and_then(|before| self.place(before));
        self.place(number).map_or(0, |place| place.blocks_after(before))
    }

    fn remove(&mut self, holding: usize) {
        let of = self.of.get_mut(holding).map(std::mem::take);
        for number in of.into_iter().flatten() {
            let Some(count) = self.counts.get_mut(number as usize) else { continue };
            *count -= 1;
            if *count == 0 {
                self.unlink(number);
            }
        }
    }

    fn unlink(&mut self, number: u32) {
        let neighbour = |of: &[Option<u32>]| of.get(number as usize).copied().flatten();
        let (before, after) = (neighbour(&self.before), neighbour(&self.after));
        self.blocks -= self.blocks_at(number) + after.map_or(0, |after| self.blocks_at(after));
        if let Some(link) = before.and_then(|before| self.after.get_mut(before as usize)) {
            *link = after;
        }
        if let Some(link) = after.and_then(|after| self.before.get_mut(after as usize)) {
            *link = before;
        }
        self.blocks += after.map_or(0, |after| self.blocks_at(after));
    }
}

#[cfg(test)]
mod tests;
