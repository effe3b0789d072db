//! The addresses behind services, as members of IP sets (`felix/serviceindex/serviceindex.go`).

mod counts;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_labelindex::SetChange;
use tortie_model::desired::{IpPortMember, IpSetDelta, IpSetType, IpSetUpdate, Members, PortProtocol};
use tortie_model::{Cidr, EndpointSlice, IpSetId, Key, NamespacedName, Protocol, reserved_range};

use crate::problem::{IgnoredObject, Reason};
use crate::scanner::ServiceSet;
use counts::Counts;

#[derive(Debug, Default)]
struct Service {
    slices: BTreeSet<NamespacedName>,
    /// Slices that stand for its `Endpoints`. They count while it has no other.
    of_endpoints: BTreeSet<NamespacedName>,
    sets: Vec<ActiveSet>,
}

#[derive(Debug)]
struct ActiveSet {
    id: IpSetId,
    members: SetMembers,
    /// Whether the set was sent, so that it has the members of all applied slices.
    sent: bool,
}

#[derive(Debug)]
enum SetMembers {
    Addresses(Counts<Cidr>),
    WithPorts(Counts<IpPortMember>),
}

/// A slice as the sets of its service have it.
#[derive(Debug)]
struct Applied {
    slice: Arc<EndpointSlice>,
    /// Addresses that an endpoint can have, sorted.
    addresses: Vec<IpAddr>,
    /// The part of them that counts.
    counted: Vec<IpAddr>,
}

/// See the module. A service that is used by no rule costs a list of its slices. The change of a
/// slice costs as much as the slice, however many slices its service has.
#[derive(Debug, Default)]
pub(crate) struct ServiceIndex {
    slices: AHashMap<NamespacedName, Arc<EndpointSlice>>,
    services: AHashMap<NamespacedName, Service>,
    /// Slices of services with sets.
    applied: AHashMap<NamespacedName, Applied>,
    /// Applied slices by their addresses.
    by_address: AHashMap<IpAddr, Vec<NamespacedName>>,
    /// Applied slices with addresses that do not count: the first of these and their number.
    foreign: BTreeMap<NamespacedName, (IpAddr, usize)>,
    /// Slices that may differ from the applied ones.
    dirty_slices: BTreeSet<NamespacedName>,
    /// Services with sets that may have changed.
    dirty: BTreeSet<NamespacedName>,
    removed: Vec<IpSetId>,
}

impl ServiceIndex {
    /// Records a slice; `None` removes it.
    pub(crate) fn on_slice(&mut self, name: &NamespacedName, slice: Option<Arc<EndpointSlice>>) {
        let old = match &slice {
            Some(slice) => self.slices.insert(name.clone(), Arc::clone(slice)),
            None => self.slices.remove(name),
        };
        // Readiness changes often, and no set depends on it.
        if has_same_members(old.as_deref(), slice.as_deref()) {
            return;
        }
        let [old, new] = [old, slice].map(|slice| slice.and_then(|slice| slice.service.clone()));
        if old != new {
            if let Some(service) = &old {
                self.change_slices(service, name, |slices| slices.remove(name));
            }
            if let Some(service) = &new {
                self.change_slices(service, name, |slices| slices.insert(name.clone()));
            }
        }
        if self.applied.contains_key(name) || new.is_some_and(|service| self.has_sets(&service)) {
            self.dirty_slices.insert(name.clone());
        }
    }

    /// Changes the slices of a service, or those that stand for its `Endpoints`. Marks the latter
    /// if they begin or cease to count.
    fn change_slices(
        &mut self,
        service: &NamespacedName,
        name: &NamespacedName,
        change: impl FnOnce(&mut BTreeSet<NamespacedName>) -> bool,
    ) {
        let had_slices = self.has_slices(service);
        self.change(service, |service| {
            change(if name.is_slice_of_endpoints() { &mut service.of_endpoints } else { &mut service.slices });
        });
        if had_slices != self.has_slices(service)
            && let Some(service) = self.services.get(service).filter(|service| !service.sets.is_empty())
        {
            self.dirty_slices.extend(service.of_endpoints.iter().cloned());
        }
    }

