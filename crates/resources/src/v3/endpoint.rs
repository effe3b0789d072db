//! Host endpoints and workload endpoints as resources.

use std::net::IpAddr;

use tortie_model::{
    AddressSource, AdminState, Cidr, EndpointPort, Family, HostEndpoint, HostEndpointKey, HostEndpointName,
    HostInterface, Hostname, InterfaceName, Interner, NatMapping, ProfileName, Protocol, Update, WorkloadEndpoint,
    WorkloadEndpointKey, WorkloadExtras,
};

use crate::object::reserved::{NAMESPACE_LABEL, ORCHESTRATOR_LABEL, SERVICE_ACCOUNT_LABEL};
use crate::object::{Contributions, Object};
use crate::scalar::{self, Spelling};
use crate::tree::{Cursor, Map, Sink};

const DSCP_ANNOTATION: &str = "qos.projectcalico.org/dscp";

/// Converts a `HostEndpoint`.
pub(crate) fn host_endpoint(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    let spec = object.required_spec(sink)?;
    spec.known(&["node", "interfaceName", "expectedIPs", "profiles", "ports"], sink);
    let node = required(spec, "node", sink)?;
    let addresses: Vec<IpAddr> = spec.list("expectedIPs", sink, scalar::address);
    let iface = spec.field("interfaceName").and_then(|field| {
        let name = field.text(sink)?;
        let interface = if name == "*" { Some(HostInterface::All) } else { interface(name).map(HostInterface::Named) };
        if interface.is_none() {
            field.error(sink, format!("`{name}` is not the name of an interface, nor `*`"));
        }
        interface
    });
    if spec.field("interfaceName").is_none() && addresses.is_empty() {
        spec.error(sink, "must give an interface or expected addresses");
    }
    let (v4, v6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv4);
    let endpoint = HostEndpoint {
        iface,
        expected_ipv4: v4.into(),
        expected_ipv6: v6.into(),
        labels: scalar::interned(&object.root, object.meta.labels.iter().copied(), labels, sink),
        profiles: spec.texts("profiles", sink).into_iter().map(ProfileName::from).collect(),
        ports: spec.list("ports", sink, |port, sink| named_port(port, &["name", "protocol", "port"], sink)).into(),
        dscp: object.meta.annotation(DSCP_ANNOTATION).and_then(|text| {
            let value = scalar::parse_dscp(text);
            if value.is_none() {
                object.root.warn(sink, format!("annotation {DSCP_ANNOTATION}: `{text}` is not a DSCP value"));
            }
            value
        }),
    };
    let key = HostEndpointKey {
        host: Hostname::from(node),
        name: HostEndpointName::new(std::sync::Arc::clone(&object.id.name)),
    };
    Some(vec![Update::HostEndpoint(key, Some(object.root.valid(endpoint, sink)?))])
}

fn required<'n>(spec: Map<'n, '_>, name: &str, sink: &mut Sink) -> Option<&'n str> {
    let Some(field) = spec.field(name) else {
        spec.missing(name, sink);
        return None;
    };
    let text = field.text(sink)?;
    if text.is_empty() {
        field.error(sink, "must not be empty");
    }
    Some(text)
}

/// Returns the interface of a name that Calico's API accepts.
fn interface(name: &str) -> Option<InterfaceName> {
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    name.parse().ok().filter(|_| is_plain)
}

fn workload_interface(spec: Map<'_, '_>, sink: &mut Sink) -> Option<InterfaceName> {
    let name = required(spec, "interfaceName", sink).filter(|name| !name.is_empty())?;
    let interface = interface(name);
    if interface.is_none()
        && let Some(field) = spec.field("interfaceName")
    {
        field.error(sink, format!("`{name}` is not the name of an interface"));
    }
    interface
}

