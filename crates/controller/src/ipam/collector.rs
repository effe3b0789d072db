//! Detection of leaked addresses and of unneeded blocks
//! (`kube-controllers/pkg/controllers/node/ipam.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tortie_net::Cidr;
use tortie_resources::stored::Revision;

use super::affinities::Affinities;
use super::block::{Allocated, Block, Release, TextError, is_windows_handle, sane_handle};
use super::index::Index;
use super::leak::{AddressSlot, Leak, PodName, Reason, Settled, Written};
use crate::json::field;

/// Number of blocks and handles per write; a few more are possible.
const BATCH: usize = 64;

/// Known blocks, and the addresses suspected of a leak with the time of the suspicion.
///
/// An address has leaked if its pod does not exist or does not have the address. The leak is
/// confirmed after the grace period, or at once if the node does not exist either. Addresses of one
/// handle are released together or not at all.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    blocks: BTreeMap<Cidr, KnownBlock>,
    by_node: Index<Box<str>, AddressSlot>,
    by_handle: Index<Box<str>, AddressSlot>,
    by_pod: Index<PodName, AddressSlot>,
    /// Blocks that name each node as their owner.
    affine: Index<Box<str>, Cidr>,
    affinities: Affinities,
    suspects: BTreeMap<AddressSlot, Suspect>,
    empty_since: BTreeMap<Cidr, Instant>,
    /// Time since when a block is known to have addresses in cooldown.
    cooling_since: BTreeMap<Cidr, Instant>,
    /// Blocks that a worker is about to release.
    releasing: BTreeSet<Cidr>,
    /// During a list: known blocks that the list has not contained so far.
    unmentioned: Option<BTreeSet<Cidr>>,
}

#[derive(Debug, Default)]
pub(super) struct KnownBlock {
    revision: Revision,
    pub(super) node: Option<Box<str>>,
    pub(super) allocations: BTreeMap<usize, Allocation>,
    /// Number of addresses that are not free, with or without an owner.
    used: usize,
    cools_down: bool,
    is_deleted: bool,
    /// Error of the latest version; the other fields are from the version before.
    problem: Option<TextError>,
}

/// Address that is allocated to a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    address: IpAddr,
    handle: Box<str>,
    sequence: u64,
    /// Empty if the allocation names no node.
    pub(super) node: Box<str>,
    owner: Owner,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    Pod(PodName),
    /// The node itself, for a tunnel.
    Tunnel,
    /// None: Windows reserves the address.
    Windows,
    /// Unknown, or a virtual machine.
    Unknown,
}

/// Time since when an address seems to have leaked, and the reason once the leak is confirmed.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    since: Instant,
    confirmed: Option<Reason>,
}

/// State of a Calico node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState<'n> {
    /// It refers to no Kubernetes node, or is invalid.
    Foreign,
    /// Its Kubernetes node exists.
    Exists {
        /// Its name in Kubernetes.
        kubernetes: &'n str,
        /// A migration from Flannel is in progress.
        migrates: bool,
    },
    /// Its Kubernetes node is gone.
    Leaves {
        /// Its former name in Kubernetes.
        kubernetes: &'n str,
    },
    /// The Calico node does not exist.
    Gone,
}

impl<'n> NodeState<'n> {
    fn kubernetes(self) -> Option<&'n str> {
        match self {
            Self::Exists { kubernetes, .. } | Self::Leaves { kubernetes } => Some(kubernetes),
            Self::Foreign | Self::Gone => None,
        }
    }
}

/// Input of the evaluation of a node's addresses.
#[derive(Clone, Copy)]
pub(crate) struct View<'v> {
    /// The node.
    pub(crate) node: NodeState<'v>,
    /// Returns whether a pod may have an address on this Kubernetes node, or on any.
    pub(crate) may_have: &'v dyn Fn(&PodName, IpAddr, Option<&str>) -> bool,
    /// Time from the suspicion of a leak to its confirmation; zero means never.
    pub(crate) grace: Duration,
}

/// Actions on the addresses of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReleaseDecision {
    /// Leaks to release.
    pub(crate) leaks: Vec<Leak>,
    /// The node does not exist and none of its addresses is in use: its affinities have to be
    /// released.
    pub(crate) is_abandoned: bool,
    /// Time of the next evaluation.
    pub(crate) due: Option<Instant>,
}

