//! The event sequencer: coalesces changes per object, and sends them in an order in which nothing
//! ever refers to an object that does not exist (`felix/calc/event_sequencer.go`).

mod outbox;

use std::sync::Arc;

use tortie_labelindex::SetChange;
use tortie_model::desired::{
    ConfigUpdate, DesiredUpdate, Encapsulation, HostEndpointState, HostMetadata, Policy, Profile, WireguardPeer,
    WorkloadEndpointState,
};
use tortie_model::{
    BgpConfiguration, Cidr, HostEndpointName, Hostname, IpPool, Labels, NamespacedName, PolicyId, ProfileName, Service,
    WorkloadEndpointId,
};

use crate::l3_routes::{L3Routes, RouteChanges};
use crate::vxlan::VtepChanges;
use outbox::Outbox;

/// Messages that wait to be sent, and the state that the dataplane has.
#[derive(Debug, Default)]
pub(crate) struct Sequencer {
    pub(crate) not_ready: bool,
    pub(crate) config: Option<ConfigUpdate>,
    /// Changes since the last flush; at most one for each set.
    pub(crate) ip_sets: Vec<SetChange>,
    pub(crate) policies: Outbox<PolicyId, Arc<Policy>>,
    pub(crate) profiles: Outbox<ProfileName, Arc<Profile>>,
    pub(crate) workload_endpoints: Outbox<WorkloadEndpointId, WorkloadEndpointState>,
    pub(crate) host_endpoints: Outbox<HostEndpointName, HostEndpointState>,
    /// Changes since the last flush, sorted; at most one for each.
    pub(crate) service_accounts: Vec<(NamespacedName, Option<Labels>)>,
    /// Changes since the last flush, sorted; at most one for each.
    pub(crate) namespaces: Vec<(Arc<str>, Option<Labels>)>,
    /// Changes since the last flush; at most one for each network.
    pub(crate) routes: RouteChanges,
    /// Changes since the last flush; at most one for each node.
    pub(crate) vteps: VtepChanges,
    pub(crate) wireguard: Outbox<Hostname, WireguardPeer>,
    pub(crate) wireguard_v6: Outbox<Hostname, WireguardPeer>,
    pub(crate) hosts: Outbox<Hostname, HostMetadata>,
    pub(crate) ip_pools: Outbox<Cidr, Arc<IpPool>>,
    pub(crate) encapsulation: Option<Encapsulation>,
    pub(crate) bgp: Option<Arc<BgpConfiguration>>,
    pub(crate) services: Outbox<NamespacedName, Arc<Service>>,
}

impl Sequencer {
    /// Returns an upper bound of the number of waiting messages.
    pub(crate) fn pending(&self) -> usize {
        let flags = [self.not_ready, self.config.is_some(), self.encapsulation.is_some(), self.bgp.is_some()];
        flags.into_iter().filter(|&flag| flag).count()
            + self.ip_sets.len()
            + self.policies.pending()
            + self.profiles.pending()
            + self.workload_endpoints.pending()
            + self.host_endpoints.pending()
            + self.service_accounts.len()
            + self.namespaces.len()
            + self.routes.updated.len()
            + self.routes.removed.len()
            + self.vteps.updated.len()
            + self.vteps.removed.len()
            + self.wireguard.pending()
            + self.wireguard_v6.pending()
            + self.hosts.pending()
            + self.ip_pools.pending()
            + self.services.pending()
    }

    /// Sends the waiting messages: dependencies before the objects that refer to them, removals the
    /// other way round; within each step by ascending id.
    pub(crate) fn flush(&mut self, all_routes: &L3Routes, emit: &mut impl FnMut(DesiredUpdate)) {
        if std::mem::take(&mut self.not_ready) {
            emit(DesiredUpdate::DatastoreNotReady);
        }
        if let Some(config) = self.config.take() {
            emit(DesiredUpdate::Config(config));
        }
        let removed_sets = self.flush_ip_sets(emit);
        self.policies.send_updates(|id, policy| emit(DesiredUpdate::Policy(id, policy)));
        self.profiles.send_updates(|name, profile| emit(DesiredUpdate::Profile(name, profile)));
        self.workload_endpoints.send_updates(|id, state| emit(DesiredUpdate::WorkloadEndpoint(id, state)));
        self.host_endpoints.send_updates(|id, state| emit(DesiredUpdate::HostEndpoint(id, state)));
        self.workload_endpoints.send_removals(|id| emit(DesiredUpdate::WorkloadEndpointRemove(id)));
        self.host_endpoints.send_removals(|id| emit(DesiredUpdate::HostEndpointRemove(id)));
        self.profiles.send_removals(|name| emit(DesiredUpdate::ProfileRemove(name)));
        self.policies.send_removals(|id| emit(DesiredUpdate::PolicyRemove(id)));
        for removed in removed_sets {
            emit(DesiredUpdate::IpSetRemove(removed));
        }
        self.flush_labels(emit);
        self.flush_routes(all_routes, emit);
        self.flush_passed_through(emit);
    }

