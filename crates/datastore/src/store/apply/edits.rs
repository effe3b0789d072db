//! Changes of a part of an existing resource.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tortie_resources::stored::{ResourceKey, revision_of};

use super::checks::check;
use super::{Applied, ApplyError, refused, replace_this, until_undisturbed};
use crate::store::{ResourceStore, StoreError};

/// Metadata that users change.
const OF_PEOPLE: [&str; 2] = ["labels", "annotations"];

/// Replaces a resource by the result of `edit`, which is called again if another client changes the
/// resource meanwhile. If the returned object has another `metadata.resourceVersion`, only that
/// version is replaced.
///
/// # Errors
/// Those of `edit`; [`StoreError::NotFound`]; [`ApplyError::Refused`] if the identity of the
/// resource changes, or metadata other than labels and annotations; otherwise as
/// [`apply`](super::apply).
pub fn edit(
    store: &dyn ResourceStore,
    key: &ResourceKey,
    edit: impl Fn(&Value) -> Result<Value, ApplyError>,
) -> Result<Applied, ApplyError> {
    until_undisturbed(key, None, || {
        let there = match store.get(key) {
            Ok(there) => there,
            Err(StoreError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let object = edit(&there.object)?;
        check_identity(key, &there.object, &object)?;
        let expected = revision_of(&object).map_err(|error| ApplyError::Object { key: key.clone(), error })?;
        if let Some(expected) = expected.filter(|expected| *expected != there.revision) {
            // A retry is useless, because the resource will not have this version again.
            let found = there.revision;
            let why = format!("metadata.resourceVersion: is {found} by now, and version {expected} was to be changed");
            return Err(refused(key, why));
        }
        check(store, key, &object)?;
        replace_this(store, &there, &object, None).map(Some)
    })
}

/// Checks that it is still the same resource, and only changeable metadata was changed.
fn check_identity(key: &ResourceKey, before: &Value, after: &Value) -> Result<(), ApplyError> {
    for field in ["apiVersion", "kind"] {
        if before.get(field) != after.get(field) {
            return Err(refused(key, format!("{field}: cannot be changed")));
        }
    }
    let empty = Map::new();
    let before = before.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let after = after.get("metadata").and_then(Value::as_object);
    let after = after.ok_or_else(|| refused(key, "metadata: must be a mapping"))?;
    let changed = before.keys().chain(after.keys()).find(|name| {
        !OF_PEOPLE.contains(&name.as_str()) && *name != "resourceVersion" && before.get(*name) != after.get(*name)
    });
    match changed {
        Some(name) => Err(refused(key, format!("metadata.{name}: cannot be changed; labels and annotations can"))),
        None => Ok(()),
    }
}

/// Merges a patch into an object (RFC 7396): fields that are null in the patch are removed,
/// mappings are merged, and all other values are replaced, lists as a whole.
///
/// ```
/// use serde_json::json;
/// use tortie_datastore::store::apply::merge_patch;
///
/// let mut object = json!({"spec": {"order": 1, "types": ["Ingress", "Egress"], "tier": "a"}});
/// merge_patch(&mut object, &json!({"spec": {"order": 2, "types": ["Ingress"], "tier": null}}));
/// assert_eq!(object, json!({"spec": {"order": 2, "types": ["Ingress"]}}));
/// ```
pub fn merge_patch(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        object.clone_from(patch);
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    if let Value::Object(fields) = object {
        for (name, value) in patch {
            if value.is_null() {
                fields.shift_remove(name);
            } else {
                merge_patch(fields.entry(name).or_insert(Value::Null), value);
            }
        }
    }
}

/// Labels to set or, with `None`, to remove.
pub type LabelChange = BTreeMap<String, Option<String>>;

/// A label has another value already, and must not be overwritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata.labels: {name} is `{there}` already")]
#[non_exhaustive]
pub struct LabelError {
    /// The label.
    pub name: String,
    /// The existing value.
    pub there: String,
    /// The requested value.
    pub wanted: String,
}

/// Changes labels of an object. Another existing value is replaced only with `overwrite`.
///
/// # Errors
/// The label that has another value. The object is unchanged then.
pub fn change_labels(object: &mut Value, change: &LabelChange, overwrite: bool) -> Result<(), LabelError> {
    let mut patch = Map::new();
    for (name, value) in change {
        let there = object.get("metadata").and_then(|metadata| metadata.get("labels")?.get(name)?.as_str());
        if let (Some(there), Some(value)) = (there, value)
            && there != value
            && !overwrite
        {
            let (name, there, wanted) = (name.clone(), there.to_owned(), value.clone());
            return Err(LabelError { name, there, wanted });
        }
        patch.insert(name.clone(), json!(value));
    }
    merge_patch(object, &json!({"metadata": {"labels": patch}}));
    Ok(())
}

#[cfg(test)]
mod tests;
