//! Effect of writes without making them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::Value;
use tortie_model::Cause;
use tortie_resources::stored::{self, ResourceKey, ResourceKind, Revision};

use crate::store::stamp::{random, stamp};
use crate::store::{Listing, ResourceStore, StoreError, StoredResource, Verb};

/// Version of objects that are staged and not written. No datastore uses it.
const STAGED: Revision = Revision(i64::MAX);

/// A store that reads from another one and never writes to it: writes are recorded, and visible to
/// later reads.
///
/// ```
/// use serde_json::json;
/// use tortie_resources::stored::{ResourceKey, ResourceKind};
/// use tortie_datastore::store::apply::apply;
/// use tortie_datastore::store::{MemoryStore, ResourceStore, StagedStore};
///
/// let store = MemoryStore::default();
/// let staged = StagedStore::new(&store);
/// let tier = ResourceKey::new(ResourceKind::Tier, "", "platform")?;
/// apply(&staged, &tier, &json!({"spec": {"order": 5}}))?;
/// assert!(staged.get(&tier).is_ok() && store.get(&tier).is_err());
/// let [write] = &staged.into_writes()[..] else { panic!() };
/// assert!(write.before.is_none() && write.after.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StagedStore<'s> {
    store: &'s dyn ResourceStore,
    staged: Mutex<Staged>,
    deletes_unreadable: bool,
}

/// Staged change of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct StagedWrite {
    /// The key.
    pub key: ResourceKey,
    /// The existing resource; `None` if there is none.
    pub before: Option<StoredResource>,
    /// The new object, without a version; `None` for a deletion.
    pub after: Option<Value>,
}

#[derive(Default)]
struct Staged {
    writes: Vec<StagedWrite>,
    /// Index of each key in `writes`.
    places: BTreeMap<ResourceKey, usize>,
}

impl std::fmt::Debug for StagedStore<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagedStore").field("writes", &self.lock().writes).finish_non_exhaustive()
    }
}

impl<'s> StagedStore<'s> {
    /// Returns a store over this one, with nothing staged.
    #[must_use]
    pub fn new(store: &'s dyn ResourceStore) -> Self {
        Self { store, staged: Mutex::default(), deletes_unreadable: false }
    }

    /// Returns a store that only checks writes which are made afterwards: like its own store, it
    /// deletes resources that cannot be read. They are not among [`StagedStore::into_writes`].
    #[must_use]
    pub fn checking(store: &'s dyn ResourceStore) -> Self {
        Self { deletes_unreadable: true, ..Self::new(store) }
    }

