//! Interfaces of workload addresses, on nodes where other CNI plugins name the interfaces
//! ([`WorkloadDispatch::Address`](tortie_rules::WorkloadDispatch)).
//!
//! An address is denied until its interface is found, and again as soon as the interface changes.
//! When an address moves to another workload, its conntrack entries are deleted while it is denied.
//! Only then is its interface searched for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tortie_ipsets::{Member, SetType};
use tortie_iptables::{InterfaceName, Table};
use tortie_model::desired::WorkloadEndpointState;
use tortie_model::{Cidr, Family, WorkloadEndpointId};
use tortie_rules::names::static_set;
use tortie_rules::{Renderer, WorkloadAddress, WorkloadAttachment};

use crate::kernel::{Conntrack, Kernel, Neighbours, Sysctls};
use crate::kernel_error::KernelError;
use crate::links::{KnownLinks, is_workload};
use crate::managers::chain_set::FamilyChainSet;
use crate::managers::ip_sets::IpSetManager;
use crate::neighbour::AddressPlace;
use crate::output::Output;
use crate::report::{DataplaneProblem, EndpointProblem, Owner};
use crate::sysctl_path::SysctlPath;

/// Pause before the second search for an address that was not found. Each pause is twice as long,
/// up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(8);
/// Pause between searches from which a missing address is reported as a problem; reached after
/// about 4 s.
const PATIENCE: Duration = Duration::from_secs(4);
/// Interval between checks of the places found.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Address {
    /// Owner: the smallest of the endpoints that claim the address.
    owner: Option<(WorkloadEndpointId, InterfaceName)>,
    /// Its conntrack entries may belong to a previous owner.
    must_flush: bool,
    flush_error: Option<KernelError>,
    place: Option<AddressPlace>,
    next_search: Duration,
    pause: Duration,
}

impl Address {
    /// Schedules the next search; each pause is twice as long as the one before.
    fn schedule_search(&mut self, now: Duration) {
        self.next_search = now + self.pause;
        self.pause = (self.pause * 2).min(LAST_PAUSE);
    }
}

/// Addresses of all workloads of the node, if workloads are identified by address.
#[derive(Debug)]
pub(crate) struct WorkloadAddresses {
    is_used: bool,
    families: Vec<Family>,
    endpoints: BTreeMap<InterfaceName, (WorkloadEndpointId, BTreeSet<Cidr>)>,
    claims: BTreeMap<Cidr, BTreeSet<(WorkloadEndpointId, InterfaceName)>>,
    /// Fields of endpoints that have no effect here.
    without_effect: BTreeMap<InterfaceName, Vec<&'static str>>,
    addresses: BTreeMap<Cidr, Address>,
    /// Addresses whose owner may have changed.
    touched: BTreeSet<Cidr>,
    /// The dispatch chains have to be rendered again.
    dirty: bool,
    /// Interfaces with a reported change.
    changed_links: BTreeSet<InterfaceName>,
    chains: Vec<FamilyChainSet>,
    set: BTreeSet<Cidr>,
    /// Whether packets within bridges pass netfilter; only known while addresses are behind
    /// bridges.
    bridges_filtered: BTreeMap<Family, bool>,
    checked: Option<Duration>,
    failure: Option<KernelError>,
}

impl WorkloadAddresses {
    pub(crate) fn new(is_used: bool, families: &[Family]) -> Self {
        Self {
            is_used,
            families: families.to_vec(),
            endpoints: BTreeMap::new(),
            claims: BTreeMap::new(),
            without_effect: BTreeMap::new(),
            addresses: BTreeMap::new(),
            touched: BTreeSet::new(),
            dirty: true,
            changed_links: BTreeSet::new(),
            chains: families.iter().map(|_| FamilyChainSet::default()).collect(),
            set: BTreeSet::new(),
            bridges_filtered: BTreeMap::new(),
            checked: None,
            failure: None,
        }
    }

    pub(crate) const fn is_used(&self) -> bool {
        self.is_used
    }

