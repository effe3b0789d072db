//! A datastore in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::Value;
use tortie_model::Cause;
use tortie_resources::stored::{self, ResourceKey, ResourceKind, Revision};

use crate::store::stamp::{random, stamp};
use crate::store::{Listing, ResourceStore, StoreError, StoredResource, StoredText, TextChange, TextStore, Verb};

/// A [`ResourceStore`] and [`TextStore`] in memory with injected faults, for tests of code that
/// writes to a datastore.
///
/// ```
/// use serde_json::json;
/// use tortie_resources::stored::{ResourceKey, ResourceKind};
/// use tortie_datastore::store::{Fault, MemoryStore, ResourceStore, StoreError};
///
/// let store = MemoryStore::default();
/// let tier = ResourceKey::new(ResourceKind::Tier, "", "platform")?;
/// let created = store.create(&tier, json!({"spec": {"order": 5}}))?;
/// store.fail_next(Fault::Unavailable);
/// assert!(matches!(store.get(&tier), Err(StoreError::Unavailable(_))));
/// assert_eq!(store.get(&tier)?, created);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

/// Injected fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None: this call succeeds.
    None,
    /// The call has no effect, and returns an error.
    Unavailable,
    /// A write takes effect, but its response is lost.
    LostAnswer,
    /// The call is refused permanently.
    Refused,
    /// Just before the call another client writes the resource or the texts again, or creates the
    /// resource.
    Overtaken,
}

/// Answer to the dry run of a write of this object, or of a deletion.
pub type DryRun = fn(Option<&Value>) -> Result<Option<Value>, StoreError>;

#[derive(Debug, Default)]
struct State {
    revision: i64,
    kept: BTreeMap<ResourceKey, (Revision, Value)>,
    texts: BTreeMap<String, (Revision, String)>,
    faults: VecDeque<Fault>,
    down: bool,
    writes: usize,
    dry_run: Option<DryRun>,
}

impl MemoryStore {
    /// Queues a fault for one call, after the faults queued before.
    pub fn fail_next(&self, fault: Fault) {
        self.lock().faults.push_back(fault);
    }