/// Action on a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockDecision {
    /// Evaluate it again at this time; `None`: when it changes.
    Wait(Option<Instant>),
    /// Release it from this node.
    Release(Box<str>),
    /// Delete the marked affinity of this node, which does not own the block any more.
    Leave(Box<str>),
    /// Delete it, because it is marked as deleted.
    EndDeletion,
    /// Free the addresses whose cooldown is over.
    EndCooldown,
}

/// Nodes and blocks to evaluate again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    pub(crate) nodes: BTreeSet<Box<str>>,
    pub(crate) blocks: BTreeSet<Cidr>,
}

impl Collector {
    /// Begins a list: all blocks follow, also known ones.
    pub(crate) fn list_begins(&mut self) {
        self.unmentioned = Some(self.blocks.keys().copied().collect());
        self.affinities.list_begins();
    }

    /// Ends a list: removes the blocks and affinities that it did not contain.
    pub(crate) fn list_ends(&mut self) -> Touched {
        let mut touched = Touched::default();
        for cidr in self.unmentioned.take().unwrap_or_default() {
            self.remove_block(cidr, &mut touched);
        }
        touched.nodes.extend(self.affinities.list_ends().into_iter().map(|(node, _)| node));
        touched
    }

    /// Records an affinity: `None` if it does not exist, otherwise whether it is marked for
    /// deletion.
    pub(crate) fn set_affinity(&mut self, node: &str, cidr: Cidr, is_leaving: Option<bool>) -> Touched {
        let mut touched = Touched::default();
        if self.affinities.set(node, cidr, is_leaving) {
            touched.nodes.insert(node.into());
            touched.blocks.insert(cidr);
        }
        touched
    }

    /// Records the stored text of a block.
    pub(crate) fn set_block(&mut self, cidr: Cidr, text: Option<(&str, Revision)>) -> Touched {
        let mut touched = Touched::default();
        match text {
            None => self.remove_block(cidr, &mut touched),
            Some((text, revision)) => {
                let is_listed = self.unmentioned.as_mut().is_some_and(|unmentioned| unmentioned.remove(&cidr));
                let known = self.blocks.get(&cidr).map(|known| known.revision);
                // A write of this controller may be known before its event arrives.
                let is_news = |known: Revision| if is_listed { known != revision } else { known < revision };
                if known.is_none_or(is_news) {
                    match Block::read(cidr, text) {
                        Ok(block) => self.read_block(cidr, &block, revision, &mut touched),
                        Err(error) => {
                            let known = self.blocks.entry(cidr).or_default();
                            (known.problem, known.revision) = (Some(error), revision);
                            for (ordinal, allocation) in &known.allocations {
                                self.suspects.remove(&(cidr, *ordinal));
                                touched.nodes.insert(allocation.node.clone());
                            }
                            self.note(cidr, &mut touched);
                        }
                    }
                }
            }
        }
        touched
    }

    fn read_block(&mut self, cidr: Cidr, block: &Block, revision: Revision, touched: &mut Touched) {
        let mut known = self.blocks.remove(&cidr).unwrap_or_default();
        let mut before = std::mem::take(&mut known.allocations);
        for (ordinal, allocation) in block.allocated().filter_map(read_allocation) {
            let place = (cidr, ordinal);
            let old = before.remove(&ordinal);
            if old.as_ref() != Some(&allocation) {
                if let Some(old) = old {
                    self.unindex(place, &old, touched);
                }
                self.index(place, &allocation, touched);
            }
            known.allocations.insert(ordinal, allocation);
        }
        for (ordinal, old) in before {
            self.unindex((cidr, ordinal), &old, touched);
        }
        let node = block.node().map(Into::into);
        if known.node != node {
            if let Some(node) = std::mem::replace(&mut known.node, node) {
                self.affine.remove(&node, &cidr);
                touched.nodes.insert(node);
            }
            if let Some(node) = &known.node {
                self.affine.insert(node.clone(), cidr);
            }
        }
        (known.used, known.cools_down) = (block.used(), block.cools_down());
        known.is_deleted = block.is_deleted() && block.is_empty();
        if known.used > 0 {
            self.empty_since.remove(&cidr);
        }
        (known.revision, known.problem) = (revision, None);
        self.blocks.insert(cidr, known);
        self.note(cidr, touched);
    }