    /// Notes the endpoint that owns these chains, and the addresses that lead to them.
    pub(crate) fn on_owner(
        &mut self,
        chains: InterfaceName,
        owner: Option<(&WorkloadEndpointId, &WorkloadEndpointState)>,
        nets: BTreeSet<Cidr>,
    ) {
        if !self.is_used {
            return;
        }
        if let Some((id, nets)) = self.endpoints.remove(&chains) {
            for net in nets {
                if let Some(claims) = self.claims.get_mut(&net) {
                    claims.remove(&(id.clone(), chains));
                }
                self.touched.insert(net);
            }
        }
        self.without_effect.remove(&chains);
        let Some((id, state)) = owner else { return };
        let without_effect = without_effect(state);
        if !without_effect.is_empty() {
            self.without_effect.insert(chains, without_effect);
        }
        let nets: BTreeSet<Cidr> = nets.into_iter().filter(|net| self.families.contains(&net.family())).collect();
        for net in &nets {
            self.claims.entry(*net).or_default().insert((id.clone(), chains));
            self.touched.insert(*net);
        }
        self.endpoints.insert(chains, (id.clone(), nets));
    }

    /// Notes that an interface appeared, disappeared or changed its state: an awaited address may
    /// be behind it, or a found one may not be any more. Returns whether that is possible.
    pub(crate) fn on_link(&mut self, name: InterfaceName) -> bool {
        if self.is_used {
            self.changed_links.insert(name);
        }
        self.addresses.values().any(|address| match &address.place {
            Some(place) => place.interface == name || place.port == Some(name),
            None => address.owner.is_some(),
        })
    }

    /// Determines the owner of each touched address.
    fn settle(&mut self) {
        for net in std::mem::take(&mut self.touched) {
            let owner = self.claims.get(&net).and_then(|claims| claims.first()).cloned();
            if owner.is_none() {
                self.claims.remove(&net);
            }
            let fresh = || Address {
                owner: None,
                must_flush: false,
                flush_error: None,
                place: None,
                next_search: Duration::ZERO,
                pause: FIRST_PAUSE,
            };
            if owner.is_none() && !self.addresses.contains_key(&net) {
                continue;
            }
            let address = self.addresses.entry(net).or_insert_with(fresh);
            if address.owner == owner {
                continue;
            }
            let had_owner = address.owner.is_some();
            let must_flush = address.must_flush || had_owner;
            *address = Address { owner, must_flush, ..fresh() };
            self.dirty = true;
        }
    }

    /// Searches for the addresses that are due.
    pub(crate) fn search(&mut self, kernel: &mut dyn Kernel, links: &KnownLinks) {
        self.settle();
        let now = kernel.now();
        match kernel.neighbours() {
            Some(neighbours) => {
                if self.locate(neighbours, links) {
                    self.check_bridges(kernel.sysctls());
                }
            }
            None => {
                self.changed_links.clear();
                let due = self.addresses.values_mut().filter(|address| address.next_search <= now);
                due.for_each(|address| address.schedule_search(now));
            }
        }
    }

    /// Searches for the addresses that are due. Returns whether the kernel answered for any.
    fn locate(&mut self, kernel: &mut dyn Neighbours, links: &KnownLinks) -> bool {
        let now = kernel.now();
        let changed = std::mem::take(&mut self.changed_links);
        let is_check = self.checked.is_none_or(|last| now >= last + CHECK_INTERVAL);
        let has_changed = |place: &AddressPlace| {
            changed.contains(&place.interface) || place.port.as_ref().is_some_and(|port| changed.contains(port))
        };
        let is_wanted = |address: &Address| {
            let is_due = match &address.place {
                Some(place) => is_check || has_changed(place),
                None => !changed.is_empty() || address.next_search <= now,
            };
            address.owner.is_some() && !address.must_flush && is_due
        };
        let wanted: Vec<(Cidr, Option<AddressPlace>)> = self
            .addresses
            .iter()
            .filter(|(_, address)| is_wanted(address))
            .map(|(net, address)| (*net, address.place.clone()))
            .collect();
        if is_check {
            self.checked = Some(now);
        }
        if wanted.is_empty() {
            return false;
        }
        let query: Vec<(IpAddr, Option<AddressPlace>)> =
            wanted.iter().map(|(net, place)| (net.address(), place.clone())).collect();
        let found = match kernel.locate(&query) {
            Ok(found) => {
                self.failure = None;
                found
            }
            // Known places stay: an error is no sign of a change.
            Err(error) => {
                self.failure = Some(error);
                for (net, _) in wanted {
                    self.addresses.entry(net).and_modify(|address| address.schedule_search(now));
                }
                return false;
            }
        };
        for ((net, old), new) in wanted.into_iter().zip(found.into_iter().chain(std::iter::repeat(None))) {
            let Some(address) = self.addresses.get_mut(&net) else { continue };
            let new = new.filter(|place| is_monitored(place, links));
            if new.is_none() {
                address.schedule_search(now);
            } else {
                address.pause = FIRST_PAUSE;
            }
            if new != old {
                self.dirty = true;
                // The new holder of the address may be another workload.
                address.must_flush |= old.is_some();
                address.place = if address.must_flush { None } else { new };
            }
        }
        true
    }

