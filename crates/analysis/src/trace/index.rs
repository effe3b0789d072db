//! Index of places by address, and of workloads by name.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use smallvec::SmallVec;
use tortie_model::{Cidr, HostEndpoint, NatMapping, NetworkSetName, Update, WorkloadEndpoint, WorkloadEndpointKey};

use crate::trace::connection::Place;

/// Places of a cluster by their addresses and names.
///
/// ```
/// use tortie_model::{NetworkSet, NetworkSetName, Update, Valid};
/// use tortie_analysis::trace::AddressIndex;
///
/// let partners = NetworkSetName::new("partners");
/// let set = NetworkSet { nets: ["192.0.2.0/24".parse()?].into_iter().collect(), ..NetworkSet::default() };
/// let mut places = AddressIndex::default();
/// places.replace(None, &Update::NetworkSet(partners.clone(), Some(Valid::new(set)?)));
/// assert_eq!(places.network_set("192.0.2.7".parse()?, None), Some(&partners));
/// assert_eq!(places.network_set("198.51.100.7".parse()?, None), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AddressIndex {
    /// More than one place for an address that is assigned more than once.
    places: AHashMap<IpAddr, SmallVec<[Place; 1]>>,
    /// Workloads by namespace and name of the orchestrator.
    workloads: AHashMap<Arc<str>, SmallVec<[WorkloadEndpointKey; 1]>>,
    /// Workloads by their floating addresses, each with its own address.
    floating: AHashMap<IpAddr, SmallVec<[(WorkloadEndpointKey, IpAddr); 1]>>,
    /// Network sets by their networks without host bits.
    network_sets: AHashMap<Cidr, SmallVec<[NetworkSetName; 1]>>,
    /// Number of networks of network sets by prefix length.
    lengths_v4: Lengths,
    lengths_v6: Lengths,
}

/// Prefix lengths that occur, the longest last.
#[derive(Clone, Debug, Default)]
struct Lengths {
    counts: AHashMap<u8, usize>,
    present: BTreeSet<u8>,
}

impl Lengths {
    #[expect(clippy::expect_used, reason = "only added networks are removed")]
    fn set(&mut self, length: u8, is_there: bool) {
        let count = self.counts.entry(length).or_default();
        *count = if is_there { *count + 1 } else { count.checked_sub(1).expect("the network was counted") };
        if *count == 0 {
            self.present.remove(&length);
        } else {
            self.present.insert(length);
        }
    }
}