    /// Schedules a block for evaluation, and the empty blocks of its node, because a node keeps its
    /// only block.
    fn note(&self, cidr: Cidr, touched: &mut Touched) {
        touched.blocks.insert(cidr);
        let Some(node) = self.blocks.get(&cidr).and_then(|known| known.node.as_ref()) else { return };
        touched.nodes.insert(node.clone());
        let is_empty = |cidr: &&Cidr| self.blocks.get(*cidr).is_some_and(|known| known.used == 0);
        touched.blocks.extend(self.affine.get(node).filter(is_empty));
    }

    fn remove_block(&mut self, cidr: Cidr, touched: &mut Touched) {
        let Some(known) = self.blocks.remove(&cidr) else { return };
        for (ordinal, allocation) in &known.allocations {
            self.unindex((cidr, *ordinal), allocation, touched);
        }
        if let Some(node) = known.node {
            self.affine.remove(&node, &cidr);
            touched.nodes.insert(node);
        }
        self.empty_since.remove(&cidr);
        self.cooling_since.remove(&cidr);
        touched.blocks.insert(cidr);
    }

    fn index(&mut self, place: AddressSlot, allocation: &Allocation, touched: &mut Touched) {
        self.by_handle.insert(allocation.handle.clone(), place);
        if !allocation.node.is_empty() {
            self.by_node.insert(allocation.node.clone(), place);
            touched.nodes.insert(allocation.node.clone());
        }
        if let Owner::Pod(pod) = &allocation.owner {
            self.by_pod.insert(pod.clone(), place);
        }
    }

    fn unindex(&mut self, place: AddressSlot, allocation: &Allocation, touched: &mut Touched) {
        self.suspects.remove(&place);
        self.by_handle.remove(&allocation.handle, &place);
        if !allocation.node.is_empty() {
            self.by_node.remove(&allocation.node, &place);
            touched.nodes.insert(allocation.node.clone());
        }
        if let Owner::Pod(pod) = &allocation.owner {
            self.by_pod.remove(pod, &place);
        }
    }

    fn allocation(&self, (cidr, ordinal): AddressSlot) -> Option<&Allocation> {
        self.blocks.get(&cidr)?.allocations.get(&ordinal)
    }

    /// Returns every node that has an address, a block or an affinity.
    pub(crate) fn nodes(&self) -> BTreeSet<Box<str>> {
        self.by_node.keys().chain(self.affine.keys()).chain(self.affinities.nodes()).cloned().collect()
    }

    /// Returns the blocks that may need an action.
    pub(crate) fn idle_blocks(&self) -> impl Iterator<Item = Cidr> {
        let needs_care = |known: &KnownBlock| known.used == 0 || known.cools_down || known.is_deleted;
        let blocks = self.blocks.iter().filter(move |(_, known)| needs_care(known)).map(|(cidr, _)| *cidr);
        blocks.chain(self.affinities.leaving())
    }

    /// Returns the nodes of the addresses of a pod.
    pub(crate) fn nodes_of_pod(&self, pod: &PodName) -> BTreeSet<Box<str>> {
        let allocations = self.by_pod.get(pod).filter_map(|place| self.allocation(*place));
        allocations.map(|allocation| allocation.node.clone()).filter(|node| !node.is_empty()).collect()
    }

    /// Clears the suspicion of the addresses that a pod may have, even if the pod is gone again
    /// before their evaluation.
    pub(crate) fn clear_suspicions(&mut self, pod: &PodName, may_have: impl Fn(IpAddr) -> bool) {
        let places: Vec<AddressSlot> = self.by_pod.get(pod).copied().collect();
        for place in places {
            if self.allocation(place).is_some_and(|allocation| may_have(allocation.address)) {
                self.suspects.remove(&place);
            }
        }
    }

    /// Returns the blocks that name a node, or to which it has an affinity.
    pub(crate) fn blocks_of(&self, node: &str) -> BTreeSet<Cidr> {
        self.affine.get(node).copied().chain(self.affinities.of_node(node)).collect()
    }