    /// Reads whether packets within bridges pass netfilter, in families with addresses behind
    /// bridges.
    fn check_bridges(&mut self, mut sysctls: Option<&mut dyn Sysctls>) {
        let has_bridged = |family: Family| {
            self.addresses.iter().any(|(net, address)| {
                net.family() == family && address.place.as_ref().is_some_and(|p| p.port.is_some())
            })
        };
        let bridged: Vec<Family> = self.families.iter().copied().filter(|family| has_bridged(*family)).collect();
        let mut filtered = BTreeMap::new();
        for family in bridged {
            let path = match family {
                Family::V4 => "net/bridge/bridge-nf-call-iptables",
                Family::V6 => "net/bridge/bridge-nf-call-ip6tables",
            };
            let value = SysctlPath::new(path).ok().and_then(|path| sysctls.as_mut()?.read_sysctl(&path).ok());
            filtered.insert(family, value.is_some_and(|value| value.trim() == "1"));
        }
        if filtered != self.bridges_filtered {
            self.bridges_filtered = filtered;
            self.dirty = true;
        }
    }

    /// Updates the dispatch chains and the set of all addresses.
    pub(crate) fn complete(&mut self, renderer: &Renderer, sets: &mut IpSetManager, output: &mut Output) {
        if !self.is_used {
            return;
        }
        self.settle();
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let owned =
            || self.addresses.iter().filter_map(|(net, address)| Some((*net, address, address.owner.as_ref()?)));
        let all: Vec<WorkloadAddress> = owned()
            .map(|(net, address, (_, chains))| WorkloadAddress {
                net,
                endpoint: *chains,
                place: address.place.as_ref().map(|place| self.place_of(net.family(), place)),
            })
            .collect();
        for (chains, family_output) in self.chains.iter_mut().zip(&mut output.families) {
            let rendered = renderer.workload_dispatch_by_address(family_output.family, all.iter().copied());
            chains.replace(Table::Filter, rendered, family_output);
        }
        let set: BTreeSet<Cidr> = owned().map(|(net, ..)| net).collect();
        if set != self.set {
            let members: Vec<Member> = set.iter().copied().map(Member::from).collect();
            sets.set_static(static_set::LOCAL_WORKLOADS, SetType::HashNet, &members, output);
            self.set = set;
        }
    }

    fn place_of(&self, family: Family, place: &AddressPlace) -> WorkloadAttachment {
        let knows_ports = self.bridges_filtered.get(&family).copied().unwrap_or(false);
        let port = place.port.filter(|_| knows_ports);
        WorkloadAttachment { interface: place.interface, port }
    }

    /// Deletes the conntrack entries of addresses that moved from another workload and are denied
    /// by now.
    pub(crate) fn flush(&mut self, kernel: &mut dyn Conntrack, in_force: impl Fn(Family) -> bool) {
        let is_due = |(net, address): &(&Cidr, &mut Address)| address.must_flush && in_force(net.family());
        let mut due: Vec<(&Cidr, &mut Address)> = self.addresses.iter_mut().filter(is_due).collect();
        let moved: Vec<IpAddr> = due.iter().map(|(net, _)| net.address()).collect();
        let mut outcomes = if moved.is_empty() { Vec::new() } else { kernel.flush_conntrack(&moved) }.into_iter();
        for (_, address) in &mut due {
            match outcomes.next().unwrap_or_else(|| Err(KernelError::no_answer())) {
                Ok(()) => {
                    address.must_flush = false;
                    address.flush_error = None;
                    address.next_search = Duration::ZERO;
                }
                Err(error) => address.flush_error = Some(error),
            }
        }
        self.addresses.retain(|_, address| address.owner.is_some() || address.must_flush);
    }

