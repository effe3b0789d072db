//! Routes to workloads, as desired and as observed (`felix/routetable`).

mod flushes;
mod ownership;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tortie_delta::Delta;
use tortie_iptables::InterfaceName;
use tortie_model::{Cidr, Family, IfaceName};

use crate::config::RoutesConfig;
use crate::gate::holds;
use crate::kernel::{Kernel, KernelError};
use crate::links::Links;
use crate::report::DataplaneProblem;
use crate::route::{Route, RouteChange, RouteKey, RouteKind, RouteProtocol, RouteScope, RouteTarget};

use flushes::Flushes;
pub(crate) use ownership::Ownership;

/// The routes of one family in the main table.
#[derive(Debug)]
pub(crate) struct RouteTable {
    family: Family,
    config: RoutesConfig,
    /// What each interface's workload should be reached at.
    slots: BTreeMap<IfaceName, BTreeSet<Cidr>>,
    /// The interfaces that want a destination.
    claims: BTreeMap<Cidr, BTreeSet<IfaceName>>,
    /// Destinations and interfaces for which the route has to be found again.
    dirty: BTreeSet<Cidr>,
    dirty_interfaces: BTreeSet<IfaceName>,
    routes: Delta<RouteKey, RouteTarget>,
    /// Observed routes whose key is taken by another.
    duplicates: Vec<Route>,
    /// The interface that each single address was last routed to, to know when it changes hands.
    holders: BTreeMap<IpAddr, u32>,
    /// Addresses whose old connections are still to be forgotten.
    flushes: Flushes,
    /// When each workload interface was first seen.
    first_seen: BTreeMap<u32, Duration>,
    last_read: Option<Duration>,
    must_read: bool,
    retry_at: Option<Duration>,
    changes: u64,
}

impl RouteTable {
    pub(crate) fn new(family: Family, config: RoutesConfig) -> Self {
        Self {
            family,
            config,
            slots: BTreeMap::new(),
            claims: BTreeMap::new(),
            dirty: BTreeSet::new(),
            dirty_interfaces: BTreeSet::new(),
            routes: Delta::new(),
            duplicates: Vec::new(),
            holders: BTreeMap::new(),
            flushes: Flushes::default(),
            first_seen: BTreeMap::new(),
            last_read: None,
            must_read: true,
            retry_at: None,
            changes: 0,
        }
    }

    pub(crate) const fn family(&self) -> Family {
        self.family
    }

    /// Wants exactly these destinations to be reached by an interface; those of the other family are left out.
    pub(crate) fn set(&mut self, interface: &IfaceName, destinations: impl IntoIterator<Item = Cidr>) {
        if !self.config.enabled {
            return;
        }
        let of_family = destinations.into_iter().filter(|net| net.family() == self.family);
        let new: BTreeSet<Cidr> = of_family.map(Cidr::masked).collect();
        let old = if new.is_empty() {
            self.slots.remove(interface).unwrap_or_default()
        } else {
            self.slots.insert(interface.clone(), new.clone()).unwrap_or_default()
        };
        for gone in old.difference(&new) {
            if let Some(claims) = self.claims.get_mut(gone) {
                claims.remove(interface);
                if claims.is_empty() {
                    self.claims.remove(gone);
                }
            }
            self.dirty.insert(*gone);
        }
        for added in new.difference(&old) {
            self.claims.entry(*added).or_default().insert(interface.clone());
            self.dirty.insert(*added);
        }
    }

    /// An interface came, went, or changed its state: the kernel may have dropped its routes.
    pub(crate) fn on_link(&mut self, interface: &IfaceName) {
        self.dirty_interfaces.insert(interface.clone());
    }

    /// The number of routes wanted.
    pub(crate) fn len(&self) -> usize {
        self.routes.desired_len()
    }

