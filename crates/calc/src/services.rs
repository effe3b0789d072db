//! The addresses behind services, as members of IP sets (`felix/serviceindex/serviceindex.go`).

use std::collections::BTreeSet;
use std::hash::Hash;
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
    members: SetMembers,
    /// Whether the set was sent.
    sent: bool,
}

#[derive(Debug)]
enum SetMembers {
    Addresses(Counts<Cidr>),
    WithPorts(Counts<IpPortMember>),
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
        if let Some(old) = old
            && let Some(service) = &old.service
        {
            self.change(service, |service| {
                service.slices.remove(name);
                service.sets.iter_mut().for_each(|set| set.members.remove(&old));
            });
        }
        if let Some(slice) = slice
            && let Some(service) = &slice.service
        {
            self.change(service, |service| {
                service.slices.insert(name.clone());
                service.sets.iter_mut().for_each(|set| set.members.add(&slice));
            });
        }
    }

    /// A rule has begun to use the set.
    pub(crate) fn add_set(&mut self, id: IpSetId, set: &ServiceSet) {
        let mut members = if set.with_ports {
            SetMembers::WithPorts(Counts::default())
        } else {
            SetMembers::Addresses(Counts::default())
        };
        if let Some(service) = self.services.get(&set.service) {
            service.slices.iter().filter_map(|name| self.slices.get(name)).for_each(|slice| members.add(slice));
        }
        self.change(&set.service, |service| service.sets.push(ActiveSet { id, members, sent: false }));
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
            out.extend(service.sets.iter_mut().filter_map(ActiveSet::flush));
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
        is_changed.then(|| SetChange::Delta(IpSetDelta { id, added, removed }))
    }
}

impl SetMembers {
    fn add(&mut self, slice: &EndpointSlice) {
        match self {
            Self::Addresses(counts) => addresses(slice).map(Cidr::host).for_each(|member| counts.add(member)),
            Self::WithPorts(counts) => with_ports(slice).for_each(|member| counts.add(member)),
        }
    }

    fn remove(&mut self, slice: &EndpointSlice) {
        match self {
            Self::Addresses(counts) => addresses(slice).map(Cidr::host).for_each(|member| counts.remove(member)),
            Self::WithPorts(counts) => with_ports(slice).for_each(|member| counts.remove(member)),
        }
    }
}

/// Members that several slices may give, or one several times.
#[derive(Debug)]
struct Counts<T> {
    counts: AHashMap<T, u32>,
    /// Members that were touched since the last flush, and whether they were members then.
    touched: AHashMap<T, bool>,
}

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self { counts: AHashMap::new(), touched: AHashMap::new() }
    }
}

impl<T: Copy + Ord + Hash> Counts<T> {
    fn add(&mut self, member: T) {
        let count = self.counts.entry(member).or_default();
        self.touched.entry(member).or_insert(*count > 0);
        *count += 1;
    }

    fn remove(&mut self, member: T) {
        let Some(count) = self.counts.get_mut(&member) else {
            debug_assert!(false, "removal of a member that was not added");
            return;
        };
        self.touched.entry(member).or_insert(true);
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&member);
        }
    }

    /// Returns the members that were added and that were removed since the last flush, sorted.
    fn flush(&mut self) -> (Vec<T>, Vec<T>) {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for (member, was) in std::mem::take(&mut self.touched) {
            match (was, self.counts.contains_key(&member)) {
                (false, true) => added.push(member),
                (true, false) => removed.push(member),
                _ => {}
            }
        }
        added.sort_unstable();
        removed.sort_unstable();
        (added, removed)
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

#[cfg(test)]
mod tests;
