//! The routes of a table: desired by several writers, and observed in the kernel
//! (`felix/routetable`).

mod flushes;
mod ownership;
mod reading;
mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tortie_iptables::InterfaceName;
use tortie_model::{Cidr, Family};
use tortie_netfilter::delta::Delta;

use crate::config::{RoutePriority, RoutesConfig};
use crate::kernel::Routing;
use crate::kernel_error::KernelError;
use crate::links::KnownLinks;
use crate::report::DataplaneProblem;
use crate::route::{Route, RouteChange, RouteKey, RouteKind, RouteProtocol, RouteScope, RouteTableIndex, RouteTarget};

use flushes::Flushes;
pub(crate) use ownership::Ownership;
use slots::Slots;
pub(crate) use slots::{RouteClass, Slot};

/// Maximum number of changes in one request. The kernel's answers must fit into the receive buffer
/// of the socket.
pub(crate) const BATCH: usize = 128;
/// Metric that the kernel uses for IPv6 routes without one.
pub(crate) const DEFAULT_METRIC_V6: u32 = 1024;

/// The routes of one family in one table.
#[derive(Debug)]
pub(crate) struct RouteTable {
    family: Family,
    table: RouteTableIndex,
    config: RoutesConfig,
    slots: Slots,
    /// Keys and interfaces whose winning route has to be chosen again.
    dirty: BTreeSet<RouteKey>,
    dirty_interfaces: BTreeSet<InterfaceName>,
    has_seen_links: bool,
    routes: Delta<RouteKey, RouteTarget>,
    /// Observed routes whose key another observed route has.
    duplicates: Vec<Route>,
    /// Last target of each single address, to detect a change of its owner.
    holders: BTreeMap<IpAddr, Holder>,
    /// Addresses whose route a writer has withdrawn.
    released: BTreeSet<IpAddr>,
    /// Addresses whose old conntrack entries are still to be deleted.
    flushes: Flushes,
    /// Time at which each workload interface was first seen; `None` once a route was desired there.
    first_seen: BTreeMap<u32, Option<Duration>>,
    last_read: Option<Duration>,
    must_read: bool,
    /// Interfaces whose routes must be read.
    stale: BTreeSet<InterfaceName>,
    retry_at: Option<Duration>,
    changes: u64,
}

/// Target of a single address.
#[derive(Clone, Copy, Debug)]
struct Holder {
    interface: u32,
    /// Another node has it, by whichever interface that node is reached.
    is_remote: bool,
}

impl RouteTable {
    /// Returns the main table.
    pub(crate) fn new(family: Family, config: RoutesConfig) -> Self {
        Self::of(RouteTableIndex::MAIN, family, config, Flushes::default())
    }

    /// Returns a dedicated table, to which only routing rules lead. It never deletes conntrack
    /// entries, whichever endpoint has an address.
    pub(crate) fn own(table: RouteTableIndex, family: Family, config: RoutesConfig) -> Self {
        Self::of(table, family, config, Flushes::none())
    }

    fn of(table: RouteTableIndex, family: Family, config: RoutesConfig, flushes: Flushes) -> Self {
        Self {
            family,
            table,
            config,
            slots: Slots::default(),
            dirty: BTreeSet::new(),
            dirty_interfaces: BTreeSet::new(),
            has_seen_links: false,
            routes: Delta::new(),
            duplicates: Vec::new(),
            holders: BTreeMap::new(),
            released: BTreeSet::new(),
            flushes,
            first_seen: BTreeMap::new(),
            last_read: None,
            must_read: true,
            stale: BTreeSet::new(),
            retry_at: None,
            changes: 0,
        }
    }

    pub(crate) const fn family(&self) -> Family {
        self.family
    }

    /// Drops pending work, because the kernel has no routes.
    pub(crate) fn leave(&mut self) {
        self.dirty.clear();
        self.dirty_interfaces.clear();
        self.released.clear();
    }