    /// The number of routes made and removed so far.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Brings the kernel's table to what is wanted, but for routes to the interfaces in `held`, which stay as they are or
    /// go.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut dyn Kernel,
        links: &Links,
        ownership: &Ownership<'_>,
        held: &BTreeSet<InterfaceName>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        if !self.config.enabled {
            return;
        }
        let now = kernel.now();
        let before = problems.len();
        self.note_links(now, links, ownership);
        self.resolve(links);
        if (self.must_read || self.is_refresh_due(now)) && !self.read(now, kernel, ownership, problems) {
            self.retry_at = Some(now);
            return;
        }
        self.remove(now, kernel, ownership, problems);
        self.release_holders(kernel);
        self.write(kernel, ownership, held, problems);
        self.flushes.run_all(kernel);
        let failed = problems.len() > before || self.must_read;
        self.retry_at = failed.then_some(now);
    }

    /// When something has to be done although nothing changes.
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

    fn note_links(&mut self, now: Duration, links: &Links, ownership: &Ownership<'_>) {
        self.first_seen.retain(|index, _| links.name(*index).is_some());
        for (name, link) in links.iter() {
            if ownership.is_workload(name) {
                self.first_seen.entry(link.index).or_insert(now);
            }
        }
        for name in std::mem::take(&mut self.dirty_interfaces) {
            if ownership.is_workload(&name) {
                self.must_read = true;
            }
            if let Some(slot) = self.slots.get(&name) {
                self.dirty.extend(slot.iter().copied());
            }
        }
    }

    /// Finds the route of each destination that may have a new one.
    fn resolve(&mut self, links: &Links) {
        for destination in std::mem::take(&mut self.dirty) {
            let key = RouteKey { destination, tos: 0, metric: self.config.metric(self.family) };
            let candidates = self.claims.get(&destination).into_iter().flatten();
            let up = candidates.filter_map(|name| links.get(name.as_str())).filter(|link| link.is_up);
            // Of several the youngest interface wins: it is the one that an address has moved to.
            match up.map(|link| link.index).max() {
                Some(index) => {
                    self.routes.set_desired(key, self.target(index));
                }
                None => {
                    self.routes.remove_desired(&key);
                }
            }
        }
    }

    fn target(&self, interface: u32) -> RouteTarget {
        RouteTarget {
            kind: RouteKind::Unicast,
            interface: Some(interface),
            scope: match self.family {
                Family::V4 => RouteScope::LINK,
                Family::V6 => RouteScope::UNIVERSE,
            },
            protocol: self.config.protocol,
            gateway: None,
            source: self.config.source(self.family),
        }
    }

    /// Whether it is time to look at the kernel again although nothing changed.
    pub(crate) fn is_refresh_due(&self, now: Duration) -> bool {
        let refresh = self.config.refresh_interval.zip(self.last_read);
        refresh.is_some_and(|(interval, last)| now >= last + interval)
    }

    fn read(
        &mut self,
        now: Duration,
        kernel: &mut dyn Kernel,
        ownership: &Ownership<'_>,
        problems: &mut Vec<DataplaneProblem>,
    ) -> bool {
        let family = self.family;
        let listed = match self.flushes.read_marks(family, kernel).and_then(|()| kernel.routes(family)) {
            Ok(listed) => listed,
            Err(error) => {
                problems.push(DataplaneProblem::Routes { family, error });
                return false;
            }
        };
        let mut observed: BTreeMap<RouteKey, RouteTarget> = BTreeMap::new();
        self.duplicates.clear();
        // Tables may be large, and most of it is none of our business.
        let matters =
            |route: &Route| self.routes.desired(&route.key).is_some() || ownership.leads_to_workload(&route.target);
        let listed: Vec<Route> = listed.into_iter().filter(matters).collect();
        for Route { key, target } in listed {
            let wanted = self.routes.desired(&key) == Some(&target);
            match observed.get_mut(&key) {
                Some(first) if wanted => {
                    let target = std::mem::replace(first, target);
                    self.duplicates.push(Route { key, target });
                }
                Some(_) => self.duplicates.push(Route { key, target }),
                None => {
                    observed.insert(key, target);
                }
            }
        }
        self.routes.replace_observed(observed);
        for (key, target) in self.routes.iter_observed() {
            // What is in sync after a restart was so before.
            if self.routes.desired(key) == Some(target)
                && let Some(index) = target.interface
                && key.destination.is_host()
            {
                self.holders.entry(key.destination.address()).or_insert(index);
            }
        }
        self.last_read = Some(now);
        self.must_read = false;
        true
    }

    /// Routes on workload interfaces that are not wanted.
    fn unexpected(&self, ownership: &Ownership<'_>) -> impl Iterator<Item = Route> {
        let removals = self.routes.pending_removals();
        let removals = removals.map(|(key, target)| Route { key: *key, target: target.clone() });
        removals.chain(self.duplicates.iter().cloned()).filter(|route| ownership.is_ours(route))
    }

    /// Until when routes of an interface that are not wanted are left alone, if they still are. The endpoint of a new
    /// interface may not be known yet; once some route is wanted there, it is.
    fn grace_end(&self, interface: u32, now: Duration) -> Option<Duration> {
        let end = *self.first_seen.get(&interface)? + self.config.grace_period;
        let is_known = || self.routes.iter_desired().any(|(_, target)| target.interface == Some(interface));
        (end > now && !is_known()).then_some(end)
    }

    fn remove(
        &mut self,
        now: Duration,
        kernel: &mut dyn Kernel,
        ownership: &Ownership<'_>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let unexpected: Vec<Route> = self.unexpected(ownership).collect();
        for route in unexpected {
            if kernel.is_stopping() {
                return;
            }
            if route.target.interface.is_some_and(|index| self.grace_end(index, now).is_some()) {
                continue;
            }
            let destination = route.key.destination;
            let is_free = destination.is_host() && !self.claims.contains_key(&destination);
            if is_free {
                self.flushes.want(destination.address(), kernel);
            }
            if !self.change(&RouteChange::Delete(route.clone()), kernel, problems) {
                continue;
            }
            self.duplicates.retain(|duplicate| *duplicate != route);
            if self.routes.observed(&route.key) == Some(&route.target) {
                self.routes.observe_absent(&route.key);
            }
            if is_free {
                self.holders.remove(&destination.address());
            }
        }
    }

    /// Addresses that nobody wants any more, whether or not the kernel had dropped the route already.
    fn release_holders(&mut self, kernel: &mut dyn Kernel) {
        let (claims, flushes) = (&self.claims, &mut self.flushes);
        self.holders.retain(|address, _| {
            let is_held = claims.contains_key(&Cidr::host(*address));
            if !is_held {
                flushes.want(*address, kernel);
            }
            is_held
        });
    }

    fn write(
        &mut self,
        kernel: &mut dyn Kernel,
        ownership: &Ownership<'_>,
        held: &BTreeSet<InterfaceName>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let writes: Vec<(Route, Option<RouteTarget>)> = self
            .routes
            .pending_writes()
            .map(|(key, write)| (Route { key: *key, target: write.desired.clone() }, write.observed.cloned()))
            .collect();
        for (route, observed) in writes {
            if kernel.is_stopping() {
                return;
            }
            let interface = route.target.interface.and_then(|index| ownership.links.name(index));
            if interface.is_some_and(|name| holds(held, name.as_str())) {
                self.withdraw(&route, observed, kernel, ownership, problems);
                continue;
            }
            if !self.prepare_move(&route, observed, kernel, problems) {
                continue;
            }
            if self.change(&RouteChange::Replace(route.clone()), kernel, problems) {
                self.routes.confirm_written(&route.key);
                if let (true, Some(index)) = (route.key.destination.is_host(), route.target.interface) {
                    self.holders.insert(route.key.destination.address(), index);
                }
            }
        }
    }

    /// The new route has to wait. The old one goes already if nobody who still wants the destination has it.
    fn withdraw(
        &mut self,
        route: &Route,
        observed: Option<RouteTarget>,
        kernel: &mut dyn Kernel,
        ownership: &Ownership<'_>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let destination = route.key.destination;
        let Some(target) = observed.filter(|old| old.interface != route.target.interface) else { return };
        let holder = target.interface.and_then(|index| ownership.links.name(index));
        let is_wanted = holder.zip(self.claims.get(&destination)).is_some_and(|(name, claims)| claims.contains(name));
        let old = Route { key: route.key, target };
        if is_wanted || !ownership.is_ours(&old) {
            return;
        }
        if destination.is_host() {
            self.flushes.want(destination.address(), kernel);
        }
        if self.change(&RouteChange::Delete(old), kernel, problems) {
            self.routes.observe_absent(&route.key);
            if destination.is_host() {
                self.holders.remove(&destination.address());
            }
        }
    }

    /// An address that moves to another workload must not take the old one's connections along: its old route goes, then
    /// the connections, then the new route comes. Returns whether it may come.
    fn prepare_move(
        &mut self,
        route: &Route,
        observed: Option<RouteTarget>,
        kernel: &mut dyn Kernel,
        problems: &mut Vec<DataplaneProblem>,
    ) -> bool {
        let destination = route.key.destination;
        if !destination.is_host() {
            return true;
        }
        let address = destination.address();
        let held_elsewhere = |index: &u32| Some(*index) != route.target.interface;
        let was_held = self.holders.get(&address).is_some_and(held_elsewhere);
        let old = observed.filter(|old| old.interface.as_ref().is_some_and(held_elsewhere));
        if was_held || old.is_some() {
            self.flushes.want(address, kernel);
        }
        if let Some(target) = old {
            let old = Route { key: route.key, target };
            if self.change(&RouteChange::Delete(old), kernel, problems) {
                self.routes.observe_absent(&route.key);
            }
        }
        if was_held {
            self.holders.remove(&address);
        }
        self.flushes.run(address, kernel)
    }

    /// Addresses whose connections could not be forgotten, and the interface that waits for each.
    pub(crate) fn failed_flushes(&self) -> impl Iterator<Item = (IpAddr, Option<&IfaceName>, &KernelError)> {
        self.flushes.failed().map(|(address, error)| {
            let waiting = self.claims.get(&Cidr::host(address)).and_then(|claims| claims.first());
            (address, waiting, error)
        })
    }

    /// Whether the interface wants an address that nobody is given until connections are forgotten.
    pub(crate) fn awaits_flush(&self, interface: &str) -> bool {
        let wants = |address| self.claims.get(&Cidr::host(address)).is_some_and(|claims| claims.contains(interface));
        self.flushes.failed().any(|(address, _)| wants(address))
    }

    /// Returns whether the kernel is as the change wants it.
    fn change(&mut self, change: &RouteChange, kernel: &mut dyn Kernel, problems: &mut Vec<DataplaneProblem>) -> bool {
        match (kernel.change_route(change), change) {
            (Ok(()), _) => {
                self.changes += 1;
                true
            }
            (Err(KernelError::NotFound), RouteChange::Delete(_)) => true,
            (Err(KernelError::NotFound | KernelError::LinkDown), _) => {
                // The interface changed faster than we are told; the news will come.
                self.must_read = true;
                false
            }
            (Err(error), _) => {
                self.must_read = true;
                problems.push(DataplaneProblem::Route { route: change.route().clone(), error });
                false
            }
        }
    }
}

/// Protocols by which Felix's routes are known wherever they lead.
pub(crate) fn exclusive_protocol(configured: RouteProtocol) -> RouteProtocol {
    if configured == RouteProtocol::BOOT { RouteProtocol::CALICO } else { configured }
}

#[cfg(test)]
mod tests;
