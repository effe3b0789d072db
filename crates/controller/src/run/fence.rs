//! Fence that prevents writes of a controller that does not lead.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;
use tortie_datastore::store::{
    Listing, ResourceStore, StoreError, StoredResource, StoredText, TextChange, TextStore, Verb,
};
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};

/// End of this controller's leadership; clones share it.
#[derive(Clone, Debug)]
pub struct Fence(Arc<Mutex<Lead>>);

#[derive(Clone, Copy, Debug)]
enum Lead {
    /// There is no other controller.
    Always,
    Never,
    /// Until this time, in the term of this number.
    Until(Instant, u64),
}

impl Fence {
    /// Returns the fence of the only controller, which always leads.
    #[must_use]
    pub fn open() -> Self {
        Self(Arc::new(Mutex::new(Lead::Always)))
    }

    /// Returns the fence of a controller that does not lead yet.
    #[must_use]
    pub fn closed() -> Self {
        Self(Arc::new(Mutex::new(Lead::Never)))
    }

    /// Sets the end of the leadership in the term of this number; `None`: the controller does not
    /// lead.
    pub fn set(&self, until: Option<Instant>, term: u64) {
        let lead = until.map_or(Lead::Never, |until| Lead::Until(until, term));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = lead;
    }

    /// Returns the number of the current term; `None` if the controller does not lead.
    #[must_use]
    pub fn term(&self, now: Instant) -> Option<u64> {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Lead::Always => Some(0),
            Lead::Until(until, term) if now < until => Some(term),
            Lead::Never | Lead::Until(..) => None,
        }
    }
}

/// Store of all entries of a datastore.
pub trait Store: ResourceStore + TextStore {}

impl<S: ResourceStore + TextStore> Store for S {}

/// Store that accepts a write only while the controller leads.
pub struct Fenced {
    store: Box<dyn Store>,
    fence: Fence,
}

impl Fenced {
    /// Returns a fenced view of this store.
    #[must_use]
    pub fn new(store: Box<dyn Store>, fence: Fence) -> Self {
        Self { store, fence }
    }

    fn pass(&self) -> Result<&dyn Store, StoreError> {
        match self.fence.term(Instant::now()) {
            Some(_) => Ok(&*self.store),
            None => Err(StoreError::Unavailable("this controller does not lead any more".into())),
        }
    }
}

impl ResourceStore for Fenced {
    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError> {
        self.store.get(key)
    }

    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError> {
        self.store.list(kind, namespace)
    }

    fn create(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        self.pass()?.create(key, object)
    }

    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError> {
        self.pass()?.update(key, object, based_on)
    }

    fn update_status(
        &self,
        key: &ResourceKey,
        object: Value,
        based_on: Revision,
    ) -> Result<StoredResource, StoreError> {
        self.pass()?.update_status(key, object, based_on)
    }

    fn put(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        self.pass()?.put(key, object)
    }

    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError> {
        self.pass()?.delete(key, version)
    }

    fn is_allowed(&self, verb: Verb, key: &ResourceKey) -> Result<bool, StoreError> {
        self.store.is_allowed(verb, key)
    }
}

impl TextStore for Fenced {
    fn text(&self, path: &str) -> Result<Option<StoredText>, StoreError> {
        self.store.text(path)
    }

    fn is_transactional(&self) -> bool {
        self.store.is_transactional()
    }

    fn commit(&self, changes: &[TextChange]) -> Result<Option<Revision>, StoreError> {
        self.pass()?.commit(changes)
    }
}

/// Store with separate connections for reads and writes: writes need a shorter timeout.
pub struct Split<R, W> {
    /// Store for reads.
    pub reads: R,
    /// Store for writes.
    pub writes: W,
}

impl<R: ResourceStore, W: ResourceStore> ResourceStore for Split<R, W> {
    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError> {
        self.reads.get(key)
    }

    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError> {
        self.reads.list(kind, namespace)
    }

    fn create(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        self.writes.create(key, object)
    }

    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError> {
        self.writes.update(key, object, based_on)
    }

    fn update_status(
        &self,
        key: &ResourceKey,
        object: Value,
        based_on: Revision,
    ) -> Result<StoredResource, StoreError> {
        self.writes.update_status(key, object, based_on)
    }

    fn put(&self, key: &ResourceKey, object: Value) -> Result<StoredResource, StoreError> {
        self.writes.put(key, object)
    }

    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError> {
        self.writes.delete(key, version)
    }

    fn is_allowed(&self, verb: Verb, key: &ResourceKey) -> Result<bool, StoreError> {
        self.writes.is_allowed(verb, key)
    }
}

impl<R: TextStore, W: TextStore> TextStore for Split<R, W> {
    fn text(&self, path: &str) -> Result<Option<StoredText>, StoreError> {
        self.reads.text(path)
    }

    fn is_transactional(&self) -> bool {
        self.writes.is_transactional()
    }

    fn commit(&self, changes: &[TextChange]) -> Result<Option<Revision>, StoreError> {
        self.writes.commit(changes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tortie_datastore::store::MemoryStore;

    use super::*;

    #[test]
    fn only_the_leader_writes() {
        let key = ResourceKey::new(ResourceKind::Tier, "", "t").expect("a key");
        let fence = Fence::closed();
        let store = Fenced::new(Box::new(MemoryStore::default()), fence.clone());
        let refused = |result: Result<StoredResource, StoreError>| matches!(result, Err(StoreError::Unavailable(_)));
        let commit = || store.commit(&[TextChange { path: "/a".into(), expected: None, text: None }]);
        assert!(refused(store.create(&key, json!({}))));
        assert!(matches!(commit(), Err(StoreError::Unavailable(_))));
        let now = Instant::now();
        fence.set(Some(now + Duration::from_secs(60)), 1);
        let created = store.create(&key, json!({})).expect("it leads");
        assert!(matches!(commit(), Ok(Some(_))));
        fence.set(Some(now), 1);
        assert!(refused(store.put(&key, json!({}))));
        assert!(refused(store.update(&key, json!({}), created.revision)));
        assert!(matches!(store.delete(&key, None), Err(StoreError::Unavailable(_))));
        assert_eq!(store.get(&key), Ok(created));
        fence.set(None, 1);
        assert_eq!(fence.term(now), None);
        assert_eq!(Fence::open().term(now), Some(0));
    }
}
