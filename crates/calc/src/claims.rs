//! Addresses that the annotation of a pod claims, before the platform confirms them in
//! `status.podIPs`.
//!
//! The CNI plugin writes such annotations, and so can the pod's creator. A claim counts only under
//! three conditions: no other endpoint of the cluster has or claims the address, no node has it,
//! and it is in an IP pool or in its node's pod networks, where these are known. Other claims are
//! dropped and listed as problems; an endpoint without other addresses counts as absent. Floating
//! addresses of pods, which an annotation requests as well, count under the same conditions.

mod node_addresses;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_labelindex::{Holders, Overlap};
use tortie_model::{
    Cidr, Hostname, IpPool, Key, Labels, NatMapping, ShortList, Update, WorkloadEndpoint, WorkloadEndpointKey,
    parse_address, reserved_range,
};

use crate::AddressClaims;
use crate::contests::Contests;
use crate::items::{ItemId, Items};
use crate::problem::{ClaimFlaw, IgnoredObject, Reason};
use crate::services::ServiceIndex;
use node_addresses::{NodeAddresses, NodeSource};

/// The annotation that requests floating addresses.
const FLOATING_IPS: &str = "cni.projectcalico.org/floatingIPs";

/// An endpoint with claims: without a confirmed address, or with floating addresses.
#[derive(Debug)]
struct Claimant {
    value: Arc<WorkloadEndpoint>,
    dropped: Vec<(IpAddr, ClaimFlaw)>,
}

/// See the module. The endpoints that have an address are those in the index of members.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    treatment: AddressClaims,
    nodes: NodeAddresses,
    /// Enabled IP pools.
    pools: BTreeSet<Cidr>,
    pod_networks: AHashMap<Box<str>, Box<[Cidr]>>,
    claimants: BTreeMap<WorkloadEndpointKey, Claimant>,
    by_address: BTreeMap<IpAddr, BTreeSet<WorkloadEndpointKey>>,
    stale: BTreeSet<WorkloadEndpointKey>,
    new_problems: Vec<IgnoredObject>,
}

impl Claims {
    pub(crate) fn new(treatment: AddressClaims) -> Self {
        Self { treatment, ..Self::default() }
    }

