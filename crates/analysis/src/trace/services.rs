//! Index of Services by address and port.

use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use smallvec::SmallVec;
use tortie_model::{NamedProtocol, NamespacedName, Protocol, Service, ServicePort, Update, parse_address};

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct ServicePortName {
    /// The Service.
    pub service: NamespacedName,
    /// The name of the port; empty if it has none.
    pub name: Arc<str>,
    /// The port of the Service itself, before translation.
    pub port: u16,
}

/// Services of a cluster by the addresses and ports at which they are reached: cluster addresses,
/// external addresses, load balancer addresses, and node ports.
///
/// ```
/// use std::sync::Arc;
/// use tortie_model::{NamespacedName, Service, ServicePort, Update, parse_address};
/// use tortie_analysis::trace::Services;
///
/// let ports = [ServicePort { name: "http".into(), protocol: "TCP".into(), port: 80, node_port: 30080 }];
/// let service = Service {
///     service_type: "NodePort".into(),
///     cluster_ips: ["10.96.0.7".into()].into(),
///     ports: ports.into(),
///     ..Service::default()
/// };
/// let mut services = Services::default();
/// services.replace(None, &Update::Service(NamespacedName::new("shop", "web"), Some(Arc::new(service))));
/// let found = services.at("10.96.0.7".parse()?, 6, 80).unwrap();
/// assert_eq!((&*found.service.name, &*found.name), ("web", "http"));
/// assert_eq!(services.at_node_port(6, 30080), Some(found));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Services {
    at: AHashMap<ServiceAddress, SmallVec<[ServicePortName; 1]>>,
    by_address: AHashMap<IpAddr, SmallVec<[NamespacedName; 1]>>,
}

/// Address at which a Service is reached, with protocol number and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ServiceAddress {
    Address(IpAddr, u8, u16),
    Nodes(u8, u16),
}

impl Services {
    /// Replaces the former state of an object. Objects other than Services are ignored.
    ///
    /// # Panics
    /// If `before` is not the last state of the Service.
    pub fn replace(&mut self, before: Option<&Update>, after: &Update) {
        for (update, is_there) in before.map(|before| (before, false)).into_iter().chain([(after, true)]) {
            let Update::Service(name, Some(service)) = update else { continue };
            for address in addresses(service) {
                set(&mut self.by_address, address, name, is_there);
            }
            for (protocol, port, of) in service.ports.iter().filter_map(numbers) {
                let reached = ServicePortName { service: name.clone(), name: Arc::clone(&of.name), port };
                for address in addresses(service) {
                    set(&mut self.at, ServiceAddress::Address(address, protocol, port), &reached, is_there);
                }
                if let Some(node_port) = node_port(service, of) {
                    set(&mut self.at, ServiceAddress::Nodes(protocol, node_port), &reached, is_there);
                }
            }
        }
    }

    /// Returns the Service port at an address of the Service, by protocol number and port. Of
    /// several, the first by name.
    #[must_use]
    pub fn at(&self, address: IpAddr, protocol: u8, port: u16) -> Option<&ServicePortName> {
        self.at.get(&ServiceAddress::Address(address, protocol, port))?.first()
    }

    /// Returns the Service port at this port of any node.
    #[must_use]
    pub fn at_node_port(&self, protocol: u8, port: u16) -> Option<&ServicePortName> {
        self.at.get(&ServiceAddress::Nodes(protocol, port))?.first()
    }

    /// Returns the Service with this address. Of several, the first by name.
    #[must_use]
    pub fn with_address(&self, address: IpAddr) -> Option<&NamespacedName> {
        self.by_address.get(&address)?.first()
    }

    /// Reports whether there are no Services.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at.is_empty() && self.by_address.is_empty()
    }
}

