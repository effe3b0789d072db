//! Network policies.

use serde_json::{Map as JsonMap, Value as Json, json};
use sha1::{Digest, Sha1};
use tortie_model::{DenyAction, NamedProtocol, PortSpec};

use super::{Conversion, metadata, resource};
use crate::k8s::{self, Peer, PolicyRule, label_selector};
use crate::object::{Kind, Object};
use crate::scalar::resource_protocol_name;
use crate::tree::{Map, Sink};

/// Prefix of the names of policies from Kubernetes, which distinguishes them from those of users.
pub const POLICY_PREFIX: &str = "knp.default.";

/// Annotation that a policy takes over from Kubernetes: its action on denied traffic.
pub const DENY_ACTION: &str = DenyAction::ANNOTATION;

/// Length limit of a resource name.
const MAX_NAME: usize = 253;
/// Length of the kept part of a name that is too long; a hyphen and the hash take the rest.
const KEPT: usize = 200;

/// Returns the name of the policy for the Kubernetes policy `name`: [`POLICY_PREFIX`] and the name.
/// If that is too long, it is the first 200 bytes and the SHA-1 hash of the whole.
#[must_use]
pub fn policy_name(name: &str) -> String {
    let full = format!("{POLICY_PREFIX}{name}");
    if full.len() <= MAX_NAME {
        return full;
    }
    let mut end = KEPT;
    while !full.is_char_boundary(end) {
        end -= 1;
    }
    let kept = full[..end].trim_end_matches(['.', '-']);
    let hash: String = Sha1::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kept}-{hash}")
}

pub(super) fn network_policy(object: &Object<'_, '_>, sink: &mut Sink) -> Conversion {
    const UNUSABLE: Conversion = Conversion::Unusable { substitute: None };
    let Some(spec) = object.map.field("spec") else {
        object.map.missing("spec", sink);
        return UNUSABLE;
    };
    let Some(spec) = spec.map(sink) else { return UNUSABLE };
    spec.known(&["podSelector", "ingress", "egress", "policyTypes"], sink);
    let mut checked = Sink::default();
    // The API server reads an absent selector as an empty one.
    let selector = label_selector::of_pods(spec.field("podSelector"), &mut checked);
    let sound = !checked.has_errors();
    sink.problems.append(std::mem::take(&mut checked.problems));
    if !sound {
        return UNUSABLE;
    }
    let types = k8s::policy_types(spec, &mut checked);
    let known_types = !checked.has_errors();
    sink.problems.append(std::mem::take(&mut checked.problems));

    let mut fields = JsonMap::new();
    fields.insert("tier".into(), "default".into());
    fields.insert("order".into(), k8s::POLICY_ORDER.into());
    fields.insert("selector".into(), selector.into());
    // With unreadable types the policy closes both directions.
    let types = [("Ingress", types.ingress || !known_types), ("Egress", types.egress || !known_types)];
    let types: Vec<Json> = types.into_iter().filter(|(_, governs)| *governs).map(|(name, _)| name.into()).collect();
    fields.insert("types".into(), types.into());
    let namespace = &*object.id.namespace;
    let deny_action = object.deny_action(sink);
    let resource_of = |fields| {
        let mut metadata = metadata(namespace, &policy_name(&object.id.name));
        if let Some(action) = deny_action {
            metadata.insert("annotations".into(), json!({DENY_ACTION: action.as_str()}));
        }
        resource(Kind::NetworkPolicy, metadata, fields)
    };
    if !known_types {
        return Conversion::Unusable { substitute: Some(resource_of(fields)) };
    }
    for (name, peers) in [("ingress", "from"), ("egress", "to")] {
        let rules = rules(spec, name, peers, namespace, sink);
        if !rules.is_empty() {
            fields.insert(name.into(), rules.into());
        }
    }
    Conversion::Resource(resource_of(fields))
}

/// Returns the rules of a list that are valid as a whole.
fn rules(spec: Map<'_, '_>, name: &str, peers_name: &str, namespace: &str, sink: &mut Sink) -> Vec<Json> {
    let mut rules = Vec::new();
    spec.list(name, sink, |rule, sink| {
        // A rule that has lost a peer or port might have lost the only one, and would allow all.
        let mut own = Sink::default();
        let read = PolicyRule::read(rule, peers_name, namespace, &mut own);
        let sound = !own.has_errors();
        sink.problems.append(own.problems);
        let read = read.filter(|_| sound)?;
        if !read.may_expand(rule, sink) {
            return None;
        }
        rules.extend(read.alternatives().map(|(protocol, ports, peer)| write_rule(protocol, ports, peer, peers_name)));
        Some(())
    });
    rules
}

fn write_rule(protocol: Option<NamedProtocol>, ports: &[PortSpec], peer: Option<&Peer>, peers_name: &str) -> Json {
    let mut rule = JsonMap::new();
    rule.insert("action".into(), "Allow".into());
    if let Some(protocol) = protocol {
        rule.insert("protocol".into(), resource_protocol_name(protocol).into());
    }
    let peer = peer.map(write_peer).unwrap_or_default();
    let (source, mut destination) = if peers_name == "from" { (peer, JsonMap::new()) } else { (JsonMap::new(), peer) };
    if !ports.is_empty() {
        destination.insert("ports".into(), ports.iter().map(write_port).collect::<Vec<_>>().into());
    }
    for (name, side) in [("source", source), ("destination", destination)] {
        if !side.is_empty() {
            rule.insert(name.into(), side.into());
        }
    }
    rule.into()
}

fn write_peer(peer: &Peer) -> JsonMap<String, Json> {
    let mut side = JsonMap::new();
    match peer {
        Peer::Pods { pods, namespaces, .. } => {
            side.insert("selector".into(), pods.as_str().into());
            if !namespaces.is_empty() {
                side.insert("namespaceSelector".into(), namespaces.as_str().into());
            }
        }
        Peer::Block { net, except } => {
            side.insert("nets".into(), vec![Json::from(net.to_string())].into());
            if !except.is_empty() {
                let except: Vec<Json> = except.iter().map(|net| net.to_string().into()).collect();
                side.insert("notNets".into(), except.into());
            }
        }
    }
    side
}

/// Writes a port: as a number for a single port, like `api/pkg/lib/numorstring/port.go`.
fn write_port(port: &PortSpec) -> Json {
    match port {
        PortSpec::Range { first, last } if first == last => (*first).into(),
        PortSpec::Range { first, last } => format!("{first}:{last}").into(),
        PortSpec::Named(name) => (&**name).into(),
    }
}
