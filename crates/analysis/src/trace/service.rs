//! Backends of connections to a Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tortie_model::{
    Family, Hostname, Key, NamedProtocol, NamespacedName, Protocol, TrafficPolicy, Update, parse_address,
};

use crate::trace::cluster::Cluster;
use crate::trace::connection::Place;
use crate::trace::services::ServicePortName;

/// Address and port of a backend of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Backend {
    /// The address.
    pub address: IpAddr,
    /// The port there.
    pub port: u16,
}

/// Reason for unknown backends of a Service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// There is no such Service.
    #[error("there is no service {0}")]
    Unknown(NamespacedName),
    /// The Service has other ports.
    #[error("service {service} has no port {port} of this protocol")]
    NoPort {
        /// The Service.
        service: NamespacedName,
        /// The port.
        port: u16,
    },
    /// The Service is an alias of a DNS name.
    #[error("service {0} is an alias of a DNS name (ExternalName); ask about an address of that name")]
    Alias(NamespacedName),
    /// The Service has endpoints on other nodes only, and connections stay on the node.
    #[error(
        "service {service} has no {family} endpoint on node {node} for port {port}; the {count} on other nodes get no \
         connection of this way, because {policy} is Local"
    )]
    NotLocal {
        /// The Service.
        service: NamespacedName,
        /// The port.
        port: u16,
        /// The family.
        family: Family,
        /// The node.
        node: Hostname,
        /// Number of endpoints on other nodes.
        count: usize,
        /// Name of the field that keeps connections on the node.
        policy: &'static str,
    },
    /// No endpoint of the Service is ready.
    #[error("service {service} has no {family} endpoint that is ready for port {port}; {count} are not ready")]
    NotReady {
        /// The Service.
        service: NamespacedName,
        /// The port.
        port: u16,
        /// The family.
        family: Family,
        /// Number of endpoints that are not ready.
        count: usize,
    },
    /// The Service has no backend.
    #[error("service {service} has no {family} endpoint for port {port}")]
    NoBackend {
        /// The Service.
        service: NamespacedName,
        /// The port.
        port: u16,
        /// The family.
        family: Family,
    },
}

/// Way of a connection through kube-proxy on the node that translates it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceWay {
    /// The node whose endpoints alone get the connection, and the field of the Service that
    /// requires this; `None` if all endpoints do.
    pub only_on: Option<(Hostname, &'static str)>,
    /// Whether that node replaces the source address.
    pub replaces_source: bool,
}

impl Cluster {
    /// Returns the way of a connection from a place to an address of a Service, or to a node port
    /// of this `node`. Connections of a node and of its pods to the Service's other addresses and
    /// node ports go to all endpoints; from outside, those to a load balancer arrive at any node
    /// with an endpoint.
    #[must_use]
    pub fn service_way(
        &self,
        service: &NamespacedName,
        from: &Place,
        address: IpAddr,
        node: Option<&Hostname>,
    ) -> ServiceWay {
        let Some(Update::Service(_, Some(found))) = self.object(&Key::Service(service.clone())) else {
            return ServiceWay::default();
        };
        let source = from.node();
        let Some(node) = node else {
            let is_cluster_address = found.cluster_ips.iter().any(|text| parse_address(text) == Some(address));
            let stays = is_cluster_address && found.internal_traffic_policy == TrafficPolicy::Local;
            let only_on = source.filter(|_| stays).map(|node| (node, "internalTrafficPolicy"));
            return ServiceWay { only_on, replaces_source: false };
        };
        if found.external_traffic_policy == TrafficPolicy::Cluster {
            return ServiceWay { only_on: None, replaces_source: true };
        }
        let is_own = source.as_ref() == Some(node);
        ServiceWay {
            only_on: (!is_own).then(|| (node.clone(), "externalTrafficPolicy")),
            replaces_source: is_own && matches!(from, Place::Node(_)),
        }
    }