/// Adds or removes an entry, in order. An entry that is added twice exists twice.
#[expect(clippy::expect_used, reason = "only added Services are removed")]
fn set<K: std::hash::Hash + Eq, V: Clone + Ord>(
    map: &mut AHashMap<K, SmallVec<[V; 1]>>,
    key: K,
    value: &V,
    is_there: bool,
) where
    [V; 1]: smallvec::Array<Item = V>,
{
    if is_there {
        let values = map.entry(key).or_default();
        let at = values.binary_search(value).unwrap_or_else(|at| at);
        values.insert(at, value.clone());
        return;
    }
    let values = map.get_mut(&key).expect("the Service was added");
    values.remove(values.binary_search(value).expect("a Service is removed as often as it was added"));
    if values.is_empty() {
        map.remove(&key);
    }
}

fn addresses(service: &Service) -> impl Iterator<Item = IpAddr> + '_ {
    let written = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ingress_ips];
    // A Service without a cluster address has `None`.
    written.into_iter().flatten().filter_map(|text| parse_address(text))
}

/// Returns the numbers of protocol and port; `None` if they are out of range.
fn numbers(port: &ServicePort) -> Option<(u8, u16, &ServicePort)> {
    let known = [NamedProtocol::Tcp, NamedProtocol::Udp, NamedProtocol::Sctp];
    let named = known.into_iter().find(|known| port.protocol.eq_ignore_ascii_case(known.as_str()));
    Some((Protocol::Named(named?).number(), u16::try_from(port.port).ok()?, port))
}

fn node_port(service: &Service, port: &ServicePort) -> Option<u16> {
    let has_node_ports = matches!(&*service.service_type, "NodePort" | "LoadBalancer");
    u16::try_from(port.node_port).ok().filter(|node_port| has_node_ports && *node_port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(cluster: &str, ports: &[(&str, i32, i32)]) -> Service {
        let port = |(name, port, node_port): &(&str, i32, i32)| ServicePort {
            name: (*name).into(),
            protocol: "TCP".into(),
            port: *port,
            node_port: *node_port,
        };
        Service {
            service_type: "LoadBalancer".into(),
            cluster_ips: [cluster.into(), "None".into()].into(),
            external_ips: ["198.51.100.1".into()].into(),
            load_balancer_ingress_ips: ["203.0.113.1".into()].into(),
            ports: ports.iter().map(port).collect(),
            ..Service::default()
        }
    }

    fn update(name: &str, service: Option<Service>) -> Update {
        Update::Service(NamespacedName::new("shop", name), service.map(Arc::new))
    }

    #[test]
    fn services_are_found_at_every_address_until_they_are_removed() {
        let mut services = Services::default();
        let before = update("web", Some(service("10.96.0.7", &[("http", 80, 30080), ("odd", -1, 70000)])));
        services.replace(None, &before);
        for address in ["10.96.0.7", "198.51.100.1", "203.0.113.1"] {
            let address = address.parse().unwrap();
            assert_eq!(&*services.at(address, 6, 80).unwrap().name, "http", "{address}");
            assert!(services.at(address, 17, 80).is_none() && services.at(address, 6, 30080).is_none());
            assert_eq!(services.with_address(address).unwrap().name, "web".into());
        }
        assert_eq!(services.at_node_port(6, 30080).unwrap().port, 80);
        assert!(services.at_node_port(17, 30080).is_none());

        // Another Service shares an address for a while, and sorts first.
        let other = update("api", Some(service("10.96.0.8", &[("https", 443, 0), ("http", 80, 0)])));
        services.replace(None, &other);
        assert_eq!(services.at("203.0.113.1".parse().unwrap(), 6, 80).unwrap().service.name, "api".into());
        services.replace(Some(&other), &update("api", None));
        assert_eq!(services.at("203.0.113.1".parse().unwrap(), 6, 80).unwrap().service.name, "web".into());

        let changed = update("web", Some(Service { service_type: "ClusterIP".into(), ..service("10.96.0.7", &[]) }));
        services.replace(Some(&before), &changed);
        assert!(services.at_node_port(6, 30080).is_none());
        assert!(services.at("10.96.0.7".parse().unwrap(), 6, 80).is_none());
        services.replace(Some(&changed), &update("web", None));
        assert!(services.is_empty());
    }
}
