//! Calico's resources as custom resources of Kubernetes, `crd.projectcalico.org/v1`. Resources of
//! `projectcalico.org/v3` have their metadata in an annotation, because the metadata of the object
//! belongs to the API server (`libcalico-go/lib/backend/k8s/resources/resources.go`). Entries that
//! etcd stores as texts have separate kinds.
//!
//! ```
//! use serde_json::json;
//! use tortie_resources::custom::{self, AddressKind};
//! use tortie_resources::stored::{ResourceKey, ResourceKind};
//!
//! let key = ResourceKey::new(ResourceKind::HostEndpoint, "", "n1-auto-hep")?;
//! let endpoint = json!({"metadata": {"labels": {"rack": "r1"}}, "spec": {"node": "n1", "interfaceName": "*"}});
//! let object = custom::to_custom(&key, endpoint, None)?;
//! assert_eq!(object["metadata"]["annotations"]["projectcalico.org/metadata"], r#"{"labels":{"rack":"r1"}}"#);
//! assert_eq!(custom::from_custom(&key, object)?["metadata"]["labels"]["rack"], "r1");
//!
//! let block = AddressKind::at("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26");
//! assert_eq!(block, Some((AddressKind::Block, "10-0-0-0-26".into())));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod addresses;

use serde_json::{Map, Value};

use crate::object::{STORED_METADATA, is_dns_subdomain};
use crate::stored::{self, ObjectError, ResourceKey, ResourceKind};
use crate::syncer::convert_uid;

pub use addresses::{AddressError, AddressKind};

/// `apiVersion` of these objects.
pub const API_VERSION: &str = "crd.projectcalico.org/v1";

/// Metadata that the API server sets; it is neither compared nor kept.
const OF_SERVER: [&str; 3] = ["generation", "managedFields", "selfLink"];

/// Field with the time of creation of the object.
const CREATED: &str = "creationTimestamp";

/// Metadata for which the object takes precedence over the annotation.
const OF_OBJECT: [&str; 4] = ["name", "namespace", "resourceVersion", "uid"];

fn mapping(field: &'static str) -> ObjectError {
    ObjectError::Shape { field, expected: "a mapping" }
}

/// Removes and returns a part; a missing or null part is empty.
fn take(of: &mut Map<String, Value>, name: &str, field: &'static str) -> Result<Map<String, Value>, ObjectError> {
    match of.shift_remove(name) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(part)) => Ok(part),
        Some(_) => Err(mapping(field)),
    }
}

/// Returns the resource that a custom resource represents.
///
/// # Errors
/// [`ObjectError::Shape`] if a part has the wrong type.
pub fn from_custom(key: &ResourceKey, mut object: Value) -> Result<Value, ObjectError> {
    let whole = object.as_object_mut().ok_or_else(|| mapping("object"))?;
    let mut own = take(whole, "metadata", "metadata")?;
    own.retain(|name, _| !OF_SERVER.contains(&&**name));
    let is_annotated = own.get("annotations").is_some_and(|annotations| annotations.get(STORED_METADATA).is_some());
    let mut labels = take(&mut own, "labels", "metadata.labels")?;
    let mut annotations = take(&mut own, "annotations", "metadata.annotations")?;
    let mut metadata = match annotations.shift_remove(STORED_METADATA) {
        None => Map::new(),
        Some(text) => {
            let kept = text.as_str().and_then(|text| serde_json::from_str(text).ok());
            let expected = "metadata as JSON in projectcalico.org/metadata";
            kept.ok_or(ObjectError::Shape { field: "metadata.annotations", expected })?
        }
    };
    labels.extend(take(&mut metadata, "labels", "metadata.labels")?);
    annotations.extend(take(&mut metadata, "annotations", "metadata.annotations")?);
    metadata.retain(|name, value| !value.is_null() && !OF_OBJECT.contains(&&**name) && !OF_SERVER.contains(&&**name));
    for (name, value) in own {
        let is_system_field =
            OF_OBJECT.contains(&&*name) || matches!(&*name, "creationTimestamp" | "deletionTimestamp");
        if is_system_field || !is_annotated {
            metadata.entry(name).or_insert(value);
        }
    }
    if let Some(uid) = metadata.get("uid").and_then(Value::as_str).and_then(convert_uid) {
        metadata.insert("uid".into(), uid.into());
    }
    if key.kind().has_tier() {
        // The object may have another name; see `policy_name`.
        metadata.insert("name".into(), key.name().into());
    }
    for (name, texts) in [("labels", labels), ("annotations", annotations)] {
        if !texts.is_empty() {
            metadata.insert(name.into(), texts.into());
        }
    }
    let mut resource = Map::new();
    resource.insert("apiVersion".into(), stored::API_VERSION.into());
    resource.insert("kind".into(), key.kind().as_str().into());
    resource.insert("metadata".into(), metadata.into());
    whole.retain(|name, _| !matches!(name.as_str(), "apiVersion" | "kind"));
    resource.append(whole);
    Ok(resource.into())
}

