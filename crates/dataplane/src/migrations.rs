//! Routes and neighbour entries of each workload, and their changes by live migrations.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tortie_iptables::InterfaceName;
use tortie_model::desired::WorkloadEndpointState;
use tortie_model::{AdminState, Cidr, Mac};

use crate::config::RoutePriority;
use crate::dataplane::Dataplane;
use crate::kernel::{Kernel, Routing};
use crate::links::is_workload;
use crate::managers::live_migrations::MigrationChange;
use crate::route::{Route, RouteKind, RouteTableIndex};

/// Interface behind which a virtual machine is expected to announce itself, by a reverse ARP
/// request or a gratuitous ARP packet. One announcement is enough.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct AnnouncementWatch {
    /// Number to pass to [`Dataplane::on_announcement`].
    pub number: u64,
    /// The index of the interface.
    pub index: u32,
    /// Its name.
    pub interface: InterfaceName,
}

impl AnnouncementWatch {
    /// Returns a watch of an interface.
    #[must_use]
    pub fn new(number: u64, index: u32, interface: InterfaceName) -> Self {
        Self { number, index, interface }
    }
}

impl Dataplane {
    /// Returns the interfaces on which announcements of virtual machines are expected. They change
    /// with the desired state and with interfaces.
    pub fn announcement_watches(&self) -> impl Iterator<Item = AnnouncementWatch> {
        self.managers.migrations.awaited().filter_map(|(id, number)| {
            let interface = self.managers.workloads.interface(id)?;
            let index = self.links.get(interface)?.index;
            Some(AnnouncementWatch { number, index, interface })
        })
    }

    /// Notes the announcement that one of [`announcement_watches`](Self::announcement_watches)
    /// waited for. Cheap.
    pub fn on_announcement(&mut self, number: u64) {
        self.timers.dirty = true;
        self.managers.migrations.on_announcement(number);
    }

    /// Returns the changes of live migrations since the last call, in order.
    pub fn take_migrations(&mut self) -> Vec<MigrationChange> {
        self.managers.migrations.take_changes()
    }

    /// Advances migrations whose timer has run out.
    pub(crate) fn advance_migrations(&mut self, kernel: &mut dyn Kernel) {
        let now = kernel.now();
        self.managers.migrations.advance(now, self.config.routes.migration_convergence);
        if !std::mem::replace(&mut self.connectivity.has_sought_live, true)
            && let Some(routing) = kernel.routing()
        {
            self.seek_live(routing);
        }
    }

    /// Finds virtual machines that announced themselves to an earlier process: only they have
    /// routes of that process with the elevated metric.
    fn seek_live(&mut self, kernel: &mut dyn Routing) {
        let config = &self.config.routes;
        let mut live = Vec::new();
        for watch in self.announcement_watches().filter(|_| config.enabled) {
            let Some((_, state)) = self.managers.workloads.owner(watch.interface) else { continue };
            let wanted = self.destinations(state);
            let is_found = self.config.families.iter().any(|family| {
                let [elevated, normal] =
                    [RoutePriority::Elevated, RoutePriority::Normal].map(|priority| config.metric(*family, priority));
                let proves = |Route { key, target }: &Route| {
                    key.metric == elevated
                        && elevated != normal
                        && target.kind == RouteKind::Unicast
                        && target.protocol == config.protocol
                        && wanted.contains(&key.destination)
                };
                // Unreadable routes count as missing: the announcement is then awaited.
                let routes = kernel.routes_of(*family, RouteTableIndex::MAIN, watch.index).unwrap_or_default();
                routes.iter().any(proves)
            });
            live.extend(is_found.then_some(watch.number));
        }
        live.into_iter().for_each(|number| self.managers.migrations.on_announcement(number));
    }

    /// Returns the time until a migration advances by timer.
    pub(crate) fn next_migration(&self, now: Duration) -> Option<Duration> {
        self.managers.migrations.next(now)
    }

    /// Updates routes and neighbour entries of virtual machines whose migration advanced.
    pub(crate) fn complete_migrations(&mut self) {
        for id in self.managers.migrations.take_dirty() {
            let interface = self.managers.workloads.interface(&id);
            let is_owner = |interface: &InterfaceName| {
                self.managers.workloads.owner(*interface).is_some_and(|(owner, _)| *owner == id)
            };
            if let Some(interface) = interface.filter(is_owner) {
                self.complete_way(interface);
            }
        }
    }

    /// Updates routes and neighbour entries of the endpoint that owns a workload interface.
    pub(crate) fn complete_way(&mut self, interface: InterfaceName) {
        if self.managers.workload_addresses.is_used() || !is_workload(&self.config.rules.workload_prefixes, interface) {
            return;
        }
        let owner = self.managers.workloads.owner(interface);
        let active = owner.filter(|(_, state)| state.endpoint.state == AdminState::Active);
        let reached = active.and_then(|(id, state)| Some((state, self.managers.migrations.priority(id)?)));
        let destinations = reached.map(|(state, _)| self.destinations(state)).unwrap_or_default();
        let priority = reached.map(|(_, priority)| priority).unwrap_or_default();
        let entries = reached.map(|(state, _)| static_entries(state)).unwrap_or_default();
        for table in &mut self.connectivity.routes {
            table.set(interface, destinations.iter().copied(), priority);
        }
        self.connectivity.neighbours.set(interface, entries);
    }

    /// Returns the networks and floating addresses of a workload.
    fn destinations(&self, state: &WorkloadEndpointState) -> Vec<Cidr> {
        let floating = self.managers.floating.external(state).map(Cidr::host);
        state.endpoint.nets().chain(floating).collect()
    }
}

/// Returns the static ARP entries of a workload: its own addresses with its own MAC address.
fn static_entries(state: &WorkloadEndpointState) -> BTreeMap<IpAddr, Mac> {
    let Some(mac) = state.endpoint.mac else { return BTreeMap::new() };
    let addresses = state.endpoint.ipv4_nets.iter().filter(|net| net.is_host());
    addresses.map(|net| (net.address(), mac)).collect()
}