    /// Returns the claims in a cluster of exactly these objects, and its endpoints with confirmed
    /// addresses. Calls `confirmed` with each of these.
    fn of<'u>(
        objects: impl IntoIterator<Item = &'u Update>,
        mut confirmed: impl FnMut(&WorkloadEndpointKey, &WorkloadEndpoint),
    ) -> (Self, Items) {
        let (mut claims, mut members) = (Self::default(), Items::new(Overlap::Keep));
        for object in objects {
            claims.on_object(object);
            let Update::WorkloadEndpoint(key, Some(endpoint)) = object else { continue };
            if has_claims(key, endpoint) {
                claims.on_claim(key, Arc::clone(endpoint.as_arc()));
            }
            if endpoint.claimed_by().is_none() {
                let (item, nets) = (ItemId::Workload(key.clone()), endpoint.nets().map(Cidr::to_host));
                members.set_item(item, &Labels::default(), &Arc::default(), &(), nets, &[]);
                confirmed(key, endpoint);
            }
        }
        (claims, members)
    }

    /// Reports whether the addresses of the endpoint are claims.
    pub(crate) fn is_unproven(&self, key: &WorkloadEndpointKey) -> bool {
        self.claimants.get(key).is_some_and(|claimant| claimant.value.claimed_by().is_some())
    }

    /// Reports whether an endpoint with claims is on this node.
    pub(crate) fn names(&self, node: &str) -> bool {
        self.claimants.keys().any(|key| key.host() == node)
    }

    /// Records the claims of an endpoint; [`Claims::flush`] validates them.
    pub(crate) fn on_claim(&mut self, key: &WorkloadEndpointKey, value: Arc<WorkloadEndpoint>) {
        self.withdraw(key);
        for address in claimed(&value) {
            self.by_address.entry(address).or_default().insert(key.clone());
            self.touch(address);
        }
        self.stale.insert(key.clone());
        self.claimants.insert(key.clone(), Claimant { value, dropped: Vec::new() });
    }

    /// Removes the claims of an endpoint.
    pub(crate) fn withdraw(&mut self, key: &WorkloadEndpointKey) {
        if self.claimants.is_empty() {
            return;
        }
        let Some(before) = self.claimants.remove(key) else { return };
        for address in claimed(&before.value) {
            if let Some(claimants) = self.by_address.get_mut(&address) {
                claimants.remove(key);
                if claimants.is_empty() {
                    self.by_address.remove(&address);
                }
            }
            self.touch(address);
        }
        self.stale.remove(key);
    }

    /// Records a change of the confirmed addresses of an endpoint.
    pub(crate) fn on_confirmed(
        &mut self,
        before: impl IntoIterator<Item = Cidr>,
        after: impl IntoIterator<Item = Cidr>,
        services: &mut ServiceIndex,
    ) {
        if self.by_address.is_empty() && services.names_no_address() {
            return;
        }
        let (before, after) = (distinct(before), distinct(after));
        if before == after {
            return;
        }
        for address in before.iter().chain(&*after) {
            self.touch(*address);
            services.on_address(*address);
        }
    }

    /// Returns the endpoints for which the platform confirms the address.
    fn confirmed<'i>(
        &self,
        holders: &Holders<'i, ItemId>,
        address: IpAddr,
    ) -> impl Iterator<Item = &'i WorkloadEndpointKey> {
        holders.of(address).filter_map(ItemId::workload).filter(|key| !self.is_unproven(key))
    }

    /// Reports whether an address in an `EndpointSlice` of the namespace belongs to pods of other
    /// namespaces.
    pub(crate) fn bars_from_slice(&self, members: &mut Items, namespace: &str, address: IpAddr) -> bool {
        if self.treatment == AddressClaims::Any {
            return false;
        }
        let holders = members.holders();
        let mut owners = self.confirmed(&holders, address).map(namespace_of).peekable();
        owners.peek().is_some() && owners.all(|owner| owner.is_some_and(|owner| owner != namespace))
    }

    /// Records nodes, their addresses, and IP pools.
    pub(crate) fn on_object(&mut self, update: &Update) {
        match update {
            Update::Node(name, node) => {
                let node = node.as_ref();
                let addresses = node.into_iter().flat_map(|node| node.own_addresses());
                self.on_node_addresses(NodeSource::Node(name.clone()), addresses);
                self.on_pod_networks(name, node.map_or(&[], |node| &node.pod_networks));
            }
            Update::Wireguard(name, wireguard) => {
                let addresses = wireguard.iter().flat_map(|w| [w.ipv4_address, w.ipv6_address]).flatten();
                self.on_node_addresses(NodeSource::Wireguard(name.clone()), addresses);
            }
            Update::HostConfig(key, text) => {
                let address: Option<IpAddr> = text.as_deref().and_then(parse_address);
                self.on_node_addresses(NodeSource::Config(key.clone()), address);
            }
            Update::HostEndpoint(key, endpoint) => {
                let addresses = endpoint.iter().flat_map(|v| v.expected_ipv4.iter().chain(&v.expected_ipv6)).copied();
                self.on_node_addresses(NodeSource::HostEndpoint(key.clone()), addresses);
            }
            Update::IpPool(cidr, pool) => self.on_pool(*cidr, pool.as_deref()),
            _ => {}
        }
    }

    fn on_node_addresses(&mut self, source: NodeSource, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in self.nodes.set(source, addresses.into_iter().collect()) {
            self.touch(address);
        }
    }

    fn on_pod_networks(&mut self, node: &Hostname, networks: &[Cidr]) {
        let before = match networks {
            [] => self.pod_networks.remove(node.as_str()),
            _ => self.pod_networks.insert(node.as_str().into(), networks.into()),
        };
        if *before.unwrap_or_default() != *networks {
            self.stale.extend(self.claimants.keys().filter(|key| key.host() == node.as_str()).cloned());
        }
    }

    fn on_pool(&mut self, cidr: Cidr, pool: Option<&IpPool>) {
        let changed = match pool {
            Some(pool) if !pool.disabled => self.pools.insert(cidr),
            _ => self.pools.remove(&cidr),
        };
        if changed {
            self.stale.extend(self.claimants.keys().cloned());
        }
    }

    fn touch(&mut self, address: IpAddr) {
        if let Some(claimants) = self.by_address.get(&address) {
            self.stale.extend(claimants.iter().cloned());
        }
    }

    /// Evaluates the claims that may have changed. Returns their endpoints with the addresses that
    /// count, if any do.
    pub(crate) fn flush(&mut self, members: &mut Items) -> Vec<(WorkloadEndpointKey, Option<Arc<WorkloadEndpoint>>)> {
        if self.stale.is_empty() {
            return Vec::new();
        }
        let (stale, holders) = (std::mem::take(&mut self.stale), members.holders());
        stale.into_iter().filter_map(|key| self.evaluate(&key, &holders).map(|value| (key, value))).collect()
    }

    fn evaluate(
        &mut self,
        key: &WorkloadEndpointKey,
        holders: &Holders<'_, ItemId>,
    ) -> Option<Option<Arc<WorkloadEndpoint>>> {
        let value = Arc::clone(&self.claimants.get(key)?.value);
        let dropped: Vec<(IpAddr, ClaimFlaw)> =
            claimed(&value).filter_map(|address| Some((address, self.flaw(key, address, holders)?))).collect();
        let claimant = self.claimants.get_mut(key)?;
        let before = std::mem::replace(&mut claimant.dropped, dropped);
        let new = claimant.dropped.iter().filter(|claim| !before.contains(claim));
        for problem in new.map(|claim| problem(key, &value, claim)) {
            tracing::warn!(%problem, "an address that an annotation claims is not used");
            self.new_problems.push(problem);
        }
        if claimant.dropped.is_empty() {
            return Some(Some(value));
        }
        let mut value = WorkloadEndpoint::clone(&value);
        let counts = |address: IpAddr| !claimant.dropped.iter().any(|(dropped, _)| *dropped == address);
        if value.claimed_by().is_some() {
            let kept = |nets: &ShortList<Cidr>| nets.iter().copied().filter(|net| counts(net.address())).collect();
            (value.ipv4_nets, value.ipv6_nets) = (kept(&value.ipv4_nets), kept(&value.ipv6_nets));
            if value.nets().next().is_none() {
                return Some(None);
            }
        }
        if let Some(extras) = &mut value.extras {
            let kept = |nats: &[NatMapping]| nats.iter().copied().filter(|nat| counts(nat.external)).collect();
            (extras.ipv4_nat, extras.ipv6_nat) = (kept(&extras.ipv4_nat), kept(&extras.ipv6_nat));
        }
        Some(Some(Arc::new(value)))
    }

    /// Returns the reason why a claim does not count, if any.
    fn flaw(&self, key: &WorkloadEndpointKey, address: IpAddr, holders: &Holders<'_, ItemId>) -> Option<ClaimFlaw> {
        if self.treatment == AddressClaims::Any {
            return None;
        }
        if let Some(kind) = reserved_range(address) {
            return Some(ClaimFlaw::Reserved(kind));
        }
        if self.confirmed(holders, address).next().is_some() {
            return Some(ClaimFlaw::Confirmed);
        }
        if self.nodes.contains(address) {
            return Some(ClaimFlaw::OfNode);
        }
        if let Some(rival) = self.by_address.get(&address)?.iter().find(|other| *other != key) {
            return Some(ClaimFlaw::Rival(rival.clone()));
        }
        if !self.pools.is_empty() {
            let is_outside = !self.pools.iter().any(|pool| pool.contains(address));
            return is_outside.then_some(ClaimFlaw::OutsidePools);
        }
        let is_outside = !self.pod_networks.get(key.host())?.iter().any(|net| net.contains(address));
        is_outside.then_some(ClaimFlaw::OutsidePodNetworks)
    }

    pub(crate) fn problems(&self) -> impl Iterator<Item = IgnoredObject> + '_ {
        self.claimants
            .iter()
            .flat_map(|(key, claimant)| claimant.dropped.iter().map(|claim| problem(key, &claimant.value, claim)))
    }

    pub(crate) fn take_new_problems(&mut self) -> Vec<IgnoredObject> {
        std::mem::take(&mut self.new_problems)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.pools.is_empty()
            && self.pod_networks.is_empty()
            && self.claimants.is_empty()
            && self.by_address.is_empty()
            && self.stale.is_empty()
    }
}

