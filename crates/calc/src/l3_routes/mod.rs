//! Routes: for each network of a pool, an IPAM block, a workload, a node or a tunnel, the node that
//! has it and the way to reach it (`felix/calc/l3_route_resolver.go`).
//!
//! A route depends on the data of its network and of the networks that contain it. A change is
//! handled in the next flush, together with all networks inside the changed one. Felix does that
//! only for pools, and keeps outdated routes of addresses whose block has moved.

mod claim;
mod node_info;
mod nodes;
mod resolve;
mod resolved;
mod table;

use std::cmp::Reverse;

use ahash::AHashMap;
use smallvec::SmallVec;
use tortie_model::desired::{PoolType, Route};
use tortie_model::{Cidr, EncapMode, Family, Hostname, IpPool, IpamBlock, Node, WorkloadEndpointKey};

use crate::RouteSource;
use crate::slot_table::Slot;
use claim::{Claim, RefKind};
use node_info::NodeInfo;
use nodes::Nodes;
use resolved::Resolved;
use table::{Containing, Pool, SentRoute, Table};

/// Changes of routes since the last flush, in ascending order, one at the most for each network.
#[derive(Debug, Default)]
pub(crate) struct RouteChanges {
    /// To be resolved with [`L3Routes::route`] before the next change.
    pub(crate) updated: Vec<Slot>,
    pub(crate) removed: Vec<Cidr>,
}

/// The masked networks of a workload endpoint, sorted, without duplicates.
type Nets = SmallVec<[Cidr; 1]>;

/// Calculates routes while they are needed. Their inputs are filed at all times.
#[derive(Debug)]
pub(crate) struct L3Routes {
    own: Hostname,
    source: RouteSource,
    is_wanted: bool,
    table: Table,
    nodes: Nodes,
    /// Networks that each block claims, with their nodes.
    blocks: AHashMap<Cidr, Box<[(Cidr, Hostname)]>>,
    /// The networks of each workload endpoint of which one is more than an address.
    with_networks: AHashMap<WorkloadEndpointKey, Nets>,
    /// Networks whose routes may have changed.
    dirty: Vec<Slot>,
    /// Whether any route may have changed.
    all_dirty: bool,
}

impl L3Routes {
    pub(crate) fn new(own: Hostname, source: RouteSource) -> Self {
        Self {
            nodes: Nodes::new(own.clone()),
            own,
            source,
            is_wanted: false,
            table: Table::default(),
            blocks: AHashMap::new(),
            with_networks: AHashMap::new(),
            dirty: Vec::new(),
            all_dirty: false,
        }
    }

    /// Sets whether routes are needed.
    pub(crate) fn set_wanted(&mut self, is_wanted: bool) {
        self.all_dirty |= is_wanted != self.is_wanted;
        self.is_wanted = is_wanted;
    }

    /// Records a pool; `None` removes it.
    pub(crate) fn on_pool(&mut self, cidr: Cidr, pool: Option<&IpPool>) {
        let net = cidr.masked();
        let pool = pool.map(|pool| Pool {
            pool_type: pool_type(pool),
            nat_outgoing: pool.masquerade,
            cross_subnet: [pool.ipip_mode, pool.vxlan_mode].contains(&EncapMode::CrossSubnet),
        });
        if pool.is_none() && self.table.find(net).is_none() {
            return;
        }
        let slot = self.table.entry(net);
        let entry = self.table.at_mut(slot);
        if entry.pool != pool {
            entry.pool = pool;
            self.changed(slot);
        }
    }

    /// Records an IPAM block; `None` removes it.
    #[expect(clippy::expect_used, reason = "claims are removed that were added")]
    pub(crate) fn on_block(&mut self, cidr: Cidr, block: Option<&IpamBlock>) {
        if self.source == RouteSource::WorkloadIps {
            return;
        }
        let net = cidr.masked();
        let new: Box<[(Cidr, Hostname)]> = block.map(|block| claims(net, block)).unwrap_or_default();
        let old = self.blocks.remove(&net).unwrap_or_default();
        let claim = Claim::Block(Reverse(net.prefix_len()));
        let (added, removed) = difference(&old, &new);
        for (dst, node) in added {
            let node = self.nodes.entry(node.clone());
            self.add(*dst, node, claim);
        }
        for (dst, node) in removed {
            let node = self.nodes.find(node.as_str()).expect("nodes with claims are known");
            self.remove(*dst, node, claim);
        }
        if !new.is_empty() {
            self.blocks.insert(net, new);
        }
    }

