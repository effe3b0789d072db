//! Host endpoints generated for a node (`kube-controllers/pkg/controllers/node/hostendpoints.go`).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tortie_net::{Cidr, parse_address};
use tortie_resources::stored::DEFAULT_ALLOW_PROFILE;

use super::config::{HostEndpointConfig, Template};
use crate::json::field;

/// Label of host endpoints that a controller has created.
const CREATED_BY: &str = "projectcalico.org/created-by";
const CONTROLLER: &str = "calico-kube-controllers";
const SUFFIX: &str = "auto-hep";
/// Length limit of a resource name in Kubernetes.
const MAX_NAME: usize = 253;

/// Reports whether a controller has created a host endpoint.
pub(super) fn is_ours(endpoint: &Value) -> bool {
    field(endpoint, &["metadata", "labels", CREATED_BY]) == CONTROLLER
}

/// Returns the host endpoints of a node by name; none if their creation is disabled.
pub(super) fn wanted(name: &str, node: &Value, config: &HostEndpointConfig) -> BTreeMap<String, Value> {
    let mut wanted = BTreeMap::new();
    if !config.auto_create {
        return wanted;
    }
    let addresses = addresses(node);
    if config.create_default {
        let endpoint_name = bounded(format!("{name}-{SUFFIX}"));
        wanted.insert(endpoint_name, endpoint(name, node, None, &addresses, "*"));
    }
    for template in config.templates.iter().filter(|template| template.selector.matches(&labels(node))) {
        let matching: Vec<String> = addresses
            .iter()
            .filter_map(|text| parse_address(text))
            .filter(|address| template.cidrs.iter().any(|cidr| cidr.contains(*address)))
            .map(|address| address.to_string())
            .collect();
        let Some(pattern) = &template.pattern else {
            // Without an interface, an endpoint is valid only with addresses.
            if !matching.is_empty() {
                let endpoint_name = bounded(format!("{name}-{}-{SUFFIX}", template.generate_name));
                wanted.insert(endpoint_name, endpoint(name, node, Some(template), &matching, ""));
            }
            continue;
        };
        for interface in interfaces(node) {
            let interface_name = field(interface, &["name"]).as_str().unwrap_or_default();
            if interface_name.is_empty() || !pattern.is_match(interface_name) {
                continue;
            }
            let mut all = matching.clone();
            for address in addresses_of(interface) {
                push_new(&mut all, address);
            }
            let endpoint_name = bounded(format!("{name}-{}-{interface_name}-{SUFFIX}", template.generate_name));
            wanted.insert(endpoint_name, endpoint(name, node, Some(template), &all, interface_name));
        }
    }
    wanted
}

fn endpoint(
    node_name: &str,
    node: &Value,
    template: Option<&Template>,
    addresses: &[String],
    interface: &str,
) -> Value {
    let mut all: Map<String, Value> = labels(node).into_iter().map(|(name, value)| (name, value.into())).collect();
    let mut metadata = Map::new();
    if let Some(template) = template {
        all.extend(template.labels.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))));
        if !template.annotations.is_empty() {
            metadata.insert("annotations".into(), json!(template.annotations));
        }
    }
    all.insert(CREATED_BY.into(), CONTROLLER.into());
    metadata.insert("labels".into(), all.into());
    let mut spec = Map::new();
    spec.insert("node".into(), node_name.into());
    if !interface.is_empty() {
        spec.insert("interfaceName".into(), interface.into());
    }
    if !addresses.is_empty() {
        spec.insert("expectedIPs".into(), json!(addresses));
    }
    spec.insert("profiles".into(), json!([DEFAULT_ALLOW_PROFILE]));
    json!({"metadata": metadata, "spec": spec})
}

/// Replaces a name that is too long with its hash.
fn bounded(name: String) -> String {
    if name.len() <= MAX_NAME {
        return name;
    }
    let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(name.as_bytes()));
    let hash: String = hash.chars().filter(|c| !matches!(c, '-' | '_' | '.')).collect();
    format!("{hash}-{SUFFIX}").to_lowercase()
}

fn labels(node: &Value) -> BTreeMap<String, String> {
    let labels = field(node, &["metadata", "labels"]).as_object();
    let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    labels.into_iter().flatten().filter_map(text).collect()
}

fn interfaces(node: &Value) -> &[Value] {
    field(node, &["spec", "interfaces"]).as_array().map_or(&[], Vec::as_slice)
}

fn addresses_of(interface: &Value) -> impl Iterator<Item = String> {
    field(interface, &["addresses"]).as_array().into_iter().flatten().filter_map(Value::as_str).filter_map(address)
}

/// Returns an address or a network unchanged; `None` if the text is neither.
fn address(text: &str) -> Option<String> {
    text.parse::<Cidr>().is_ok().then(|| text.to_owned())
}

fn push_new(addresses: &mut Vec<String>, address: String) {
    if !addresses.contains(&address) {
        addresses.push(address);
    }
}

/// Returns all addresses of a node in the order in which they are written: BGP, tunnels, internal
/// addresses, interfaces.
fn addresses(node: &Value) -> Vec<String> {
    let text = |path: &[&str]| field(node, path).as_str().unwrap_or_default();
    let mut all = Vec::new();
    for path in [["spec", "bgp", "ipv4Address"], ["spec", "bgp", "ipv6Address"]] {
        // These addresses have a prefix length.
        if let Ok(cidr) = text(&path).parse::<Cidr>() {
            push_new(&mut all, cidr.address().to_string());
        }
    }
    let tunnels: [&[&str]; 5] = [
        &["spec", "bgp", "ipv4IPIPTunnelAddr"],
        &["spec", "ipv4VXLANTunnelAddr"],
        &["spec", "ipv6VXLANTunnelAddr"],
        &["spec", "wireguard", "interfaceIPv4Address"],
        &["spec", "wireguard", "interfaceIPv6Address"],
    ];
    let listed = field(node, &["spec", "addresses"]).as_array().into_iter().flatten();
    let internal = listed.filter(|address| field(address, &["type"]) == "InternalIP");
    let internal = internal.filter_map(|entry| field(entry, &["address"]).as_str());
    for text in tunnels.into_iter().map(text).chain(internal) {
        if let Some(address) = address(text) {
            push_new(&mut all, address);
        }
    }
    for address in interfaces(node).iter().flat_map(addresses_of) {
        push_new(&mut all, address);
    }
    all
}

#[cfg(test)]
mod tests;