    /// Evaluates the addresses of a node.
    pub(crate) fn evaluate_node(&mut self, node: &str, view: View<'_>, now: Instant) -> ReleaseDecision {
        let mut decision = ReleaseDecision::default();
        let places: Vec<AddressSlot> = self.by_node.get(node).copied().collect();
        let is_gone = matches!(view.node, NodeState::Leaves { .. } | NodeState::Gone);
        let mut tunnels = Vec::new();
        let mut in_use = false;
        for place in &places {
            let Some(allocation) = self.allocation(*place) else { continue };
            let is_readable = self.blocks.get(&place.0).is_some_and(|known| known.problem.is_none());
            let has_leaked = match &allocation.owner {
                Owner::Windows => continue,
                Owner::Tunnel if is_readable => {
                    tunnels.push(*place);
                    continue;
                }
                Owner::Pod(pod) if is_readable && view.node != NodeState::Foreign => {
                    !(view.may_have)(pod, allocation.address, view.node.kubernetes())
                }
                Owner::Pod(_) | Owner::Tunnel | Owner::Unknown => false,
            };
            if !has_leaked {
                in_use = true;
                self.suspects.remove(place);
                continue;
            }
            let suspect = self.suspects.entry(*place).or_insert(Suspect { since: now, confirmed: None });
            // With a grace period of zero, no address leaks while its node exists.
            let over = suspect.since.checked_add(view.grace).filter(|_| !view.grace.is_zero());
            suspect.confirmed = match over {
                _ if is_gone => Some(Reason::NodeGone),
                Some(over) if over <= now => Some(Reason::Grace),
                over => {
                    decision.due = decision.due.into_iter().chain(over).min();
                    None
                }
            };
        }
        // While the Calico node exists, other nodes know its tunnel addresses.
        decision.is_abandoned = view.node == NodeState::Gone && !in_use;
        for place in tunnels {
            if decision.is_abandoned {
                self.suspects.insert(place, Suspect { since: now, confirmed: Some(Reason::NodeGone) });
            } else {
                self.suspects.remove(&place);
            }
        }
        decision.leaks = self.leaks(&places);
        decision
    }

    fn confirmed(&self, place: AddressSlot) -> Option<Reason> {
        self.suspects.get(&place)?.confirmed
    }

    /// Returns the confirmed leaks at these places with the other addresses of their handles. A
    /// handle with an unconfirmed address is left out.
    fn leaks(&self, places: &[AddressSlot]) -> Vec<Leak> {
        let (mut leaks, mut handles, mut blocks) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for place in places.iter().filter(|place| self.confirmed(**place).is_some()) {
            if handles.len() + blocks.len() >= BATCH {
                break;
            }
            let Some(handle) = self.allocation(*place).map(|allocation| &allocation.handle) else { continue };
            let all: Option<Vec<Leak>> = self.by_handle.get(&**handle).map(|place| self.leak(*place)).collect();
            // One write cannot hold more addresses of a handle.
            if let Some(all) = all.filter(|all| all.len() <= BATCH / 2)
                && handles.insert(handle)
            {
                blocks.extend(all.iter().map(|leak| leak.cidr));
                leaks.extend(all);
            }
        }
        leaks
    }

    /// Returns the leak at a place, if it is confirmed.
    fn leak(&self, place: AddressSlot) -> Option<Leak> {
        let allocation = self.allocation(place)?;
        Some(Leak {
            cidr: place.0,
            release: Release { ordinal: place.1, handle: allocation.handle.to_string(), sequence: allocation.sequence },
            address: allocation.address,
            node: allocation.node.to_string(),
            reason: self.confirmed(place)?,
            pod: match &allocation.owner {
                Owner::Pod(pod) => Some(pod.clone()),
                Owner::Tunnel | Owner::Windows | Owner::Unknown => None,
            },
        })
    }

