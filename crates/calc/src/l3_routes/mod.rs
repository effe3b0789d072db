//! Routes: for each network of a pool, a block of addresses, a workload, a node or a tunnel, which node has it and how it
//! is reached (`felix/calc/l3_route_resolver.go`).
//!
//! A route depends on what is known of its network and of those that contain it. A change is looked at when it is
//! flushed, together with the networks inside the one that has changed; the original does so with pools alone, and keeps
//! what it once said of addresses whose block has moved.

mod nodes;
mod resolve;
mod table;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ahash::{AHashMap, AHashSet};
use tortie_model::desired::{PoolType, Route};
use tortie_model::{Cidr, EncapMode, Family, Hostname, IpPool, IpamBlock, Node, ShortList, WorkloadEndpointKey};

use crate::RouteSource;
use crate::slot_table::{Identified, SlotTable};
use nodes::NodeInfo;
use table::{Claim, Pool, RefKind, Table};

/// Changes of routes since the last flush, in ascending order, one at the most for each network.
#[derive(Debug, Default)]
pub(crate) struct RouteChanges {
    pub(crate) updated: Vec<(Cidr, Route)>,
    pub(crate) removed: Vec<Cidr>,
}

/// A workload endpoint with addresses.
#[derive(Debug)]
struct Workload {
    key: WorkloadEndpointKey,
    /// Sorted, and not empty.
    nets: ShortList<Cidr>,
}

impl Identified for Workload {
    type Id = WorkloadEndpointKey;

    fn id(&self) -> &WorkloadEndpointKey {
        &self.key
    }
}

/// Calculates routes while they are wanted. It files what they depend on at all times.
#[derive(Debug)]
pub(crate) struct L3Routes {
    own: Hostname,
    source: RouteSource,
    is_wanted: bool,
    table: Table,
    nodes: AHashMap<Hostname, NodeInfo>,
    /// What each block claims, and for whom.
    blocks: AHashMap<Cidr, Box<[(Cidr, Hostname)]>>,
    workloads: SlotTable<Workload>,
    /// The networks of the routes that were sent, by node.
    sent: AHashMap<Hostname, BTreeSet<Cidr>>,
    /// Networks whose routes may have changed.
    dirty: AHashSet<Cidr>,
    /// Whether any route may have changed.
    all_dirty: bool,
}

impl L3Routes {
    pub(crate) fn new(own: Hostname, source: RouteSource) -> Self {
        Self {
            own,
            source,
            is_wanted: false,
            table: Table::default(),
            nodes: AHashMap::new(),
            blocks: AHashMap::new(),
            workloads: SlotTable::default(),
            sent: AHashMap::new(),
            dirty: AHashSet::new(),
            all_dirty: false,
        }
    }

    /// Whether anybody needs routes.
    pub(crate) fn set_wanted(&mut self, is_wanted: bool) {
        self.all_dirty |= is_wanted != self.is_wanted;
        self.is_wanted = is_wanted;
    }

    /// The pool has this value, or does not exist.
    pub(crate) fn on_pool(&mut self, cidr: Cidr, pool: Option<&IpPool>) {
        let net = cidr.masked();
        let pool = pool.map(|pool| Pool {
            pool_type: pool_type(pool),
            nat_outgoing: pool.masquerade,
            cross_subnet: [pool.ipip_mode, pool.vxlan_mode].contains(&EncapMode::CrossSubnet),
        });
        if pool.is_none() && self.table.get_mut(net).is_none() {
            return;
        }
        let entry = self.table.entry(net);
        if entry.pool != pool {
            entry.pool = pool;
            self.changed(net);
        }
    }

