//! Backends of connections to a Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tortie_model::{Family, Key, NamedProtocol, NamespacedName, Protocol, Update};

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

impl Cluster {
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
    /// those that still serve while they terminate, as kube-proxy has it.
    ///
    /// # Errors
    /// If the Service, its port, or such a backend in this family is missing.
    pub fn backends(
        &self,
        service: &NamespacedName,
        protocol: NamedProtocol,
        port: u16,
        family: Family,
    ) -> Result<Vec<Backend>, ServiceError> {
        let Some(Update::Service(_, Some(found))) = self.object(&Key::Service(service.clone())) else {
            return Err(ServiceError::Unknown(service.clone()));
        };
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
        let (mut ready, mut draining, mut all) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (_, slice) in slices {
            let is_not_ready: BTreeSet<&IpAddr> = slice.not_ready.iter().collect();
            let is_draining: BTreeSet<&IpAddr> = slice.draining.iter().collect();
            // The ports of a slice have the names of the service's ports.
            let ports = slice.ports.iter().filter(|of| of.name == service_port.name && of.protocol == protocol);
            for port in ports.filter_map(|of| of.port) {
                for address in slice.addresses.iter().filter(|address| Family::of(**address) == family) {
                    let backend = Backend { address: *address, port };
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
            None => Err(ServiceError::NoBackend { service, port, family }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tortie_calc::GraphConfig;
    use tortie_evaluate::Settings;
    use tortie_model::{EndpointSlice, EndpointSlicePort, Hostname, Service, ServicePort};

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
            let backends = cluster.backends(&name("db"), NamedProtocol::Tcp, 5432, Family::V4)?;
            Ok(backends.iter().map(|backend| backend.address.to_string()).collect::<Vec<_>>())
        };
        let (first, second) = ("10.0.0.1", "10.0.0.2");
        assert_eq!(found(&[first], &[first]), Ok(vec![second.to_owned()]));
        assert_eq!(found(&[first, second], &[first]), Ok(vec![first.to_owned()]));
        assert!(matches!(found(&[first, second], &[]), Err(ServiceError::NotReady { count: 2, .. })));
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
            let found = cluster.backends(&name("db"), protocol, port, family)?;
            Ok(found.iter().map(|backend| format!("{} {}", backend.address, backend.port)).collect::<Vec<_>>())
        };
        assert_eq!(backends(Tcp, 5432, Family::V4).unwrap(), ["10.0.0.1 15432", "10.0.0.2 15432", "10.0.0.3 25432"]);
        assert_eq!(backends(Tcp, 5432, Family::V6).unwrap(), ["fd00::3 25432"]);
        assert_eq!(backends(Udp, 5432, Family::V4).unwrap(), ["10.0.0.1 53", "10.0.0.2 53"]);
        let (service, port) = (name("db"), 80);
        assert_eq!(backends(Tcp, 80, Family::V4), Err(ServiceError::NoPort { service: service.clone(), port }));
        let none = ServiceError::NoBackend { service, port: 1, family: Family::V4 };
        assert_eq!(backends(Tcp, 1, Family::V4), Err(none));
        let unknown = cluster.backends(&name("other"), Tcp, 1, Family::V4);
        assert_eq!(unknown, Err(ServiceError::Unknown(name("other"))));
        let at =
            |address: &str, port| cluster.service_at(address.parse().unwrap(), Tcp, port).map(|found| &*found.name);
        assert_eq!((at("fd00:96::7", 5432), at("10.96.0.7", 80), at("10.0.0.1", 5432)), (Some("sql"), None, None));
    }
}
