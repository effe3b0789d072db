//! Interface to an agent under test.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::flows::ReportedFlow;
use crate::{
    cases::{Cluster, FlowVerdict},
    manifests::ManifestError,
    netns::{Namespace, NetnsError},
    pods::{Flow, NodeSide},
    program::ProgramError,
};

/// Error of starting an agent or passing it a new state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A command or a namespace failed.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// A program could not be started, or ended unexpectedly.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The state could not be written.
    #[error(transparent)]
    Manifests(#[from] ManifestError),
    /// A file that the agent needs to start is missing or could not be written.
    #[error("{}: {source}", path.display())]
    Driver {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Its flows could not be read.
    #[error("{}: {source}", path.display())]
    Flows {
        /// Path of the file with the flows.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Its status could not be read.
    #[error("status at {}: {source}", path.display())]
    Status {
        /// Path of its socket.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Its datastore could not be started.
    #[error("the datastore: {0}")]
    Datastore(#[source] std::io::Error),
}

/// The node on which an agent is started.
#[derive(Debug)]
pub struct NodeUnderTest<'a> {
    /// Name of the node in the cluster.
    pub name: &'a str,
    /// Network namespace of the node.
    pub namespace: &'a Namespace,
    /// Folder for the agent's state and log.
    pub folder: &'a Path,
}

/// A complete state for an agent.
#[derive(Debug)]
pub struct State<'a> {
    /// Pods and namespaces, including those of the canary.
    pub cluster: &'a Cluster,
    /// Number of nodes.
    pub nodes: usize,
    /// All policies in force; the canary's is the last.
    pub policies: &'a [Value],
    /// Expected verdict of each flow. Only test doubles may read it, not agents.
    pub expected: &'a [(Flow, FlowVerdict)],
}

impl State<'_> {
    /// Returns all objects that affect verdicts, as Kubernetes objects.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        let mut objects = self.cluster.objects();
        objects.extend(self.policies.iter().cloned());
        objects
    }
}

/// An agent that enforces policies on a node.
pub trait Agent: fmt::Debug + Send + Sync {
    /// Returns the party that sets up routes and interfaces of the node.
    fn node_side(&self) -> NodeSide;

    /// Reports whether the agent reports flows, which are compared then.
    fn reports_flows(&self) -> bool {
        false
    }

    /// Starts enforcing on a node without pods.
    ///
    /// # Errors
    /// If it cannot be started.
    fn start(&self, node: &NodeUnderTest<'_>) -> Result<Box<dyn RunningAgent>, AgentError>;
}

/// A started agent; it stops when dropped.
pub trait RunningAgent {
    /// Passes a new state to the agent, which may apply it after this returns.
    ///
    /// # Errors
    /// If the state cannot be passed on.
    fn apply(&mut self, node: &NodeUnderTest<'_>, state: &State<'_>) -> Result<(), AgentError>;

    /// Checks that the agent is alive.
    ///
    /// # Errors
    /// The reason if it is not.
    fn check(&mut self) -> Result<(), AgentError>;

    /// Returns the problems that it reports for the kernel; `None` while it is busy. Empty for an
    /// agent without a status.
    ///
    /// # Errors
    /// If it does not answer.
    fn problems(&mut self) -> Result<Option<Vec<String>>, AgentError> {
        Ok(Some(Vec::new()))
    }

    /// Returns the flows reported since the previous call; none before the first call.
    ///
    /// # Errors
    /// If they cannot be read.
    fn flows(&mut self, _node: &NodeUnderTest<'_>) -> Result<Vec<ReportedFlow>, AgentError> {
        Ok(Vec::new())
    }
}