    /// Returns the changes, one for each resource, in the order in which they were first written.
    /// Writes without an effect are left out.
    #[must_use]
    pub fn into_writes(self) -> Vec<StagedWrite> {
        let staged = self.staged.into_inner().unwrap_or_else(PoisonError::into_inner);
        let changes = |write: &StagedWrite| {
            let before = write.before.as_ref().map(|before| unversioned(before.object.clone()));
            before != write.after
        };
        staged.writes.into_iter().filter(changes).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Staged> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the staged object of a resource, if one is staged.
    fn staged(&self, key: &ResourceKey) -> Option<Option<Value>> {
        let staged = self.lock();
        let place = staged.places.get(key)?;
        staged.writes.get(*place).map(|write| write.after.clone())
    }

    fn stage(&self, key: &ResourceKey, after: Option<Value>) -> Result<(), StoreError> {
        let mut staged = self.lock();
        let place = staged.places.get(key).copied();
        if let Some(write) = place.and_then(|place| staged.writes.get_mut(place)) {
            write.after = after;
            return Ok(());
        }
        let before = match self.store.get(key) {
            Ok(there) => Some(there),
            Err(StoreError::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        let place = staged.writes.len();
        staged.places.insert(key.clone(), place);
        staged.writes.push(StagedWrite { key: key.clone(), before, after });
        Ok(())
    }

    fn write(&self, key: &ResourceKey, mut object: Value) -> Result<StoredResource, StoreError> {
        stored::to_stored(key, &mut object).map_err(|error| StoreError::Invalid { key: key.clone(), error })?;
        let object = from_stored(key, object)?;
        self.stage(key, Some(unversioned(object.clone())))?;
        Ok(StoredResource { key: key.clone(), revision: STAGED, object })
    }

    /// Checks that the resource is at this version.
    fn expect(&self, key: &ResourceKey, expected: Revision) -> Result<(), StoreError> {
        let found = self.get(key)?.revision;
        if found == expected { Ok(()) } else { Err(StoreError::Conflict { key: key.clone(), expected, found }) }
    }
}

fn from_stored(key: &ResourceKey, object: Value) -> Result<Value, StoreError> {
    stored::from_stored(key, object, STAGED)
        .map_err(|error| StoreError::Unreadable { key: key.clone(), why: Cause::new(error) })
}

impl StagedWrite {
    /// Replaces the new object by the result of the datastore's dry run, which also validates it.
    /// Returns whether the write still changes anything.
    ///
    /// # Errors
    /// [`StoreError`], as with the write itself. Also [`StoreError::Refused`] if the datastore
    /// would drop domain names: an API server drops the fields that its schema lacks, and a rule
    /// without its domains allows all destinations.
    pub fn dry_run(&mut self, store: &dyn ResourceStore) -> Result<bool, StoreError> {
        let based_on = self.before.as_ref().map(|before| before.revision);
        let made = store.dry_run(&self.key, self.after.as_ref(), based_on)?.map(unversioned);
        if let (Some(wanted), Some(made)) = (&self.after, &made)
            && let Some(field) = dropped_domains(wanted, made)
        {
            // The program adds fields to Calico's kinds.
            let remedy = match field.rsplit('.').next() {
                Some("domainNames") => "install the schemas of network-policy-api's experimental channel",
                _ => "add it with deploy/domains.sh",
            };
            let text = format!("{}: the API server drops `{field}`, which its schema lacks; {remedy}", self.key);
            return Err(StoreError::Refused(text.into()));
        }
        self.after = made;
        Ok(match (&self.before, &self.after) {
            (Some(before), Some(after)) => !is_same(&before.object, after),
            (before, after) => before.is_some() || after.is_some(),
        })
    }

    /// Reports whether the new object names domains, which an API server may drop without an error.
    #[must_use]
    pub fn has_domains(&self) -> bool {
        self.after.as_ref().is_some_and(|after| dropped_domains(after, &Value::Null).is_some())
    }

    /// Returns the permission needed to roll the write back, if it differs from that of the write.
    /// A replaced object is rolled back by a replacement, so no other permission is needed.
    #[must_use]
    pub fn reverse(&self) -> Option<Verb> {
        match (&self.before, &self.after) {
            (None, Some(_)) => Some(Verb::Delete),
            (Some(_), None) => Some(Verb::Create),
            _ => None,
        }
    }
}

/// Returns the path of the first list of domains in the specification that the result lacks.
fn dropped_domains(wanted: &Value, made: &Value) -> Option<String> {
    fn search(wanted: &Value, made: Option<&Value>, path: &str) -> Option<String> {
        const FIELDS: [&str; 3] = ["domains", "domainNames", "allowedEgressDomains"];
        let is_kept = |value: &Value, made: Option<&Value>| match (value, made) {
            (Value::Array(wanted), Some(Value::Array(made))) => wanted.len() == made.len(),
            (Value::Array(wanted), _) => wanted.is_empty(),
            _ => true,
        };
        match wanted {
            Value::Object(fields) => fields.iter().find_map(|(name, value)| {
                let (made, path) = (made.and_then(|made| made.get(name)), format!("{path}.{name}"));
                if FIELDS.contains(&name.as_str()) && !is_kept(value, made) {
                    return Some(path);
                }
                search(value, made, &path)
            }),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .find_map(|(at, item)| search(item, made.and_then(|made| made.get(at)), &format!("{path}[{at}]"))),
            _ => None,
        }
    }
    search(wanted.get("spec")?, made.get("spec"), "spec")
}

/// Reports whether two objects are the same, apart from the fields that the datastore and programs
/// set. A resource that is the same as it was written has not been changed by another client.
pub(crate) fn is_same(one: &Value, other: &Value) -> bool {
    let parts = |object: &Value| {
        let mut object = object.clone();
        if let Some(whole) = object.as_object_mut() {
            whole.shift_remove("status");
        }
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            for given in ["resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "selfLink"] {
                metadata.shift_remove(given);
            }
        }
        object
    };
    one == other || parts(one) == parts(other)
}

/// Returns an object without its version.
pub(crate) fn unversioned(mut object: Value) -> Value {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.shift_remove("resourceVersion");
    }
    object
}

impl ResourceStore for StagedStore<'_> {
    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError> {
        match self.staged(key) {
            None => self.store.get(key),
            Some(None) => Err(StoreError::NotFound(key.clone())),
            Some(Some(object)) => {
                Ok(StoredResource { key: key.clone(), revision: STAGED, object: from_stored(key, object)? })
            }
        }
    }

    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError> {
        let mut listing = self.store.list(kind, namespace)?;
        let staged = self.lock();
        let is_meant = |key: &ResourceKey| key.kind() == kind && namespace.is_none_or(|name| key.namespace() == name);
        listing.resources.retain(|resource| !staged.places.contains_key(&resource.key));
        for write in staged.writes.iter().filter(|write| is_meant(&write.key)) {
            if let Some(object) = &write.after {
                let object = from_stored(&write.key, object.clone())?;
                listing.resources.push(StoredResource { key: write.key.clone(), revision: STAGED, object });
            }
        }
        listing.resources.sort_by_cached_key(|resource| resource.key.path());
        Ok(listing)
    }

    fn create(&self, key: &ResourceKey, mut object: Value) -> Result<StoredResource, StoreError> {
        match self.get(key) {
            Ok(_) | Err(StoreError::Unreadable { .. }) => return Err(StoreError::AlreadyExists(key.clone())),
            Err(StoreError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        stamp(&mut object, SystemTime::now(), random());
        self.write(key, object)
    }

    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError> {
        self.expect(key, based_on)?;
        self.write(key, object)
    }

    fn put(&self, key: &ResourceKey, mut object: Value) -> Result<StoredResource, StoreError> {
        stamp(&mut object, SystemTime::now(), random());
        self.write(key, object)
    }

    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError> {
        match self.get(key) {
            Err(StoreError::Unreadable { .. }) if self.deletes_unreadable => return Ok(()),
            there => drop(there?),
        }
        if let Some(version) = version {
            self.expect(key, version)?;
        }
        self.stage(key, None)
    }

    fn is_allowed(&self, verb: Verb, key: &ResourceKey) -> Result<bool, StoreError> {
        self.store.is_allowed(verb, key)
    }
}

#[cfg(test)]
mod tests;
