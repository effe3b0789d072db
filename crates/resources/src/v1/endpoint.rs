//! Workload endpoints, host endpoints and network sets.

use std::sync::Arc;

use tortie_model::{
    AddressSource, AdminState, Cidr, EndpointPort, Family, HostEndpoint, HostInterface, Interner, InvalidName, Labels,
    NatMapping, NetworkSet, WorkloadEndpoint, WorkloadExtras,
};

use super::profile_names;
use crate::object::Kind;
use crate::object::reserved::{NAMESPACE_LABEL, is_inherited, is_reserved};
use crate::scalar::{self, Spelling};
use crate::tree::{Cursor, Map, Sink};
use crate::v3::qos;

pub(super) fn workload_endpoint(
    root: &Cursor<'_, '_>,
    map: Map<'_, '_>,
    labels: &mut Interner,
    sink: &mut Sink,
) -> WorkloadEndpoint {
    for (name, family) in [("ipv4_gateway", Family::V4), ("ipv6_gateway", Family::V6)] {
        if let Some(gateway) = map.field(name) {
            scalar::address_of(family, gateway, sink);
        }
    }
    let extras = WorkloadExtras {
        ipv4_nat: map.list("ipv4_nat", sink, nat).into(),
        ipv6_nat: map.list("ipv6_nat", sink, nat).into(),
        allowed_source_prefixes: map.list("allow_spoofed_source_ips", sink, scalar::cidr).into(),
        annotations: scalar::sorted_pairs(map, "annotations", sink).into_iter().collect(),
        qos: qos(map, sink),
        address_source: map
            .text("addresses_claimed_by", sink)
            .map_or(AddressSource::Platform, |annotation| AddressSource::Annotation(annotation.into())),
    };
    let name = map.text_or_empty("name", sink);
    let endpoint = WorkloadEndpoint {
        // Felix accepts only this word for "up" (`felix/dataplane/linux/endpoint_mgr.go`).
        state: match map.text("state", sink) {
            Some("active") => AdminState::Active,
            _ => AdminState::Inactive,
        },
        // As in Felix, an endpoint without a usable name counts: otherwise its addresses would be
        // missing from IP sets of all nodes, and a rule that denies them would open.
        iface: name.parse().ok(),
        mac: map.field("mac").and_then(|mac| scalar::mac(mac, sink)),
        profiles: profile_names(map, "profile_ids", sink),
        ipv4_nets: map.list("ipv4_nets", sink, |net, sink| net_of(Family::V4, net, sink)).into(),
        ipv6_nets: map.list("ipv6_nets", sink, |net, sink| net_of(Family::V6, net, sink)).into(),
        labels: labels_of(root, map, labels, sink, |name, _| !is_inherited(name)),
        ports: map.list("ports", sink, port).into(),
        generate_name: map.text("generate_name", sink).filter(|name| !name.is_empty()).map(Arc::from),
        extras: (extras != WorkloadExtras::default()).then(|| Box::new(extras)),
    };
    // This check is last, because other problems are more informative.
    if name.is_empty() && !sink.has_errors() {
        root.error(sink, "name: a workload endpoint needs an interface");
    }
    endpoint
}

pub(super) fn host_endpoint(
    root: &Cursor<'_, '_>,
    map: Map<'_, '_>,
    labels: &mut Interner,
    sink: &mut Sink,
) -> HostEndpoint {
    HostEndpoint {
        iface: host_interface(map, sink),
        expected_ipv4: map.list("expected_ipv4_addrs", sink, |a, sink| scalar::address_of(Family::V4, a, sink)).into(),
        expected_ipv6: map.list("expected_ipv6_addrs", sink, |a, sink| scalar::address_of(Family::V6, a, sink)).into(),
        labels: labels_of(root, map, labels, sink, |name, _| !is_reserved(Kind::HostEndpoint, name)),
        profiles: profile_names(map, "profile_ids", sink),
        ports: map.list("ports", sink, port).into(),
        dscp: qos(map, sink).and_then(|qos| qos.dscp),
    }
}

/// Reads a network set. `key` is its name, with its namespace before a slash if it has one.
pub(super) fn network_set(
    key: &str,
    root: &Cursor<'_, '_>,
    map: Map<'_, '_>,
    labels: &mut Interner,
    sink: &mut Sink,
) -> NetworkSet {
    NetworkSet {
        nets: map.list("nets", sink, scalar::cidr).into(),
        labels: labels_of(root, map, labels, sink, |name, value| match key.split_once('/') {
            Some((namespace, _)) => {
                (name == NAMESPACE_LABEL && value == namespace) || !is_reserved(Kind::NetworkSet, name)
            }
            None => !is_reserved(Kind::GlobalNetworkSet, name),
        }),
        profiles: profile_names(map, "profile_ids", sink),
        domains: scalar::domains(map, "allowedEgressDomains", sink),
    }
}

/// Reads the labels that `keep` accepts. Typha sends all labels of users, including reserved ones.
fn labels_of(
    root: &Cursor<'_, '_>,
    map: Map<'_, '_>,
    interner: &mut Interner,
    sink: &mut Sink,
    keep: impl Fn(&str, &str) -> bool,
) -> Labels {
    let mut pairs = map.field("labels").map(|labels| labels.text_map(sink)).unwrap_or_default();
    pairs.retain(|(name, value)| keep(name, value));
    scalar::interned(root, pairs, interner, sink)
}

fn host_interface(map: Map<'_, '_>, sink: &mut Sink) -> Option<HostInterface> {
    let field = map.field("name")?;
    let name = field.text(sink).filter(|name| !name.is_empty())?;
    name.parse().inspect_err(|error: &InvalidName| field.error(sink, error.to_string())).ok()
}

fn net_of(family: Family, cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Cidr> {
    let net = scalar::cidr(cursor, sink)?;
    if net.family() == family {
        return Some(net);
    }
    cursor.error(sink, format!("`{net}` is not an IPv{} network", family.number()));
    None
}

fn port(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<EndpointPort> {
    let map = cursor.map(sink)?;
    let name: Arc<str> = map.text_or_empty("name", sink).into();
    let protocol = match map.field("protocol") {
        Some(protocol) => scalar::protocol(Spelling::Lower, protocol, sink)?,
        None => {
            map.missing("protocol", sink);
            return None;
        }
    };
    let port = map.field("port").map_or(Some(0), |port| port.int(0, 65535, sink))?;
    Some(EndpointPort { name, protocol, port })
}

fn nat(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<NatMapping> {
    let map = cursor.map(sink)?;
    let mut address = |name: &str| match map.field(name) {
        Some(field) => scalar::address(field, sink),
        None => {
            map.missing(name, sink);
            None
        }
    };
    Some(NatMapping { internal: address("int_ip")?, external: address("ext_ip")? })
}
