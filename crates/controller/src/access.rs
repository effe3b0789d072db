//! What jobs read and write with: the datastore, and Kubernetes as it is now.

use std::error::Error;
use std::fmt;
use std::time::SystemTime;

use serde_json::Value;
use tortie_datastore::store::{ResourceStore, StoreError, TextStore};

use crate::json::field;

/// A kind of object of Kubernetes that is followed for the sake of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seen {
    /// `nodes`, version `v1`.
    Nodes,
    /// `pods`, version `v1`: which addresses are in use.
    Pods,
}

/// The API server, asked for what it has now.
pub trait LiveObjects: Send + Sync {
    /// An object; `None` if there is none of this name. Nodes have no namespace.
    ///
    /// # Errors
    /// Why nothing can be said of it.
    fn get(&self, kind: Seen, namespace: &str, name: &str) -> Result<Option<Value>, LiveError>;
}

/// Why the API server does not say what it has now, in its own words or in those of its client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// It does not allow to ask, or not this user; trying again does not help.
    #[error("{0}")]
    Refused(String),
    /// It does not answer, or nothing that makes sense; trying again may help.
    #[error("{0}")]
    Unavailable(String),
}

/// What a job may use.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    /// The resources.
    pub resources: &'a dyn ResourceStore,
    /// What else the same datastore keeps.
    pub texts: &'a dyn TextStore,
    /// Kubernetes as it is now.
    pub live: &'a dyn LiveObjects,
    /// The time of day.
    pub time: SystemTime,
}

impl fmt::Debug for Access<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// Why a job about nodes was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// What the datastore says.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What Kubernetes says.
    #[error("Kubernetes: {0}")]
    Kubernetes(#[from] LiveError),
    /// What is there is not as it must be.
    #[error(transparent)]
    Unfit(Box<dyn Error + Send + Sync>),
}

impl JobError {
    pub(crate) fn unfit(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unfit(error.into())
    }
}

/// What a node of Kubernetes a node of Calico is (`getK8sNodeName` of
/// `kube-controllers/pkg/controllers/node/controller.go`).
pub(crate) fn kubernetes_name(node: &Value) -> Option<&str> {
    let references = field(node, &["spec", "orchRefs"]).as_array()?;
    let reference = references.iter().find(|reference| field(reference, &["orchestrator"]) == "k8s")?;
    field(reference, &["nodeName"]).as_str().filter(|name| !name.is_empty())
}