/// Reads an address of a workload, which may not be a wider network.
fn single_address(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<Cidr> {
    let net = scalar::cidr(cursor, sink)?.masked();
    if net != Cidr::host(net.address()) {
        cursor.error(sink, format!("{net} is more than one address"));
    }
    Some(net)
}

/// Reads a port with a name; a port without a name has another purpose and is left out.
fn named_port(cursor: Cursor<'_, '_>, fields: &[&str], sink: &mut Sink) -> Option<EndpointPort> {
    let map = cursor.map(sink)?;
    map.known(fields, sink);
    let name = map.text_or_empty("name", sink);
    let protocol = match map.field("protocol") {
        Some(field) => {
            let protocol = scalar::protocol(Spelling::Resource, field, sink)?;
            if !matches!(protocol, Protocol::Named(_)) || !protocol.supports_ports() {
                field.error(sink, "must be TCP, UDP or SCTP");
            }
            protocol
        }
        None => {
            map.missing("protocol", sink);
            return None;
        }
    };
    let Some(port) = map.field("port") else {
        map.missing("port", sink);
        return None;
    };
    let port = port.int(1, 65535, sink)?;
    if let Some(address) = map.field("hostIP").filter(|ip| ip.text(sink).is_some_and(|text| !text.is_empty())) {
        scalar::address(address, sink);
    }
    if name.is_empty() {
        if map.field("hostPort").is_none() {
            map.warn(sink, "has no effect without a name");
        }
        return None;
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    if name.len() > 128 || !name.bytes().all(plain) {
        map.error(sink, format!("`{name}` is not the name of a port"));
    }
    Some(EndpointPort { name: name.into(), protocol, port })
}

const WORKLOAD_FIELDS: [&str; 17] = [
    "orchestrator",
    "workload",
    "node",
    "containerID",
    "pod",
    "endpoint",
    "serviceAccountName",
    "ipNetworks",
    "ipNATs",
    "ipv4Gateway",
    "ipv6Gateway",
    "profiles",
    "interfaceName",
    "mac",
    "ports",
    "allowSpoofedSourcePrefixes",
    "qosControls",
];

/// Converts a `WorkloadEndpoint`; without addresses it contributes nothing.
pub(crate) fn workload_endpoint(
    object: &Object<'_, '_>,
    labels: &mut Interner,
    sink: &mut Sink,
) -> Option<Contributions> {
    let spec = object.required_spec(sink)?;
    spec.known(&WORKLOAD_FIELDS, sink);
    let namespace = &*object.id.namespace;
    let Some([node, orchestrator, workload, endpoint]) = name_parts(&object.id.name) else {
        object
            .root
            .error(sink, "the name must be node-orchestrator-workload-endpoint, a `-` within a part written twice");
        return None;
    };
    check_parts(spec, [("node", &node), ("orchestrator", &orchestrator), ("endpoint", &endpoint)], sink);
    for (name, family) in [("ipv4Gateway", Family::V4), ("ipv6Gateway", Family::V6)] {
        if let Some(field) = spec.field(name) {
            scalar::address_of(family, field, sink);
        }
    }
    let iface = workload_interface(spec, sink);
    let nets: Vec<Cidr> = spec.list("ipNetworks", sink, single_address);
    let nats = spec.list("ipNATs", sink, |field, sink| {
        let nat = nat(field, sink)?;
        if !nets.iter().any(|net| net.contains(nat.internal)) {
            field.error(sink, format!("{} is no address of the endpoint", nat.internal));
        }
        Some(nat)
    });
    let account = spec.text_or_empty("serviceAccountName", sink);
    let mut pairs = object.meta.labels.clone();
    pairs.extend([(NAMESPACE_LABEL, namespace), (ORCHESTRATOR_LABEL, &*orchestrator)]);
    if !account.is_empty() {
        pairs.push((SERVICE_ACCOUNT_LABEL, account));
    }
    let extras = extras(object, spec, &nats, sink);
    let value = WorkloadEndpoint {
        state: AdminState::Active,
        iface,
        mac: spec.field("mac").and_then(|mac| scalar::mac(mac, sink)),
        profiles: spec.texts("profiles", sink).into_iter().map(ProfileName::from).collect(),
        ipv4_nets: nets.iter().copied().filter(|net| net.family() == Family::V4).collect(),
        ipv6_nets: nets.iter().copied().filter(|net| net.family() == Family::V6).collect(),
        labels: scalar::interned(&object.root, pairs, labels, sink),
        ports: spec
            .list("ports", sink, |port, sink| {
                named_port(port, &["name", "protocol", "port", "hostPort", "hostIP"], sink)
            })
            .into(),
        generate_name: object.meta.generate_name.map(Into::into),
        extras: (extras != WorkloadExtras::default()).then(|| Box::new(extras)),
    };
    if nets.is_empty() {
        return Some(Vec::new());
    }
    let key = WorkloadEndpointKey::new(&node, &orchestrator, &format!("{namespace}/{workload}"), &endpoint);
    Some(vec![Update::WorkloadEndpoint(key, Some(object.root.valid(value, sink)?))])
}

/// Checks the fields that are also part of the object's name.
fn check_parts(spec: Map<'_, '_>, parts: [(&str, &str); 3], sink: &mut Sink) {
    for (name, expected) in parts {
        if let Some(field) = spec.field(name)
            && let Some(text) = field.text(sink)
            && text != expected
        {
            field.error(sink, format!("is `{text}`, but the name of the object says `{expected}`"));
        }
    }
}

fn extras(object: &Object<'_, '_>, spec: Map<'_, '_>, nats: &[NatMapping], sink: &mut Sink) -> WorkloadExtras {
    let family = |v4: bool| nats.iter().copied().filter(|nat| nat.internal.is_ipv4() == v4).collect();
    WorkloadExtras {
        ipv4_nat: family(true),
        ipv6_nat: family(false),
        allowed_source_prefixes: spec
            .list("allowSpoofedSourcePrefixes", sink, |net, sink| scalar::cidr(net, sink).map(Cidr::masked))
            .into(),
        qos: super::qos(spec, sink),
        address_source: AddressSource::Platform,
        annotations: {
            let mut annotations = object.meta.annotations.clone();
            annotations.sort_unstable();
            annotations.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
        },
    }
}

/// Splits a name at single hyphens; a doubled hyphen is a hyphen of the part.
fn name_parts(name: &str) -> Option<[String; 4]> {
    let mut parts = vec![String::new()];
    let mut letters = name.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '-' && letters.next_if_eq(&'-').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
    }
    let parts: [String; 4] = parts.try_into().ok()?;
    parts.iter().all(|part| !part.is_empty()).then_some(parts)
}

fn nat(cursor: Cursor<'_, '_>, sink: &mut Sink) -> Option<NatMapping> {
    let map = cursor.map(sink)?;
    map.known(&["internalIP", "externalIP"], sink);
    let mut address = |name: &str| match map.field(name) {
        Some(field) => scalar::address(field, sink),
        None => {
            map.missing(name, sink);
            None
        }
    };
    Some(NatMapping { internal: address("internalIP")?, external: address("externalIP")? })
}
