//! Size of the tries from addresses to classes, before they are built.
//!
//! A trie has a block for each distinct prefix, in whole bytes, of the networks in it. One trie has
//! all networks; another has the IPv6 networks that are no single addresses.

use tortie_model::{Cidr, Family};

use super::Addresses;
use crate::ids::AtomId;

/// A network in one of the tries. In sort order, a network comes before those that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TrieNetwork {
    tree: Tree,
    net: Cidr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tree {
    All,
    Networks,
}

impl TrieNetwork {
    /// The places of a network.
    pub(crate) fn of(net: Cidr) -> impl Iterator<Item = Self> {
        let is_network = net.family() == Family::V6 && !net.is_host();
        let networks = is_network.then_some(Self { tree: Tree::Networks, net });
        std::iter::once(Self { tree: Tree::All, net }).chain(networks)
    }

    /// Blocks on the ways from the roots of all trees to a network.
    pub(crate) fn depths(net: Cidr) -> usize {
        Self::of(net).map(Self::depth).sum()
    }

    /// Blocks on the way from the root to the network.
    fn depth(self) -> usize {
        self.net.prefix_len().div_ceil(8).into()
    }

    /// Blocks on its way that are not on the way of the place before it in order, and so of no
    /// earlier one.
    pub(crate) fn blocks_after(self, before: Option<Self>) -> usize {
        let shared = before.filter(|before| (before.tree, before.net.family()) == (self.tree, self.net.family()));
        let shared = shared.map_or(0, |before| {
            let equal_bytes = ((before.net.bits() ^ self.net.bits()).leading_zeros() / 8) as usize;
            (equal_bytes + 1).min(before.depth())
        });
        self.depth().saturating_sub(shared)
    }
}

/// Blocks of the trees of networks in order.
pub(crate) fn blocks(nets: impl Iterator<Item = Cidr>) -> usize {
    let mut before = [None, None];
    let places = nets.flat_map(TrieNetwork::of);
    places
        .map(|place| {
            let [all, networks] = &mut before;
            let before = if place.tree == Tree::All { all } else { networks };
            place.blocks_after(before.replace(place))
        })
        .sum()
}

/// The size of the trees as it was counted, and bounds on its changes since then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    counted: usize,
    added: usize,
    removed: usize,
    /// Bound on the changes since the last division, independent of counts in between.
    undivided: usize,
}

impl Size {
    pub(super) fn add(&mut self, net: Cidr) {
        let blocks = TrieNetwork::depths(net);
        self.added += blocks;
        self.undivided += blocks;
    }

    pub(super) fn remove(&mut self, net: Cidr) {
        let blocks = TrieNetwork::depths(net);
        self.removed += blocks;
        self.undivided += blocks;
    }
}

impl Addresses {
    /// Whether the trees have at most so many blocks. Counts them only if their changes since the
    /// last count leave that open.
    pub(crate) fn trees_are_within(&mut self, blocks: usize) -> bool {
        let Size { counted, added, removed, .. } = self.size;
        if counted.saturating_add(added) <= blocks {
            return true;
        }
        if counted.saturating_sub(removed) > blocks {
            return false;
        }
        self.count_blocks() <= blocks
    }

    /// Bound on the blocks added or removed since the last division of the tries.
    pub(crate) const fn undivided_blocks(&self) -> usize {
        self.size.undivided
    }

    /// Notes that the trees are divided as they are now.
    pub(crate) const fn set_divided(&mut self) {
        self.size.undivided = 0;
    }

    fn count_blocks(&mut self) -> usize {
        let has_atoms = |id| !self.entries.at(id).atoms.is_empty();
        let nets = self.ordered.iter().filter(|(_, id)| has_atoms(**id)).map(|(net, _)| *net);
        self.size = Size { counted: blocks(nets), added: 0, removed: 0, ..self.size };
        self.size.counted
    }

    /// The members of an atom, in no order.
    pub(crate) fn members(&self, atom: AtomId) -> impl Iterator<Item = Cidr> + '_ {
        self.atoms.at(atom).members.iter().map(|id| self.entries.at(*id).net)
    }
}
