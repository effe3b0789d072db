//! What is known of networks, and which networks contain which.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use smallvec::SmallVec;
use tortie_model::desired::{PoolType, Route};
use tortie_model::{Cidr, Family, Hostname};

/// What a pool says of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) pool_type: PoolType,
    pub(super) nat_outgoing: bool,
    pub(super) cross_subnet: bool,
}

/// Why a node has a network. Of several nodes that claim the same one as the same, the order here decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Claim {
    /// By a block of this prefix length: the network is the block, or an address that another node has of it.
    Block(Reverse<u8>),
    /// It is an address of the node.
    Host,
    /// It is a workload's or a tunnel's.
    Ref(RefKind),
}

/// What an address is assigned to. One that several things of a node have is the first one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RefKind {
    Workload,
    Wireguard,
    IpIp,
    Vxlan,
}

/// A node that claims a network, and how often.
#[derive(Clone, Debug)]
struct Claimant {
    node: Hostname,
    claim: Claim,
    count: u32,
}

impl Claimant {
    /// References are in the order of their nodes first.
    fn place(node: &Hostname, claim: Claim) -> (Claim, &Hostname, Claim) {
        let group = if matches!(claim, Claim::Ref(_)) { Claim::Ref(RefKind::Workload) } else { claim };
        (group, node, claim)
    }
}

/// What is known of one network.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) pool: Option<Pool>,
    claimants: SmallVec<[Claimant; 1]>,
    /// As the dataplane has it.
    pub(super) sent: Option<Route>,
}

impl Entry {
    /// Whether anything is known.
    pub(super) fn is_known(&self) -> bool {
        self.pool.is_some() || !self.claimants.is_empty()
    }

    fn search(&self, node: &Hostname, claim: Claim) -> Result<usize, usize> {
        let place = Claimant::place(node, claim);
        self.claimants.binary_search_by(|c| Claimant::place(&c.node, c.claim).cmp(&place))
    }

    /// Whether this is news.
    pub(super) fn add(&mut self, node: &Hostname, claim: Claim) -> bool {
        let found = self.search(node, claim);
        if let Ok(at) = found
            && let Some(claimant) = self.claimants.get_mut(at)
        {
            claimant.count += 1;
            return false;
        }
        let (Ok(at) | Err(at)) = found;
        self.claimants.insert(at, Claimant { node: node.clone(), claim, count: 1 });
        true
    }

    /// Whether that was the last of these claims.
    pub(super) fn remove(&mut self, node: &Hostname, claim: Claim) -> bool {
        let found = self.search(node, claim).ok();
        let Some((at, claimant)) = found.and_then(|at| Some((at, self.claimants.get_mut(at)?))) else {
            debug_assert!(false, "{node} has no such claim: {claim:?}");
            return false;
        };
        claimant.count -= 1;
        let gone = claimant.count == 0;
        if gone {
            self.claimants.remove(at);
        }
        gone
    }

    /// The node whose block it is, or that has the address of another node's block.
    pub(super) fn block(&self) -> Option<&Hostname> {
        self.claimants.iter().find(|c| matches!(c.claim, Claim::Block(_))).map(|c| &c.node)
    }

    /// The node whose address it is.
    pub(super) fn host(&self) -> Option<&Hostname> {
        self.claimants.iter().find(|c| c.claim == Claim::Host).map(|c| &c.node)
    }

    /// What has the address, in order.
    pub(super) fn refs(&self) -> impl Iterator<Item = (&Hostname, RefKind)> {
        self.claimants.iter().filter_map(|c| match c.claim {
            Claim::Ref(kind) => Some((&c.node, kind)),
            Claim::Block(_) | Claim::Host => None,
        })
    }
}

/// Entries by masked network.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<Cidr, Entry>,
    /// How many there are of each length: only these can contain others.
    lengths: BTreeMap<(Family, u8), usize>,
}

impl Table {
    pub(super) fn get_mut(&mut self, net: Cidr) -> Option<&mut Entry> {
        self.entries.get_mut(&net)
    }

    /// The entry of a network, made if there is none.
    pub(super) fn entry(&mut self, net: Cidr) -> &mut Entry {
        let lengths = &mut self.lengths;
        self.entries.entry(net).or_insert_with(|| {
            *lengths.entry((net.family(), net.prefix_len())).or_default() += 1;
            Entry::default()
        })
    }

    pub(super) fn remove(&mut self, net: Cidr) {
        let key = (net.family(), net.prefix_len());
        if self.entries.remove(&net).is_none() {
            return;
        }
        if let Some(count) = self.lengths.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&key);
            }
        }
    }

    /// The entries of all networks that contain this one, and its own last.
    pub(super) fn path(&self, net: Cidr) -> impl Iterator<Item = (Cidr, &Entry)> {
        let lengths = self.lengths.range((net.family(), 0)..=(net.family(), net.prefix_len()));
        lengths.filter_map(move |(&(_, length), _)| {
            let outer = Cidr::new(net.address(), length)?.masked();
            self.entries.get(&outer).map(|entry| (outer, entry))
        })
    }

    /// The networks within this one, itself included.
    pub(super) fn within(&self, net: Cidr) -> impl Iterator<Item = Cidr> {
        self.entries.range(net..=net.last_host()).map(|(&inner, _)| inner)
    }

    /// All networks, in ascending order.
    pub(super) fn nets(&self) -> impl Iterator<Item = Cidr> {
        self.entries.keys().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.lengths.is_empty()
    }
}
