//! Recorded text of a resource. Pure.

use std::fmt::Write as _;

use serde_json::Value;
use tortie_resources::stored::{
    DEFAULT_ALLOW_PROFILE, ObjectError, ResourceKey, ResourceKind, Revision, from_stored, labelled, strip_metadata,
    to_stored,
};
use tortie_resources::to_v3::{ACCOUNT_PREFIX, NAMESPACE_PREFIX, POLICY_PREFIX};
use tortie_resources::to_yaml;

use crate::state_file::hex_digest;

/// JSON pointer to the label that kube-controllers give to host endpoints that they create for
/// nodes.
const CREATED_BY: &str = "/metadata/labels/projectcalico.org~1created-by";
/// Name prefix of the policies that the `OpenStack` driver creates for security groups.
const SECURITY_GROUP_PREFIX: &str = "ossg.";
/// Longest name that is not shortened, because file names are limited.
const MAX_NAME: usize = 180;

/// Returns the recorded kinds: those that users write. Workload endpoints, nodes, their status and
/// `ClusterInformation` are written by programs to describe the cluster; restoring them would be
/// wrong.
///
/// For Kubernetes, only those of them are recorded that an agent reads
/// (`KubernetesStore::written_kinds`).
pub fn recorded_kinds() -> impl Iterator<Item = ResourceKind> {
    ResourceKind::all().filter(|kind| is_recorded(*kind))
}

fn is_recorded(kind: ResourceKind) -> bool {
    let by_programs = matches!(
        kind,
        ResourceKind::CalicoNodeStatus
            | ResourceKind::ClusterInformation
            | ResourceKind::Node
            | ResourceKind::WorkloadEndpoint
    );
    kind.is_for_people() && !by_programs
}

/// Reports whether a resource of this name belongs to a controller, which would restore or delete
/// it.
fn is_of_a_controller(key: &ResourceKey) -> bool {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| key.name().starts_with(prefix));
    match key.kind() {
        ResourceKind::NetworkPolicy => begins(&[POLICY_PREFIX, SECURITY_GROUP_PREFIX]),
        ResourceKind::Profile => begins(&[NAMESPACE_PREFIX, ACCOUNT_PREFIX]) || key.name() == DEFAULT_ALLOW_PROFILE,
        _ => false,
    }
}

/// Returns the file of a resource, such as `NetworkPolicy/shop/web.yaml`; `None` if it is not
/// recorded. Characters that file names must not contain are percent-encoded (`%2F`).
///
/// ```
/// use tortie_revisions::history::resource_path;
/// use tortie_resources::stored::{ResourceKey, ResourceKind};
///
/// let path = |kind, namespace, name| resource_path(&ResourceKey::new(kind, namespace, name).unwrap());
/// assert_eq!(path(ResourceKind::NetworkPolicy, "shop", "web").as_deref(), Some("NetworkPolicy/shop/web.yaml"));
/// assert_eq!(path(ResourceKind::NetworkPolicy, "..", "a b").as_deref(), Some("NetworkPolicy/%2E./a%20b.yaml"));
/// assert_eq!(path(ResourceKind::Node, "", "worker-1"), None);
/// ```
#[must_use]
pub fn resource_path(key: &ResourceKey) -> Option<String> {
    if !is_recorded(key.kind()) || is_of_a_controller(key) {
        return None;
    }
    let (kind, name) = (key.kind(), file_name(key.name()));
    Some(match key.namespace() {
        "" => format!("{kind}/{name}.yaml"),
        namespace => format!("{kind}/{}/{name}.yaml", file_name(namespace)),
    })
}

fn file_name(name: &str) -> String {
    let mut out = String::new();
    for (at, byte) in name.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && at > 0);
        if is_plain {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    if out.len() > MAX_NAME {
        out.truncate(MAX_NAME - 65);
        out.push('~');
        out.push_str(&hex_digest(name.as_bytes()));
    }
    out
}

/// Returns a resource as a user would write it, in YAML: without fields that the datastore and
/// controllers set, with defaults. `object` is the stored form, or the form that a reader receives.
/// `None` if a controller has created it.
///
/// ```
/// use serde_json::json;
/// use tortie_revisions::history::resource_text;
/// use tortie_resources::stored::{ResourceKey, ResourceKind};
///
/// let key = ResourceKey::new(ResourceKind::GlobalNetworkSet, "", "office")?;
/// let object = json!({"metadata": {"uid": "4f1c", "resourceVersion": "7"}, "spec": {"nets": ["10.0.0.0/8"]}});
/// let text = [
///     "apiVersion: projectcalico.org/v3", "kind: GlobalNetworkSet", "metadata:", "  name: office",
///     "spec:", "  nets:", "  - \"10.0.0.0/8\"", "",
/// ];
/// assert_eq!(resource_text(&key, object)?, Some(text.join("\n")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ObjectError`] if it is no resource of this kind.
pub fn resource_text(key: &ResourceKey, mut object: Value) -> Result<Option<String>, ObjectError> {
    if key.kind() == ResourceKind::HostEndpoint && object.pointer(CREATED_BY).is_some() {
        return Ok(None);
    }
    to_stored(key, &mut object)?;
    let mut object = from_stored(key, object, Revision::default())?;
    labelled(key.kind(), &mut object);
    strip_metadata(&mut object);
    if let Some(whole) = object.as_object_mut() {
        whole.shift_remove("status");
    }
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        // A fixed order, independent of the writer.
        let parts = ["name", "namespace", "labels", "annotations"];
        *metadata = parts.into_iter().filter_map(|part| metadata.remove_entry(part)).collect();
    }
    Ok(Some(to_yaml(&object)))
}

#[cfg(test)]
mod tests;
