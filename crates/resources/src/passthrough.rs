//! Objects that are passed on to Felix in the form of Typha (`SerializeValue` of
//! `libcalico-go/lib/backend/model/keys.go`): IPAM blocks, BGP peers, live migrations.
//!
//! The agent calculates routes from blocks, and the relation of endpoints to peers and migrations.

mod meaning;

use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json, json};
use tortie_model::{BgpPeer, Cidr, IpamBlock, LiveMigration, NamespacedName, Update};
use tortie_selector::Selector;

use crate::ipam_block::{BlockFacts, written_block};
use crate::object::{Contributions, Kind, Object, STORED_METADATA};
use crate::scalar;
use crate::tree::{Cursor, Map, Sink};

/// Reads a block in its passed-on form, with checks of all fields whose errors would make Felix
/// ignore it.
pub(crate) fn block(cidr: Cidr, root: &Cursor<'_, '_>, map: Map<'_, '_>, sink: &mut Sink) -> IpamBlock {
    let facts = BlockFacts::read(map, sink);
    match map.field("cidr") {
        Some(field) => {
            let found = scalar::cidr(field, sink).map(Cidr::masked);
            if found.is_some_and(|found| found != cidr.masked()) {
                field.error(sink, format!("is not {cidr}, under which the block is kept"));
            }
        }
        None => map.missing("cidr", sink),
    }
    facts.block(cidr, text_of(root))
}

/// Reads a peer in its passed-on form.
pub(crate) fn bgp_peer(root: &Cursor<'_, '_>, map: Map<'_, '_>, sink: &mut Sink) -> BgpPeer {
    meaning::bgp_peer(map, text_of(root), sink)
}

/// Reads a migration in its passed-on form.
pub(crate) fn live_migration(root: &Cursor<'_, '_>, map: Map<'_, '_>, sink: &mut Sink) -> LiveMigration {
    meaning::live_migration(map, text_of(root), sink)
}

fn text_of(root: &Cursor<'_, '_>) -> Arc<str> {
    Json::from(root.content()).to_string().into()
}

/// Converts an `IPAMBlock` of the API server (`IPAMBlockV3toV1` of
/// `libcalico-go/lib/backend/k8s/resources/ipam_block.go`).
pub(crate) fn ipam_block(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    let spec = object.required_spec(sink)?;
    let facts = BlockFacts::read(spec, sink);
    let Some(field) = spec.field("cidr") else {
        spec.missing("cidr", sink);
        return None;
    };
    let cidr = scalar::cidr(field, sink)?.masked();
    let value = |name: &str| spec.field(name).map(|field| Json::from(field.content()));
    let mut block = JsonMap::new();
    block.insert("cidr".into(), cidr.to_string().into());
    block.insert("affinity".into(), value("affinity").into());
    if let Some(time) = value("affinityClaimTime") {
        block.insert("affinity_claim_time".into(), time);
    }
    for name in ["allocations", "unallocated"] {
        block.insert(name.into(), value(name).into());
    }
    block.insert("attributes".into(), value("attributes").unwrap_or_else(|| json!([])));
    block.insert("sequenceNumber".into(), value("sequenceNumber").unwrap_or_else(|| json!(0)));
    block.insert("sequenceNumberForAllocation".into(), value("sequenceNumberForAllocation").into());
    block.insert("deleted".into(), value("deleted").unwrap_or(Json::Bool(false)));
    Some(vec![written_block(cidr, &facts, &block.into())])
}

/// Passes on a `BGPPeer` or a `LiveMigration` as written, without metadata that changes with each
/// write.
pub(crate) fn resource(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    let spec = object.spec(sink);
    let name = Arc::clone(&object.id.name);
    let spec = spec.and(object.map.field("spec")).map_or_else(|| json!({}), |spec| Json::from(spec.content()));
    let text = written(object.id.kind, &metadata(object), &spec).to_string().into();
    Some(vec![match object.id.kind {
        Kind::BgpPeer => Update::BgpPeer(name, Some(meaning::bgp_peer(object.map, text, sink).into())),
        _ => {
            let name = NamespacedName::new(&*object.id.namespace, &*name);
            Update::LiveMigration(name, Some(meaning::live_migration(object.map, text, sink).into()))
        }
    }])
}

