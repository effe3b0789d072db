//! Data of networks, and lookup of the networks that contain a network.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tortie_model::desired::PoolType;
use tortie_model::{Cidr, Family, Hostname};

use super::claim::{Claim, RefKind};
use super::nodes::Nodes;
use super::resolved::Resolved;
use crate::slot_table::{Slot, Slots};

/// Properties that a pool gives its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) pool_type: PoolType,
    pub(super) nat_outgoing: bool,
    pub(super) cross_subnet: bool,
}

/// A node that claims a network, and how often.
#[derive(Clone, Copy, Debug)]
struct Claimant {
    node: Slot,
    claim: Claim,
    count: u32,
}

/// Returns the sort key among several claimants. References are in the order of their nodes first.
fn place(nodes: &Nodes, node: Slot, claim: Claim) -> (Claim, Option<&Hostname>, Claim) {
    let group = if matches!(claim, Claim::Ref(_)) { Claim::Ref(RefKind::Workload) } else { claim };
    (group, nodes.name(node), claim)
}

/// Data of one network.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) net: Cidr,
    pub(super) pool: Option<Pool>,
    claimants: SmallVec<[Claimant; 1]>,
    pub(super) sent: Option<SentRoute>,
    /// Whether it waits for the next flush.
    pub(super) is_dirty: bool,
}

/// A route as the dataplane has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentRoute {
    pub(super) route: Resolved,
    /// Its place among the routes of its node.
    pub(super) place: u32,
}

impl Entry {
    fn new(net: Cidr) -> Self {
        Self { net, pool: None, claimants: SmallVec::new(), sent: None, is_dirty: false }
    }

    /// Reports whether the network has any data.
    pub(super) fn is_known(&self) -> bool {
        self.pool.is_some() || !self.claimants.is_empty()
    }

    fn search(&self, nodes: &Nodes, node: Slot, claim: Claim) -> Result<usize, usize> {
        let sought = place(nodes, node, claim);
        self.claimants.binary_search_by(|c| place(nodes, c.node, c.claim).cmp(&sought))
    }

    /// Adds a claim; returns whether it is the first of its kind.
    #[expect(clippy::expect_used, reason = "a search returns the place of a claimant")]
    pub(super) fn add(&mut self, nodes: &Nodes, node: Slot, claim: Claim) -> bool {
        match self.search(nodes, node, claim) {
            Ok(at) => {
                self.claimants.get_mut(at).expect("it was found there").count += 1;
                false
            }
            Err(at) => {
                self.claimants.insert(at, Claimant { node, claim, count: 1 });
                true
            }
        }
    }

    /// Removes a claim; returns whether it was the last of its kind.
    #[expect(clippy::expect_used, reason = "each claim is removed as often as it was added")]
    pub(super) fn remove(&mut self, nodes: &Nodes, node: Slot, claim: Claim) -> bool {
        let at = self.search(nodes, node, claim).expect("claims are removed that were added");
        let claimant = self.claimants.get_mut(at).expect("it was found there");
        claimant.count -= 1;
        let gone = claimant.count == 0;
        if gone {
            self.claimants.remove(at);
        }
        gone
    }

    /// Returns the node that owns the block, or that has borrowed the address from another node's
    /// block.
    pub(super) fn block(&self) -> Option<Slot> {
        self.claimants.iter().find(|c| matches!(c.claim, Claim::Block(_))).map(|c| c.node)
    }

    /// Returns the node that has the address.
    pub(super) fn host(&self) -> Option<Slot> {
        self.claimants.iter().find(|c| c.claim == Claim::Host).map(|c| c.node)
    }

    /// Returns the references to the address, in order.
    pub(super) fn refs(&self) -> impl Iterator<Item = (Slot, RefKind)> {
        self.claimants.iter().filter_map(|c| match c.claim {
            Claim::Ref(kind) => Some((c.node, kind)),
            Claim::Block(_) | Claim::Host => None,
        })
    }
}

/// Entries of masked networks.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Slots<Entry>,
    by_net: BTreeMap<Cidr, Slot>,
    /// Number of entries of each length: only networks of these lengths can contain others.
    lengths: BTreeMap<(Family, u8), usize>,
}

impl Table {
    pub(super) fn find(&self, net: Cidr) -> Option<Slot> {
        self.by_net.get(&net).copied()
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&Entry> {
        self.entries.get(slot)
    }

    pub(super) fn at(&self, slot: Slot) -> &Entry {
        self.entries.at(slot)
    }

    pub(super) fn at_mut(&mut self, slot: Slot) -> &mut Entry {
        self.entries.at_mut(slot)
    }

    /// Returns the entry of a network, created if necessary.
    pub(super) fn entry(&mut self, net: Cidr) -> Slot {
        *self.by_net.entry(net).or_insert_with(|| {
            *self.lengths.entry((net.family(), net.prefix_len())).or_default() += 1;
            self.entries.insert(Entry::new(net))
        })
    }

    #[expect(clippy::expect_used, reason = "networks are counted by length when they are entered")]
    pub(super) fn remove(&mut self, slot: Slot) {
        let Entry { net, .. } = self.entries.take(slot);
        self.entries.give_back(slot);
        self.by_net.remove(&net);
        let key = (net.family(), net.prefix_len());
        let count = self.lengths.get_mut(&key).expect("the lengths of all networks are counted");
        *count -= 1;
        if *count == 0 {
            self.lengths.remove(&key);
        }
    }

    /// Returns the networks within this one, itself included.
    pub(super) fn within(&self, net: Cidr) -> impl Iterator<Item = Slot> {
        self.by_net.range(net..=net.last_host()).map(|(_, &inner)| inner)
    }

    /// Returns all networks, in ascending order.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.by_net.values().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.by_net.is_empty() && self.lengths.is_empty()
    }
}

/// Finds the entries of networks that contain others. The result is kept for the next network:
/// neighbours share most of it. It becomes invalid when an entry is added or removed.
#[derive(Debug, Default)]
pub(super) struct Containing {
    /// By ascending length.
    found: Vec<(Cidr, Option<Slot>)>,
}

impl Containing {
    /// Returns the entries of all networks that contain this one, the smallest last.
    pub(super) fn of<'t>(&mut self, table: &'t Table, net: Cidr) -> impl Iterator<Item = &'t Entry> {
        let shorter = table.lengths.range((net.family(), 0)..(net.family(), net.prefix_len()));
        let mut depth = 0;
        for outer in shorter.filter_map(|(&(_, length), _)| Cidr::new(net.address(), length)).map(Cidr::masked) {
            match self.found.get_mut(depth) {
                Some((known, _)) if *known == outer => {}
                Some(other) => *other = (outer, table.find(outer)),
                None => self.found.push((outer, table.find(outer))),
            }
            depth += 1;
        }
        self.found.iter().take(depth).filter_map(|&(_, slot)| table.get(slot?))
    }
}
