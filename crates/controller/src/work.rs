//! Jobs of the workers: write one object of the datastore, or list all of a kind.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use tortie_datastore::store::{Listing, ResourceStore, StoreError, StoredResource};
use tortie_resources::stored::{ResourceKey, ResourceKind};
use tortie_resources::to_v3::{self, EndpointFacts};

use crate::cluster::{DesiredObject, Watched};
use crate::item::Item;
use crate::json::{field, set};
use crate::same::{is_like, make_like};

/// A unit of work for one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub(crate) task: Task,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    /// List all resources that are derived from a kind.
    Reconcile(Watched),
    /// Bring an object to its desired state; delete it if `wanted` is `None`.
    Sync { item: Item, wanted: Option<DesiredObject>, endpoints: Vec<String> },
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.task {
            Task::Reconcile(kind) => write!(f, "all {kind}"),
            Task::Sync { item, .. } => item.fmt(f),
        }
    }
}

/// Outcome of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// Number of created resources.
    pub created: usize,
    /// Number of updated resources.
    pub updated: usize,
    /// Number of deleted resources.
    pub deleted: usize,
    /// All resources of a kind, as listed.
    pub(crate) listing: Option<Listing>,
}

/// Error of a job.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(transparent)]
pub struct JobError(#[from] StoreError);

impl Job {
    /// Runs the job. It may take as long as a few calls of the datastore.
    ///
    /// # Errors
    /// Errors of the datastore. The caller passes them to the controller as well.
    pub fn run(&self, store: &dyn ResourceStore) -> Result<Done, JobError> {
        let mut done = Done::default();
        match &self.task {
            Task::Reconcile(kind) => done.listing = Some(store.list(kind.resource_kind(), None)?),
            Task::Sync { item: Item::Resource(key), wanted, .. } => match wanted {
                None => delete(store, key, &mut done)?,
                Some(DesiredObject::Like(resource)) => make(store, key, resource, &mut done)?,
                Some(DesiredObject::Unchanged(substitute)) => {
                    if let Some(substitute) = substitute {
                        make_if_absent(store, key, substitute, &mut done)?;
                    }
                }
                Some(DesiredObject::Endpoint(_)) => {}
            },
            Task::Sync { item: Item::Pod { namespace, name }, wanted, endpoints } => {
                if let Some(DesiredObject::Endpoint(facts)) = wanted {
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

/// Writes the parts that the controller owns. Other fields, which other processes wrote, stay.
fn make(store: &dyn ResourceStore, key: &ResourceKey, resource: &Value, done: &mut Done) -> Result<(), StoreError> {
    match store.get(key) {
        Ok(StoredResource { object, .. }) if is_like(&object, resource) => {}
        Ok(StoredResource { mut object, revision, .. }) => {
            make_like(&mut object, resource);
            store.update(key, object, revision)?;
            done.updated += 1;
        }
        Err(StoreError::NotFound(_)) => {
            store.create(key, resource.clone())?;
            done.created += 1;
        }
        // Its name shows that the controller owns it, so it is repaired.
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

/// Writes the labels and the service account of a pod to its endpoints.
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
        // A pod has no endpoint if its name yields no valid endpoint name.
        let Ok(key) = ResourceKey::new(ResourceKind::WorkloadEndpoint, namespace, name.as_str()) else { continue };
        let StoredResource { mut object, revision, .. } = match store.get(&key) {
            Ok(stored) => stored,
            // The CNI plugin has not created it yet, or has removed it. An unreadable endpoint
            // belongs to another process.
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

/// Returns the pod of an endpoint; `None` if it belongs to no pod.
pub(crate) fn pod_of(endpoint: &Value) -> Option<&str> {
    let pod = field(endpoint, &["spec", "pod"]).as_str();
    pod.filter(|_| field(endpoint, &["spec", "orchestrator"]) == "k8s")
}

/// Reports whether an endpoint has the labels and the service account of its pod.
pub(crate) fn follows(endpoint: &Value, facts: &EndpointFacts) -> bool {
    let account = field(endpoint, &["spec", "serviceAccountName"]).as_str().unwrap_or_default();
    let own: Option<BTreeMap<&str, &str>> = match field(endpoint, &["metadata", "labels"]) {
        Value::Object(labels) => labels.iter().map(|(name, value)| Some((&**name, value.as_str()?))).collect(),
        _ => None,
    };
    account == facts.service_account
        && own.is_some_and(|own| own.into_iter().eq(facts.labels.iter().map(|(name, value)| (&**name, &**value))))
}
