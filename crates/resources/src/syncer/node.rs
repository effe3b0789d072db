//! Calico's view of a Kubernetes node (`libcalico-go/lib/backend/k8s/resources/node.go`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map as JsonMap, Value as Json, json};
use tortie_model::{Cidr, Family, Mac};

use crate::k8s::{PodNetworks, pod_cidrs};
use crate::object::{BlockSource, Object};
use crate::tree::{Map, Sink};
use crate::v3;

/// Prefix of the annotations with Calico's data of a node.
const CALICO: &str = "projectcalico.org/";

/// Form of a valid annotation.
#[derive(Clone, Copy)]
enum Form {
    /// An address or a network, which may have host bits.
    Cidr(Family),
    /// An address or a network without host bits.
    Network(Family),
    /// A MAC address.
    Mac,
}

impl Form {
    fn has(self, text: &str) -> bool {
        match self {
            Self::Cidr(family) => text.parse::<Cidr>().is_ok_and(|cidr| cidr.family() == family),
            Self::Network(family) => {
                text.parse::<Cidr>().is_ok_and(|cidr| cidr.family() == family && cidr == cidr.masked())
            }
            Self::Mac => text.parse::<Mac>().is_ok(),
        }
    }
}

/// Converts the node to a resource of `projectcalico.org/v3`.
pub(super) fn kubernetes_node(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Json> {
    let mut bgp = JsonMap::new();
    for (field, name, form) in [
        ("ipv4Address", "IPv4Address", Form::Cidr(Family::V4)),
        ("ipv6Address", "IPv6Address", Form::Cidr(Family::V6)),
        ("routeReflectorClusterID", "RouteReflectorClusterID", Form::Network(Family::V4)),
    ] {
        put(&mut bgp, field, checked(object, name, form, sink));
    }
    if let Some(number) = v3::parse_as_number(raw(object, "ASNumber")) {
        bgp.insert("asNumber".into(), number.into());
    }
    let mut spec = JsonMap::new();
    for (field, name, form) in [
        ("ipv4VXLANTunnelAddr", "IPv4VXLANTunnelAddr", Form::Network(Family::V4)),
        ("vxlanTunnelMACAddr", "VXLANTunnelMACAddr", Form::Mac),
        ("ipv6VXLANTunnelAddr", "IPv6VXLANTunnelAddr", Form::Network(Family::V6)),
        ("vxlanTunnelMACAddrV6", "VXLANTunnelMACAddrV6", Form::Mac),
    ] {
        put(&mut spec, field, checked(object, name, form, sink));
    }
    let wireguard = tunnels(object, &mut bgp, sink);
    let addresses = addresses(object, &bgp, sink);
    for (name, part) in [("bgp", bgp), ("wireguard", wireguard)] {
        if !part.is_empty() {
            spec.insert(name.into(), part.into());
        }
    }
    spec.insert("orchRefs".into(), json!([{"nodeName": &*object.id.name, "orchestrator": "k8s"}]));
    if !addresses.is_empty() {
        spec.insert("addresses".into(), addresses.into());
    }
    if let Some(interfaces) = interfaces(raw(object, "Interfaces")) {
        spec.insert("interfaces".into(), interfaces);
    }
    let status = status(object, sink);
    Some(json!({
        "kind": "Node",
        "apiVersion": "projectcalico.org/v3",
        "metadata": metadata(object, sink),
        "spec": spec,
        "status": status,
    }))
}

/// Returns the text of an annotation; empty if it is missing.
fn raw<'n>(object: &Object<'n, '_>, name: &str) -> &'n str {
    object.meta.annotation(&format!("{CALICO}{name}")).unwrap_or_default()
}

/// Returns the text of a valid annotation; empty if it is missing or invalid.
fn checked(object: &Object<'_, '_>, name: &str, form: Form, sink: &mut Sink) -> String {
    let text = raw(object, name);
    if text.is_empty() || form.has(text) {
        return text.to_owned();
    }
    object.root.warn(sink, format!("annotation {CALICO}{name}: `{text}` is not valid; it is not used"));
    String::new()
}

/// Puts the address of the IP-in-IP tunnel into `bgp`, and returns the addresses of `WireGuard`.
fn tunnels(object: &Object<'_, '_>, bgp: &mut JsonMap<String, Json>, sink: &mut Sink) -> JsonMap<String, Json> {
    let mut wireguard = JsonMap::new();
    let tunnel = match object.options.block_source {
        BlockSource::PodCidrs => PodNetworks::of(object, &mut Sink::default()).tunnel,
        BlockSource::Omitted | BlockSource::IpamBlocks => None,
    };
    if let Some(tunnel) = tunnel {
        if !raw(object, "WireguardPublicKey").is_empty() {
            put(&mut wireguard, "interfaceIPv4Address", tunnel.clone());
        }
        put(bgp, "ipv4IPIPTunnelAddr", tunnel);
    } else {
        put(bgp, "ipv4IPIPTunnelAddr", checked(object, "IPv4IPIPTunnelAddr", Form::Network(Family::V4), sink));
        for (field, name, family) in [
            ("interfaceIPv4Address", "IPv4WireguardInterfaceAddr", Family::V4),
            ("interfaceIPv6Address", "IPv6WireguardInterfaceAddr", Family::V6),
        ] {
            put(&mut wireguard, field, checked(object, name, Form::Network(family), sink));
        }
    }
    wireguard
}

fn status(object: &Object<'_, '_>, sink: &mut Sink) -> JsonMap<String, Json> {
    let mut status = JsonMap::new();
    put(&mut status, "wireguardPublicKey", raw(object, "WireguardPublicKey").to_owned());
    put(&mut status, "wireguardPublicKeyV6", raw(object, "WireguardPublicKeyV6").to_owned());
    let own = object.map.field("spec").and_then(|spec| spec.map(sink));
    let pod_cidrs = own.map(|spec| pod_cidrs(spec, sink)).unwrap_or_default();
    if !pod_cidrs.is_empty() {
        status.insert("podCIDRs".into(), pod_cidrs.into());
    }
    status
}

/// Sets a field, unless it is empty.
fn put(map: &mut JsonMap<String, Json>, name: &str, text: String) {
    if !text.is_empty() {
        map.insert(name.into(), text.into());
    }
}

/// Returns the labels and annotations that Calico keeps in annotations. Labels of Kubernetes
/// override these labels. An annotation repeats the labels of Kubernetes, so that a writer of the
/// node can tell them apart.
fn metadata(object: &Object<'_, '_>, sink: &mut Sink) -> Json {
    let mut kept = |name: &str| -> BTreeMap<String, String> {
        let text = raw(object, name);
        if text.is_empty() {
            return BTreeMap::new();
        }
        serde_json::from_str(text).unwrap_or_else(|error| {
            object.root.warn(sink, format!("annotation {CALICO}{name}: {error}; it is not used"));
            BTreeMap::new()
        })
    };
    let own: BTreeMap<&str, &str> = object.meta.labels.iter().copied().collect();
    let mut labels = kept("labels");
    labels.extend(own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let mut annotations = kept("annotations");
    let text = if own.is_empty() { "null".to_owned() } else { json!(own).to_string() };
    annotations.insert(format!("{CALICO}kube-labels"), text);
    let mut metadata = JsonMap::new();
    metadata.insert("name".into(), (&*object.id.name).into());
    let written = object.map.field("metadata").and_then(|metadata| metadata.map(sink));
    for name in ["uid", "creationTimestamp"] {
        let text = written.as_ref().map_or("", |written| Map::text_or_empty(written, name, sink));
        put(&mut metadata, name, text.to_owned());
    }
    if !labels.is_empty() {
        metadata.insert("labels".into(), json!(labels));
    }
    metadata.insert("annotations".into(), json!(annotations));
    metadata.into()
}

/// Returns the BGP addresses of the node and its addresses in Kubernetes.
fn addresses(object: &Object<'_, '_>, bgp: &JsonMap<String, Json>, sink: &mut Sink) -> Vec<Json> {
    let of_bgp = ["ipv4Address", "ipv6Address"].into_iter().filter_map(|name| bgp.get(name));
    let mut addresses: Vec<Json> = of_bgp.map(|address| json!({"address": address, "type": "CalicoNodeIP"})).collect();
    if let Some(status) = object.map.field("status").and_then(|status| status.map(sink)) {
        addresses.extend(status.list("addresses", sink, |address, sink| {
            let map = address.map(sink)?;
            let kind = map.text_or_empty("type", sink);
            let known = matches!(kind, "InternalIP" | "ExternalIP");
            known.then(|| json!({"address": map.text_or_empty("address", sink), "type": kind}))
        }));
    }
    addresses
}

/// Returns the interfaces that the node has found, without invalid addresses.
fn interfaces(text: &str) -> Option<Json> {
    let found: Vec<JsonMap<String, Json>> = serde_json::from_str(text).ok()?;
    let interfaces: Vec<Json> = found
        .into_iter()
        .map(|interface| {
            let name = interface.get("name").and_then(Json::as_str).unwrap_or_default();
            let addresses = interface.get("addresses").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
            let is_address = |address: &&Json| address.as_str().is_some_and(|text| text.parse::<IpAddr>().is_ok());
            let addresses: Vec<&Json> = addresses.iter().filter(is_address).collect();
            json!({"name": name, "addresses": addresses})
        })
        .collect();
    (!interfaces.is_empty()).then(|| interfaces.into())
}
