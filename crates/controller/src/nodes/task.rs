//! What workers do about nodes.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use tortie_datastore::store::{StoreError, StoredResource};
use tortie_net::Cidr;
use tortie_resources::stored::{self, ResourceKey, ResourceKind, Revision};

use super::host_endpoints::is_ours;
use super::{config, labels};
use crate::access::{Access, JobError, Seen, kubernetes_name};
use crate::ipam::{ReleaseTask, Settled};
use crate::json::{field, set};
use crate::same::same;

/// What can be out of step.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Item {
    /// The configuration of the controllers.
    Configuration,
    /// A node of Calico: its labels, and whether it should be.
    Node(String),
    /// The host endpoints of a node that were made for it.
    HostEndpoints(String),
    /// The addresses that were allocated on a node, and its blocks if it is gone.
    Addresses(String),
    /// A block that nobody has an address of, or whose addresses cool down.
    Block(Cidr),
    /// A handle that says more than it has.
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

/// A piece of work about nodes, for one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub(super) item: Item,
    pub(super) task: Task,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Task {
    /// Write the status, and the resource if there is none.
    Configuration { status: Value },
    /// Give a node these labels of a node of Kubernetes.
    Labels { node: String, kubernetes: String, labels: BTreeMap<String, String> },
    /// Delete a node if the node of Kubernetes that it was is gone.
    DeleteNode { node: String, kubernetes: String },
    /// Make host endpoints as wanted, and delete others if they are still at these versions.
    HostEndpoints { wanted: Vec<(String, Value)>, unwanted: Vec<(String, Revision)> },
    /// Release addresses or blocks.
    Addresses(ReleaseTask),
}

/// What a job about nodes has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// How many resources were created.
    pub created: usize,
    /// How many were changed.
    pub updated: usize,
    /// How many were deleted.
    pub deleted: usize,
    /// How many addresses were released.
    pub released: usize,
    /// What came of releasing.
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
    /// Does it. May take as long as some calls of the datastore and of the API server.
    ///
    /// # Errors
    /// What they say. The controller wants to hear of it, too.
    pub fn run(&self, access: Access<'_>) -> Result<Done, JobError> {
        let mut done = Done::default();
        match &self.task {
            Task::Configuration { status } => write_configuration(access, status, &mut done)?,
            Task::Labels { node, kubernetes, labels } => copy_labels(access, node, kubernetes, labels, &mut done)?,
            Task::DeleteNode { node, kubernetes } => delete_node(access, node, kubernetes, &mut done)?,
            Task::HostEndpoints { wanted, unwanted } => {
                // One that cannot be made is no reason for the others not to be.
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

/// Asks Kubernetes again right before: the node may have come back.
fn delete_node(access: Access<'_>, node: &str, kubernetes: &str, done: &mut Done) -> Result<(), JobError> {
    let key = key(ResourceKind::Node, node)?;
    let StoredResource { object, revision, .. } = match access.resources.get(&key) {
        Err(StoreError::NotFound(_)) => return Ok(()),
        other => other?,
    };
    let is_gone =
        kubernetes_name(&object) == Some(kubernetes) && access.live.get(Seen::Nodes, "", kubernetes)?.is_none();
    if is_gone { delete(access, &key, revision, done) } else { Ok(()) }
}

/// Creates a host endpoint, or repairs it if it is ours.
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

/// What of a host endpoint is ours.
const PARTS: [&[&str]; 3] = [&["metadata", "labels"], &["metadata", "annotations"], &["spec"]];

/// Whether what is kept of a host endpoint is what would be kept of this one.
pub(super) fn is_as_wanted(key: &ResourceKey, kept: &Value, wanted: &Value) -> bool {
    let mut form = wanted.clone();
    let formed = stored::to_stored(key, &mut form);
    formed.is_ok() && PARTS.iter().all(|part| same(field(kept, part), field(&form, part)))
}

fn delete(access: Access<'_>, key: &ResourceKey, revision: Revision, done: &mut Done) -> Result<(), JobError> {
    match access.resources.delete(key, Some(revision)) {
        Ok(()) => done.deleted += 1,
        Err(StoreError::NotFound(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