/// Returns the claims to addresses and interfaces that do not count on any node of a cluster of
/// exactly these objects.
#[must_use]
pub fn claim_problems<'u>(objects: impl IntoIterator<Item = &'u Update>) -> Vec<IgnoredObject> {
    let mut contests: BTreeMap<Box<str>, Contests> = BTreeMap::new();
    let mut on_endpoint = |key: &WorkloadEndpointKey, endpoint: Option<&WorkloadEndpoint>| {
        let of_node = contests.entry(key.host().into()).or_insert_with(|| Contests::new(AddressClaims::Bounded));
        of_node.on_endpoint(key, endpoint);
    };
    let (mut claims, mut members) = Claims::of(objects, |key, confirmed| on_endpoint(key, Some(confirmed)));
    for (key, endpoint) in claims.flush(&mut members) {
        on_endpoint(&key, endpoint.as_deref());
    }
    claims.problems().chain(contests.values().flat_map(Contests::problems)).collect()
}

/// Returns the endpoints that claim addresses in a cluster of exactly these objects, each with the
/// addresses that count on its node; `None` if it has no others.
///
/// ```
/// use tortie_calc::standing_claims;
/// use tortie_model::{AddressSource, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey, WorkloadExtras};
///
/// let source = AddressSource::Annotation("cni.projectcalico.org/podIPs".into());
/// let endpoint = WorkloadEndpoint {
///     iface: Some("cali1".parse().unwrap()),
///     ipv4_nets: ["10.0.0.1/32".parse().unwrap(), "127.0.0.1/32".parse().unwrap()].into_iter().collect(),
///     extras: Some(Box::new(WorkloadExtras { address_source: source, ..WorkloadExtras::default() })),
///     ..WorkloadEndpoint::default()
/// };
/// let key = WorkloadEndpointKey::new("node-1", "k8s", "shop/db", "eth0");
/// let objects = [Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))];
/// let [(_, Some(endpoint))] = &standing_claims(&objects)[..] else { panic!() };
/// assert_eq!(endpoint.nets().collect::<Vec<_>>(), ["10.0.0.1/32".parse().unwrap()]);
/// ```
#[must_use]
pub fn standing_claims<'u>(
    objects: impl IntoIterator<Item = &'u Update>,
) -> Vec<(WorkloadEndpointKey, Option<Arc<WorkloadEndpoint>>)> {
    let (mut claims, mut members) = Claims::of(objects, |_, _| {});
    claims.flush(&mut members)
}