/// Returns the custom resource for a resource. If it replaces an existing one, it keeps the name of
/// that one, and its labels and annotations as far as they are those of the resource.
///
/// # Errors
/// [`ObjectError::Shape`] if a part has the wrong type.
pub fn to_custom(key: &ResourceKey, mut object: Value, instead_of: Option<&Value>) -> Result<Value, ObjectError> {
    stored::to_stored(key, &mut object)?;
    let whole = object.as_object_mut().ok_or_else(|| mapping("object"))?;
    let mut metadata = take(whole, "metadata", "metadata")?;
    metadata.retain(|name, _| !OF_OBJECT.contains(&&**name) && !OF_SERVER.contains(&&**name));
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.shift_remove(STORED_METADATA);
        if annotations.is_empty() {
            metadata.shift_remove("annotations");
        }
    }
    if key.kind().has_tier() {
        metadata.insert("name".into(), key.name().into());
    }
    let before = |name: &str| instead_of.and_then(|before| before.get("metadata")?.get(name));
    if let Some(annotations) = before("annotations") {
        let kept = annotations.get(STORED_METADATA).and_then(|text| text.as_str());
        let kept = kept.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok()).unwrap_or_default();
        // The creation time of the object suffices; its absence from the annotation is no reason
        // for a write.
        if !kept.contains_key(CREATED) {
            metadata.shift_remove(CREATED);
        }
    }
    let is_ours = |name: &str| name.contains("projectcalico.org/") || name.contains("operator.tigera.io/");
    let ours = |part: &str| -> Map<String, Value> {
        let is_there = |name: &str, value: &Value| before(part).and_then(|texts| texts.get(name)) == Some(value);
        let texts = metadata.get(part).and_then(Value::as_object).into_iter().flatten();
        let texts = texts.filter(|(name, value)| is_ours(name) || is_there(name, value));
        texts.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let (labels, mut annotations) = (ours("labels"), ours("annotations"));
    annotations.insert(STORED_METADATA.into(), Value::from(metadata).to_string().into());
    let mut own = Map::new();
    own.insert("name".into(), before("name").cloned().unwrap_or_else(|| key.name().into()));
    if !key.namespace().is_empty() {
        own.insert("namespace".into(), key.namespace().into());
    }
    for name in ["uid", "resourceVersion", "ownerReferences", "finalizers"] {
        if let Some(value) = before(name) {
            own.insert(name.into(), value.clone());
        }
    }
    if !labels.is_empty() {
        own.insert("labels".into(), labels.into());
    }
    own.insert("annotations".into(), annotations.into());
    let mut custom = Map::new();
    custom.insert("apiVersion".into(), API_VERSION.into());
    let kind = match key.kind() {
        // `getBackingTypeMeta` of `libcalico-go/lib/backend/k8s/resources/ipam_config_v3.go`.
        ResourceKind::IpamConfiguration => ResourceKind::IpamConfig,
        kind => kind,
    };
    custom.insert("kind".into(), kind.as_str().into());
    custom.insert("metadata".into(), own.into());
    whole.retain(|name, _| !matches!(name.as_str(), "apiVersion" | "kind"));
    custom.append(whole);
    Ok(custom.into())
}