    /// Records a node; `None` removes it.
    pub(crate) fn on_node(&mut self, name: &Hostname, node: Option<&Node>) {
        let new = node.and_then(NodeInfo::of);
        let node = match self.nodes.find(name.as_str()) {
            Some(node) => node,
            None if new.is_none() => return,
            None => self.nodes.entry(name.clone()),
        };
        if self.nodes.info(node) == new.as_ref() {
            return;
        }
        let claims = |info: Option<&NodeInfo>| info.map(|info| info.claims.clone()).unwrap_or_default();
        let claims_of_new = claims(new.as_ref());
        let old = self.nodes.set_info(node, new);
        let claims_of_old = claims(old.as_ref());
        let (added, removed) = difference(&claims_of_old, &claims_of_new);
        for (dst, claim) in added {
            self.add(*dst, node, *claim);
        }
        for (dst, claim) in removed {
            self.remove(*dst, node, *claim);
        }
        for &slot in self.nodes.routes(node) {
            mark(&mut self.table, &mut self.dirty, slot);
        }
        if node == self.nodes.own() {
            self.subnets_changed(old.as_ref());
        }
        self.nodes.release(node);
    }

    /// Marks routes of other nodes: this node's addresses have changed, so other nodes may be in
    /// its subnets.
    fn subnets_changed(&mut self, old: Option<&NodeInfo>) {
        let new = self.nodes.info(self.nodes.own());
        for (node, routes) in self.nodes.with_routes() {
            for family in Family::ALL {
                let is_neighbour = |own: Option<&NodeInfo>| own.is_some_and(|own| own.is_neighbour(node, family));
                if is_neighbour(old) == is_neighbour(new) {
                    continue;
                }
                for &slot in routes {
                    if self.table.at(slot).net.family() == family {
                        mark(&mut self.table, &mut self.dirty, slot);
                    }
                }
            }
        }
    }

    /// Replaces the networks of a workload endpoint of any node; none if it does not exist. The
    /// previous ones are given by their addresses, or first addresses, sorted and without
    /// duplicates.
    pub(crate) fn on_workload(
        &mut self,
        key: &WorkloadEndpointKey,
        before: impl Iterator<Item = Cidr>,
        now: impl Iterator<Item = Cidr>,
    ) {
        let node = key.host();
        if self.source == RouteSource::CalicoIpam && node != self.own.as_str() {
            return;
        }
        let mut new: Nets = now.map(Cidr::masked).collect();
        new.sort_unstable();
        new.dedup();
        let old = self.with_networks.remove(key).unwrap_or_else(|| before.collect());
        if !new.iter().all(|net| net.is_host()) {
            self.with_networks.insert(key.clone(), new.clone());
        }
        if new == old {
            return;
        }
        let node = self.nodes.entry(node);
        let claim = Claim::Ref(RefKind::Workload);
        for net in &new {
            self.add(*net, node, claim);
        }
        for net in &old {
            self.remove(*net, node, claim);
        }
    }

    fn add(&mut self, net: Cidr, node: Slot, claim: Claim) {
        let slot = self.table.entry(net);
        if self.table.at_mut(slot).add(&self.nodes, node, claim) {
            self.nodes.claimed(node);
            if self.is_wanted {
                self.mark(slot);
            }
        }
    }

    #[expect(clippy::expect_used, reason = "claims are removed that were added")]
    fn remove(&mut self, net: Cidr, node: Slot, claim: Claim) {
        let slot = self.table.find(net).expect("claimed networks are known");
        if self.table.at_mut(slot).remove(&self.nodes, node, claim) {
            self.nodes.unclaimed(node);
            self.changed(slot);
        }
    }

    /// Marks a network whose data has changed, and the networks within it, for the next flush.
    /// While routes are not needed, only removes entries without data.
    fn changed(&mut self, slot: Slot) {
        if self.is_wanted {
            self.mark(slot);
        } else {
            self.drop_unknown(slot);
        }
    }

    /// Marks the network, and those within it, for the next flush.
    fn mark(&mut self, slot: Slot) {
        let net = self.table.at(slot).net;
        if net.is_host() {
            mark(&mut self.table, &mut self.dirty, slot);
        } else {
            let within: Vec<Slot> = self.table.within(net).collect();
            within.into_iter().for_each(|slot| mark(&mut self.table, &mut self.dirty, slot));
        }
    }

    /// Removes the entry of a network without data, unless its route is still to be removed.
    fn drop_unknown(&mut self, slot: Slot) {
        let entry = self.table.at(slot);
        if !entry.is_known() && entry.sent.is_none() {
            self.table.remove(slot);
        }
    }

