//! Which place has an address, and which workload a name.

use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use smallvec::SmallVec;
use tortie_model::{HostEndpoint, Node, Update, WorkloadEndpoint, WorkloadEndpointKey};

use crate::connection::Place;

/// The places of a cluster by their addresses and names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// More than one place for an address that is given out more than once.
    places: AHashMap<IpAddr, SmallVec<[Place; 1]>>,
    /// By namespace and name, as the orchestrator has them.
    workloads: AHashMap<Arc<str>, SmallVec<[WorkloadEndpointKey; 1]>>,
}

impl Index {
    /// Takes what an object was, and what it is.
    pub(crate) fn replace(&mut self, before: Option<&Update>, after: &Update) {
        for (update, is_there) in before.map(|before| (before, false)).into_iter().chain([(after, true)]) {
            match update {
                Update::WorkloadEndpoint(key, Some(endpoint)) => {
                    self.set_name(key, is_there);
                    for address in workload_addresses(endpoint) {
                        self.set(address, &Place::Workload(key.clone()), is_there);
                    }
                }
                Update::HostEndpoint(key, Some(endpoint)) => {
                    for address in host_endpoint_addresses(endpoint) {
                        self.set(address, &Place::Node(key.host.clone()), is_there);
                    }
                }
                Update::Node(host, Some(node)) => {
                    for address in node_addresses(node) {
                        self.set(address, &Place::Node(host.clone()), is_there);
                    }
                }
                _ => {}
            }
        }
    }

    /// What has an address. Workloads come before nodes: a pod in its node's network has no endpoint.
    pub(crate) fn place(&self, address: IpAddr) -> Place {
        let places = self.places.get(&address).map_or(&[][..], |places| places);
        let workload = places.iter().find(|place| matches!(place, Place::Workload(_)));
        workload.or(places.first()).cloned().unwrap_or(Place::Outside)
    }

    pub(crate) fn workloads(&self, name: &str) -> &[WorkloadEndpointKey] {
        self.workloads.get(name).map_or(&[], |keys| keys)
    }

    pub(crate) fn workload_names(&self) -> impl Iterator<Item = &str> {
        self.workloads.keys().map(|name| &**name)
    }

    fn set(&mut self, address: IpAddr, place: &Place, is_there: bool) {
        let places = self.places.entry(address).or_default();
        match places.iter().position(|other| other == place) {
            // A node may say an address in several fields, and its host endpoints as well: each counts.
            _ if is_there => places.push(place.clone()),
            Some(at) => drop(places.remove(at)),
            None => {}
        }
        if places.is_empty() {
            self.places.remove(&address);
        }
    }

    fn set_name(&mut self, key: &WorkloadEndpointKey, is_there: bool) {
        if is_there {
            self.workloads.entry(key.workload().into()).or_default().push(key.clone());
            return;
        }
        let Some(keys) = self.workloads.get_mut(key.workload()) else { return };
        keys.retain(|other| other != key);
        if keys.is_empty() {
            self.workloads.remove(key.workload());
        }
    }
}

fn workload_addresses(endpoint: &WorkloadEndpoint) -> impl Iterator<Item = IpAddr> + '_ {
    endpoint.nets().map(tortie_model::Cidr::address)
}

pub(crate) fn host_endpoint_addresses(endpoint: &HostEndpoint) -> impl Iterator<Item = IpAddr> + '_ {
    endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6).copied()
}

/// The node's own addresses, those of its tunnels included. What is written as none is left out: the sources have said so.
pub(crate) fn node_addresses(node: &Node) -> impl Iterator<Item = IpAddr> + '_ {
    let bgp = node.bgp.iter().flat_map(|bgp| [&bgp.ipv4_address, &bgp.ipv6_address]);
    let written = bgp.chain(node.addresses.iter().map(|address| &address.address));
    let address = |text: &Arc<str>| text.split('/').next()?.parse().ok();
    let tunnels = node.tunnels.iter().flat_map(|tunnels| {
        [tunnels.ipip, tunnels.vxlan, tunnels.vxlan_v6, tunnels.wireguard, tunnels.wireguard_v6].into_iter().flatten()
    });
    written.filter_map(address).chain(tunnels)
}
