//! Owners of addresses.

use std::collections::VecDeque;
use std::net::IpAddr;

use ahash::AHashMap;
use tortie_analysis::trace::{AddressIndex, Place, ServicePortName, Services};
use tortie_evaluate::Packet;
use tortie_model::{HostEndpointKey, HostEndpointName, Hostname, Key, Labels, Update, WorkloadEndpointKey};

use crate::flow::{End, Name};

/// Number of removed workloads that are kept, because their connections end later than they do.
const REMEMBERED: usize = 10_000;

/// The objects of the cluster that have addresses.
#[derive(Debug, Default)]
pub(crate) struct Names {
    objects: AHashMap<Key, Update>,
    /// Removed workloads, with the number of the removal.
    gone: AHashMap<Key, (u64, Update)>,
    /// The same keys, oldest first; also those of workloads that were created again, which `gone`
    /// no longer has.
    forgetting: VecDeque<(u64, Key)>,
    removed: u64,
    places: AddressIndex,
    services: Services,
}

impl Names {
    pub(crate) fn on_update(&mut self, update: &Update) {
        if !is_named(update) {
            return;
        }
        let key = update.key();
        let before = self.objects.remove(&key);
        self.places.replace(before.as_ref(), update);
        self.services.replace(before.as_ref(), update);
        if update.exists() {
            self.gone.remove(&key);
            self.objects.insert(key, update.clone());
        } else if let Some(before @ Update::WorkloadEndpoint(..)) = before {
            self.remember(key, before);
        }
    }

    fn remember(&mut self, key: Key, gone: Update) {
        self.removed += 1;
        self.forgetting.push_back((self.removed, key.clone()));
        self.gone.insert(key, (self.removed, gone));
        if self.forgetting.len() > REMEMBERED
            && let Some((removed, key)) = self.forgetting.pop_front()
            && self.gone.get(&key).is_some_and(|(at, _)| *at == removed)
        {
            self.gone.remove(&key);
        }
    }

    fn object(&self, key: &Key) -> Option<&Update> {
        self.objects.get(key).or_else(|| self.gone.get(key).map(|(_, gone)| gone))
    }

    /// Returns both ends of a connection. A network set of the other end's namespace has
    /// precedence.
    pub(crate) fn ends(&self, source: IpAddr, destination: IpAddr) -> (End, End) {
        let (from, to) = (self.endpoint(source), self.endpoint(destination));
        let from_namespace = from.as_ref().and_then(namespace).map(str::to_owned);
        let to_namespace = to.as_ref().and_then(namespace).map(str::to_owned);
        let from = from.unwrap_or_else(|| self.network(source, to_namespace.as_deref()));
        let to = to.unwrap_or_else(|| self.network(destination, from_namespace.as_deref()));
        (End { address: source, name: from }, End { address: destination, name: to })
    }

    /// Returns the labels of a workload or network set itself, without those of its profiles.
    pub(crate) fn labels(&self, name: &Name) -> Option<&Labels> {
        let key = match name {
            Name::Workload(key) => Key::WorkloadEndpoint(key.clone()),
            Name::NetworkSet(name) => Key::NetworkSet(name.clone()),
            Name::Node(_) | Name::Outside => return None,
        };
        match self.object(&key)? {
            Update::WorkloadEndpoint(_, Some(endpoint)) => Some(&endpoint.labels),
            Update::NetworkSet(_, Some(set)) => Some(&set.labels),
            _ => None,
        }
    }

    /// Returns the prefix from which the name of a workload was generated, if known.
    pub(crate) fn generate_name(&self, key: &WorkloadEndpointKey) -> Option<&str> {
        match self.object(&Key::WorkloadEndpoint(key.clone()))? {
            Update::WorkloadEndpoint(_, Some(endpoint)) => endpoint.generate_name.as_deref(),
            _ => None,
        }
    }

    /// Returns the Service of a connection: at its original destination address or, as in Felix, at
    /// this node port of any node (`GetServiceFromPreDNATDest` in `felix/calc/service_lookup.go`).
    /// Without a translation, it is the Service at the node port, if the destination is a node.
    pub(crate) fn service(
        &self,
        sent_to: Option<(IpAddr, Option<u16>)>,
        destination: &Name,
        packet: &Packet,
    ) -> Option<ServicePortName> {
        let (protocol, services) = (packet.protocol(), &self.services);
        let found = match sent_to {
            Some((address, port)) => {
                let by_node = |port| services.at_node_port(protocol, port);
                port.and_then(|port| services.at(address, protocol, port).or_else(|| by_node(port)))
            }
            None if matches!(destination, Name::Node(_)) => services.at_node_port(protocol, packet.destination_port()?),
            None => None,
        };
        found.cloned()
    }

    /// Reports whether a node has a host endpoint of this name.
    pub(crate) fn is_host_endpoint_of(&self, host: &Hostname, name: &HostEndpointName) -> bool {
        let key = HostEndpointKey { host: host.clone(), name: name.clone() };
        self.objects.contains_key(&Key::HostEndpoint(key))
    }

    fn endpoint(&self, address: IpAddr) -> Option<Name> {
        match self.places.place(address) {
            Place::Workload(key) => Some(Name::Workload(key)),
            Place::Node(host) => Some(Name::Node(host)),
            Place::Outside => None,
        }
    }

    fn network(&self, address: IpAddr, namespace: Option<&str>) -> Name {
        let set = self.places.network_set(address, namespace);
        set.map_or(Name::Outside, |set| Name::NetworkSet(set.clone()))
    }
}

/// Reports whether an object can name an address. A collector does not need updates of other
/// objects.
#[must_use]
pub fn is_named(update: &Update) -> bool {
    matches!(
        update,
        Update::WorkloadEndpoint(..)
            | Update::HostEndpoint(..)
            | Update::Node(..)
            | Update::NetworkSet(..)
            | Update::Service(..)
    )
}

fn namespace(name: &Name) -> Option<&str> {
    match name {
        Name::Workload(key) => key.workload().split_once('/').map(|(namespace, _)| namespace),
        Name::Node(_) | Name::NetworkSet(_) | Name::Outside => None,
    }
}
