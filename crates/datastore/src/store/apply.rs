//! Writing of resources in the form that users write, with the rules that hold between them.

mod checks;
mod edits;

use serde_json::{Map, Value, json};
use tortie_model::Cause;
use tortie_resources::stored::{
    self, API_VERSION, ObjectError, ResourceKey, ResourceKind, Revision, built_in_tier, built_in_tiers, revision_of,
    tier_of,
};

use self::checks::{check, check_new_pool, check_same_pool, check_writable};
pub use self::edits::{LabelChange, LabelError, change_labels, edit, merge_patch};
use crate::store::stamp::{random, uuid};
use crate::store::{ResourceStore, StoreError, StoredResource};

/// Attempts of a write that conflicts with other writes.
const TRIES: usize = 5;

/// Result of applying a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It did not exist and was created.
    Created,
    /// It existed and was changed.
    Updated,
    /// It existed with this content.
    Unchanged,
}

/// Reason why a resource was not applied or deleted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// A rule forbids it.
    #[error("{key}")]
    Refused {
        /// The resource.
        key: ResourceKey,
        /// The rule.
        #[source]
        why: Cause,
    },
    /// The object contradicts the resource's key, or is invalid.
    #[error("{key}")]
    Object {
        /// The resource.
        key: ResourceKey,
        /// The error.
        #[source]
        error: ObjectError,
    },
    /// The version to be replaced was of a resource that has been deleted.
    #[error(
        "{key} does not exist any more, and version {expected} of it was to be replaced; to create it, apply it without metadata.resourceVersion"
    )]
    Gone {
        /// The resource.
        key: ResourceKey,
        /// The version to be replaced.
        expected: Revision,
    },
    /// The datastore failed or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn refused(key: &ResourceKey, why: impl Into<Cause>) -> ApplyError {
    ApplyError::Refused { key: key.clone(), why: why.into() }
}

