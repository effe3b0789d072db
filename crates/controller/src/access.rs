//! Access of a job to the datastore and to the current objects of Kubernetes.

use std::error::Error;
use std::fmt;
use std::time::SystemTime;

use serde_json::Value;
use tortie_datastore::store::{ResourceStore, StoreError, TextStore};

use crate::json::field;

/// A kind of Kubernetes object that the node controller follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LiveKind {
    /// `nodes`, version `v1`.
    Nodes,
    /// `pods`, version `v1`: which addresses are in use.
    Pods,
}

/// Reader of current objects of the API server.
pub trait LiveObjects: Send + Sync {
    /// Returns an object; `None` if no object has this name. The namespace of a node is empty.
    ///
    /// # Errors
    /// If the API server refuses the request or gives no usable answer.
    fn get(&self, kind: LiveKind, namespace: &str, name: &str) -> Result<Option<Value>, LiveError>;
}

/// A failed request to the API server, with the message of the server or of its client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The API server denies the request, to all users or to this one; a retry does not help.
    #[error("{0}")]
    Refused(String),
    /// The API server gives no answer, or an invalid one; a retry may help.
    #[error("{0}")]
    Unavailable(String),
}

/// The stores and the time that a job works with.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    /// The resources.
    pub resources: &'a dyn ResourceStore,
    /// The other entries of the same datastore, by path.
    pub texts: &'a dyn TextStore,
    /// The current objects of Kubernetes.
    pub live: &'a dyn LiveObjects,
    /// The time of day.
    pub time: SystemTime,
}

impl fmt::Debug for Access<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// Error of a job about nodes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// An error of the datastore.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An error of Kubernetes.
    #[error("Kubernetes")]
    Kubernetes(#[from] LiveError),
    /// A stored object that the job cannot work with.
    #[error(transparent)]
    Unfit(Box<dyn Error + Send + Sync>),
}

impl JobError {
    pub(crate) fn unfit(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unfit(error.into())
    }
}

/// Returns the name of the node of Kubernetes that a node of Calico refers to (`getK8sNodeName` of
/// `kube-controllers/pkg/controllers/node/controller.go`).
pub(crate) fn kubernetes_name(node: &Value) -> Option<&str> {
    let references = field(node, &["spec", "orchRefs"]).as_array()?;
    let reference = references.iter().find(|reference| field(reference, &["orchestrator"]) == "k8s")?;
    field(reference, &["nodeName"]).as_str().filter(|name| !name.is_empty())
}
