//! Services and endpoint slices.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_model::{
    EndpointSlice, EndpointSlicePort, NamedProtocol, NamespacedName, Service, ServicePort, TrafficPolicy, Update,
    parse_address,
};

use crate::object::{Contributions, Object};
use crate::scalar;
use crate::tree::{Cursor, Map, Sink};

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Reads the fields of a `Service` that the model keeps.
pub(crate) fn service(map: Map<'_, '_>, sink: &mut Sink) -> Service {
    let spec = map.field("spec").and_then(|spec| spec.map(sink));
    let status = map.field("status").and_then(|status| status.map(sink));
    let load_balancer = status.as_ref().and_then(|status| status.field("loadBalancer")?.map(sink));
    let load_balancer_ingress_ips = match &load_balancer {
        Some(balancer) => balancer.list("ingress", sink, |ingress, sink| {
            let ip = ingress.map(sink)?.text_or_empty("ip", sink);
            (!ip.is_empty()).then(|| Arc::from(ip))
        }),
        None => Vec::new(),
    };
    let load_balancer_ingress_ips = load_balancer_ingress_ips.into();
    let Some(spec) = spec else {
        return Service { load_balancer_ingress_ips, ..Service::default() };
    };
    Service {
        service_type: spec.text_or_empty("type", sink).into(),
        cluster_ips: cluster_ips(spec, sink),
        load_balancer_ip: spec.text_or_empty("loadBalancerIP", sink).into(),
        external_ips: scalar::shared_texts(spec, "externalIPs", sink),
        load_balancer_ingress_ips,
        ports: spec.list("ports", sink, service_port).into(),
        internal_traffic_policy: traffic_policy(spec, "internalTrafficPolicy", sink),
        external_traffic_policy: traffic_policy(spec, "externalTrafficPolicy", sink),
    }
}

fn traffic_policy(spec: Map<'_, '_>, name: &str, sink: &mut Sink) -> TrafficPolicy {
    let Some(field) = spec.field(name) else { return TrafficPolicy::Cluster };
    match field.text(sink) {
        Some("Local") => TrafficPolicy::Local,
        None | Some("" | "Cluster") => TrafficPolicy::Cluster,
        Some(other) => {
            field.warn(sink, format!("`{other}` is none of Cluster, Local; it is read as Cluster"));
            TrafficPolicy::Cluster
        }
    }
}

/// Returns the cluster addresses. The API server makes each of the two fields of the other one.
fn cluster_ips(spec: Map<'_, '_>, sink: &mut Sink) -> Box<[Arc<str>]> {
    let all = scalar::shared_texts(spec, "clusterIPs", sink);
    let first = spec.text_or_empty("clusterIP", sink);
    if all.is_empty() && !first.is_empty() { [first.into()].into() } else { all }
}

