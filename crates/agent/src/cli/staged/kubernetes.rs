//! Staged policies put in force where Kubernetes is the datastore.
//!
//! What is written is the object of the staged policy with another kind, so that nothing that is in it is lost.

use std::fmt;

use serde_json::{Map, Value, json};
use tortie_datastore::kubernetes::{ApiError, ApiResource, Client};

use super::{Done, StagedKind, StagedName};
use crate::cli::Failure;

/// The annotation in which Calico keeps metadata of its own.
const STORED_METADATA: &str = "projectcalico.org/metadata";

const GROUP: &str = "crd.projectcalico.org";
const VERSION: &str = "v1";
/// What belongs to one object alone.
const OWN: [&str; 8] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "ownerReferences",
    "finalizers",
    "selfLink",
];

/// The kinds of a staged policy and of the one that it becomes.
fn kinds(kind: StagedKind) -> (ApiResource, ApiResource, &'static str) {
    let calico = |plural| ApiResource::new(GROUP, VERSION, plural);
    match kind {
        StagedKind::Calico => (calico("stagednetworkpolicies"), calico("networkpolicies"), "NetworkPolicy"),
        StagedKind::Global => {
            (calico("stagedglobalnetworkpolicies"), calico("globalnetworkpolicies"), "GlobalNetworkPolicy")
        }
        StagedKind::Kubernetes => {
            (calico("stagedkubernetesnetworkpolicies"), ApiResource::NETWORK_POLICIES, "NetworkPolicy")
        }
    }
}

fn failed(what: impl fmt::Display, error: &ApiError) -> Failure {
    Failure::Failed(format!("{what}: {error}"))
}

/// Puts a staged policy in force; says what was done, in order.
pub(super) fn commit(client: &Client, name: &StagedName) -> Result<Vec<Done>, Failure> {
    let (staged_api, enforced_api, enforced_kind) = kinds(name.kind);
    let (staged_name, enforced_name) = (name.staged(), name.enforced());
    let staged = find(client, staged_api, name, &staged_name)?
        .ok_or_else(|| Failure::Failed(format!("{staged_name} does not exist")))?;
    let before = find(client, enforced_api, name, &enforced_name)?;
    let action = staged.pointer("/spec/stagedAction").and_then(Value::as_str).unwrap_or("Set");
    let mut done = Vec::new();
    match (action, before) {
        ("Set", Some(before)) => {
            let object = enforced(&staged, name.kind, enforced_kind, Some(&before));
            if is_same(&before, &object) {
                done.push(Done::new(&enforced_name, "unchanged"));
            } else {
                let written = client.replace(enforced_api, &name.namespace, text(&before, "name"), &object);
                written.map_err(|error| failed(&enforced_name, &error))?;
                done.push(Done::new(&enforced_name, "updated"));
            }
        }
        ("Set", None) => {
            let object = enforced(&staged, name.kind, enforced_kind, None);
            let written = client.create(enforced_api, &name.namespace, &object);
            written.map_err(|error| failed(&enforced_name, &error))?;
            done.push(Done::new(&enforced_name, "created"));
        }
        ("Delete", Some(before)) => {
            delete(client, enforced_api, name, &before).map_err(|error| failed(&enforced_name, &error))?;
            done.push(Done::new(&enforced_name, "deleted"));
        }
        ("Delete", None) => {}
        (other, _) => {
            let why = "only Set and Delete can be put in force";
            return Err(Failure::Failed(format!("{staged_name}: its stagedAction is {other}; {why}")));
        }
    }
    // The one that was read, and no other that took its place in between.
    delete(client, staged_api, name, &staged).map_err(|error| {
        let still = "is in force, but the staged policy could not be deleted";
        failed(format!("{staged_name}: what it says {still}"), &error)
    })?;
    done.push(Done::new(&staged_name, "deleted"));
    Ok(done)
}

fn delete(client: &Client, api: ApiResource, name: &StagedName, object: &Value) -> Result<(), ApiError> {
    let (uid, version) = (text(object, "uid"), text(object, "resourceVersion"));
    client.delete_object(api, &name.namespace, text(object, "name"), uid, Some(version))
}

fn text<'o>(object: &'o Value, field: &str) -> &'o str {
    object.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// The object of a policy of this name. Calico may call it otherwise, and keeps the policy's name in an annotation then.
fn find(client: &Client, api: ApiResource, name: &StagedName, what: &str) -> Result<Option<Value>, Failure> {
    let all = client.list(api, &name.namespace, "").map_err(|error| failed(what, &error))?;
    let mut found = all.into_iter().filter(|object| policy_name(object) == name.name);
    let first = found.next();
    if found.next().is_some() {
        return Err(Failure::Failed(format!("{what}: several objects are called so")));
    }
    Ok(first)
}