/// Converts a `KubeVirt` `VirtualMachineInstanceMigration` to the `LiveMigration` that Felix uses,
/// while the machine moves or if the move has failed
/// (`libcalico-go/lib/backend/k8s/resources/livemigration.go`).
pub(crate) fn virtual_machine_migration(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    const MOVING: [&str; 6] = ["Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Failed"];
    let part = |name: &'static str, sink: &mut Sink| object.map.field(name).and_then(|part| part.map(sink));
    let machine = part("spec", sink).map_or("", |spec| spec.text_or_empty("vmiName", sink));
    let uid = part("metadata", sink).map_or("", |metadata| metadata.text_or_empty("uid", sink));
    let Some(status) = part("status", sink) else { return Some(Contributions::new()) };
    if machine.is_empty() || uid.is_empty() || !MOVING.contains(&status.text_or_empty("phase", sink)) {
        return Some(Contributions::new());
    }
    // The names are quoted in a selector.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if !machine.bytes().chain(uid.bytes()).all(is_plain) {
        object.root.warn(sink, format!("neither `{machine}` nor `{uid}` may have other characters than names have"));
        return Some(Contributions::new());
    }
    let state = status.field("migrationState").and_then(|state| state.map(sink));
    let source = state.map_or("", |state| state.text_or_empty("sourcePod", sink));
    let id = &object.id;
    let mut spec = JsonMap::new();
    if !source.is_empty() {
        let workload = format!("{}/{source}", id.namespace);
        spec.insert("source".into(), json!({"workload": {"orchestratorID": "k8s", "workloadID": workload}}));
    }
    // Releases of KubeVirt before 1.7 know only the second label.
    let selector = format!(
        "(vmi.kubevirt.io/id == '{machine}' || vm.kubevirt.io/name == '{machine}') && kubevirt.io/migrationJobUID == '{uid}'"
    );
    spec.insert("target".into(), json!({"selector": selector}));
    let target = Selector::parse(&selector)
        .inspect_err(|error| object.root.error(sink, format!("`{selector}` is no selector: {error}")))
        .ok()?;
    let name = NamespacedName::new(&*id.namespace, &*id.name);
    let migration = LiveMigration {
        text: written(Kind::LiveMigration, &metadata(object), &spec.into()).to_string().into(),
        uid: uid.into(),
        source: (!source.is_empty()).then(|| meaning::pod(&id.namespace, source)),
        target: None,
        target_selector: Some(target),
    };
    Some(vec![Update::LiveMigration(name, Some(migration.into()))])
}

/// Returns the metadata of an object without the fields that change with each write.
fn metadata(object: &Object<'_, '_>) -> Json {
    let written = object.map.field("metadata").map(|metadata| Json::from(metadata.content()));
    let Some(Json::Object(mut metadata)) = written else { return json!({}) };
    for field in ["resourceVersion", "managedFields", "generation", "selfLink", "labels", "annotations"] {
        metadata.shift_remove(field);
    }
    let pairs = |pairs: &[(&str, &str)]| -> JsonMap<String, Json> {
        let ours = pairs.iter().filter(|(name, _)| *name != STORED_METADATA);
        ours.map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
    };
    for (name, pairs) in [("labels", pairs(&object.meta.labels)), ("annotations", pairs(&object.meta.annotations))] {
        if !pairs.is_empty() {
            metadata.insert(name.into(), pairs.into());
        }
    }
    metadata.into()
}

/// Returns a resource in the form that Felix reads.
fn written(kind: Kind, metadata: &Json, spec: &Json) -> Json {
    json!({"kind": kind.as_str(), "apiVersion": kind.api_version(), "metadata": metadata, "spec": spec})
}

#[cfg(test)]
mod tests;