    /// Sets the destinations of a workload's interface to exactly these; those of the other family
    /// are ignored.
    pub(crate) fn set(
        &mut self,
        interface: InterfaceName,
        destinations: impl IntoIterator<Item = Cidr>,
        priority: RoutePriority,
    ) {
        let slot = Slot { class: RouteClass::LocalWorkload, interface: Some(interface) };
        let of_family = destinations.into_iter().filter(|net| net.family() == self.family);
        let metric = self.config.metric(self.family, priority);
        let new: BTreeSet<RouteKey> =
            of_family.map(|net| RouteKey { destination: net.masked(), tos: 0, metric }).collect();
        let gone: Vec<RouteKey> = self.slots.keys(&slot).filter(|key| !new.contains(key)).collect();
        for key in gone {
            self.set_route(&slot, key, None);
        }
        let target = RouteTarget {
            kind: RouteKind::Unicast,
            interface: None,
            scope: match self.family {
                Family::V4 => RouteScope::LINK,
                Family::V6 => RouteScope::UNIVERSE,
            },
            protocol: self.config.protocol,
            gateway: None,
            on_link: false,
            mtu: None,
            source: self.config.source(self.family),
        };
        for key in new {
            self.set_route(&slot, key, Some(target.clone()));
        }
    }

    /// Sets or removes the route of a key in a slot. Its interface is the slot's.
    pub(crate) fn set_route(&mut self, slot: &Slot, key: RouteKey, target: Option<RouteTarget>) {
        if !self.config.enabled {
            return;
        }
        let is_gone = target.is_none();
        if self.slots.set(slot, key, target) {
            self.dirty.insert(key);
            if is_gone && key.destination.is_host() {
                self.released.insert(key.destination.address());
            }
        }
    }

    /// Notes that an interface appeared, disappeared or changed its state: the kernel may have
    /// dropped its routes. Returns whether routes leave by it, or its name makes routes ours;
    /// those of workloads aside.
    pub(crate) fn on_link(&mut self, interface: InterfaceName) -> bool {
        self.dirty_interfaces.insert(interface);
        self.slots.uses(interface) || ownership::is_device(interface)
    }

    /// Returns the number of desired routes.
    pub(crate) fn len(&self) -> usize {
        self.routes.desired_len()
    }