    /// Sends new sets, then changes of known ones. Returns the sets to be removed.
    fn flush_ip_sets(&mut self, emit: &mut impl FnMut(DesiredUpdate)) -> Vec<tortie_model::IpSetId> {
        let mut changes = std::mem::take(&mut self.ip_sets);
        changes.sort_by(|a, b| a.id().cmp(b.id()));
        let (mut deltas, mut removed) = (Vec::new(), Vec::new());
        for change in changes {
            match change {
                SetChange::Full(update) => emit(DesiredUpdate::IpSet(update)),
                SetChange::Delta(delta) => deltas.push(delta),
                SetChange::Remove(id) => removed.push(id),
            }
        }
        for delta in deltas {
            emit(DesiredUpdate::IpSetDelta(delta));
        }
        removed
    }

    /// Sends the labels of service accounts and namespaces, removals first.
    fn flush_labels(&mut self, emit: &mut impl FnMut(DesiredUpdate)) {
        let accounts = std::mem::take(&mut self.service_accounts);
        let removed = accounts.iter().filter(|(_, labels)| labels.is_none());
        removed.for_each(|(id, _)| emit(DesiredUpdate::ServiceAccountRemove(id.clone())));
        let updated = accounts.into_iter().filter_map(|(id, labels)| Some((id, labels?)));
        updated.for_each(|(id, labels)| emit(DesiredUpdate::ServiceAccount(id, labels)));
        let namespaces = std::mem::take(&mut self.namespaces);
        let removed = namespaces.iter().filter(|(_, labels)| labels.is_none());
        removed.for_each(|(name, _)| emit(DesiredUpdate::NamespaceRemove(Arc::clone(name))));
        let updated = namespaces.into_iter().filter_map(|(name, labels)| Some((name, labels?)));
        updated.for_each(|(name, labels)| emit(DesiredUpdate::Namespace(name, labels)));
    }

    /// Sends the routes and tunnel ends. A route exists only while the tunnel end that it leads to
    /// exists.
    fn flush_routes(&mut self, all_routes: &L3Routes, emit: &mut impl FnMut(DesiredUpdate)) {
        let (routes, vteps) = (std::mem::take(&mut self.routes), std::mem::take(&mut self.vteps));
        routes.removed.into_iter().for_each(|dst| emit(DesiredUpdate::RouteRemove(dst)));
        vteps.removed.into_iter().for_each(|node| emit(DesiredUpdate::VtepRemove(node)));
        vteps.updated.into_iter().for_each(|(node, vtep)| emit(DesiredUpdate::Vtep(node, vtep)));
        let updated = routes.updated.into_iter().filter_map(|slot| all_routes.route(slot));
        updated.for_each(|(dst, route)| emit(DesiredUpdate::Route(dst, route)));
    }

    /// Sends the messages that refer to no other object, removals first.
    fn flush_passed_through(&mut self, emit: &mut impl FnMut(DesiredUpdate)) {
        self.wireguard.send_removals(|host| emit(DesiredUpdate::WireguardRemove(host)));
        self.wireguard_v6.send_removals(|host| emit(DesiredUpdate::WireguardV6Remove(host)));
        self.wireguard.send_updates(|host, peer| emit(DesiredUpdate::Wireguard(host, peer)));
        self.wireguard_v6.send_updates(|host, peer| emit(DesiredUpdate::WireguardV6(host, peer)));
        self.hosts.send_removals(|host| emit(DesiredUpdate::HostRemove(host)));
        self.hosts.send_updates(|host, metadata| emit(DesiredUpdate::Host(host, metadata)));
        self.ip_pools.send_removals(|cidr| emit(DesiredUpdate::IpPoolRemove(cidr)));
        self.ip_pools.send_updates(|_, pool| emit(DesiredUpdate::IpPool(pool)));
        if let Some(encapsulation) = self.encapsulation.take() {
            emit(DesiredUpdate::Encapsulation(encapsulation));
        }
        if let Some(bgp) = self.bgp.take() {
            emit(DesiredUpdate::BgpConfiguration(bgp));
        }
        self.services.send_removals(|id| emit(DesiredUpdate::ServiceRemove(id)));
        self.services.send_updates(|id, service| emit(DesiredUpdate::Service(id, service)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.not_ready
            && self.config.is_none()
            && self.ip_sets.is_empty()
            && self.policies.is_empty()
            && self.profiles.is_empty()
            && self.workload_endpoints.is_empty()
            && self.host_endpoints.is_empty()
            && self.service_accounts.is_empty()
            && self.namespaces.is_empty()
            && self.wireguard.is_empty()
            && self.wireguard_v6.is_empty()
            && self.hosts.is_empty()
            && self.ip_pools.is_empty()
            && self.encapsulation.is_none()
            && self.bgp.is_none()
            && self.services.is_empty()
    }
}