/// Calico's own metadata of an object, which it keeps in an annotation.
fn kept(object: &Value) -> Option<Map<String, Value>> {
    let text = object.get("metadata")?.get("annotations")?.get(STORED_METADATA)?.as_str()?;
    serde_json::from_str(text).ok()
}

/// The name that people know. Older releases put the default tier before it, and keep metadata without a name then
/// (`libcalico-go/lib/backend/k8s/resources/resources.go`).
fn policy_name(object: &Value) -> String {
    let name = text(object, "name");
    let Some(kept) = kept(object) else { return name.to_owned() };
    if let Some(kept) = kept.get("name").and_then(Value::as_str).filter(|kept| !kept.is_empty()) {
        return kept.to_owned();
    }
    let tier = object.pointer("/spec/tier").and_then(Value::as_str).unwrap_or_default();
    let rest = name.strip_prefix("default.").filter(|rest| !rest.is_empty() && matches!(tier, "" | "default"));
    rest.unwrap_or(name).to_owned()
}

/// The object of the policy that a staged one becomes, instead of one that is there already.
fn enforced(staged: &Value, kind: StagedKind, enforced_kind: &str, before: Option<&Value>) -> Value {
    let mut spec = staged.get("spec").cloned().unwrap_or_else(|| json!({}));
    if let Some(spec) = spec.as_object_mut() {
        spec.shift_remove("stagedAction");
    }
    let api_version = match kind {
        StagedKind::Kubernetes => "networking.k8s.io/v1".to_owned(),
        StagedKind::Calico | StagedKind::Global => format!("{GROUP}/{VERSION}"),
    };
    json!({
        "apiVersion": api_version,
        "kind": enforced_kind,
        "metadata": metadata(staged, kind, before),
        "spec": spec,
    })
}

fn metadata(staged: &Value, kind: StagedKind, before: Option<&Value>) -> Value {
    let of = |object: &Value| object.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let texts =
        |map: &Map<String, Value>, field: &str| map.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    let own = of(staged);
    let (mut labels, mut annotations) = (texts(&own, "labels"), texts(&own, "annotations"));
    let stored = annotations.shift_remove(STORED_METADATA).and_then(|_| kept(staged));
    match (kind, stored) {
        (StagedKind::Kubernetes, Some(stored)) => {
            labels.extend(texts(&stored, "labels"));
            annotations.extend(texts(&stored, "annotations"));
        }
        (StagedKind::Calico | StagedKind::Global, stored) => {
            let of_before = before.and_then(kept);
            let is_kept = stored.is_some() || of_before.is_some();
            let mut stored = stored.unwrap_or_default();
            stored.retain(|field, _| !OWN.contains(&&**field));
            stored.extend(of_before.unwrap_or_default().into_iter().filter(|(field, _)| OWN.contains(&&**field)));
            // The object that is there may be called otherwise than the staged one.
            stored.insert("name".to_owned(), policy_name(staged).into());
            if is_kept {
                annotations.insert(STORED_METADATA.to_owned(), Value::from(stored).to_string().into());
            }
        }
        (StagedKind::Kubernetes, None) => {}
    }
    let mut metadata = before.map(of).unwrap_or_default();
    metadata.shift_remove("managedFields");
    if before.is_none() {
        let name = match kind {
            StagedKind::Kubernetes => policy_name(staged),
            StagedKind::Calico | StagedKind::Global => text(staged, "name").to_owned(),
        };
        metadata.insert("name".to_owned(), name.into());
        if kind != StagedKind::Global {
            metadata.insert("namespace".to_owned(), text(staged, "namespace").into());
        }
    }
    for (field, texts) in [("labels", labels), ("annotations", annotations)] {
        metadata.shift_remove(field);
        if !texts.is_empty() {
            metadata.insert(field.to_owned(), texts.into());
        }
    }
    metadata.into()
}

/// Whether writing would change nothing.
fn is_same(before: &Value, after: &Value) -> bool {
    let part = |object: &Value, pointer: &str| object.pointer(pointer).cloned().unwrap_or(Value::Null);
    ["/spec", "/metadata/labels", "/metadata/annotations"]
        .iter()
        .all(|pointer| part(before, pointer) == part(after, pointer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_known_by_the_names_that_people_gave_them() {
        let object = |name: &str, tier: &str, kept: Option<&str>| {
            let annotations = kept.map_or_else(|| json!({}), |kept| json!({ STORED_METADATA: kept }));
            json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"tier": tier}})
        };
        for (object, expected) in [
            (object("db", "", None), "db"),
            (object("default.db", "", None), "default.db"),
            (object("default.db", "default", Some("{}")), "db"),
            (object("default.db", "ops", Some("{}")), "default.db"),
            (object("ops.db", "ops", Some(r#"{"name": "db"}"#)), "db"),
            (object("db", "", Some("no JSON")), "db"),
        ] {
            assert_eq!(policy_name(&object), expected, "{object}");
        }
    }
}
