//! Jobs about nodes.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use tortie_datastore::store::{StoreError, StoredResource};
use tortie_net::Cidr;
use tortie_resources::stored::{self, ResourceKey, ResourceKind, Revision};

use super::host_endpoints::is_ours;
use super::{config, labels};
use crate::access::{Access, JobError, LiveKind, kubernetes_name};
use crate::ipam::{ReleaseTask, Settled};
use crate::json::{field, set};
use crate::same::same;

/// Object that may be out of sync.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Item {
    /// The `KubeControllersConfiguration`.
    Configuration,
    /// A Calico node: its labels and its existence.
    Node(String),
    /// The host endpoints generated for a node.
    HostEndpoints(String),
    /// The addresses allocated on a node, and its blocks if the node is gone.
    Addresses(String),
    /// A block that is empty, has addresses in cooldown, or is about to be deleted.
    Block(Cidr),
    /// A handle that counts too many addresses.
    Handle(String),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration => f.write_str("KubeControllersConfiguration/default"),
            Self::Node(name) => write!(f, "Node/{name}"),
            Self::HostEndpoints(node) => write!(f, "host endpoints of Node/{node}"),
            Self::Addresses(node) => write!(f, "addresses of Node/{node}"),
            Self::Block(cidr) => write!(f, "the block {cidr}"),
            Self::Handle(handle) => write!(f, "the handle {handle}"),
        }
    }
}

/// A unit of work about nodes for one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub(super) item: Item,
    pub(super) task: Task,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Task {
    /// Write the status; create the resource if it is missing.
    Configuration { status: Value },
    /// Write these labels of a Kubernetes node to a Calico node.
    Labels { node: String, kubernetes: String, labels: BTreeMap<String, String> },
    /// Delete a Calico node if its Kubernetes node is gone.
    DeleteNode { node: String, kubernetes: String },
    /// Write the wanted host endpoints, and delete others that still have these versions.
    HostEndpoints { wanted: Vec<(String, Value)>, unwanted: Vec<(String, Revision)> },
    /// Release addresses or blocks.
    Addresses(ReleaseTask),
}

/// Outcome of a job about nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of created resources.
    pub created: usize,
    /// Number of updated resources.
    pub updated: usize,
    /// Number of deleted resources.
    pub deleted: usize,
    /// Number of released addresses.
    pub released: usize,
    /// Outcome of a release of addresses or blocks.
    pub(super) settled: Option<Settled>,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.item.fmt(f)
    }
}

fn key(kind: ResourceKind, name: &str) -> Result<ResourceKey, JobError> {
    ResourceKey::new(kind, "", name).map_err(JobError::unfit)
}

impl Job {
    /// Runs the job. It may take as long as several calls of the datastore and of the API server.
    ///
    /// # Errors
    /// Errors of the datastore and of the API server. The caller passes them to the controller as
    /// well.
    pub fn run(&self, access: Access<'_>) -> Result<Done, JobError> {
        let mut done = Done::default();
        match &self.task {
            Task::Configuration { status } => write_configuration(access, status, &mut done)?,
            Task::Labels { node, kubernetes, labels } => copy_labels(access, node, kubernetes, labels, &mut done)?,
            Task::DeleteNode { node, kubernetes } => delete_node(access, node, kubernetes, &mut done)?,
            Task::HostEndpoints { wanted, unwanted } => {
                // An error for one endpoint does not keep the others from being written.
                let mut result = Ok(());
                for (name, endpoint) in wanted {
                    let key = key(ResourceKind::HostEndpoint, name)?;
                    result = result.and(make_endpoint(access, &key, endpoint, &mut done));
                }
                for (name, revision) in unwanted {
                    let key = key(ResourceKind::HostEndpoint, name)?;
                    result = result.and(delete(access, &key, *revision, &mut done));
                }
                result?;
            }
            Task::Addresses(task) => {
                let settled = task.run(access)?;
                (done.updated, done.deleted) = (settled.updated, settled.deleted);
                done.released = settled.released.len();
                done.settled = Some(settled);
            }
        }
        Ok(done)
    }
}