    /// Returns the time until the next search, check or retry.
    pub(crate) fn next(&self, now: Duration, retry_interval: Duration) -> Option<Duration> {
        let due = self.addresses.values().filter_map(|address| match address {
            Address { must_flush: true, .. } => Some(now + retry_interval),
            Address { owner: None, .. } => None,
            Address { place: None, next_search, .. } => Some(*next_search),
            Address { .. } => self.checked.map(|last| last + CHECK_INTERVAL),
        });
        due.min().map(|at| at.saturating_sub(now))
    }

    /// Reports whether all addresses of the endpoint with these chains were found.
    pub(crate) fn has_all(&self, chains: InterfaceName) -> bool {
        self.endpoints.get(&chains).is_some_and(|(id, nets)| {
            nets.iter().all(|net| {
                self.addresses.get(net).is_some_and(|address| {
                    address.place.is_some()
                        && address.owner.as_ref().is_some_and(|(owner, of)| owner == id && *of == chains)
                })
            })
        })
    }

    pub(crate) fn problems(&self, prefixes: &[InterfaceName]) -> Vec<DataplaneProblem> {
        let mut problems = Vec::new();
        for (net, address) in &self.addresses {
            if let Some(error) = &address.flush_error {
                let waiting = address.owner.as_ref().map(|(id, _)| id.clone());
                problems.push(DataplaneProblem::Conntrack { address: net.address(), waiting, error: error.clone() });
            }
            let Some((id, _)) = &address.owner else { continue };
            let error = match &address.place {
                None if address.pause >= PATIENCE => Some(EndpointProblem::NotFound(net.address())),
                Some(place) if !is_workload(prefixes, place.interface) => {
                    Some(EndpointProblem::UnguardedInterface(place.interface))
                }
                _ => None,
            };
            let of = |id: &WorkloadEndpointId, error| DataplaneProblem::Endpoint {
                owner: Owner::Workload(id.clone()),
                error,
            };
            problems.extend(error.map(|error| of(id, error)));
            let others = self.claims.get(net).into_iter().flatten().filter(|(other, _)| other != id);
            problems.extend(others.map(|(other, _)| {
                of(other, EndpointProblem::SharedAddress { address: net.address(), other: id.clone() })
            }));
        }
        for (chains, fields) in &self.without_effect {
            let Some((id, _)) = self.endpoints.get(chains) else { continue };
            problems.extend(fields.iter().map(|field| DataplaneProblem::Endpoint {
                owner: Owner::Workload(id.clone()),
                error: EndpointProblem::WithoutEffect(field),
            }));
        }
        let unfiltered = self.bridges_filtered.iter().filter(|(_, is_filtered)| !**is_filtered);
        problems.extend(unfiltered.map(|(family, _)| DataplaneProblem::BridgesNotFiltered(*family)));
        problems.extend(self.failure.clone().map(DataplaneProblem::WorkloadInterfaces));
        problems
    }
}

/// Returns the fields of an endpoint that need a dedicated interface and have no effect here.
fn without_effect(state: &WorkloadEndpointState) -> Vec<&'static str> {
    let Some(extras) = &state.endpoint.extras else { return Vec::new() };
    let is_limited = extras.qos.as_ref().is_some_and(|qos| qos.ingress_bandwidth > 0 || qos.egress_bandwidth > 0);
    let fields =
        [(is_limited, "qosControls bandwidth"), (!extras.allowed_source_prefixes.is_empty(), "allowedSourcePrefixes")];
    fields.into_iter().filter_map(|(is_set, field)| is_set.then_some(field)).collect()
}

/// Reports whether the interface monitor knows the interface and the port as well, so that it will
/// report their removal.
fn is_monitored(place: &AddressPlace, links: &KnownLinks) -> bool {
    let nearest = links.get(place.port.unwrap_or(place.interface));
    links.get(place.interface).is_some() && nearest.is_some_and(|link| link.index == place.index)
}
