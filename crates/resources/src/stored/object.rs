//! Conversion of JSON objects to and from their stored form.

use serde_json::{Map, Value, json};

use crate::object::is_dns_subdomain;

use super::part::{A_MAPPING, ObjectError, TIER_LABEL, part, shape};
use super::{API_VERSION, ResourceKey, ResourceKind, Revision, defaults, form, name_by_spec};

const METADATA_ANNOTATION: &str = "projectcalico.org/metadata";
const A_TEXT: &str = "text";

fn text<'v>(of: &'v Value, name: &str, field: &'static str) -> Result<&'v str, ObjectError> {
    match of.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(value) => value.as_str().ok_or_else(|| shape(field, A_TEXT)),
    }
}

/// Returns the key of an object. A namespaced object without a namespace belongs to `namespace`; a
/// workload endpoint without a name has the one that follows from its `spec`.
///
/// # Errors
/// [`ObjectError`] if kind, namespace or name is missing or invalid, or the kind is not one of
/// Calico's API.
pub fn key_of(object: &Value, namespace: &str) -> Result<ResourceKey, ObjectError> {
    key_among(object, namespace, |api_version, kind| {
        let calico = matches!(api_version, API_VERSION | "crd.projectcalico.org/v1");
        ResourceKind::from_name(kind).filter(|_| calico)
    })
}

/// As [`key_of`], if Kubernetes is the datastore, which also stores its policies.
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
    let name = match text(metadata, "name", "metadata.name")? {
        "" if kind == ResourceKind::WorkloadEndpoint => {
            let spec = object.get("spec").unwrap_or(&Value::Null);
            name_by_spec(|field| spec.get(field).and_then(Value::as_str).unwrap_or_default())?
        }
        name => name.to_owned(),
    };
    Ok(ResourceKey::new(kind, namespace, name)?)
}

/// Returns the version of the resource on which an object is based; `None` if it has none.
///
/// # Errors
/// [`ObjectError::Revision`] if the version is invalid.
pub fn revision_of(object: &Value) -> Result<Option<Revision>, ObjectError> {
    let metadata = object.get("metadata").unwrap_or(&Value::Null);
    match text(metadata, "resourceVersion", "metadata.resourceVersion")? {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| ObjectError::Revision(text.to_owned())),
    }
}

/// Removes from the metadata of a new object all fields except those that users may choose; the
/// datastore sets the others (`prepareMetadataForCreate` of `calicoctl/calicoctl/resourcemgr`).
pub fn strip_metadata(object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.retain(|name, _| matches!(name.as_str(), "name" | "namespace" | "labels" | "annotations"));
    }
}

/// Converts an object to its stored form under this key:
///
/// - `apiVersion`, `kind`, name and namespace are those of the key; fields for readers alone are
///   removed.
/// - Fields with several notations get the one that Calico writes; null and empty fields are
///   removed.
/// - Calico's defaults are filled in (`defaults.rs`).
/// - The name of a policy is also put where older releases look for it.
///
/// All other fields stay unchanged, known or not.
///
/// # Errors
/// [`ObjectError::Shape`] if a part has the wrong type.
pub fn to_stored(key: &ResourceKey, object: &mut Value) -> Result<(), ObjectError> {
    let object = object.as_object_mut().ok_or_else(|| shape("object", A_MAPPING))?;
    // This is the field order of users and API servers.
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
    for field in ["resourceVersion", "selfLink"] {
        metadata.shift_remove(field);
    }
    metadata.retain(|name, value| match name.as_str() {
        "labels" | "annotations" => value.as_object().is_none_or(|texts| !texts.is_empty()) && !value.is_null(),
        _ => !value.is_null(),
    });
    if key.kind().has_tier() {
        let stored_name = json!({"name": key.name()}).to_string();
        part(metadata, "annotations", "metadata.annotations")?.insert(METADATA_ANNOTATION.into(), stored_name.into());
    }
    // Objects of other components stay unchanged in every detail, and the API server normalizes its
    // kinds itself.
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

/// Converts a stored object to the form for readers: with its version, and with the user-visible
/// name of a policy.
///
/// # Errors
/// [`ObjectError`] if it is not a resource of this kind.
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

/// Returns the user-visible name of a policy: that in the annotation, or else that of the path,
/// which leads back to the policy.
fn policy_name(key: &ResourceKey, metadata: &Map<String, Value>) -> String {
    let annotation = metadata.get("annotations").and_then(|annotations| annotations.get(METADATA_ANNOTATION));
    let stored: Option<Value> = annotation.and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    match stored.as_ref().and_then(|stored| stored.get("name")).and_then(Value::as_str) {
        Some(name) if is_dns_subdomain(name) => name.to_owned(),
        _ => key.name().to_owned(),
    }
}

/// Adds the label of the default tier to a policy from before the introduction of the label, as
/// Calico does for readers (`defaultTierLabelIfMissing`).
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