fn write_configuration(access: Access<'_>, status: &Value, done: &mut Done) -> Result<(), JobError> {
    let key = key(ResourceKind::KubeControllersConfiguration, "default")?;
    let StoredResource { mut object, revision, .. } = match access.resources.get(&key) {
        Ok(stored) => stored,
        Err(StoreError::NotFound(_)) => {
            let mut resource = config::default_resource();
            set(&mut resource, &["status"], status.clone());
            access.resources.create(&key, resource)?;
            done.created += 1;
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    if same(field(&object, &["status"]), status) {
        return Ok(());
    }
    set(&mut object, &["status"], status.clone());
    access.resources.update_status(&key, object, revision)?;
    done.updated += 1;
    Ok(())
}

fn copy_labels(
    access: Access<'_>,
    node: &str,
    kubernetes: &str,
    labels: &BTreeMap<String, String>,
    done: &mut Done,
) -> Result<(), JobError> {
    let key = key(ResourceKind::Node, node)?;
    let StoredResource { object, revision, .. } = match access.resources.get(&key) {
        Err(StoreError::NotFound(_)) => return Ok(()),
        other => other?,
    };
    if kubernetes_name(&object) != Some(kubernetes) {
        return Ok(());
    }
    if let Some(object) = labels::synced(&object, labels).map_err(JobError::unfit)? {
        access.resources.update(&key, object, revision)?;
        done.updated += 1;
    }
    Ok(())
}

/// Deletes a node. It reads the Kubernetes node again right before, because that node may have
/// returned.
fn delete_node(access: Access<'_>, node: &str, kubernetes: &str, done: &mut Done) -> Result<(), JobError> {
    let key = key(ResourceKind::Node, node)?;
    let StoredResource { object, revision, .. } = match access.resources.get(&key) {
        Err(StoreError::NotFound(_)) => return Ok(()),
        other => other?,
    };
    let is_gone =
        kubernetes_name(&object) == Some(kubernetes) && access.live.get(LiveKind::Nodes, "", kubernetes)?.is_none();
    if is_gone { delete(access, &key, revision, done) } else { Ok(()) }
}

/// Creates a host endpoint, or repairs it if a controller has created it.
fn make_endpoint(access: Access<'_>, key: &ResourceKey, wanted: &Value, done: &mut Done) -> Result<(), JobError> {
    let StoredResource { mut object, revision, .. } = match access.resources.get(key) {
        Ok(stored) => stored,
        Err(StoreError::NotFound(_)) => {
            access.resources.create(key, wanted.clone())?;
            done.created += 1;
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    if !is_ours(&object) {
        return Err(JobError::unfit(format!("{key} exists, but was not made by this controller")));
    }
    if is_as_wanted(key, &object, wanted) {
        return Ok(());
    }
    for part in PARTS {
        set(&mut object, part, field(wanted, part).clone());
    }
    access.resources.update(key, object, revision)?;
    done.updated += 1;
    Ok(())
}

/// Parts of a host endpoint that the controller owns.
const PARTS: [&[&str]; 3] = [&["metadata", "labels"], &["metadata", "annotations"], &["spec"]];

/// Reports whether a stored host endpoint equals the stored form of the wanted one.
pub(super) fn is_as_wanted(key: &ResourceKey, stored: &Value, wanted: &Value) -> bool {
    let mut form = wanted.clone();
    let formed = stored::to_stored(key, &mut form);
    formed.is_ok() && PARTS.iter().all(|part| same(field(stored, part), field(&form, part)))
}

fn delete(access: Access<'_>, key: &ResourceKey, revision: Revision, done: &mut Done) -> Result<(), JobError> {
    match access.resources.delete(key, Some(revision)) {
        Ok(()) => done.deleted += 1,
        Err(StoreError::NotFound(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