    /// Adds the routes that have changed.
    pub(crate) fn flush(&mut self, changes: &mut RouteChanges) {
        let mut containing = Containing::default();
        let mut without_route = Vec::new();
        for slot in self.take_dirty() {
            let entry = self.table.at(slot);
            let net = entry.net;
            // Felix never sends these either: they stand for no address.
            let is_placeholder = net.is_host() && net.address().is_unspecified();
            let new = if self.is_wanted && !is_placeholder {
                resolve::resolve(entry, containing.of(&self.table, net), &self.nodes)
            } else {
                None
            };
            let old = entry.sent.map(|sent| sent.route);
            let is_readdressed = |node| self.nodes.is_readdressed(node, net.family());
            if old != new || new.and_then(|route| route.node).is_some_and(is_readdressed) {
                self.file(slot, new);
                match new {
                    Some(_) => changes.updated.push(slot),
                    None => changes.removed.push(net),
                }
            }
            self.table.at_mut(slot).is_dirty = false;
            if new.is_none() {
                without_route.push(slot);
            }
        }
        without_route.into_iter().for_each(|slot| self.drop_unknown(slot));
        self.nodes.flushed();
    }

    /// Returns the networks that wait for the flush, in ascending order, without duplicates.
    fn take_dirty(&mut self) -> Vec<Slot> {
        let mut dirty = std::mem::take(&mut self.dirty);
        if std::mem::take(&mut self.all_dirty) {
            return self.table.slots().collect();
        }
        dirty.sort_unstable_by_key(|&slot| self.table.at(slot).net);
        dirty.dedup();
        dirty
    }

    /// Notes the sent route of a network, and files it under its node.
    #[expect(clippy::expect_used, reason = "routes are filed when they are sent")]
    fn file(&mut self, slot: Slot, new: Option<Resolved>) {
        let old = self.table.at_mut(slot).sent.take();
        let (from, to) = (old.and_then(|sent| sent.route.node), new.and_then(|route| route.node));
        let mut place = old.map(|sent| sent.place).unwrap_or_default();
        if from != to {
            if let Some(node) = from
                && let Some(moved) = self.nodes.take_out(node, place)
            {
                let sent = self.table.at_mut(moved).sent.as_mut();
                sent.expect("the routes of nodes were sent").place = place;
            }
            place = to.map(|node| self.nodes.file(node, slot)).unwrap_or_default();
        }
        self.table.at_mut(slot).sent = new.map(|route| SentRoute { route, place });
    }

    /// Returns a network and the route to send for it.
    pub(crate) fn route(&self, slot: Slot) -> Option<(Cidr, Route)> {
        let entry = self.table.get(slot)?;
        Some((entry.net, entry.sent?.route.route(entry.net.family(), &self.nodes)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
            && self.nodes.is_empty()
            && self.blocks.is_empty()
            && self.with_networks.is_empty()
            && self.dirty.is_empty()
            && !self.all_dirty
    }
}

/// Marks a network for the next flush.
fn mark(table: &mut Table, dirty: &mut Vec<Slot>, slot: Slot) {
    if !std::mem::replace(&mut table.at_mut(slot).is_dirty, true) {
        dirty.push(slot);
    }
}

/// Returns the encapsulation of a pool. Addresses of pools for load balancers alone belong to no
/// workload, so traffic to them is masqueraded.
fn pool_type(pool: &IpPool) -> PoolType {
    if matches!(&*pool.allowed_uses, [only] if **only == *"LoadBalancer") {
        PoolType::None
    } else if pool.vxlan_mode != EncapMode::Never {
        PoolType::Vxlan
    } else if pool.ipip_mode != EncapMode::Never {
        PoolType::IpIp
    } else {
        PoolType::NoEncap
    }
}

/// Returns the claims of a block: the nodes of the block and of its borrowed addresses, sorted. A
/// block of a single address belongs to the node of its affinity.
fn claims(net: Cidr, block: &IpamBlock) -> Box<[(Cidr, Hostname)]> {
    let borrowed = block.borrowed.iter().map(|allocation| (Cidr::host(allocation.address), allocation.node.clone()));
    let mut claims: Vec<_> = borrowed.filter(|(address, _)| *address != net || block.affinity.is_none()).collect();
    claims.extend(block.affinity.clone().map(|node| (net, node)));
    claims.sort_unstable();
    claims.dedup();
    claims.into()
}

/// Returns the items that are only in the second of two sorted lists, and those only in the first.
fn difference<'a, T: Ord>(old: &'a [T], new: &'a [T]) -> (Vec<&'a T>, Vec<&'a T>) {
    let added = new.iter().filter(|item| old.binary_search(item).is_err()).collect();
    let removed = old.iter().filter(|item| new.binary_search(item).is_err()).collect();
    (added, removed)
}

#[cfg(test)]
mod tests;