impl AddressIndex {
    /// Replaces the former state of an object. Objects without addresses are ignored.
    ///
    /// # Panics
    /// If `before` is not the last state of the object.
    pub fn replace(&mut self, before: Option<&Update>, after: &Update) {
        for (update, is_there) in before.map(|before| (before, false)).into_iter().chain([(after, true)]) {
            match update {
                Update::WorkloadEndpoint(key, Some(endpoint)) => {
                    self.set_name(key, is_there);
                    self.set_floating(key, endpoint, is_there);
                    for address in workload_addresses(endpoint) {
                        self.set(address, &Place::Workload(key.clone()), is_there);
                    }
                    if is_there && endpoint.claimed_by().is_none() {
                        self.put_first(endpoint, key);
                    }
                }
                Update::HostEndpoint(key, Some(endpoint)) => {
                    for address in host_endpoint_addresses(endpoint) {
                        self.set(address, &Place::Node(key.host.clone()), is_there);
                    }
                }
                Update::Node(host, Some(node)) => {
                    for address in node.own_addresses() {
                        self.set(address, &Place::Node(host.clone()), is_there);
                    }
                }
                Update::NetworkSet(name, Some(set)) => {
                    for net in &set.nets {
                        self.set_network(net, name, is_there);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the place with an address. Workloads take precedence over nodes, because a pod in
    /// the host network has no endpoint. Of several workloads, one whose address the platform has
    /// confirmed takes precedence.
    #[must_use]
    pub fn place(&self, address: IpAddr) -> Place {
        let places = self.places.get(&address).map_or(&[][..], |places| places);
        let workload = places.iter().find(|place| matches!(place, Place::Workload(_)));
        workload.or(places.first()).cloned().unwrap_or(Place::Outside)
    }

    /// Returns the workload that a floating address belongs to, and the own address that it stands
    /// for. Of several, the smallest own address as text counts, as on nodes.
    #[must_use]
    pub fn floating(&self, address: IpAddr) -> Option<(&WorkloadEndpointKey, IpAddr)> {
        let mappings = self.floating.get(&address)?;
        let first = mappings.iter().min_by_key(|(_, internal)| internal.to_string());
        first.map(|(key, internal)| (key, *internal))
    }

    /// Returns the network set that contains an address. Sets of this namespace take precedence
    /// over global ones, and these over all others; then the longest prefix decides, then the name
    /// (`felix/calc/iplpm.go`).
    #[must_use]
    pub fn network_set(&self, address: IpAddr, namespace: Option<&str>) -> Option<&NetworkSetName> {
        let lengths = if address.is_ipv4() { &self.lengths_v4 } else { &self.lengths_v6 };
        let rank = |name: &NetworkSetName| match name.as_str().split_once('/') {
            Some((own, _)) if Some(own) == namespace => 0,
            None => 1,
            Some(_) => 2,
        };
        let holding = lengths.present.iter().flat_map(|length| {
            let net = Cidr::new(address, *length).map(Cidr::masked);
            let sets = net.and_then(|net| self.network_sets.get(&net)).into_iter().flatten();
            sets.map(move |name| (length, name))
        });
        let best = holding.min_by_key(|(length, name)| (rank(name), Reverse(*length), name.as_str()));
        best.map(|(_, name)| name)
    }

    /// Returns the endpoints of a workload by the name that its orchestrator gives it:
    /// `namespace/pod` in Kubernetes.
    #[must_use]
    pub fn workloads(&self, name: &str) -> &[WorkloadEndpointKey] {
        self.workloads.get(name).map_or(&[], |keys| keys)
    }

    /// Returns the names of all workloads in arbitrary order.
    pub fn workload_names(&self) -> impl Iterator<Item = &str> {
        self.workloads.keys().map(|name| &**name)
    }

    #[expect(clippy::expect_used, reason = "only added objects are removed")]
    fn set(&mut self, address: IpAddr, place: &Place, is_there: bool) {
        let places = self.places.entry(address).or_default();
        if is_there {
            // A node may have an address in several fields and in its host endpoints: each entry
            // counts.
            places.push(place.clone());
            return;
        }
        let at = places.iter().position(|other| other == place);
        places.remove(at.expect("an address is removed as often as it was added"));
        if places.is_empty() {
            self.places.remove(&address);
        }
    }

    /// Moves an endpoint with confirmed addresses before endpoints that only claim them.
    #[expect(clippy::expect_used, reason = "the endpoint was just added with its addresses")]
    fn put_first(&mut self, endpoint: &WorkloadEndpoint, key: &WorkloadEndpointKey) {
        for address in workload_addresses(endpoint) {
            let places = self.places.get_mut(&address).expect("the address was added");
            let own = |place: &Place| matches!(place, Place::Workload(other) if other == key);
            let own = places.remove(places.iter().position(own).expect("the endpoint was added at its address"));
            places.insert(0, own);
        }
    }

    #[expect(clippy::expect_used, reason = "only added network sets are removed")]
    fn set_network(&mut self, net: Cidr, name: &NetworkSetName, is_there: bool) {
        let net = net.masked();
        let names = self.network_sets.entry(net).or_default();
        if is_there {
            names.push(name.clone());
        } else {
            let at = names.iter().position(|other| other == name);
            names.remove(at.expect("a network is removed as often as it was added"));
        }
        if names.is_empty() {
            self.network_sets.remove(&net);
        }
        let lengths = if net.address().is_ipv4() { &mut self.lengths_v4 } else { &mut self.lengths_v6 };
        lengths.set(net.prefix_len(), is_there);
    }

    fn set_floating(&mut self, key: &WorkloadEndpointKey, endpoint: &WorkloadEndpoint, is_there: bool) {
        let extras = endpoint.extras.iter();
        for NatMapping { internal, external } in
            extras.flat_map(|extras| extras.ipv4_nat.iter().chain(&extras.ipv6_nat))
        {
            let mappings = self.floating.entry(*external).or_default();
            mappings.retain(|(other, own)| (&*other, &*own) != (key, internal));
            if is_there {
                mappings.push((key.clone(), *internal));
            }
            if mappings.is_empty() {
                self.floating.remove(external);
            }
        }
    }

    #[expect(clippy::expect_used, reason = "only added endpoints are removed")]
    fn set_name(&mut self, key: &WorkloadEndpointKey, is_there: bool) {
        if is_there {
            self.workloads.entry(key.workload().into()).or_default().push(key.clone());
            return;
        }
        let keys = self.workloads.get_mut(key.workload()).expect("the endpoint was added by its workload");
        keys.retain(|other| other != key);
        if keys.is_empty() {
            self.workloads.remove(key.workload());
        }
    }
}

fn workload_addresses(endpoint: &WorkloadEndpoint) -> impl Iterator<Item = IpAddr> + '_ {
    endpoint.nets().map(Cidr::address)
}

pub(crate) fn host_endpoint_addresses(endpoint: &HostEndpoint) -> impl Iterator<Item = IpAddr> + '_ {
    endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6).copied()
}

#[cfg(test)]
mod tests {
    use tortie_model::{NetworkSet, Valid};

    use super::*;

    fn set(name: &str, nets: &[&str]) -> Update {
        let nets = nets.iter().map(|net| net.parse().unwrap()).collect();
        Update::NetworkSet(NetworkSetName::new(name), Some(Valid::new(NetworkSet { nets, ..<_>::default() }).unwrap()))
    }

    #[test]
    fn a_network_set_of_the_namespace_comes_first_then_the_longest_prefix() {
        let updates = [
            set("all", &["192.0.2.0/24", "192.0.2.7/24"]),
            set("near", &["192.0.2.0/28"]),
            set("shop/ours", &["192.0.0.0/8"]),
            set("other/a", &["192.0.2.0/30", "2001:db8::/32"]),
            set("other/b", &["192.0.2.0/30"]),
        ];
        let mut places = AddressIndex::default();
        updates.iter().for_each(|update| places.replace(None, update));
        let found = |places: &AddressIndex, address: &str, namespace| {
            places.network_set(address.parse().unwrap(), namespace).map(ToString::to_string).unwrap_or_default()
        };
        assert_eq!(found(&places, "192.0.2.1", Some("shop")), "shop/ours");
        assert_eq!(found(&places, "192.0.2.1", None), "near");
        assert_eq!(found(&places, "192.0.2.1", Some("other")), "other/a");
        assert_eq!(found(&places, "192.0.2.200", None), "all");
        assert_eq!(found(&places, "192.1.1.1", None), "shop/ours");
        assert_eq!(found(&places, "2001:db8::1", None), "other/a");
        assert_eq!(found(&places, "10.0.0.1", None), "");

        // Each of the two entries of the same network counts.
        places.replace(Some(&updates[0]), &set("all", &["192.0.2.0/24"]));
        assert_eq!(found(&places, "192.0.2.200", None), "all");
        for update in [&set("all", &["192.0.2.0/24"]), &updates[1], &updates[2], &updates[3], &updates[4]] {
            places.replace(Some(update), &Update::delete(update.key()));
        }
        assert_eq!(found(&places, "192.0.2.1", None), "");
        assert!(places.network_sets.is_empty() && places.lengths_v4.present.is_empty());
    }
}
