//! Resources as objects in JSON, on their way into the datastore and out of it.

use serde_json::{Map, Value, json};

use crate::object::is_dns_subdomain;

use super::part::{A_MAPPING, ObjectError, TIER_LABEL, part, shape};
use super::{API_VERSION, ResourceKey, ResourceKind, Revision, defaults, form};

const METADATA_ANNOTATION: &str = "projectcalico.org/metadata";
const A_TEXT: &str = "text";

fn text<'v>(of: &'v Value, name: &str, field: &'static str) -> Result<&'v str, ObjectError> {
    match of.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(value) => value.as_str().ok_or_else(|| shape(field, A_TEXT)),
    }
}

/// Which resource an object is. A kind that belongs to a namespace is taken to be in `namespace` where it does not say.
///
/// # Errors
/// [`ObjectError`] if kind, namespace and name cannot be made out, or the kind is of another API than Calico's.
pub fn key_of(object: &Value, namespace: &str) -> Result<ResourceKey, ObjectError> {
    key_among(object, namespace, |api_version, kind| {
        let calico = matches!(api_version, API_VERSION | "crd.projectcalico.org/v1");
        ResourceKind::from_name(kind).filter(|_| calico)
    })
}

/// The same where Kubernetes is the datastore, which keeps policies of its own, too.
///
/// # Errors
/// As [`key_of`].
pub fn key_in_kubernetes(object: &Value, namespace: &str) -> Result<ResourceKey, ObjectError> {
    key_of(object, namespace).or_else(|error| match error {
        ObjectError::Kind { .. } => key_among(object, namespace, |api_version, kind| {
            ResourceKind::of_kubernetes().find(|own| own.api_version() == api_version && own.written() == kind)
        }),
        other => Err(other),
    })
}

fn key_among(
    object: &Value,
    namespace: &str,
    find: impl FnOnce(&str, &str) -> Option<ResourceKind>,
) -> Result<ResourceKey, ObjectError> {
    if !object.is_object() {
        return Err(shape("object", A_MAPPING));
    }
    let (api_version, kind) = (text(object, "apiVersion", "apiVersion")?, text(object, "kind", "kind")?);
    let kind = find(api_version, kind)
        .ok_or_else(|| ObjectError::Kind { api_version: api_version.to_owned(), kind: kind.to_owned() })?;
    let metadata = object.get("metadata").unwrap_or(&Value::Null);
    let own = text(metadata, "namespace", "metadata.namespace")?;
    let namespace = match (kind.is_namespaced(), own) {
        (true, "") => namespace,
        (true, own) => own,
        (false, _) => "",
    };
    Ok(ResourceKey::new(kind, namespace, text(metadata, "name", "metadata.name")?)?)
}

/// The version of the resource that an object is based on; `None` if it does not say.
///
/// # Errors
/// [`ObjectError::Revision`] if it says something else.
pub fn revision_of(object: &Value) -> Result<Option<Revision>, ObjectError> {
    let metadata = object.get("metadata").unwrap_or(&Value::Null);
    match text(metadata, "resourceVersion", "metadata.resourceVersion")? {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| ObjectError::Revision(text.to_owned())),
    }
}

/// Leaves of the metadata of an object that is to be created only what people may choose: everything else is given by
/// the datastore (`prepareMetadataForCreate` of `calicoctl/calicoctl/resourcemgr`).
pub fn strip_metadata(object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.retain(|name, _| matches!(name.as_str(), "name" | "namespace" | "labels" | "annotations"));
    }
}