    /// Returns the Service port for connections to an address and port: at an address of the
    /// Service, or at a node port of an address of a node.
    #[must_use]
    pub fn service_at(&self, address: IpAddr, protocol: NamedProtocol, port: u16) -> Option<&ServicePortName> {
        let number = Protocol::Named(protocol).number();
        let by_node = || self.services().at_node_port(number, port);
        let is_node = || matches!(self.place_of(address), Place::Node(_));
        self.services().at(address, number, port).or_else(|| by_node().filter(|_| is_node()))
    }

    /// Returns the backends of a port of a Service, sorted: the endpoints that are ready, or else
    /// those that still serve while they terminate, as kube-proxy has it; on one node only if the
    /// way requires this.
    ///
    /// # Errors
    /// If the Service, its port, or such a backend in this family is missing.
    pub fn backends(
        &self,
        service: &NamespacedName,
        protocol: NamedProtocol,
        port: u16,
        family: Family,
        way: &ServiceWay,
    ) -> Result<Vec<Backend>, ServiceError> {
        let Some(Update::Service(_, Some(found))) = self.object(&Key::Service(service.clone())) else {
            return Err(ServiceError::Unknown(service.clone()));
        };
        if &*found.service_type == "ExternalName" {
            return Err(ServiceError::Alias(service.clone()));
        }
        let is_port = |of: &&tortie_model::ServicePort| {
            of.port == i32::from(port) && of.protocol.eq_ignore_ascii_case(protocol.as_str())
        };
        let no_port = || ServiceError::NoPort { service: service.clone(), port };
        let service_port = found.ports.iter().find(is_port).ok_or_else(no_port)?;
        let slices = self.objects().filter_map(|object| match object {
            Update::EndpointSlice(name, Some(slice)) if slice.service.as_ref() == Some(service) => Some((name, slice)),
            _ => None,
        });
        let (of_endpoints, own): (Vec<_>, Vec<_>) = slices.partition(|(name, _)| name.is_slice_of_endpoints());
        let slices = if own.is_empty() { of_endpoints } else { own };
        let is_here = |address: IpAddr| match &way.only_on {
            Some((node, _)) => self.place_of(address).node().as_ref() == Some(node),
            None => true,
        };
        let (mut ready, mut draining, mut all) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut elsewhere = BTreeSet::new();
        for (_, slice) in slices {
            let is_not_ready: BTreeSet<&IpAddr> = slice.not_ready.iter().collect();
            let is_draining: BTreeSet<&IpAddr> = slice.draining.iter().collect();
            // The ports of a slice have the names of the service's ports.
            let ports = slice.ports.iter().filter(|of| of.name == service_port.name && of.protocol == protocol);
            for port in ports.filter_map(|of| of.port) {
                for address in slice.addresses.iter().filter(|address| Family::of(**address) == family) {
                    let backend = Backend { address: *address, port };
                    if !is_here(*address) {
                        elsewhere.insert(backend);
                        continue;
                    }
                    all.insert(backend);
                    if !is_not_ready.contains(address) {
                        ready.insert(backend);
                    } else if is_draining.contains(address) {
                        draining.insert(backend);
                    }
                }
            }
        }
        let (service, count) = (service.clone(), all.len());
        match [ready, draining].into_iter().find(|backends| !backends.is_empty()) {
            Some(backends) => Ok(backends.into_iter().collect()),
            None if count > 0 => Err(ServiceError::NotReady { service, port, family, count }),
            None => match way.only_on.clone().filter(|_| !elsewhere.is_empty()) {
                Some((node, policy)) => {
                    let count = elsewhere.len();
                    Err(ServiceError::NotLocal { service, port, family, node, count, policy })
                }
                None => Err(ServiceError::NoBackend { service, port, family }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tortie_calc::GraphConfig;
    use tortie_evaluate::Settings;
    use tortie_model::{
        EndpointSlice, EndpointSlicePort, Service, ServicePort, Valid, WorkloadEndpoint, WorkloadEndpointKey,
    };

    use super::*;

    fn name(name: &str) -> NamespacedName {
        NamespacedName::new("shop", name)
    }

    fn slice(ports: &[(&str, NamedProtocol, Option<u16>)], addresses: &[&str]) -> Update {
        let port = |(name, protocol, port): &(&str, NamedProtocol, Option<u16>)| EndpointSlicePort {
            name: (*name).into(),
            protocol: *protocol,
            port: *port,
        };
        let slice = EndpointSlice {
            service: Some(name("db")),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ports: ports.iter().map(port).collect(),
            not_ready: Box::default(),
            draining: Box::default(),
        };
        let id = format!("db-{}{}", addresses[0], ports[0].0);
        Update::EndpointSlice(name(&id), Some(Arc::new(slice)))
    }

    #[test]
    fn endpoints_that_are_not_ready_are_backends_only_while_they_drain_and_none_is_ready() {
        let mut cluster = Cluster::default();
        let port = ServicePort { name: "sql".into(), protocol: "TCP".into(), port: 5432, node_port: 0 };
        let service = Service { ports: [port].into(), ..Service::default() };
        cluster.apply(Update::Service(name("db"), Some(Arc::new(service))));
        let addresses = |texts: &[&str]| -> Box<[IpAddr]> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let mut found = |not_ready: &[&str], draining: &[&str]| {
            let port = EndpointSlicePort { name: "sql".into(), protocol: NamedProtocol::Tcp, port: Some(1) };
            let slice = EndpointSlice {
                service: Some(name("db")),
                addresses: addresses(&["10.0.0.1", "10.0.0.2"]),
                ports: [port].into(),
                not_ready: addresses(not_ready),
                draining: addresses(draining),
            };
            cluster.apply(Update::EndpointSlice(name("db-1"), Some(Arc::new(slice))));
            let backends =
                cluster.backends(&name("db"), NamedProtocol::Tcp, 5432, Family::V4, &ServiceWay::default())?;
            Ok(backends.iter().map(|backend| backend.address.to_string()).collect::<Vec<_>>())
        };
        let (first, second) = ("10.0.0.1", "10.0.0.2");
        assert_eq!(found(&[first], &[first]), Ok(vec![second.to_owned()]));
        assert_eq!(found(&[first, second], &[first]), Ok(vec![first.to_owned()]));
        assert!(matches!(found(&[first, second], &[]), Err(ServiceError::NotReady { count: 2, .. })));
    }

    #[test]
    fn local_traffic_policies_keep_connections_on_the_node_that_translates() {
        let mut cluster = Cluster::default();
        for (node, address) in [("n1", "10.0.1.1/32"), ("n2", "10.0.2.1/32")] {
            let endpoint = WorkloadEndpoint {
                iface: Some("cali1".parse().unwrap()),
                ipv4_nets: [address.parse().unwrap()].into(),
                ..WorkloadEndpoint::default()
            };
            let key = WorkloadEndpointKey::new(node, "k8s", &format!("shop/{node}"), "eth0");
            cluster.apply(Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap())));
        }
        cluster.apply(slice(&[("sql", NamedProtocol::Tcp, Some(1))], &["10.0.2.1"]));
        let (n1, n2) = (Hostname::new("n1"), Hostname::new("n2"));
        let of = |address: &str| cluster.place_of(address.parse().unwrap());
        let (pod, other_pod, node, outside) = (of("10.0.1.1"), of("10.0.2.1"), Place::Node(n1.clone()), Place::Outside);
        let mut way = |internal, external, from: &Place, address: &str, at: Option<&Hostname>| {
            let port = ServicePort { name: "sql".into(), protocol: "TCP".into(), port: 5432, node_port: 30432 };
            let service = Service {
                service_type: "LoadBalancer".into(),
                cluster_ips: ["10.96.0.7".into()].into(),
                load_balancer_ingress_ips: ["203.0.113.7".into()].into(),
                ports: [port].into(),
                internal_traffic_policy: internal,
                external_traffic_policy: external,
                ..Service::default()
            };
            cluster.apply(Update::Service(name("db"), Some(Arc::new(service))));
            let way = cluster.service_way(&name("db"), from, address.parse().unwrap(), at);
            let found = cluster.backends(&name("db"), NamedProtocol::Tcp, 5432, Family::V4, &way);
            (found.map(|backends| backends.len()).map_err(|error| error.to_string()), way.replaces_source)
        };
        let far = |policy: &str| {
            Err(format!(
                "service shop/db has no IPv4 endpoint on node n1 for port 5432; the 1 on other nodes get no connection of \
                 this way, because {policy} is Local"
            ))
        };
        use TrafficPolicy::{Cluster as All, Local};
        assert_eq!(way(Local, All, &pod, "10.96.0.7", None), (far("internalTrafficPolicy"), false));
        assert_eq!(way(Local, All, &other_pod, "10.96.0.7", None), (Ok(1), false));
        assert_eq!(way(All, Local, &pod, "10.96.0.7", None), (Ok(1), false), "the other field");
        for from in [&pod, &outside] {
            assert_eq!(way(Local, Local, from, "203.0.113.7", None), (Ok(1), false), "a load balancer");
        }
        assert_eq!(way(All, All, &outside, "192.0.2.1", Some(&n1)), (Ok(1), true));
        assert_eq!(way(All, Local, &outside, "192.0.2.1", Some(&n1)), (far("externalTrafficPolicy"), false));
        assert_eq!(way(All, Local, &outside, "192.0.2.2", Some(&n2)), (Ok(1), false));
        // kube-proxy treats connections of the node itself and its pods as internal.
        assert_eq!(way(All, Local, &pod, "192.0.2.1", Some(&n1)), (Ok(1), false));
        assert_eq!(way(All, Local, &node, "192.0.2.1", Some(&n1)), (Ok(1), true));
    }

    #[test]
    fn ports_are_found_by_name_and_protocol() {
        use NamedProtocol::{Tcp, Udp};
        let mut cluster = Cluster::new(GraphConfig::new(Hostname::new("")), Settings::default());
        let port = |name: &str, protocol: &str, port| ServicePort {
            name: name.into(),
            protocol: protocol.into(),
            port,
            node_port: 0,
        };
        let service = Service {
            cluster_ips: ["10.96.0.7".into(), "fd00:96::7".into()].into(),
            ports: [port("sql", "TCP", 5432), port("dns", "UDP", 5432), port("none", "TCP", 1)].into(),
            ..Service::default()
        };
        cluster.apply(Update::Service(name("db"), Some(Arc::new(service))));
        cluster.apply(slice(&[("sql", Tcp, Some(15432)), ("dns", Udp, Some(53))], &["10.0.0.2", "10.0.0.1"]));
        cluster.apply(slice(&[("sql", Tcp, Some(25432))], &["10.0.0.3", "fd00::3"]));
        cluster.apply(slice(&[("none", Tcp, None)], &["10.0.0.9"]));
        let backends = |protocol, port, family| {
            let found = cluster.backends(&name("db"), protocol, port, family, &ServiceWay::default())?;
            Ok(found.iter().map(|backend| format!("{} {}", backend.address, backend.port)).collect::<Vec<_>>())
        };
        assert_eq!(backends(Tcp, 5432, Family::V4).unwrap(), ["10.0.0.1 15432", "10.0.0.2 15432", "10.0.0.3 25432"]);
        assert_eq!(backends(Tcp, 5432, Family::V6).unwrap(), ["fd00::3 25432"]);
        assert_eq!(backends(Udp, 5432, Family::V4).unwrap(), ["10.0.0.1 53", "10.0.0.2 53"]);
        let (service, port) = (name("db"), 80);
        assert_eq!(backends(Tcp, 80, Family::V4), Err(ServiceError::NoPort { service: service.clone(), port }));
        let none = ServiceError::NoBackend { service, port: 1, family: Family::V4 };
        assert_eq!(backends(Tcp, 1, Family::V4), Err(none));
        let unknown = cluster.backends(&name("other"), Tcp, 1, Family::V4, &ServiceWay::default());
        assert_eq!(unknown, Err(ServiceError::Unknown(name("other"))));
        let at =
            |address: &str, port| cluster.service_at(address.parse().unwrap(), Tcp, port).map(|found| &*found.name);
        assert_eq!((at("fd00:96::7", 5432), at("10.96.0.7", 80), at("10.0.0.1", 5432)), (Some("sql"), None, None));
    }
}
