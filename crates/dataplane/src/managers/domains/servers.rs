//! Trusted DNS servers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tortie_ipsets::Member;
use tortie_model::desired::{IpPortMember, IpSetDelta, Members, PortProtocol};
use tortie_model::{IpSetId, NamespacedName, Service};

use crate::domains::TrustedServer;

/// Servers whose answers count: given addresses, and the cluster addresses and endpoints of given
/// services.
#[derive(Debug)]
pub(super) struct Servers {
    trusted: Vec<TrustedServer>,
    services: BTreeMap<NamespacedName, Arc<Service>>,
    /// Members of the sets of endpoints of trusted services.
    endpoints: BTreeMap<IpSetId, BTreeSet<IpPortMember>>,
    changed: bool,
}

impl Servers {
    pub(super) fn new(trusted: Vec<TrustedServer>) -> Self {
        Self { trusted, services: BTreeMap::new(), endpoints: BTreeMap::new(), changed: true }
    }

    fn is_of_service(&self, id: &IpSetId) -> bool {
        self.trusted.iter().any(|server| matches!(server, TrustedServer::Service { endpoints, .. } if endpoints == id))
    }

    /// Takes all members of a set; `None` if it is gone.
    pub(super) fn on_set(&mut self, id: &IpSetId, members: Option<&Members>) {
        if !self.is_of_service(id) {
            return;
        }
        if let Some(Members::IpPorts(members)) = members {
            self.endpoints.insert(id.clone(), members.iter().copied().collect());
        } else {
            self.endpoints.remove(id);
        }
        self.changed = true;
    }

    pub(super) fn on_delta(&mut self, delta: &IpSetDelta) {
        let (Members::IpPorts(added), Members::IpPorts(removed)) = (&delta.added, &delta.removed) else { return };
        if let Some(known) = self.endpoints.get_mut(&delta.id) {
            known.retain(|member| !removed.contains(member));
            known.extend(added.iter().copied());
            self.changed = true;
        }
    }

    pub(super) fn on_service(&mut self, name: &NamespacedName, service: Option<&Arc<Service>>) {
        let is_trusted =
            |server: &TrustedServer| matches!(server, TrustedServer::Service { name: of, .. } if of == name);
        if !self.trusted.iter().any(is_trusted) {
            return;
        }
        match service {
            Some(service) => drop(self.services.insert(name.clone(), Arc::clone(service))),
            None => drop(self.services.remove(name)),
        }
        self.changed = true;
    }

    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Returns the trusted services that do not exist.
    pub(super) fn missing(&self) -> Vec<&NamespacedName> {
        let missing = self.trusted.iter().filter_map(|server| match server {
            TrustedServer::Service { name, .. } if !self.services.contains_key(name) => Some(name),
            TrustedServer::Service { .. } | TrustedServer::Address { .. } => None,
        });
        missing.collect()
    }

    /// Returns addresses, protocols and ports, each once.
    pub(super) fn members(&self) -> Vec<Member> {
        let members: BTreeSet<IpPortMember> = self.trusted.iter().flat_map(|server| self.of_server(server)).collect();
        members.into_iter().map(Member::from).collect()
    }

    fn of_server(&self, server: &TrustedServer) -> Vec<IpPortMember> {
        match server {
            TrustedServer::Address { address, port } => both_protocols(*address, *port).into(),
            TrustedServer::Service { name, port, endpoints } => {
                let service = self.services.get(name);
                let of_cluster = service.into_iter().flat_map(|service| cluster_addresses(service, *port));
                of_cluster.chain(self.endpoints.get(endpoints).into_iter().flatten().copied()).collect()
            }
        }
    }
}

fn both_protocols(address: IpAddr, port: u16) -> [IpPortMember; 2] {
    [PortProtocol::Udp, PortProtocol::Tcp].map(|protocol| IpPortMember::new(address, protocol, port))
}

/// Returns the cluster addresses of a service with this port, or with its first one.
fn cluster_addresses(service: &Service, port: Option<u16>) -> Vec<IpPortMember> {
    let first = service.ports.first().and_then(|port| u16::try_from(port.port).ok());
    let Some(port) = port.or(first) else { return Vec::new() };
    let addresses = service.cluster_ips.iter().filter_map(|text| text.parse::<IpAddr>().ok());
    addresses.flat_map(|address| both_protocols(address, port)).collect()
}
