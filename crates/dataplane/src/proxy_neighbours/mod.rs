//! Addresses of pods and load balancers in a subnet of the node. Other hosts of the subnet send ARP
//! or neighbour discovery requests for them, and the node answers
//! (`felix/dataplane/linux/proxy_neigh_mgr.go`).
//!
//! Only addresses of pools without encapsulation count: hosts do not send requests for others. Each
//! node answers for its own pods. For an address of a load balancer, the node that [`NodeRing`]
//! chooses answers. The kernel is not configured for this: the implementation of [`Kernel`]
//! answers, so nothing is left behind when the process ends.

mod ring;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tortie_iptables::InterfaceName;
use tortie_model::desired::{HostMetadata, LiveMigrationRole, WorkloadEndpointState};
use tortie_model::{
    Cidr, EncapMode, Family, Hostname, IpPool, NamespacedName, Service, WorkloadEndpointId, parse_address,
};
use tortie_netfilter::delta::Delta;

use crate::config::{DataplaneConfig, LocalReachabilityConfig};
use crate::kernel::{Kernel, Links, Neighbours};
use crate::kernel_error::KernelError;
use crate::links::{KnownLinks, is_workload};
use crate::neighbour::{ProxyNeighbour, ProxyNeighbourChange};
use crate::report::DataplaneProblem;
use ring::NodeRing;

/// Type of the services that have addresses to answer for.
const LOAD_BALANCER: &str = "LoadBalancer";

/// Reasons to answer for an address.
#[derive(Debug, Default)]
struct Users {
    pods: usize,
    /// Number of services for each spelling of the address.
    services: BTreeMap<Arc<str>, usize>,
}

/// The subnets of an interface that is up.
#[derive(Debug, Default, PartialEq, Eq)]
struct Subnets {
    interface: u32,
    nets: BTreeSet<Cidr>,
}

/// Proxied addresses of one family.
#[derive(Debug)]
pub(crate) struct ProxyNeighbours {
    family: Family,
    hostname: Hostname,
    announce_interval: Option<Duration>,
    workload_prefixes: Vec<InterfaceName>,
    pods: BTreeMap<WorkloadEndpointId, BTreeSet<IpAddr>>,
    services: BTreeMap<NamespacedName, BTreeSet<Arc<str>>>,
    users: BTreeMap<IpAddr, Users>,
    /// Pools without encapsulation.
    pools: BTreeSet<Cidr>,
    nodes: NodeRing,
    nodes_changed: bool,
    subnets: BTreeMap<InterfaceName, Subnets>,
    /// Interfaces whose subnets may have changed.
    unread: BTreeSet<InterfaceName>,
    /// Addresses whose interfaces have to be determined again.
    dirty: BTreeSet<IpAddr>,
    /// Indices of the interfaces on which the node should answer for each address.
    placed: BTreeMap<IpAddr, BTreeSet<u32>>,
    entries: Delta<ProxyNeighbour, ()>,
    unannounced: BTreeSet<ProxyNeighbour>,
    checked: Option<Duration>,
    announced: Option<Duration>,
    has_failed: bool,
}

impl ProxyNeighbours {
    /// Returns `None` if local reachability is disabled.
    pub(crate) fn new(family: Family, config: &DataplaneConfig) -> Option<Self> {
        let LocalReachabilityConfig { announce_interval } = *config.local_reachability.as_ref()?;
        Some(Self {
            family,
            hostname: config.hostname.clone(),
            announce_interval,
            workload_prefixes: config.rules.workload_prefixes.clone(),
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            users: BTreeMap::new(),
            pools: BTreeSet::new(),
            nodes: NodeRing::default(),
            nodes_changed: false,
            subnets: BTreeMap::new(),
            unread: BTreeSet::new(),
            dirty: BTreeSet::new(),
            placed: BTreeMap::new(),
            entries: Delta::new(),
            unannounced: BTreeSet::new(),
            checked: None,
            announced: None,
            has_failed: false,
        })
    }

