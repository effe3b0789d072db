//! The addresses behind services, as members of IP sets (`felix/serviceindex/serviceindex.go`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_labelindex::SetChange;
use tortie_model::desired::{IpPortMember, IpSetDelta, IpSetType, IpSetUpdate, Members, PortProtocol};
use tortie_model::{Cidr, EndpointSlice, IpSetId, Key, NamespacedName, Protocol, reserved_range};

use crate::problem::{IgnoredObject, Reason};
use crate::scanner::ServiceSet;

#[derive(Debug, Default)]
struct Service {
    slices: BTreeSet<NamespacedName>,
    sets: Vec<ActiveSet>,
    /// Addresses of the slices as of the last flush, sorted; none without sets.
    addresses: Vec<IpAddr>,
    /// Slices with addresses of pods of other namespaces: the first such address and their number.
    foreign: Vec<(NamespacedName, IpAddr, usize)>,
}

#[derive(Debug)]
struct ActiveSet {
    id: IpSetId,
    with_ports: bool,
    /// As last sent; `None` if it was never sent.
    sent: Option<Members>,
}

/// See the module. A service that is used by no rule costs a list of its slices.
#[derive(Debug, Default)]
pub(crate) struct ServiceIndex {
    slices: AHashMap<NamespacedName, Arc<EndpointSlice>>,
    services: AHashMap<NamespacedName, Service>,
    /// Services with active sets by the addresses of their slices.
    by_address: AHashMap<IpAddr, Vec<NamespacedName>>,
    /// Services with active sets that may have changed.
    dirty: BTreeSet<NamespacedName>,
    removed: Vec<IpSetId>,
}

impl ServiceIndex {
    /// The slice has this value, or does not exist.
    pub(crate) fn on_slice(&mut self, name: &NamespacedName, slice: Option<Arc<EndpointSlice>>) {
        let old = match &slice {
            Some(slice) => self.slices.insert(name.clone(), Arc::clone(slice)),
            None => self.slices.remove(name),
        };
        if old == slice {
            return;
        }
        // A slice may move from one service to another.
        if let Some(service) = old.and_then(|slice| slice.service.clone()) {
            self.change(&service, |service| {
                service.slices.remove(name);
            });
        }
        if let Some(service) = slice.and_then(|slice| slice.service.clone()) {
            self.change(&service, |service| {
                service.slices.insert(name.clone());
            });
        }
    }

    /// A rule has begun to use the set.
    pub(crate) fn add_set(&mut self, id: IpSetId, set: &ServiceSet) {
        let set_ = ActiveSet { id, with_ports: set.with_ports, sent: None };
        self.change(&set.service, |service| service.sets.push(set_));
    }

    /// No rule uses the set any more.
    pub(crate) fn remove_set(&mut self, id: IpSetId, set: &ServiceSet) {
        self.change(&set.service, |service| service.sets.retain(|s| s.id != id));
        self.removed.push(id);
    }

    /// Other pods than before have the address.
    pub(crate) fn on_address(&mut self, address: IpAddr) {
        if let Some(services) = self.by_address.get(&address) {
            self.dirty.extend(services.iter().cloned());
        }
    }

    /// Appends the changes since the last flush. `is_foreign` tells whether an address is of pods of other namespaces.
    pub(crate) fn flush(&mut self, is_foreign: impl Fn(&str, IpAddr) -> bool, out: &mut Vec<SetChange>) {
        for name in std::mem::take(&mut self.dirty) {
            let Some(service) = self.services.get_mut(&name) else { continue };
            let named = service.slices.iter().filter_map(|name| Some((name, &**self.slices.get(name)?)));
            let named: Vec<(&NamespacedName, &EndpointSlice)> = named.collect();
            let slices: Vec<&EndpointSlice> = named.iter().map(|(_, slice)| *slice).collect();
            let all: BTreeSet<IpAddr> = slices.iter().flat_map(|slice| addresses(slice)).collect();
            watch(&mut self.by_address, &name, &mut service.addresses, all.into_iter().collect());
            let foreign = named.iter().filter_map(|(slice_name, slice)| {
                let mut foreign = addresses(slice).filter(|address| is_foreign(&name.namespace, *address));
                Some(((*slice_name).clone(), foreign.next()?, 1 + foreign.count()))
            });
            service.foreign = foreign.collect();
            for set in &mut service.sets {
                out.extend(set.refresh(&slices, &|address| !is_foreign(&name.namespace, address)));
            }
        }
        out.extend(self.removed.drain(..).map(SetChange::Remove));
    }