    /// Makes the datastore unavailable or available.
    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
    }

    /// Answers dry runs like this from now on, instead of accepting each object as it is.
    pub fn answer_dry_runs(&self, answer: DryRun) {
        self.lock().dry_run = Some(answer);
    }

    /// Returns the number of writes and deletions so far.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.lock().writes
    }

    /// Returns the keys of all resources.
    #[must_use]
    pub fn keys(&self) -> Vec<ResourceKey> {
        self.lock().kept.keys().cloned().collect()
    }

    /// Reads the texts under all paths that begin with `prefix`, in their order.
    ///
    /// # Errors
    /// The injected fault.
    pub fn texts(&self, prefix: &str) -> Result<Vec<StoredText>, StoreError> {
        self.call(None, |state| {
            let from = state.texts.range(prefix.to_owned()..);
            Ok(from.take_while(|(path, _)| path.starts_with(prefix)).map(stored_text).collect())
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one call concerning this resource, with the queued fault.
    fn call<T>(
        &self,
        key: Option<&ResourceKey>,
        call: impl FnOnce(&mut State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let overtake = |state: &mut State| {
            if let Some(key) = key {
                let empty = || Value::Object(serde_json::Map::new());
                let object = state.kept.get(key).map_or_else(empty, |kept| kept.1.clone());
                state.write(key, object)?;
            }
            Ok(())
        };
        self.call_or_fail(overtake, call)
    }

    fn call_or_fail<T>(
        &self,
        overtake: impl FnOnce(&mut State) -> Result<(), StoreError>,
        call: impl FnOnce(&mut State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut state = self.lock();
        if state.down {
            return Err(StoreError::Unavailable("it is down".into()));
        }
        match state.faults.pop_front() {
            None | Some(Fault::None) => call(&mut state),
            Some(Fault::Unavailable) => Err(StoreError::Unavailable("as the test wants".into())),
            Some(Fault::Refused) => Err(StoreError::Refused("as the test wants".into())),
            Some(Fault::LostAnswer) => {
                let _lost = call(&mut state);
                Err(StoreError::Unavailable("the answer is lost, as the test wants".into()))
            }
            Some(Fault::Overtaken) => {
                overtake(&mut state)?;
                call(&mut state)
            }
        }
    }
}

impl State {
    fn write(&mut self, key: &ResourceKey, mut object: Value) -> Result<StoredResource, StoreError> {
        stored::to_stored(key, &mut object).map_err(|error| StoreError::Invalid { key: key.clone(), error })?;
        self.revision += 1;
        self.writes += 1;
        let revision = Revision(self.revision);
        self.kept.insert(key.clone(), (revision, object));
        self.read(key)
    }

    fn read(&self, key: &ResourceKey) -> Result<StoredResource, StoreError> {
        let (revision, object) = self.kept.get(key).ok_or_else(|| StoreError::NotFound(key.clone()))?;
        let object = stored::from_stored(key, object.clone(), *revision)
            .map_err(|error| StoreError::Unreadable { key: key.clone(), why: Cause::new(error) })?;
        Ok(StoredResource { key: key.clone(), revision: *revision, object })
    }

    fn expect(&self, key: &ResourceKey, expected: Revision) -> Result<(), StoreError> {
        match self.kept.get(key) {
            None => Err(StoreError::NotFound(key.clone())),
            Some((found, _)) if *found != expected => {
                Err(StoreError::Conflict { key: key.clone(), expected, found: *found })
            }
            Some(_) => Ok(()),
        }
    }
}

impl ResourceStore for MemoryStore {
    fn dry_run(
        &self,
        _: &ResourceKey,
        object: Option<&Value>,
        _: Option<Revision>,
    ) -> Result<Option<Value>, StoreError> {
        let answer = self.lock().dry_run;
        answer.map_or_else(|| Ok(object.cloned()), |answer| answer(object))
    }

    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError> {
        self.call(Some(key), |state| state.read(key))
    }

    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError> {
        self.call(None, |state| {
            let wanted = |key: &&ResourceKey| {
                key.kind() == kind && namespace.is_none_or(|namespace| key.namespace() == namespace)
            };
            let resources = state.kept.keys().filter(wanted).map(|key| state.read(key)).collect::<Result<_, _>>()?;
            Ok(Listing { resources, unreadable: Vec::new(), revision: Revision(state.revision) })
        })
    }

    fn create(&self, key: &ResourceKey, mut object: Value) -> Result<StoredResource, StoreError> {
        self.call(Some(key), |state| {
            if state.kept.contains_key(key) {
                return Err(StoreError::AlreadyExists(key.clone()));
            }
            stamp(&mut object, SystemTime::now(), random());
            state.write(key, object)
        })
    }

    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError> {
        self.call(Some(key), |state| {
            state.expect(key, based_on)?;
            state.write(key, object)
        })
    }

    fn put(&self, key: &ResourceKey, mut object: Value) -> Result<StoredResource, StoreError> {
        self.call(Some(key), |state| {
            stamp(&mut object, SystemTime::now(), random());
            state.write(key, object)
        })
    }

    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError> {
        self.call(Some(key), |state| {
            if let Some(version) = version {
                state.expect(key, version)?;
            }
            state.kept.remove(key).ok_or_else(|| StoreError::NotFound(key.clone()))?;
            state.revision += 1;
            state.writes += 1;
            Ok(())
        })
    }

    fn is_allowed(&self, _: Verb, _: &ResourceKey) -> Result<bool, StoreError> {
        Ok(true)
    }
}

impl State {
    fn change(&mut self, change: &TextChange) {
        self.revision += 1;
        self.writes += 1;
        match &change.text {
            Some(text) => self.texts.insert(change.path.clone(), (Revision(self.revision), text.clone())),
            None => self.texts.remove(&change.path),
        };
    }
}

fn stored_text((path, (revision, text)): (&String, &(Revision, String))) -> StoredText {
    StoredText { path: path.clone(), text: text.clone(), revision: *revision }
}

impl TextStore for MemoryStore {
    fn text(&self, path: &str) -> Result<Option<StoredText>, StoreError> {
        self.call(None, |state| Ok(state.texts.get_key_value(path).map(stored_text)))
    }

    fn commit(&self, changes: &[TextChange]) -> Result<Option<Revision>, StoreError> {
        let overtake = |state: &mut State| {
            for change in changes {
                if let Some((revision, _)) = state.texts.get_mut(&change.path) {
                    state.revision += 1;
                    *revision = Revision(state.revision);
                }
            }
            Ok(())
        };
        self.call_or_fail(overtake, |state| {
            let is_there = |path: &str| state.texts.get(path).map(|(revision, _)| *revision);
            if changes.iter().any(|change| is_there(&change.path) != change.expected) {
                return Ok(None);
            }
            for change in changes {
                state.change(change);
            }
            Ok(Some(Revision(state.revision)))
        })
    }
}

#[cfg(test)]
mod tests;
