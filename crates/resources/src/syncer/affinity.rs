//! Affinities of nodes to IPAM blocks (`libcalico-go/lib/backend/model/block_affinity.go`).

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tortie_model::{Cidr, SyncerObject, Update};

use crate::object::{Kind, Object, ObjectId, Outcome, Resource};
use crate::tree::{Cursor, Map, Sink, parse_json};
use crate::{Position, scalar};

/// Prefix of the paths of all affinities of nodes in etcd.
pub const AFFINITIES: &str = "/calico/ipam/v2/host/";

/// Returns the identity of the affinity at a path; `None` for other paths. etcd stores affinities
/// beside the resources of `projectcalico.org/v3`.
#[must_use]
pub fn affinity_id(path: &str) -> Option<ObjectId> {
    let name = path.strip_prefix(AFFINITIES)?;
    let (host, block) = name.split_once('/')?;
    let (version, net) = block.split_once("/block/")?;
    let cidr: Cidr = net.replacen('-', "/", 1).parse().ok()?;
    let named = path_of("host", host, cidr) == path && version == format!("ipv{}", cidr.family().number());
    (named && !host.is_empty()).then(|| ObjectId { kind: Kind::BlockAffinity, namespace: "".into(), name: name.into() })
}

fn path_of(affinity_type: &str, host: &str, cidr: Cidr) -> String {
    let net = cidr.masked().to_string().replacen('/', "-", 1);
    format!("/calico/ipam/v2/{affinity_type}/{host}/ipv{}/block/{net}", cidr.family().number())
}

fn value_of(state: &str, deleted: bool) -> Json {
    json!({"state": state, "deleted": deleted})
}

/// Reads an affinity from its text at this path in etcd. An empty text comes from a release without
/// values.
#[must_use]
pub fn read_affinity(path: &str, text: &str) -> Resource {
    let mut sink = Sink::default();
    let text = if text.is_empty() { "{}" } else { text };
    let value = match parse_json(text) {
        Ok(node) => Cursor::root(&node).map(&mut sink).map(|map| {
            let state = state(map, &mut sink);
            value_of(state, map.flag("deleted", &mut sink))
        }),
        Err(error) => return Resource { id: affinity_id(path), ..Resource::unreadable(path, error) },
    };
    let outcome = match value {
        Some(value) if !sink.has_errors() => {
            let object = SyncerObject { text: value.to_string().into(), resource_version: "".into() };
            Outcome::Valid(vec![Update::SyncerObject(path.into(), Some(Arc::new(object)))])
        }
        _ => Outcome::Invalid { substitute: None },
    };
    let (id, subject) = (affinity_id(path), path.to_owned());
    Resource { id, subject, position: Position::default(), outcome, problems: sink.problems.into_list() }
}

fn state<'n>(map: Map<'n, '_>, sink: &mut Sink) -> &'n str {
    let Some(field) = map.field("state") else { return "" };
    let state = field.text(sink).unwrap_or_default();
    if !matches!(state, "" | "confirmed" | "pending" | "pendingDeletion") {
        field.error(sink, format!("`{state}` is none of confirmed, pending, pendingDeletion"));
    }
    state
}

/// Returns the path and the value of an affinity of the API server; the inner `None` means that it
/// is being deleted (`libcalico-go/lib/backend/k8s/resources/ipam_affinity_v1.go`).
pub(super) fn block_affinity(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Option<(String, Json)>> {
    let spec = object.required_spec(sink)?;
    spec.known(&["state", "node", "type", "cidr", "deleted"], sink);
    let host = spec.text_or_empty("node", sink);
    if host.is_empty() {
        spec.missing("node", sink);
    }
    let affinity_type = match spec.text_or_empty("type", sink) {
        "" => "host",
        known @ ("host" | "virtual") => known,
        other => {
            spec.error(sink, format!("type: `{other}` is neither host nor virtual"));
            "host"
        }
    };
    let state = state(spec, sink);
    // The field is a string in `crd.projectcalico.org/v1`.
    let deleted = spec.field("deleted").is_some_and(|field| match scalar::plain_text(field, sink).as_deref() {
        Some("true" | "1" | "t" | "T" | "TRUE" | "True") => true,
        Some("" | "false" | "0" | "f" | "F" | "FALSE" | "False") | None => false,
        Some(other) => {
            field.error(sink, format!("`{other}` is neither true nor false"));
            false
        }
    });
    let Some(cidr) = spec.field("cidr") else {
        spec.missing("cidr", sink);
        return None;
    };
    let cidr = scalar::cidr(cidr, sink)?;
    Some((!deleted).then(|| (path_of(affinity_type, host, cidr), value_of(state, false))))
}