fn service_port(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<ServicePort> {
    let map = cursor.map(sink)?;
    let mut port = |name: &str| map.field(name).map_or(Some(0), |port| port.int(0, 65535, sink));
    let (number, node_port) = (port("port")?, port("nodePort")?);
    // The API server fills in TCP for an absent protocol.
    let protocol = map.text("protocol", sink).filter(|p| !p.is_empty()).unwrap_or("TCP");
    let name = map.text_or_empty("name", sink);
    Some(ServicePort { name: name.into(), protocol: protocol.into(), port: number, node_port })
}

/// Reads the fields of an `EndpointSlice` of `discovery.k8s.io/v1` that the model keeps. Policies
/// match endpoints whether or not they are ready, as in Felix
/// (`felix/serviceindex/serviceindex.go`); connections to the Service go to those that are.
pub(crate) fn endpoint_slice(namespace: &str, map: Map<'_, '_>, sink: &mut Sink) -> EndpointSlice {
    let metadata = map.field("metadata").and_then(|metadata| metadata.map(sink));
    let labels = match &metadata {
        Some(metadata) => metadata.field("labels").map(|labels| labels.text_map(sink)).unwrap_or_default(),
        None => Vec::new(),
    };
    let service = labels.iter().find(|(name, _)| *name == SERVICE_NAME).map(|(_, service)| *service);
    let (mut addresses, mut not_ready, mut draining): (Vec<IpAddr>, Vec<IpAddr>, Vec<IpAddr>) = Default::default();
    let mut ready: HashSet<IpAddr> = HashSet::new();
    map.list("endpoints", sink, |endpoint, sink| {
        let endpoint = endpoint.map(sink)?;
        // Slices may contain host names, which are no IP set members.
        let texts = endpoint.texts("addresses", sink);
        let own = || texts.iter().filter_map(|text| parse_address(text));
        addresses.extend(own());
        let conditions = endpoint.field("conditions").and_then(|conditions| conditions.map(sink));
        // A condition that is absent is met, except for termination.
        let mut is_met = |name: &str| conditions.is_none_or(|all| all.field(name).is_none() || all.flag(name, sink));
        if is_met("ready") {
            ready.extend(own());
        } else {
            not_ready.extend(own());
            let is_serving = is_met("serving");
            let is_terminating = conditions.is_some_and(|conditions| conditions.flag("terminating", sink));
            draining.extend(own().filter(|_| is_serving && is_terminating));
        }
        Some(())
    });
    // One ready endpoint of several with an address suffices.
    not_ready.retain(|address| !ready.contains(address));
    draining.retain(|address| !ready.contains(address));
    EndpointSlice {
        service: service.map(|service| NamespacedName::new(namespace, service)),
        addresses: addresses.into(),
        ports: map.list("ports", sink, slice_port).into(),
        not_ready: not_ready.into(),
        draining: draining.into(),
    }
}

pub(super) fn slice_port(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<EndpointSlicePort> {
    let map = cursor.map(sink)?;
    let protocol = match map.text("protocol", sink) {
        Some("UDP") => NamedProtocol::Udp,
        Some("SCTP") => NamedProtocol::Sctp,
        _ => NamedProtocol::Tcp,
    };
    let port = match map.field("port") {
        Some(port) => Some(port.int(0, 65535, sink)?),
        None => None,
    };
    let name = map.text("name", sink).unwrap_or_default().into();
    Some(EndpointSlicePort { name, protocol, port })
}

/// Converts a `Service`.
pub(crate) fn service_resource(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    let mut value = service(object.map, sink);
    if value.service_type.is_empty() {
        // This is the default of the API server.
        value.service_type = "ClusterIP".into();
    }
    Some(vec![Update::Service(name_of(object), Some(value.into()))])
}

/// Bound on the pairs of address and port of one object: each becomes a member of an IP set. Slices
/// that the control plane writes have at most 1,000 endpoints of 100 ports.
const MAX_SLICE_MEMBERS: usize = 100_000;

/// Converts an `EndpointSlice`.
pub(crate) fn endpoint_slice_resource(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    let value = endpoint_slice(&object.id.namespace, object.map, sink);
    is_within_bound(object, [&value], sink).then(|| vec![Update::EndpointSlice(name_of(object), Some(value.into()))])
}

/// Reports whether the slices of an object have a permitted number of members in total; if not, it
/// is an error.
pub(super) fn is_within_bound<'s>(
    object: &Object<'_, '_>,
    slices: impl IntoIterator<Item = &'s EndpointSlice>,
    sink: &mut Sink,
) -> bool {
    // Without ports, addresses are members of the sets without ports.
    let members = slices.into_iter().map(|slice| slice.addresses.len().saturating_mul(slice.ports.len().max(1)));
    let members = members.fold(0, usize::saturating_add);
    if members > MAX_SLICE_MEMBERS {
        let message = format!("has {members} pairs of address and port; at most {MAX_SLICE_MEMBERS} are allowed");
        object.root.error(sink, message);
    }
    members <= MAX_SLICE_MEMBERS
}

pub(super) fn name_of(object: &Object<'_, '_>) -> NamespacedName {
    NamespacedName::new(Arc::clone(&object.id.namespace), Arc::clone(&object.id.name))
}
