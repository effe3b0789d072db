//! What workers do: make one object of the datastore as wanted, or read all of a kind.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use tortie_datastore::store::{Listing, ResourceStore, StoreError, StoredResource};
use tortie_resources::stored::{ResourceKey, ResourceKind};
use tortie_resources::to_v3::{self, EndpointFacts};

use crate::cluster::{Wanted, Watched};
use crate::item::Item;
use crate::json::{field, set};
use crate::same::same;

/// A piece of work, for one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub(crate) task: Task,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    /// Read everything that comes from a kind.
    Reconcile(Watched),
    /// Make an object as it is wanted; absent if nothing is wanted.
    Sync { item: Item, wanted: Option<Wanted>, endpoints: Vec<String> },
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.task {
            Task::Reconcile(kind) => write!(f, "all {kind}"),
            Task::Sync { item, .. } => item.fmt(f),
        }
    }
}

/// What a job has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// How many resources were created.
    pub created: usize,
    /// How many were changed.
    pub updated: usize,
    /// How many were deleted.
    pub deleted: usize,
    /// What was read of all resources of a kind.
    pub(crate) listing: Option<Listing>,
}

/// Why a job was not done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(transparent)]
pub struct JobError(#[from] StoreError);

impl Job {
    /// Does it. May take as long as a few calls of the datastore.
    ///
    /// # Errors
    /// What the datastore says. The controller wants to hear of it, too.
    pub fn run(&self, store: &dyn ResourceStore) -> Result<Done, JobError> {
        let mut done = Done::default();
        match &self.task {
            Task::Reconcile(kind) => done.listing = Some(store.list(kind.resource_kind(), None)?),
            Task::Sync { item: Item::Resource(key), wanted, .. } => match wanted {
                None => delete(store, key, &mut done)?,
                Some(Wanted::Like(resource)) => make(store, key, resource, &mut done)?,
                Some(Wanted::Unchanged(substitute)) => {
                    if let Some(substitute) = substitute {
                        make_if_absent(store, key, substitute, &mut done)?;
                    }
                }
                Some(Wanted::Endpoint(_)) => {}
            },
            Task::Sync { item: Item::Pod { namespace, name }, wanted, endpoints } => {
                if let Some(Wanted::Endpoint(facts)) = wanted {
                    follow(store, namespace, name, facts, endpoints, &mut done)?;
                }
            }
        }
        Ok(done)
    }
}

fn delete(store: &dyn ResourceStore, key: &ResourceKey, done: &mut Done) -> Result<(), StoreError> {
    match store.delete(key, None) {
        Ok(()) => done.deleted += 1,
        Err(StoreError::NotFound(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Metadata and whatever else others have put there stay as they are.
fn make(store: &dyn ResourceStore, key: &ResourceKey, resource: &Value, done: &mut Done) -> Result<(), StoreError> {
    match store.get(key) {
        Ok(StoredResource { object, .. }) if same(field(&object, &["spec"]), field(resource, &["spec"])) => {}
        Ok(StoredResource { mut object, revision, .. }) => {
            set(&mut object, &["spec"], field(resource, &["spec"]).clone());
            store.update(key, object, revision)?;
            done.updated += 1;
        }
        Err(StoreError::NotFound(_)) => {
            store.create(key, resource.clone())?;
            done.created += 1;
        }
        // Its name says that it is ours to repair.
        Err(StoreError::Unreadable { .. }) => {
            store.put(key, resource.clone())?;
            done.updated += 1;
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

fn make_if_absent(
    store: &dyn ResourceStore,
    key: &ResourceKey,
    resource: &Value,
    done: &mut Done,
) -> Result<(), StoreError> {
    match store.get(key) {
        Err(StoreError::NotFound(_)) => {
            store.create(key, resource.clone())?;
            done.created += 1;
        }
        Err(StoreError::Unreadable { .. }) => {
            store.put(key, resource.clone())?;
            done.updated += 1;
        }
        Ok(_) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Lets the endpoints of a pod follow it.
fn follow(
    store: &dyn ResourceStore,
    namespace: &str,
    pod: &str,
    facts: &EndpointFacts,
    endpoints: &[String],
    done: &mut Done,
) -> Result<(), StoreError> {
    let usual = to_v3::workload_endpoint_name(&facts.node, pod).ok();
    for name in usual.iter().chain(endpoints) {
        // A pod whose name makes no name of an endpoint has none.
        let Ok(key) = ResourceKey::new(ResourceKind::WorkloadEndpoint, namespace, name.as_str()) else { continue };
        let StoredResource { mut object, revision, .. } = match store.get(&key) {
            Ok(stored) => stored,
            // The CNI plugin has not made it yet, or has removed it; what cannot be read is not ours to repair.
            Err(StoreError::NotFound(_) | StoreError::Unreadable { .. }) => continue,
            Err(error) => return Err(error),
        };
        if pod_of(&object) != Some(pod) || follows(&object, facts) {
            continue;
        }
        set(&mut object, &["metadata", "labels"], labels(facts));
        set(&mut object, &["spec", "serviceAccountName"], facts.service_account.as_str().into());
        match store.update(&key, object, revision) {
            Ok(_) => done.updated += 1,
            Err(StoreError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn labels(facts: &EndpointFacts) -> Value {
    facts.labels.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect()
}

/// The pod that an endpoint belongs to; `None` if it is no pod's.
pub(crate) fn pod_of(endpoint: &Value) -> Option<&str> {
    let pod = field(endpoint, &["spec", "pod"]).as_str();
    pod.filter(|_| field(endpoint, &["spec", "orchestrator"]) == "k8s")
}

/// Whether an endpoint is as its pod wants it.
pub(crate) fn follows(endpoint: &Value, facts: &EndpointFacts) -> bool {
    let account = field(endpoint, &["spec", "serviceAccountName"]).as_str().unwrap_or_default();
    let own: Option<BTreeMap<&str, &str>> = match field(endpoint, &["metadata", "labels"]) {
        Value::Object(labels) => labels.iter().map(|(name, value)| Some((&**name, value.as_str()?))).collect(),
        _ => None,
    };
    account == facts.service_account
        && own.is_some_and(|own| own.into_iter().eq(facts.labels.iter().map(|(name, value)| (&**name, &**value))))
}