/// Creates the objects that every datastore needs: the built-in tiers, and a `ClusterInformation`
/// with the ready flag (`EnsureInitialized` of `libcalico-go/lib/clientv3/client.go`). Existing
/// objects stay as they are; a datastore that was marked as not ready stays so.
///
/// # Errors
/// [`StoreError`] from the datastore.
pub fn initialise(store: &dyn ResourceStore) -> Result<(), StoreError> {
    for tier in built_in_tiers() {
        if let Ok(key) = ResourceKey::new(ResourceKind::Tier, "", tier.name) {
            create_unless_there(store, &key, tier.object())?;
        }
    }
    let Ok(key) = ResourceKey::new(ResourceKind::ClusterInformation, "", "default") else { return Ok(()) };
    let guid = || uuid(random()).replace('-', "");
    for _ in 0..TRIES {
        let there = match store.get(&key) {
            Ok(there) => there,
            Err(StoreError::NotFound(_)) => {
                let spec = json!({"clusterGUID": guid(), "datastoreReady": true});
                let object = json!({"apiVersion": API_VERSION, "kind": "ClusterInformation", "spec": spec});
                create_unless_there(store, &key, object)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut object = there.object;
        let Some(spec) = object
            .as_object_mut()
            .and_then(|whole| whole.entry("spec").or_insert_with(|| Value::Object(Map::new())).as_object_mut())
        else {
            return Err(StoreError::Unreadable { key, why: "spec: must be a mapping".into() });
        };
        let is_missing = |value: Option<&Value>| value.is_none_or(|value| value.is_null() || value == "");
        let mut changed = false;
        if is_missing(spec.get("clusterGUID")) {
            spec.insert("clusterGUID".into(), guid().into());
            changed = true;
        }
        if is_missing(spec.get("datastoreReady")) {
            spec.insert("datastoreReady".into(), true.into());
            changed = true;
        }
        if !changed {
            return Ok(());
        }
        match store.update(&key, object, there.revision) {
            Ok(_) => return Ok(()),
            Err(StoreError::Conflict { .. } | StoreError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Err(StoreError::Unavailable(format!("{key} keeps being changed by others").into()))
}

fn create_unless_there(store: &dyn ResourceStore, key: &ResourceKey, object: Value) -> Result<(), StoreError> {
    match store.create(key, object) {
        Ok(_) | Err(StoreError::AlreadyExists(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates or replaces a resource.
///
/// If the object has a `metadata.resourceVersion`, it replaces that version only, and is not
/// created. Labels and annotations of the existing resource are replaced; its other metadata stays,
/// as with calicoctl.
///
/// # Errors
/// [`ApplyError::Refused`] if a rule between resources forbids it, such as that a policy's tier
/// must exist; [`ApplyError::Gone`] if the version that it replaces was of a deleted resource;
/// otherwise the datastore's error, mainly [`StoreError::Conflict`].
pub fn apply(store: &dyn ResourceStore, key: &ResourceKey, object: &Value) -> Result<Applied, ApplyError> {
    write(store, key, object, true)
}

/// Creates a resource that does not exist yet.
///
/// # Errors
/// [`StoreError::AlreadyExists`]; [`ApplyError::Refused`] as with [`apply`], and if the object has
/// a `metadata.resourceVersion`; otherwise the datastore's error.
pub fn create(store: &dyn ResourceStore, key: &ResourceKey, object: &Value) -> Result<(), ApplyError> {
    if based_on(key, object)?.is_some() {
        let why = "metadata.resourceVersion: a new resource has no version; omit it, or replace the existing resource";
        return Err(refused(key, why));
    }
    check(store, key, object)?;
    create_checked(store, key, object)
}

/// Replaces an existing resource. Versions and metadata are handled as by [`apply`].
///
/// # Errors
/// [`StoreError::NotFound`] if it does not exist; otherwise as [`apply`].
pub fn replace(store: &dyn ResourceStore, key: &ResourceKey, object: &Value) -> Result<Applied, ApplyError> {
    write(store, key, object, false)
}

fn based_on(key: &ResourceKey, object: &Value) -> Result<Option<Revision>, ApplyError> {
    revision_of(object).map_err(|error| ApplyError::Object { key: key.clone(), error })
}

fn write(
    store: &dyn ResourceStore,
    key: &ResourceKey,
    object: &Value,
    may_create: bool,
) -> Result<Applied, ApplyError> {
    let based_on = based_on(key, object)?;
    check(store, key, object)?;
    until_undisturbed(key, based_on, || match store.get(key) {
        Ok(there) => replace_this(store, &there, object, based_on).map(Some),
        Err(StoreError::NotFound(_)) if may_create && based_on.is_none() => {
            create_checked(store, key, object).map(|()| Some(Applied::Created))
        }
        Err(StoreError::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    })
}

/// Retries if another client wrote between reading and writing, unless a certain version is to be
/// replaced. `write` returns `None` if there is nothing to replace.
fn until_undisturbed(
    key: &ResourceKey,
    based_on: Option<Revision>,
    write: impl Fn() -> Result<Option<Applied>, ApplyError>,
) -> Result<Applied, ApplyError> {
    let mut last = StoreError::NotFound(key.clone());
    for _ in 0..TRIES {
        let result = write();
        match (result, based_on) {
            (Ok(Some(applied)), _) => return Ok(applied),
            (Ok(None) | Err(ApplyError::Store(StoreError::NotFound(_))), Some(expected)) => {
                return Err(ApplyError::Gone { key: key.clone(), expected });
            }
            (Ok(None), None) => break,
            (
                Err(ApplyError::Store(
                    error @ (StoreError::AlreadyExists(_) | StoreError::Conflict { .. } | StoreError::NotFound(_)),
                )),
                None,
            ) => last = error,
            (Err(error), _) => return Err(error),
        }
    }
    Err(last.into())
}

fn create_checked(store: &dyn ResourceStore, key: &ResourceKey, object: &Value) -> Result<(), ApplyError> {
    check_new_pool(store, key, object)?;
    let mut object = object.clone();
    stored::strip_metadata(&mut object);
    store.create(key, object)?;
    Ok(())
}

/// Replaces a resource that has been read.
fn replace_this(
    store: &dyn ResourceStore,
    there: &StoredResource,
    object: &Value,
    based_on: Option<Revision>,
) -> Result<Applied, ApplyError> {
    let key = &there.key;
    if let Some(expected) = based_on.filter(|based_on| *based_on != there.revision) {
        return Err(StoreError::Conflict { key: key.clone(), expected, found: there.revision }.into());
    }
    let wrong = |error| ApplyError::Object { key: key.clone(), error };
    let mut next = object.clone();
    merge_metadata(&there.object, &mut next);
    stored::to_stored(key, &mut next).map_err(wrong)?;
    // Both are compared in the form that is read, because the stored object may lack a default.
    if stored::from_stored(key, next.clone(), there.revision).map_err(wrong)? == there.object {
        return Ok(Applied::Unchanged);
    }
    let mut before = there.object.clone();
    stored::to_stored(key, &mut before).map_err(wrong)?;
    check_same_pool(key, &before, &next)?;
    let written = store.update(key, next, there.revision)?;
    // A datastore with its own defaults may find that nothing differs.
    Ok(if written.revision == there.revision { Applied::Unchanged } else { Applied::Updated })
}

/// Gives an object the metadata of the existing resource, except for labels and annotations.
fn merge_metadata(there: &Value, object: &mut Value) {
    let Some(Value::Object(mut metadata)) = there.get("metadata").cloned() else { return };
    let own = object.get("metadata");
    for name in ["labels", "annotations"] {
        match own.and_then(|own| own.get(name)).filter(|value| !value.is_null()) {
            Some(value) => metadata.insert(name.into(), value.clone()),
            None => metadata.shift_remove(name),
        };
    }
    if let Some(whole) = object.as_object_mut() {
        whole.insert("metadata".into(), Value::Object(metadata));
    }
}

/// Deletes a resource; only this version, if one is given.
///
/// # Errors
/// [`ApplyError::Refused`] if the resource is part of every cluster, or a tier that is not empty;
/// otherwise the datastore's error.
pub fn delete(store: &dyn ResourceStore, key: &ResourceKey, version: Option<Revision>) -> Result<(), ApplyError> {
    check_writable(key)?;
    if key.kind() == ResourceKind::Tier {
        if built_in_tier(key.name()).is_some() {
            return Err(refused(key, "is part of every cluster and cannot be deleted"));
        }
        for kind in ResourceKind::all().filter(|kind| kind.has_tier()) {
            let empty = Map::new();
            let listing = store.list(kind, None)?;
            let mut inside = listing.resources.iter().filter(|policy| {
                tier_of(policy.object.get("spec").and_then(Value::as_object).unwrap_or(&empty)) == key.name()
            });
            if let Some(policy) = inside.next() {
                return Err(refused(key, format!("is not empty: {} is in it", policy.key)));
            }
        }
    }
    store.delete(key, version).map_err(ApplyError::from)
}

#[cfg(test)]
mod tests;