    /// Adds a set that rules have begun to use.
    pub(crate) fn add_set(&mut self, id: IpSetId, set: &ServiceSet) {
        let members = if set.with_ports {
            SetMembers::WithPorts(Counts::default())
        } else {
            SetMembers::Addresses(Counts::default())
        };
        if !self.has_sets(&set.service)
            && let Some(service) = self.services.get(&set.service)
        {
            self.dirty_slices.extend(service.all_slices().cloned());
        }
        self.change(&set.service, |service| service.sets.push(ActiveSet { id, members, sent: false }));
    }

    /// Removes a set that rules no longer use.
    pub(crate) fn remove_set(&mut self, id: IpSetId, set: &ServiceSet) {
        self.change(&set.service, |service| service.sets.retain(|s| s.id != id));
        if !self.has_sets(&set.service)
            && let Some(service) = self.services.get(&set.service)
        {
            self.dirty_slices.extend(service.all_slices().cloned());
        }
        self.removed.push(id);
    }

    /// Reports whether no slice in use has an address, so that changes of addresses do not matter.
    pub(crate) fn names_no_address(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Records that other pods than before have an address.
    pub(crate) fn on_address(&mut self, address: IpAddr) {
        let slices = self.by_address.get(&address).into_iter().flatten();
        self.dirty_slices.extend(slices.cloned());
    }

    /// Appends the changes since the last flush. `is_foreign` reports whether an address belongs to
    /// pods of other namespaces.
    pub(crate) fn flush(&mut self, mut is_foreign: impl FnMut(&str, IpAddr) -> bool, out: &mut Vec<SetChange>) {
        for name in std::mem::take(&mut self.dirty_slices) {
            self.withdraw(&name);
            self.apply(name, &mut is_foreign);
        }
        for name in std::mem::take(&mut self.dirty) {
            let Some(service) = self.services.get_mut(&name) else { continue };
            let Service { slices, of_endpoints, sets } = service;
            for set in sets {
                if !set.sent {
                    let slices = slices.iter().chain(of_endpoints.iter());
                    let applied = slices.filter_map(|slice| self.applied.get(slice));
                    applied.for_each(|applied| set.members.add(applied));
                }
                out.extend(set.flush());
            }
        }
        out.extend(self.removed.drain(..).map(SetChange::Remove));
    }

    /// Removes an applied slice from the sets of its service.
    #[expect(clippy::expect_used, reason = "slices are withdrawn as they were applied")]
    fn withdraw(&mut self, name: &NamespacedName) {
        let Some(applied) = self.applied.remove(name) else { return };
        self.foreign.remove(name);
        for address in &applied.addresses {
            let slices = self.by_address.get_mut(address).expect("applied slices are found by their addresses");
            slices.retain(|other| other != name);
            if slices.is_empty() {
                self.by_address.remove(address);
            }
        }
        self.change_sets(&applied, SetMembers::remove);
    }

    /// Brings a slice into the sets of its service, if that has some.
    fn apply(&mut self, name: NamespacedName, is_foreign: &mut impl FnMut(&str, IpAddr) -> bool) {
        let Some(slice) = self.slices.get(&name) else { return };
        let Some(service) = slice.service.as_ref().filter(|service| self.has_sets(service)) else { return };
        if name.is_slice_of_endpoints() && self.has_slices(service) {
            return;
        }
        // Users write slices.
        let possible = slice.addresses.iter().copied().filter(|address| reserved_range(*address).is_none());
        let addresses: Vec<IpAddr> = possible.collect::<BTreeSet<_>>().into_iter().collect();
        let (foreign, counted): (Vec<IpAddr>, Vec<IpAddr>) =
            addresses.iter().partition(|address| is_foreign(&service.namespace, **address));
        if let Some(first) = foreign.first() {
            self.foreign.insert(name.clone(), (*first, foreign.len()));
        }
        let applied = Applied { slice: Arc::clone(slice), addresses, counted };
        for address in &applied.addresses {
            self.by_address.entry(*address).or_default().push(name.clone());
        }
        self.change_sets(&applied, SetMembers::add);
        self.applied.insert(name, applied);
    }

    /// Changes the sent sets of a slice's service; the others are built from all slices.
    #[expect(clippy::expect_used, reason = "slices are applied to the sets of their service")]
    fn change_sets(&mut self, applied: &Applied, change: impl Fn(&mut SetMembers, &Applied)) {
        let name = applied.slice.service.as_ref().expect("slices without a service are not applied");
        let Some(service) = self.services.get_mut(name).filter(|service| !service.sets.is_empty()) else { return };
        service.sets.iter_mut().filter(|set| set.sent).for_each(|set| change(&mut set.members, applied));
        self.dirty.insert(name.clone());
    }

    /// Reports whether a service has slices beside those that stand for its `Endpoints`.
    fn has_slices(&self, service: &NamespacedName) -> bool {
        self.services.get(service).is_some_and(|service| !service.slices.is_empty())
    }

    fn has_sets(&self, service: &NamespacedName) -> bool {
        self.services.get(service).is_some_and(|service| !service.sets.is_empty())
    }

    fn change(&mut self, name: &NamespacedName, change: impl FnOnce(&mut Service)) {
        let service = self.services.entry(name.clone()).or_default();
        change(service);
        if !service.sets.is_empty() {
            self.dirty.insert(name.clone());
        } else if service.all_slices().next().is_none() {
            self.services.remove(name);
        }
    }

    /// Returns the slices that have addresses which do not count, of services that rules use.
    pub(crate) fn problems(&self) -> impl Iterator<Item = IgnoredObject> + '_ {
        self.foreign.iter().map(|(name, (first, count))| {
            let reason = Reason::ForeignAddresses { first: *first, count: *count };
            IgnoredObject { key: Key::EndpointSlice(name.clone()), reason }
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slices.is_empty()
            && self.services.is_empty()
            && self.applied.is_empty()
            && self.by_address.is_empty()
            && self.foreign.is_empty()
            && self.dirty_slices.is_empty()
            && self.dirty.is_empty()
            && self.removed.is_empty()
    }
}

/// Reports whether two slices contribute the same to sets.
fn has_same_members(a: Option<&EndpointSlice>, b: Option<&EndpointSlice>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.service == b.service && a.addresses == b.addresses && a.ports == b.ports,
        (a, b) => a.is_none() && b.is_none(),
    }
}

impl Service {
    fn all_slices(&self) -> impl Iterator<Item = &NamespacedName> {
        self.slices.iter().chain(&self.of_endpoints)
    }
}

impl ActiveSet {
    /// Returns the changes since the last flush.
    fn flush(&mut self) -> Option<SetChange> {
        let id = self.id.clone();
        let (added, removed, set_type) = match &mut self.members {
            SetMembers::Addresses(counts) => {
                let (added, removed) = counts.flush();
                (Members::Nets(added), Members::Nets(removed), IpSetType::Net)
            }
            SetMembers::WithPorts(counts) => {
                let (added, removed) = counts.flush();
                (Members::IpPorts(added), Members::IpPorts(removed), IpSetType::IpAndPort)
            }
        };
        if !std::mem::replace(&mut self.sent, true) {
            return Some(SetChange::Full(IpSetUpdate { id, set_type, members: added }));
        }
        let is_changed = !added.is_empty() || !removed.is_empty();
        is_changed.then_some(SetChange::Delta(IpSetDelta { id, added, removed }))
    }
}

impl SetMembers {
    fn add(&mut self, applied: &Applied) {
        match self {
            Self::Addresses(counts) => applied.addresses().for_each(|member| counts.add(member)),
            Self::WithPorts(counts) => applied.with_ports().for_each(|member| counts.add(member)),
        }
    }

    fn remove(&mut self, applied: &Applied) {
        match self {
            Self::Addresses(counts) => applied.addresses().for_each(|member| counts.remove(member)),
            Self::WithPorts(counts) => applied.with_ports().for_each(|member| counts.remove(member)),
        }
    }
}

impl Applied {
    fn addresses(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.counted.iter().copied().map(Cidr::host)
    }

    /// Returns every address with every port. Readiness does not count. A port without a number is
    /// left out.
    fn with_ports(&self) -> impl Iterator<Item = IpPortMember> + '_ {
        let ports = self.slice.ports.iter();
        let ports = ports.filter_map(|port| Some((PortProtocol::of(Protocol::Named(port.protocol))?, port.port?)));
        ports.flat_map(|(protocol, port)| {
            self.counted.iter().map(move |address| IpPortMember::new(*address, protocol, port))
        })
    }
}

#[cfg(test)]
mod tests;
