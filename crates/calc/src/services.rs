//! The addresses behind services, as members of IP sets (`felix/serviceindex/serviceindex.go`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_labelindex::SetChange;
use tortie_model::desired::{IpPortMember, IpSetDelta, IpSetType, IpSetUpdate, Members, PortProtocol};
use tortie_model::{Cidr, EndpointSlice, IpSetId, NamespacedName, Protocol, reserved_range};

use crate::scanner::ServiceSet;

#[derive(Debug, Default)]
struct Service {
    slices: BTreeSet<NamespacedName>,
    sets: Vec<ActiveSet>,
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

    /// Appends the changes since the last flush.
    pub(crate) fn flush(&mut self, out: &mut Vec<SetChange>) {
        for name in std::mem::take(&mut self.dirty) {
            let Some(service) = self.services.get_mut(&name) else { continue };
            let slices: Vec<&EndpointSlice> =
                service.slices.iter().filter_map(|name| self.slices.get(name)).map(|slice| &**slice).collect();
            for set in &mut service.sets {
                out.extend(set.refresh(&slices));
            }
        }
        out.extend(self.removed.drain(..).map(SetChange::Remove));
    }

    fn change(&mut self, name: &NamespacedName, change: impl FnOnce(&mut Service)) {
        let service = self.services.entry(name.clone()).or_default();
        change(service);
        if !service.sets.is_empty() {
            self.dirty.insert(name.clone());
        } else if service.slices.is_empty() {
            self.services.remove(name);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slices.is_empty() && self.services.is_empty() && self.dirty.is_empty() && self.removed.is_empty()
    }
}

impl ActiveSet {
    fn refresh(&mut self, slices: &[&EndpointSlice]) -> Option<SetChange> {
        let members = if self.with_ports {
            Members::IpPorts(
                slices.iter().flat_map(|slice| with_ports(slice)).collect::<BTreeSet<_>>().into_iter().collect(),
            )
        } else {
            let addresses = slices.iter().flat_map(|slice| addresses(slice).map(Cidr::host));
            Members::Nets(addresses.collect::<BTreeSet<_>>().into_iter().collect())
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
fn with_ports(slice: &EndpointSlice) -> impl Iterator<Item = IpPortMember> + '_ {
    let ports =
        slice.ports.iter().filter_map(|port| Some((PortProtocol::of(Protocol::Named(port.protocol))?, port.port?)));
    ports.flat_map(|(protocol, port)| addresses(slice).map(move |address| IpPortMember::new(address, protocol, port)))
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