    /// The block has this value, or does not exist.
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
            self.add(*dst, node, claim);
        }
        for (dst, node) in removed {
            self.remove(*dst, node, claim);
        }
        if !new.is_empty() {
            self.blocks.insert(net, new);
        }
    }

    /// The node has this value, or does not exist.
    pub(crate) fn on_node(&mut self, name: &Hostname, node: Option<&Node>) {
        let new = node.and_then(NodeInfo::of);
        let old = self.nodes.remove(name);
        if new != old {
            let claims = |info: &Option<NodeInfo>| info.as_ref().map(|info| info.claims.clone()).unwrap_or_default();
            let (of_old, of_new) = (claims(&old), claims(&new));
            let (added, removed) = difference(&of_old, &of_new);
            for (dst, claim) in added {
                self.add(*dst, name, *claim);
            }
            for (dst, claim) in removed {
                self.remove(*dst, name, *claim);
            }
            self.dirty.extend(self.sent.get(name).into_iter().flatten());
            if *name == self.own {
                self.subnets_changed(old.as_ref(), new.as_ref());
            }
        }
        if let Some(new) = new {
            self.nodes.insert(name.clone(), new);
        }
    }

    /// This node has other addresses, so other nodes may be in its subnets.
    fn subnets_changed(&mut self, old: Option<&NodeInfo>, new: Option<&NodeInfo>) {
        for (name, nets) in &self.sent {
            let Some(node) = self.nodes.get(name) else { continue };
            for family in Family::ALL {
                let is_neighbour = |own: Option<&NodeInfo>| own.is_some_and(|own| own.is_neighbour(node, family));
                if is_neighbour(old) != is_neighbour(new) {
                    self.dirty.extend(nets.iter().filter(|net| net.family() == family));
                }
            }
        }
    }

    /// A workload endpoint of any node has these addresses; none if it does not exist.
    pub(crate) fn on_workload(&mut self, key: &WorkloadEndpointKey, nets: impl Iterator<Item = Cidr>) {
        let node = key.host();
        if self.source == RouteSource::CalicoIpam && node != self.own.as_str() {
            return;
        }
        let mut new: ShortList<Cidr> = nets.map(Cidr::masked).collect();
        new.sort_unstable();
        let old = self.note_workload(key, &new);
        if new == old {
            return;
        }
        let node = self.shared_name(node);
        let claim = Claim::Ref(RefKind::Workload);
        for net in &new {
            self.add(*net, &node, claim);
        }
        for net in &old {
            self.remove(*net, &node, claim);
        }
    }

    /// Notes which addresses an endpoint has. Gives back the previous ones.
    fn note_workload(&mut self, key: &WorkloadEndpointKey, nets: &ShortList<Cidr>) -> ShortList<Cidr> {
        if nets.is_empty() {
            return self.workloads.remove(key).map(|workload| workload.nets).unwrap_or_default();
        }
        match self.workloads.find(key) {
            Ok(slot) => {
                let workload = self.workloads.get_mut(slot);
                workload.map(|workload| std::mem::replace(&mut workload.nets, nets.clone())).unwrap_or_default()
            }
            Err(hash) => {
                self.workloads.insert(hash, Workload { key: key.clone(), nets: nets.clone() });
                ShortList::new()
            }
        }
    }

    /// A node's name, shared with its other uses if it is known.
    fn shared_name(&self, name: &str) -> Hostname {
        match self.nodes.get_key_value(name) {
            Some((known, _)) => known.clone(),
            None if name == self.own.as_str() => self.own.clone(),
            None => Hostname::new(name),
        }
    }

    fn add(&mut self, net: Cidr, node: &Hostname, claim: Claim) {
        if self.table.entry(net).add(node, claim) && self.is_wanted {
            self.mark(net);
        }
    }

    fn remove(&mut self, net: Cidr, node: &Hostname, claim: Claim) {
        if self.table.get_mut(net).is_some_and(|entry| entry.remove(node, claim)) {
            self.changed(net);
        }
    }

    /// What is known of a network has changed, and so have the routes of those within it.
    fn changed(&mut self, net: Cidr) {
        if self.is_wanted {
            self.mark(net);
        } else {
            self.drop_unknown(net);
        }
    }

    /// Has the network looked at in the next flush, and those within it.
    fn mark(&mut self, net: Cidr) {
        if net.is_host() {
            self.dirty.insert(net);
        } else {
            self.dirty.extend(self.table.within(net));
        }
    }

    /// Nothing is kept of a network of which nothing is known, unless its route is still to be removed.
    fn drop_unknown(&mut self, net: Cidr) {
        if self.table.get_mut(net).is_some_and(|entry| !entry.is_known() && entry.sent.is_none()) {
            self.table.remove(net);
        }
    }

    /// Says which routes have changed.
    pub(crate) fn flush(&mut self, changes: &mut RouteChanges) {
        for net in self.take_dirty() {
            // The original never sends these; they stand for no address.
            let is_placeholder = net.is_host() && net.address().is_unspecified();
            let new = if self.is_wanted && !is_placeholder {
                resolve::route(net, self.table.path(net), &self.own, &self.nodes)
            } else {
                None
            };
            let is_route = new.is_some();
            let Some(entry) = self.table.get_mut(net) else { continue };
            if entry.sent != new {
                let old = std::mem::replace(&mut entry.sent, new.clone());
                self.file(net, old.as_ref(), new.as_ref());
                match new {
                    Some(route) => changes.updated.push((net, route)),
                    None => changes.removed.push(net),
                }
            }
            if !is_route {
                self.drop_unknown(net);
            }
        }
    }

    /// The networks to be looked at, in ascending order.
    fn take_dirty(&mut self) -> Vec<Cidr> {
        let dirty = std::mem::take(&mut self.dirty);
        if std::mem::take(&mut self.all_dirty) {
            return self.table.nets().collect();
        }
        let mut dirty: Vec<Cidr> = dirty.into_iter().collect();
        dirty.sort_unstable();
        dirty
    }

    /// Files a route under its node.
    fn file<'r>(&mut self, net: Cidr, old: Option<&'r Route>, new: Option<&'r Route>) {
        let node = |route: Option<&'r Route>| route.and_then(|route| route.node.as_ref());
        let (old, new) = (node(old), node(new));
        if old == new {
            return;
        }
        if let Some(node) = old
            && let Some(nets) = self.sent.get_mut(node)
        {
            nets.remove(&net);
            if nets.is_empty() {
                self.sent.remove(node);
            }
        }
        if let Some(node) = new {
            match self.sent.get_mut(node) {
                Some(nets) => nets.insert(net),
                None => self.sent.entry(node.clone()).or_default().insert(net),
            };
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
            && self.nodes.is_empty()
            && self.blocks.is_empty()
            && self.workloads.is_empty()
            && self.sent.is_empty()
            && self.dirty.is_empty()
            && !self.all_dirty
    }
}

/// Addresses of pools for load balancers alone are no workloads', so traffic to them is masqueraded like any other.
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

/// Who has the block and its addresses, sorted. A block of a single address is the node's that it is for.
fn claims(net: Cidr, block: &IpamBlock) -> Box<[(Cidr, Hostname)]> {
    let borrowed = block.borrowed.iter().map(|allocation| (Cidr::host(allocation.address), allocation.node.clone()));
    let mut claims: Vec<_> = borrowed.filter(|(address, _)| *address != net || block.affinity.is_none()).collect();
    claims.extend(block.affinity.clone().map(|node| (net, node)));
    claims.sort_unstable();
    claims.dedup();
    claims.into()
}

/// What is only in the second of two sorted lists, and what is only in the first.
fn difference<'a, T: Ord>(old: &'a [T], new: &'a [T]) -> (Vec<&'a T>, Vec<&'a T>) {
    let added = new.iter().filter(|item| old.binary_search(item).is_err()).collect();
    let removed = old.iter().filter(|item| new.binary_search(item).is_err()).collect();
    (added, removed)
}

#[cfg(test)]
mod tests;