/// Makes of an object what is kept of it under this key:
///
/// * `apiVersion`, `kind`, name and namespace are those of the key; what only a reader is told is left out;
/// * what can be written in several ways is put into the form in which the original writes it, and what is null or empty
///   is left out;
/// * the original's defaults are filled in (`defaults.rs`);
/// * the name of a policy is also put where older releases look for it.
///
/// Everything else stays as it is, known or not.
///
/// # Errors
/// [`ObjectError::Shape`] if a part is not what it must be.
pub fn to_stored(key: &ResourceKey, object: &mut Value) -> Result<(), ObjectError> {
    let object = object.as_object_mut().ok_or_else(|| shape("object", A_MAPPING))?;
    // The order in which people and API servers write them.
    let mut whole = Map::new();
    whole.insert("apiVersion".into(), key.kind().api_version().into());
    whole.insert("kind".into(), key.kind().written().into());
    object.shift_remove("apiVersion");
    object.shift_remove("kind");
    whole.append(object);
    *object = whole;

    let metadata = part(object, "metadata", "metadata")?;
    metadata.insert("name".into(), key.name().into());
    if key.namespace().is_empty() {
        metadata.shift_remove("namespace");
    } else {
        metadata.insert("namespace".into(), key.namespace().into());
    }
    for told in ["resourceVersion", "selfLink"] {
        metadata.shift_remove(told);
    }
    metadata.retain(|name, value| match name.as_str() {
        "labels" | "annotations" => value.as_object().is_none_or(|texts| !texts.is_empty()) && !value.is_null(),
        _ => !value.is_null(),
    });
    if key.kind().has_tier() {
        let stored_name = json!({"name": key.name()}).to_string();
        part(metadata, "annotations", "metadata.annotations")?.insert(METADATA_ANNOTATION.into(), stored_name.into());
    }
    // Those that only other components write are theirs in every detail, and the API server knows its own.
    if key.kind().is_for_people() && !key.kind().is_of_kubernetes() {
        object.retain(|_, value| !value.is_null());
        form::normalize(key.kind(), "spec", part(object, "spec", "spec")?);
        if let Some(Value::Object(status)) = object.get_mut("status") {
            form::normalize(key.kind(), "status", status);
        }
        defaults::fill_in(key, object)?;
    }
    Ok(())
}

/// Makes of what is kept under a key what a reader is told: with its version, and with the name that a policy has for
/// people.
///
/// # Errors
/// [`ObjectError`] if it is no resource of this kind.
pub fn from_stored(key: &ResourceKey, mut object: Value, revision: Revision) -> Result<Value, ObjectError> {
    let whole = object.as_object_mut().ok_or_else(|| shape("object", A_MAPPING))?;
    let metadata = part(whole, "metadata", "metadata")?;
    if key.kind().has_tier() {
        let name = policy_name(key, metadata);
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.shift_remove(METADATA_ANNOTATION);
            if annotations.is_empty() {
                metadata.shift_remove("annotations");
            }
        }
        metadata.insert("name".into(), name.into());
    }
    metadata.shift_remove("selfLink");
    metadata.insert("resourceVersion".into(), revision.to_string().into());
    Ok(object)
}

/// The name that a policy goes by. That of the path finds it again, so it is left as it is unless the annotation knows
/// better.
fn policy_name(key: &ResourceKey, metadata: &Map<String, Value>) -> String {
    let annotation = metadata.get("annotations").and_then(|annotations| annotations.get(METADATA_ANNOTATION));
    let stored: Option<Value> = annotation.and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    match stored.as_ref().and_then(|stored| stored.get("name")).and_then(Value::as_str) {
        Some(name) if is_dns_subdomain(name) => name.to_owned(),
        _ => key.name().to_owned(),
    }
}

/// Adds the label of the default tier to a policy that was written before policies had the label, as the original does
/// for readers (`defaultTierLabelIfMissing`).
pub fn labelled(kind: ResourceKind, object: &mut Value) {
    if !kind.has_tier() {
        return;
    }
    if let Some(whole) = object.as_object_mut()
        && let Ok(metadata) = part(whole, "metadata", "metadata")
        && let Ok(labels) = part(metadata, "labels", "metadata.labels")
    {
        labels.entry(TIER_LABEL).or_insert_with(|| "default".into());
    }
}