/// Reports whether an endpoint claims addresses. Floating addresses of other orchestrators are set
/// by the platform.
pub(crate) fn has_claims(key: &WorkloadEndpointKey, value: &WorkloadEndpoint) -> bool {
    value.claimed_by().is_some() || (key.orchestrator() == "k8s" && floating(value).next().is_some())
}

/// Returns the addresses that an endpoint claims.
fn claimed(value: &WorkloadEndpoint) -> impl Iterator<Item = IpAddr> + '_ {
    let own = value.nets().filter(|_| value.claimed_by().is_some());
    own.map(Cidr::address).chain(floating(value))
}

fn floating(value: &WorkloadEndpoint) -> impl Iterator<Item = IpAddr> + '_ {
    let extras = value.extras.as_deref();
    extras.into_iter().flat_map(|extras| extras.ipv4_nat.iter().chain(&extras.ipv6_nat)).map(|nat| nat.external)
}

/// Returns the namespace of a pod; `None` for endpoints of other orchestrators.
fn namespace_of(key: &WorkloadEndpointKey) -> Option<&str> {
    let pod = Some(key.workload()).filter(|_| key.orchestrator() == "k8s")?;
    pod.split_once('/').map(|(namespace, _)| namespace)
}

/// Returns the addresses of an endpoint, without duplicates.
fn distinct(nets: impl IntoIterator<Item = Cidr>) -> ShortList<IpAddr> {
    let mut addresses: ShortList<IpAddr> = ShortList::new();
    for net in nets {
        if !addresses.contains(&net.address()) {
            addresses.push(net.address());
        }
    }
    addresses.sort_unstable();
    addresses
}

fn problem(
    key: &WorkloadEndpointKey,
    value: &WorkloadEndpoint,
    (address, flaw): &(IpAddr, ClaimFlaw),
) -> IgnoredObject {
    let is_floating = floating(value).any(|external| external == *address);
    let annotation = value.claimed_by().filter(|_| !is_floating).cloned().unwrap_or_else(|| FLOATING_IPS.into());
    let reason = Reason::Claim { annotation, address: *address, flaw: flaw.clone() };
    IgnoredObject { key: Key::WorkloadEndpoint(key.clone()), reason }
}