    /// Returns the number of routes added and removed so far.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Brings the kernel's table to the desired state. Routes to the interfaces in `held` may be
    /// removed, but are neither added nor changed.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut dyn Routing,
        links: &KnownLinks,
        ownership: &Ownership<'_>,
        held: &BTreeSet<InterfaceName>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        if !self.config.enabled {
            return;
        }
        let now = kernel.now();
        let (before, changes_before) = (problems.len(), self.changes);
        let (table, empty) = (self.table.0, tracing::field::Empty);
        let span =
            tracing::debug_span!("routes", family = %self.family, table, wanted = empty, changes = empty).entered();
        self.note_links(now, links, ownership);
        self.resolve(links);
        span.record("wanted", self.routes.desired_len());
        let is_read = match self.must_read || self.is_refresh_due(now) {
            true => self.read(now, kernel, ownership, problems),
            false => self.read_interfaces(kernel, ownership, problems),
        };
        if !is_read {
            self.retry_at = Some(now);
            return;
        }
        self.remove(now, kernel, ownership, problems);
        self.release_holders(kernel);
        let waiting = self.write(kernel, ownership, held, problems);
        self.flushes.run(kernel);
        self.replace(self.without_old_connections(waiting), kernel, ownership, problems);
        self.remove_replaced(kernel, ownership, problems);
        span.record("changes", self.changes - changes_before);
        let failed = problems.len() > before || self.must_read;
        self.retry_at = failed.then_some(now);
    }

    /// Returns the time until the next refresh, retry, end of a grace period, or deletion of
    /// conntrack entries.
    pub(crate) fn next(&self, now: Duration, retry_interval: Duration, ownership: &Ownership<'_>) -> Option<Duration> {
        if !self.config.enabled {
            return None;
        }
        let refresh = self.config.refresh_interval.zip(self.last_read).map(|(interval, last)| last + interval);
        let retry = self.retry_at.map(|failed| failed + retry_interval);
        let waiting = self.unexpected(ownership).filter_map(|route| self.grace_end(route.target.interface?, now));
        let flushes = self.flushes.next();
        refresh.into_iter().chain(retry).chain(waiting).chain(flushes).min().map(|at| at.saturating_sub(now))
    }

    fn note_links(&mut self, now: Duration, links: &KnownLinks, ownership: &Ownership<'_>) {
        let changed = std::mem::take(&mut self.dirty_interfaces);
        if self.has_seen_links && changed.is_empty() {
            return;
        }
        self.has_seen_links = true;
        self.first_seen.retain(|index, _| links.name(*index).is_some());
        for (name, link) in links.iter() {
            if ownership.is_workload(name) {
                self.first_seen.entry(link.index).or_insert(Some(now));
            }
        }
        for name in changed {
            self.dirty.extend(self.slots.keys_of_interface(name));
            if ownership.is_workload(name) || self.slots.uses(name) {
                self.stale.insert(name);
            }
        }
    }

    /// Chooses the winning route of each dirty key.
    fn resolve(&mut self, links: &KnownLinks) {
        for key in std::mem::take(&mut self.dirty) {
            let new = self.slots.winner(&key, links);
            let index = new.as_ref().and_then(|target| target.interface);
            if let Some(first_seen) = index.and_then(|index| self.first_seen.get_mut(&index)) {
                *first_seen = None;
            }
            match new {
                Some(target) => self.routes.set_desired(key, target),
                None => self.routes.remove_desired(&key),
            };
        }
    }

    /// Reports whether the refresh interval has passed.
    pub(crate) fn is_refresh_due(&self, now: Duration) -> bool {
        let refresh = self.config.refresh_interval.zip(self.last_read);
        refresh.is_some_and(|(interval, last)| now >= last + interval)
    }

    /// Returns the observed routes that are ours and not desired.
    fn unexpected(&self, ownership: &Ownership<'_>) -> impl Iterator<Item = Route> {
        let removals = self.routes.pending_removals();
        let removals = removals.map(|(key, target)| Route { key: *key, target: target.clone() });
        removals.chain(self.duplicates.iter().cloned()).filter(|route| ownership.is_ours(route))
    }

    /// Returns the end of the grace period of an interface, if it is in the future. Until then,
    /// unexpected routes there are left alone: the endpoint of a new interface may not be known
    /// yet. The period ends early once a route was desired there.
    fn grace_end(&self, interface: u32, now: Duration) -> Option<Duration> {
        let end = (*self.first_seen.get(&interface)?)? + self.config.grace_period;
        (end > now).then_some(end)
    }

    fn remove(
        &mut self,
        now: Duration,
        kernel: &mut dyn Routing,
        ownership: &Ownership<'_>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let is_in_grace = |route: &Route| route.target.interface.is_some_and(|i| self.grace_end(i, now).is_some());
        let is_due = |route: &Route| !is_in_grace(route) && self.replacement(route).is_none();
        let unexpected: Vec<Route> = self.unexpected(ownership).filter(is_due).collect();
        if kernel.is_stopping() {
            return;
        }
        for route in &unexpected {
            if self.is_free(route.key.destination) {
                self.flushes.request(route.key.destination.address(), kernel);
            }
        }
        self.remove_all(unexpected, kernel, problems);
    }

    /// Removes replaced routes once their replacements exist: while the metric of a route changes,
    /// there is no moment without a route.
    fn remove_replaced(
        &mut self,
        kernel: &mut dyn Routing,
        ownership: &Ownership<'_>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let is_there = |key: &RouteKey| self.routes.observed(key) == self.routes.desired(key);
        let is_due = |route: &Route| self.replacement(route).is_some_and(is_there);
        let replaced: Vec<Route> = self.unexpected(ownership).filter(is_due).collect();
        if !kernel.is_stopping() {
            self.remove_all(replaced, kernel, problems);
        }
    }

    /// Returns the desired replacement of an unexpected route: to the same destination by the same
    /// interface, with another metric.
    fn replacement(&self, route: &Route) -> Option<&RouteKey> {
        route.target.interface?;
        let leads_there = |key: &&RouteKey| {
            self.routes.desired(*key).is_some_and(|target| target.interface == route.target.interface)
        };
        self.slots.keys_to(route.key.destination).filter(|key| **key != route.key).find(leads_there)
    }

    fn remove_all(&mut self, routes: Vec<Route>, kernel: &mut dyn Routing, problems: &mut Vec<DataplaneProblem>) {
        for route in self.delete(routes, kernel, problems) {
            self.duplicates.retain(|duplicate| *duplicate != route);
            if self.routes.observed(&route.key) == Some(&route.target) {
                self.routes.observe_absent(&route.key);
            }
            if self.is_free(route.key.destination) {
                self.holders.remove(&route.key.destination.address());
            }
        }
    }

    /// Reports whether the destination is a single address that no slot claims.
    fn is_free(&self, destination: Cidr) -> bool {
        destination.is_host() && !self.slots.has_claim_to(destination)
    }

    /// Queues the deletion of conntrack entries for addresses that no slot claims any more, even if
    /// the kernel has dropped the route already.
    fn release_holders(&mut self, kernel: &mut dyn Routing) {
        for address in std::mem::take(&mut self.released) {
            if self.is_free(Cidr::host(address)) && self.holders.remove(&address).is_some() {
                self.flushes.request(address, kernel);
            }
        }
    }

    /// Writes missing and deviating routes. Returns those that must wait for the deletion of
    /// conntrack entries; all others need not wait for it.
    fn write(
        &mut self,
        kernel: &mut dyn Routing,
        ownership: &Ownership<'_>,
        held: &BTreeSet<InterfaceName>,
        problems: &mut Vec<DataplaneProblem>,
    ) -> Vec<Route> {
        let pending = self.routes.pending_writes().map(|(key, write)| {
            let old = write.observed.map(|target| Route { key: *key, target: target.clone() });
            (Route { key: *key, target: write.desired.clone() }, old)
        });
        let pending: Vec<(Route, Option<Route>)> = pending.collect();
        if pending.is_empty() || kernel.is_stopping() {
            return Vec::new();
        }
        let mut first = Vec::new();
        let mut writes = Vec::new();
        for (route, old) in pending {
            let interface = route.target.interface.and_then(|index| ownership.links.name(index));
            let is_held = interface.is_some_and(|name| held.contains(&name));
            let is_move = |old: &Route| match is_held {
                true => self.goes_already(&route, old, ownership),
                false => self.is_move(&route, old, ownership),
            };
            let changes_hands = old.as_ref().is_some_and(is_move);
            if changes_hands && route.key.destination.is_host() {
                self.flushes.request(route.key.destination.address(), kernel);
            }
            first.extend(old.filter(|old| changes_hands || !is_held && is_in_the_way(&route, old)));
            if !is_held {
                writes.push(route);
            }
        }
        for old in self.delete(first, kernel, problems) {
            self.routes.observe_absent(&old.key);
            if old.key.destination.is_host() {
                self.holders.remove(&old.key.destination.address());
            }
        }
        writes.iter().for_each(|route| self.release_holder(route, kernel, ownership));
        let (waiting, free) = writes.into_iter().partition(|route| self.awaits_own_flush(route));
        self.replace(free, kernel, ownership, problems);
        waiting
    }

    /// Reports whether to delete the old route although the new one is held: no slot of the old
    /// interface claims the destination any more.
    fn goes_already(&self, route: &Route, old: &Route, ownership: &Ownership<'_>) -> bool {
        if old.target.interface == route.target.interface || !ownership.is_ours(old) {
            return false;
        }
        let holder = old.target.interface.and_then(|index| ownership.links.name(index));
        !holder.is_some_and(|holder| self.slots.interfaces_to(route.key.destination).any(|name| name == holder))
    }

    /// Reports whether an address moves to another workload. It must not inherit the old one's
    /// connections: the old route is deleted first, then the conntrack entries, and then the new
    /// route is added. Between other nodes it may be the same workload, reached by another
    /// interface.
    fn is_move(&self, route: &Route, old: &Route, ownership: &Ownership<'_>) -> bool {
        let is_remote = |target: &RouteTarget| !ownership.leads_to_workload(target);
        route.key.destination.is_host()
            && old.target.interface.is_some_and(|old| Some(old) != route.target.interface)
            && !(is_remote(&old.target) && is_remote(&route.target))
    }

    /// Queues the deletion of the conntrack entries of an address's previous owner, if it has one.
    fn release_holder(&mut self, route: &Route, kernel: &mut dyn Routing, ownership: &Ownership<'_>) {
        if !route.key.destination.is_host() {
            return;
        }
        let address = route.key.destination.address();
        let is_remote = !ownership.leads_to_workload(&route.target);
        let is_other =
            |holder: &Holder| Some(holder.interface) != route.target.interface && !(holder.is_remote && is_remote);
        if self.holders.get(&address).is_some_and(is_other) {
            self.holders.remove(&address);
            self.flushes.request(address, kernel);
        }
    }

    /// Reports whether conntrack entries of the address's previous owner are still to be deleted.
    fn awaits_own_flush(&self, route: &Route) -> bool {
        route.key.destination.is_host() && self.flushes.is_pending(route.key.destination.address())
    }

    /// Returns the routes whose addresses have no conntrack entries of a previous owner any more.
    fn without_old_connections(&self, mut routes: Vec<Route>) -> Vec<Route> {
        routes.retain(|route| !self.awaits_own_flush(route));
        routes
    }

    fn replace(
        &mut self,
        routes: Vec<Route>,
        kernel: &mut dyn Routing,
        ownership: &Ownership<'_>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let changes: Vec<RouteChange> = routes.into_iter().map(RouteChange::Replace).collect();
        for route in self.change(&changes, kernel, problems) {
            self.routes.confirm_written(&route.key);
            if let (true, Some(interface)) = (route.key.destination.is_host(), route.target.interface) {
                let is_remote = !ownership.leads_to_workload(&route.target);
                self.holders.insert(route.key.destination.address(), Holder { interface, is_remote });
            }
        }
    }

    /// Deletes routes, and returns those that no longer exist.
    fn delete(
        &mut self,
        routes: Vec<Route>,
        kernel: &mut dyn Routing,
        problems: &mut Vec<DataplaneProblem>,
    ) -> Vec<Route> {
        let changes: Vec<RouteChange> = routes.into_iter().map(RouteChange::Delete).collect();
        self.change(&changes, kernel, problems)
    }

    /// Returns the addresses whose conntrack entries could not be deleted, and the interface that
    /// waits for each.
    pub(crate) fn failed_flushes(&self) -> impl Iterator<Item = (IpAddr, Option<InterfaceName>, &KernelError)> {
        self.flushes.failed().map(|(address, error)| {
            let waiting = self.slots.interfaces_to(Cidr::host(address)).next();
            (address, waiting, error)
        })
    }

    /// Reports whether the interface waits for an address whose conntrack entries could not be
    /// deleted.
    pub(crate) fn awaits_flush(&self, interface: InterfaceName) -> bool {
        let has_claim_to = |address| self.slots.interfaces_to(Cidr::host(address)).any(|name| name == interface);
        self.flushes.failed().any(|(address, _)| has_claim_to(address))
    }

    /// Makes changes, and returns the routes of those that are in effect.
    fn change(
        &mut self,
        changes: &[RouteChange],
        kernel: &mut dyn Routing,
        problems: &mut Vec<DataplaneProblem>,
    ) -> Vec<Route> {
        let mut done = Vec::new();
        for batch in changes.chunks(BATCH) {
            if kernel.is_stopping() {
                break;
            }
            let mut outcomes = kernel.change_routes(self.table, batch).into_iter();
            for change in batch {
                let outcome = outcomes.next().unwrap_or_else(|| Err(KernelError::no_answer()));
                match (outcome, change) {
                    (Ok(()), _) => {
                        self.changes += 1;
                        done.push(change.route().clone());
                    }
                    (Err(KernelError::NotFound), RouteChange::Delete(route)) => done.push(route.clone()),
                    // The interface changed before its link event arrived; the event follows.
                    (Err(KernelError::NotFound | KernelError::LinkDown), _) => self.must_read = true,
                    (Err(error), _) => {
                        self.must_read = true;
                        problems.push(DataplaneProblem::Route { route: change.route().clone(), error });
                    }
                }
            }
        }
        done
    }
}

/// Reports whether the kernel refuses the new route while the old one exists. With IPv6, an on-link
/// gateway must not be reached by another interface, and many tunnels end within the network that
/// they lead to.
fn is_in_the_way(route: &Route, old: &Route) -> bool {
    let destination = route.key.destination;
    let ends_within = route.target.gateway.is_some_and(|gateway| destination.contains(gateway));
    let is_elsewhere = old.target.interface.is_some() && old.target.interface != route.target.interface;
    destination.family() == Family::V6 && route.target.on_link && ends_within && is_elsewhere
}

/// Returns the protocol that marks a route as Felix's, whatever interface it has.
pub(crate) fn exclusive_protocol(configured: RouteProtocol) -> RouteProtocol {
    if configured == RouteProtocol::BOOT { RouteProtocol::CALICO } else { configured }
}

#[cfg(test)]
mod tests;