    fn change(&mut self, name: &NamespacedName, change: impl FnOnce(&mut Service)) {
        let service = self.services.entry(name.clone()).or_default();
        change(service);
        if !service.sets.is_empty() {
            self.dirty.insert(name.clone());
            return;
        }
        watch(&mut self.by_address, name, &mut service.addresses, Vec::new());
        service.foreign.clear();
        if service.slices.is_empty() {
            self.services.remove(name);
        }
    }

    /// The slices with addresses that do not count, of services that rules use.
    pub(crate) fn problems(&self) -> impl Iterator<Item = IgnoredObject> + '_ {
        let foreign = self.services.values().flat_map(|service| &service.foreign);
        foreign.map(|(slice, first, count)| IgnoredObject {
            key: Key::EndpointSlice(slice.clone()),
            reason: Reason::ForeignAddresses { first: *first, count: *count },
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slices.is_empty()
            && self.services.is_empty()
            && self.by_address.is_empty()
            && self.dirty.is_empty()
            && self.removed.is_empty()
    }
}

impl ActiveSet {
    fn refresh(&mut self, slices: &[&EndpointSlice], counts: &impl Fn(IpAddr) -> bool) -> Option<SetChange> {
        let members = if self.with_ports {
            let members = slices.iter().flat_map(|slice| with_ports(slice, counts));
            Members::IpPorts(members.collect::<BTreeSet<_>>().into_iter().collect())
        } else {
            let addresses = slices.iter().flat_map(|slice| addresses(slice)).filter(|address| counts(*address));
            Members::Nets(addresses.map(Cidr::host).collect::<BTreeSet<_>>().into_iter().collect())
        };
        let id = self.id.clone();
        let change = match &self.sent {
            None => {
                let set_type = if self.with_ports { IpSetType::IpAndPort } else { IpSetType::Net };
                SetChange::Full(IpSetUpdate { id, set_type, members: members.clone() })
            }
            Some(sent) if *sent == members => return None,
            Some(sent) => {
                SetChange::Delta(IpSetDelta { id, added: minus(&members, sent), removed: minus(sent, &members) })
            }
        };
        self.sent = Some(members);
        Some(change)
    }
}

/// The addresses of a slice that an endpoint can have; users write slices.
fn addresses(slice: &EndpointSlice) -> impl Iterator<Item = IpAddr> + '_ {
    slice.addresses.iter().copied().filter(|address| reserved_range(*address).is_none())
}

/// Every address with every port; readiness does not count, and neither does a port without a number.
fn with_ports<'s>(
    slice: &'s EndpointSlice,
    counts: &'s impl Fn(IpAddr) -> bool,
) -> impl Iterator<Item = IpPortMember> + 's {
    let ports =
        slice.ports.iter().filter_map(|port| Some((PortProtocol::of(Protocol::Named(port.protocol))?, port.port?)));
    ports.flat_map(move |(protocol, port)| {
        let counted = addresses(slice).filter(|address| counts(*address));
        counted.map(move |address| IpPortMember::new(address, protocol, port))
    })
}

/// Enters a service under the addresses that its slices have now, and removes it from those that they had.
fn watch(
    by_address: &mut AHashMap<IpAddr, Vec<NamespacedName>>,
    service: &NamespacedName,
    addresses: &mut Vec<IpAddr>,
    now: Vec<IpAddr>,
) {
    let before = std::mem::replace(addresses, now);
    for address in addresses.iter().filter(|address| before.binary_search(address).is_err()) {
        by_address.entry(*address).or_default().push(service.clone());
    }
    for address in before.iter().filter(|address| addresses.binary_search(address).is_err()) {
        let Some(services) = by_address.get_mut(address) else { continue };
        services.retain(|other| other != service);
        if services.is_empty() {
            by_address.remove(address);
        }
    }
}

/// Members of `a` that are not in `b`; both are sorted.
fn minus(a: &Members, b: &Members) -> Members {
    fn difference<T: Ord + Copy>(a: &[T], b: &[T]) -> Vec<T> {
        a.iter().filter(|member| b.binary_search(member).is_err()).copied().collect()
    }
    match (a, b) {
        (Members::Nets(a), Members::Nets(b)) => Members::Nets(difference(a, b)),
        (Members::IpPorts(a), Members::IpPorts(b)) => Members::IpPorts(difference(a, b)),
        _ => a.clone(),
    }
}

#[cfg(test)]
mod tests;