    pub(crate) const fn family(&self) -> Family {
        self.family
    }

    pub(crate) fn on_workload(&mut self, id: &WorkloadEndpointId, state: Option<&WorkloadEndpointState>) {
        // The target node of a live migration answers.
        let role = |state: &WorkloadEndpointState| state.computed.as_ref()?.live_migration_role;
        let counts = state.filter(|state| role(state) != Some(LiveMigrationRole::Source));
        let nets = counts.into_iter().flat_map(|state| state.endpoint.nets());
        let new: BTreeSet<IpAddr> = nets.filter(|net| net.family() == self.family).map(Cidr::address).collect();
        let old = match new.is_empty() {
            true => self.pods.remove(id),
            false => self.pods.insert(id.clone(), new.clone()),
        };
        let old = old.unwrap_or_default();
        for address in new.difference(&old) {
            self.users.entry(*address).or_default().pods += 1;
            self.dirty.insert(*address);
        }
        for address in old.difference(&new) {
            self.release(*address, |users| users.pods = users.pods.saturating_sub(1));
        }
    }

    pub(crate) fn on_service(&mut self, name: &NamespacedName, service: Option<&Service>) {
        let family = self.family;
        let service = service.filter(|service| &*service.service_type == LOAD_BALANCER);
        // Felix answers for `spec.loadBalancerIP` as well, which is only a request by the service's
        // author.
        let texts = service.into_iter().flat_map(|service| service.load_balancer_ingress_ips.iter().cloned());
        let new: BTreeSet<Arc<str>> = texts.filter(|text| parse(text, family).is_some()).collect();
        let old = match new.is_empty() {
            true => self.services.remove(name),
            false => self.services.insert(name.clone(), new.clone()),
        };
        let old = old.unwrap_or_default();
        for (text, address) in new.difference(&old).filter_map(|text| Some((text, parse(text, family)?))) {
            *self.users.entry(address).or_default().services.entry(Arc::clone(text)).or_default() += 1;
            self.dirty.insert(address);
        }
        for (text, address) in old.difference(&new).filter_map(|text| Some((text, parse(text, family)?))) {
            self.release(address, |users| {
                if let Some(count) = users.services.get_mut(text) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        users.services.remove(text);
                    }
                }
            });
        }
    }

    fn release(&mut self, address: IpAddr, release: impl FnOnce(&mut Users)) {
        if let Some(users) = self.users.get_mut(&address) {
            release(users);
            if users.pods == 0 && users.services.is_empty() {
                self.users.remove(&address);
            }
        }
        self.dirty.insert(address);
    }

    pub(crate) fn on_host(&mut self, name: &Hostname, node: Option<&HostMetadata>) {
        // A node without an address in this family answers for none.
        let of_family = |node: &&HostMetadata| match self.family {
            Family::V4 => !node.ipv4_addr.is_empty(),
            Family::V6 => !node.ipv6_addr.is_empty(),
        };
        self.nodes_changed |= match node.filter(of_family) {
            Some(_) => self.nodes.insert(name),
            None => self.nodes.remove(name),
        };
    }

    pub(crate) fn on_pool(&mut self, pool: &IpPool) {
        let is_encapsulated = pool.ipip_mode != EncapMode::Never || pool.vxlan_mode != EncapMode::Never;
        match pool.cidr.family() == self.family && !is_encapsulated {
            true if self.pools.insert(pool.cidr) => self.mark(pool.cidr),
            true => {}
            false => self.on_pool_remove(pool.cidr),
        }
    }

    pub(crate) fn on_pool_remove(&mut self, cidr: Cidr) {
        if self.pools.remove(&cidr) {
            self.mark(cidr);
        }
    }

    /// Notes that the state or the addresses of an interface may have changed. Returns whether it
    /// has or had a subnet.
    pub(crate) fn on_link(&mut self, name: InterfaceName, links: &KnownLinks) -> bool {
        if is_workload(&self.workload_prefixes, name) {
            return false;
        }
        self.unread.insert(name);
        self.subnets.contains_key(&name) || !links.addresses_of(name).is_empty()
    }

    /// Marks all addresses of a network as dirty.
    fn mark(&mut self, net: Cidr) {
        let range = net.masked().address()..=net.last_host().address();
        self.dirty.extend(self.users.range(range).map(|(address, _)| *address));
    }

    fn read_subnets(&mut self, kernel: &mut dyn Links, links: &KnownLinks, problems: &mut Vec<DataplaneProblem>) {
        for name in std::mem::take(&mut self.unread) {
            // Interfaces without known addresses include those that are reported by name only
            // (`InterfaceExclude`).
            let link = links.get(name).filter(|link| link.is_up && !links.addresses_of(name).is_empty());
            let nets = link.map_or(Ok(Vec::new()), |link| kernel.addresses(link.index, self.family));
            let nets: BTreeSet<Cidr> = match nets {
                Ok(nets) => nets.into_iter().map(Cidr::masked).collect(),
                Err(error) => {
                    problems.push(DataplaneProblem::Subnets { interface: name, error });
                    self.has_failed = true;
                    self.unread.insert(name);
                    continue;
                }
            };
            let new = Subnets { interface: link.map_or(0, |link| link.index), nets };
            if self.subnets.get(&name).unwrap_or(&Subnets::default()).nets.is_empty() && new.nets.is_empty()
                || self.subnets.get(&name) == Some(&new)
            {
                continue;
            }
            new.nets.iter().for_each(|net| self.mark(*net));
            let old = match new.nets.is_empty() {
                true => self.subnets.remove(&name),
                false => self.subnets.insert(name, new),
            };
            old.iter().flat_map(|old| &old.nets).for_each(|net| self.mark(*net));
        }
    }

    /// Determines the interfaces of all dirty addresses.
    fn place_all(&mut self) {
        if std::mem::take(&mut self.nodes_changed) {
            let of_services = self.users.iter().filter(|(_, users)| !users.services.is_empty());
            self.dirty.extend(of_services.map(|(address, _)| *address));
        }
        for address in std::mem::take(&mut self.dirty) {
            let wanted = self.interfaces_for(address);
            let old = match wanted.is_empty() {
                true => self.placed.remove(&address),
                false => self.placed.insert(address, wanted.clone()),
            };
            let old = old.unwrap_or_default();
            for interface in old.difference(&wanted) {
                self.entries.remove_desired(&ProxyNeighbour { interface: *interface, address });
            }
            for interface in wanted.difference(&old) {
                self.entries.set_desired(ProxyNeighbour { interface: *interface, address }, ());
            }
        }
    }

    /// Returns the interfaces on which the node should answer for an address.
    fn interfaces_for(&mut self, address: IpAddr) -> BTreeSet<u32> {
        let Self { users, pools, subnets, nodes, hostname, .. } = self;
        let Some(users) = users.get(&address) else { return BTreeSet::new() };
        if !pools.iter().any(|pool| pool.contains(address)) {
            return BTreeSet::new();
        }
        let with_it = subnets.values().filter(|subnets| subnets.nets.iter().any(|net| net.contains(address)));
        let interfaces: BTreeSet<u32> = with_it.map(|subnets| subnets.interface).collect();
        let mut is_chosen = || users.services.keys().any(|text| nodes.owner(text) == Some(hostname));
        match !interfaces.is_empty() && (users.pods > 0 || is_chosen()) {
            true => interfaces,
            false => BTreeSet::new(),
        }
    }

    /// Returns the time until the next retry, check or announcement.
    pub(crate) fn next(&self, now: Duration, retry: Duration) -> Option<Duration> {
        if self.has_failed {
            return Some(retry);
        }
        if self.entries.is_empty() {
            return None;
        }
        let announce = self.announced.zip(self.announce_interval).map(|(last, every)| last + every);
        let check = self.checked.map(|last| last + retry);
        announce.into_iter().chain(check).min().map(|at| at.saturating_sub(now))
    }

    /// Answers for exactly the desired addresses. Announces each when it is new, and all of them
    /// once per announcement interval. Compares with the kernel's list every `check`.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut dyn Kernel,
        links: &KnownLinks,
        check: Duration,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        self.has_failed = false;
        if let Some(devices) = kernel.links() {
            self.read_subnets(devices, links, problems);
        }
        self.place_all();
        if self.entries.is_empty() {
            (self.checked, self.announced) = (None, None);
            self.unannounced.clear();
            return;
        }
        let Some(kernel) = kernel.neighbours() else { return };
        let now = kernel.now();
        if self.checked.is_none_or(|last| now >= last + check) {
            match kernel.proxy_neighbours(self.family) {
                Ok(observed) => {
                    self.entries.replace_observed(observed.into_iter().map(|entry| (entry, ())));
                    self.checked = Some(now);
                }
                Err(error) => {
                    problems.push(DataplaneProblem::ProxyNeighbours { family: self.family, error });
                    self.checked = None;
                    self.has_failed = true;
                    return;
                }
            }
        }
        self.change(kernel, problems);
        self.announce(kernel, now, problems);
    }

    fn change(&mut self, kernel: &mut dyn Neighbours, problems: &mut Vec<DataplaneProblem>) {
        let removals = self.entries.pending_removals().map(|(entry, ())| ProxyNeighbourChange::Remove(*entry));
        let additions = self.entries.pending_writes().map(|(entry, _)| ProxyNeighbourChange::Add(*entry));
        let changes: Vec<ProxyNeighbourChange> = removals.chain(additions).collect();
        if changes.is_empty() {
            return;
        }
        let mut outcomes = kernel.change_proxy_neighbours(&changes).into_iter();
        for change in changes {
            match (change, outcomes.next().unwrap_or_else(|| Err(KernelError::no_answer()))) {
                (ProxyNeighbourChange::Add(entry), Ok(())) => {
                    self.entries.confirm_written(&entry);
                    self.unannounced.insert(entry);
                }
                (ProxyNeighbourChange::Remove(entry), Ok(()) | Err(KernelError::NotFound)) => {
                    self.entries.confirm_removed(&entry);
                }
                (ProxyNeighbourChange::Add(neighbour) | ProxyNeighbourChange::Remove(neighbour), Err(error)) => {
                    self.note_failure(neighbour, error, problems);
                }
            }
        }
    }

    fn announce(&mut self, kernel: &mut dyn Neighbours, now: Duration, problems: &mut Vec<DataplaneProblem>) {
        let last = *self.announced.get_or_insert(now);
        if self.announce_interval.is_some_and(|every| now >= last + every) {
            self.announced = Some(now);
            self.unannounced.extend(self.entries.iter_observed().map(|(entry, ())| *entry));
        }
        let entries = &self.entries;
        self.unannounced.retain(|entry| entries.desired(entry).is_some() && entries.observed(entry).is_some());
        if self.unannounced.is_empty() {
            return;
        }
        let announced: Vec<ProxyNeighbour> = self.unannounced.iter().copied().collect();
        let mut outcomes = kernel.announce(&announced).into_iter();
        for neighbour in announced {
            match outcomes.next().unwrap_or_else(|| Err(KernelError::no_answer())) {
                Ok(()) => {
                    self.unannounced.remove(&neighbour);
                }
                Err(error) => self.note_failure(neighbour, error, problems),
            }
        }
    }

    fn note_failure(&mut self, neighbour: ProxyNeighbour, error: KernelError, problems: &mut Vec<DataplaneProblem>) {
        self.has_failed = true;
        // The interface is missing or down; a link event follows.
        if !matches!(error, KernelError::NotFound | KernelError::LinkDown) {
            problems.push(DataplaneProblem::ProxyNeighbour { neighbour, error });
        }
    }
}

/// Parses an address; `None` if it is invalid or of another family.
fn parse(text: &str, family: Family) -> Option<IpAddr> {
    parse_address(text).filter(|address| Family::of(*address) == family)
}