/// Returns the resource for an object that is stored in its user-visible form: of
/// `projectcalico.org/v3`, or a Kubernetes kind.
///
/// # Errors
/// [`ObjectError::Shape`] if a part has the wrong type.
pub fn from_plain(key: &ResourceKey, mut object: Value) -> Result<Value, ObjectError> {
    let whole = object.as_object_mut().ok_or_else(|| mapping("object"))?;
    let mut metadata = take(whole, "metadata", "metadata")?;
    metadata.retain(|name, value| !value.is_null() && !OF_SERVER.contains(&&**name));
    let mut resource = Map::new();
    // List items have no kind.
    resource.insert("apiVersion".into(), key.kind().api_version().into());
    resource.insert("kind".into(), key.kind().written().into());
    resource.insert("metadata".into(), metadata.into());
    whole.retain(|name, _| !matches!(name.as_str(), "apiVersion" | "kind"));
    resource.append(whole);
    Ok(resource.into())
}

/// Returns the object to store for a resource in its user-visible form, in place of an existing
/// one.
///
/// # Errors
/// [`ObjectError::Shape`] if a part has the wrong type.
pub fn to_plain(key: &ResourceKey, mut object: Value, instead_of: Option<&Value>) -> Result<Value, ObjectError> {
    stored::to_stored(key, &mut object)?;
    let whole = object.as_object_mut().ok_or_else(|| mapping("object"))?;
    let mut metadata = take(whole, "metadata", "metadata")?;
    metadata.retain(|name, _| !OF_SERVER.contains(&&**name) && !matches!(name.as_str(), "uid" | "creationTimestamp"));
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.shift_remove(STORED_METADATA);
        if annotations.is_empty() {
            metadata.shift_remove("annotations");
        }
    }
    for name in ["uid", "resourceVersion", "ownerReferences", "finalizers"] {
        if let Some(value) = instead_of.and_then(|before| before.get("metadata")?.get(name)) {
            metadata.insert(name.into(), value.clone());
        }
    }
    let mut plain = Map::new();
    for name in ["apiVersion", "kind"] {
        plain.extend(whole.shift_remove_entry(name));
    }
    plain.insert("metadata".into(), metadata.into());
    plain.append(whole);
    Ok(plain.into())
}

/// Returns the user-visible name of a policy from its custom resource of
/// `crd.projectcalico.org/v1`. Older releases put the default tier before it, with metadata without
/// a name in the annotation (`determinePolicyName` of
/// `libcalico-go/lib/backend/k8s/resources/resources.go`).
///
/// ```
/// use serde_json::json;
/// use tortie_resources::custom::policy_name;
///
/// let policy = json!({"metadata": {"name": "default.web", "annotations": {"projectcalico.org/metadata": "{}"}}, "spec": {}});
/// assert_eq!(policy_name(&policy), "web");
/// ```
#[must_use]
pub fn policy_name(object: &Value) -> String {
    let metadata = object.get("metadata");
    let name = metadata.and_then(|metadata| metadata.get("name")).and_then(Value::as_str).unwrap_or_default();
    let kept = metadata.and_then(|metadata| metadata.get("annotations")?.get(STORED_METADATA)?.as_str());
    let Some(kept) = kept.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok()) else {
        return name.to_owned();
    };
    if let Some(kept) = kept.get("name").and_then(Value::as_str).filter(|kept| is_dns_subdomain(kept)) {
        return kept.to_owned();
    }
    let tier = object.pointer("/spec/tier").and_then(Value::as_str).unwrap_or_default();
    let rest = name.strip_prefix("default.").filter(|rest| !rest.is_empty() && matches!(tier, "" | "default"));
    rest.unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests;