    /// Evaluates a block: released addresses are freed after the cooldown, and the block is
    /// released after it was empty for the grace period, unless it is the only one of its node.
    /// `node` looks up its node.
    pub(crate) fn evaluate_block<'n>(
        &mut self,
        cidr: Cidr,
        node: impl FnOnce(&str) -> NodeState<'n>,
        (grace, cooldown): (Duration, Duration),
        now: Instant,
    ) -> BlockDecision {
        let known = self.blocks.get(&cidr).filter(|known| known.problem.is_none());
        if known.is_some_and(|known| known.is_deleted) {
            return BlockDecision::EndDeletion;
        }
        let is_known = known.is_some() || !self.blocks.contains_key(&cidr);
        let owner = known.and_then(|known| known.node.as_deref());
        if let Some(left) = self.affinities.left_behind(cidr, owner).filter(|_| is_known) {
            return BlockDecision::Leave(left);
        }
        if self.blocks.get(&cidr).is_some_and(|known| known.cools_down && known.problem.is_none()) {
            self.empty_since.remove(&cidr);
            // Times in blocks have a resolution of one second.
            let over = self.cooling_since.entry(cidr).or_insert(now).checked_add(cooldown + Duration::from_secs(2));
            if over.is_none_or(|over| now < over) {
                return BlockDecision::Wait(over);
            }
            self.cooling_since.remove(&cidr);
            return BlockDecision::EndCooldown;
        }
        self.cooling_since.remove(&cidr);
        let affine = self.blocks.get(&cidr).filter(|known| known.used == 0 && known.problem.is_none());
        let owner = affine.and_then(|known| known.node.clone()).filter(|owner| {
            let others = self.affine.get(owner).filter(|other| **other != cidr && !self.releasing.contains(*other));
            let is_ours = !matches!(node(owner), NodeState::Foreign | NodeState::Exists { migrates: true, .. });
            is_ours && others.count() > 0
        });
        let Some(owner) = owner else {
            self.empty_since.remove(&cidr);
            return BlockDecision::Wait(None);
        };
        if grace.is_zero() {
            return BlockDecision::Wait(None);
        }
        let over = self.empty_since.entry(cidr).or_insert(now).checked_add(grace);
        match over {
            Some(over) if over <= now => {
                self.releasing.insert(cidr);
                BlockDecision::Release(owner)
            }
            over => BlockDecision::Wait(over),
        }
    }

    /// Records that no worker is about to release a block any more.
    pub(crate) fn release_ended(&mut self, cidr: Cidr) {
        self.releasing.remove(&cidr);
    }

    /// Records the outcome of a release.
    pub(crate) fn settle(&mut self, settled: &Settled) -> Touched {
        let mut touched = Touched::default();
        for place in &settled.valid {
            self.suspects.remove(place);
        }
        for Written { cidr, text, revision } in &settled.written {
            let more = self.set_block(*cidr, text.as_deref().map(|text| (text, *revision)));
            touched.nodes.extend(more.nodes);
            touched.blocks.extend(more.blocks);
        }
        touched
    }

    /// Returns all blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (Cidr, &KnownBlock)> {
        self.blocks.iter().map(|(cidr, known)| (*cidr, known))
    }

    /// Reports whether an address is suspected of a leak.
    pub(super) fn is_suspect(&self, place: AddressSlot) -> bool {
        self.suspects.contains_key(&place)
    }

    /// Returns the number of addresses of each node.
    pub(super) fn allocated_by_node(&self) -> impl Iterator<Item = (&str, usize)> {
        self.by_node.counts().map(|(node, count)| (&**node, count))
    }

    /// Returns the problems of blocks.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        self.blocks.iter().filter_map(|(cidr, known)| Some(format!("the block {cidr}: {}", known.problem.as_ref()?)))
    }
}

/// Returns an allocation that can be released; `None` if only its allocator can do so.
fn read_allocation(allocated: Allocated<'_>) -> Option<(usize, Allocation)> {
    let handle = sane_handle(allocated.handle?);
    if handle.is_empty() {
        return None;
    }
    let attribute = |name: &str| field(allocated.owner, &[name]).as_str().unwrap_or_default();
    let (namespace, pod) = (attribute("namespace"), attribute("pod"));
    let is_tunnel = matches!(
        attribute("type"),
        "ipipTunnelAddress"
            | "vxlanTunnelAddress"
            | "vxlanV6TunnelAddress"
            | "wireguardTunnelAddress"
            | "wireguardV6TunnelAddress"
    );
    let owner = if is_windows_handle(handle) {
        Owner::Windows
    } else if is_tunnel {
        Owner::Tunnel
    } else if !field(allocated.owner, &["vmi-name"]).is_null() || namespace.is_empty() || pod.is_empty() {
        Owner::Unknown
    } else {
        Owner::Pod((namespace.into(), pod.into()))
    };
    let node = attribute("node").into();
    let allocation =
        Allocation { address: allocated.address, handle: handle.into(), sequence: allocated.sequence, node, owner };
    Some((allocated.ordinal, allocation))
}
