//! Overlap suppression: a set emits only networks that no other network of the set covers.
//!
//! Single addresses cannot cover each other, so only a set that contains a network gets a [`Cover`]
//! (`memberDeduplicator` in `felix/labelindex/named_port_index.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use tortie_model::{Cidr, Family};

/// All networks of a set, including covered ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Cover {
    nets: BTreeSet<Cidr>,
    /// Number of networks of each prefix length: a search for a covering network tries only these
    /// lengths.
    lengths: BTreeMap<(Family, u8), usize>,
}

impl Cover {
    /// Returns the cover of sorted networks, each given once.
    pub(super) fn of_sorted(nets: &[Cidr]) -> Self {
        let mut cover = Self { nets: nets.iter().copied().collect(), lengths: BTreeMap::new() };
        for net in nets {
            *cover.lengths.entry((net.family(), net.prefix_len())).or_default() += 1;
        }
        cover
    }

    /// Adds and removes networks; returns the networks that therefore appear and disappear, both
    /// sorted.
    pub(super) fn change(&mut self, added: &[Cidr], removed: &[Cidr]) -> (Vec<Cidr>, Vec<Cidr>) {
        let mut visible: BTreeMap<Cidr, i8> = BTreeMap::new();
        for &net in added {
            self.add(net, &mut visible);
        }
        for &net in removed {
            self.remove(net, &mut visible);
        }
        let with = |sign: i8| visible.iter().filter(move |&(_, &s)| s == sign).map(|(&net, _)| net).collect();
        (with(1), with(-1))
    }

    fn add(&mut self, net: Cidr, visible: &mut BTreeMap<Cidr, i8>) {
        if !self.nets.insert(net) {
            return;
        }
        *self.lengths.entry((net.family(), net.prefix_len())).or_default() += 1;
        if !self.is_covered(net) {
            *visible.entry(net).or_default() += 1;
            self.closest_descendants(net, |inner| *visible.entry(inner).or_default() -= 1);
        }
    }

    #[expect(clippy::expect_used, reason = "networks are counted by length when they are added")]
    fn remove(&mut self, net: Cidr, visible: &mut BTreeMap<Cidr, i8>) {
        if !self.nets.remove(&net) {
            return;
        }
        let key = (net.family(), net.prefix_len());
        let count = self.lengths.get_mut(&key).expect("the lengths of all networks are counted");
        *count -= 1;
        if *count == 0 {
            self.lengths.remove(&key);
        }
        if !self.is_covered(net) {
            *visible.entry(net).or_default() -= 1;
            self.closest_descendants(net, |inner| *visible.entry(inner).or_default() += 1);
        }
    }

    /// Reports whether a larger network of the set covers this one.
    fn is_covered(&self, net: Cidr) -> bool {
        let family = net.family();
        let larger = self.lengths.range((family, 0)..(family, net.prefix_len()));
        larger
            .filter_map(|(&(_, length), _)| Cidr::new(net.address(), length))
            .any(|outer| self.nets.contains(&outer.masked()))
    }

    /// Calls `with` for the networks inside `net` that no other network inside `net` covers.
    fn closest_descendants(&self, net: Cidr, mut with: impl FnMut(Cidr)) {
        let end = net.last_host();
        let mut after = net;
        while after < end {
            let Some(&inner) = self.nets.range((Bound::Excluded(after), Bound::Included(end))).next() else { return };
            with(inner);
            after = inner.last_host();
        }
    }
}

/// Removes the networks that another one covers from a sorted list.
pub(super) fn keep_maximal(nets: &mut Vec<Cidr>) {
    let mut last: Option<Cidr> = None;
    nets.retain(|&net| {
        let covered = last.is_some_and(|outer| outer.contains(net.address()));
        if !covered {
            last = Some(net);
        }
        !covered
    });
}
