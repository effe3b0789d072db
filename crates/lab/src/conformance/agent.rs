//! Anything that can enforce policies on a node.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::flows::ToldFlow;
use crate::{
    cases::{Cluster, Verdict},
    manifests::ManifestError,
    netns::{Namespace, NetnsError},
    pods::{Flow, NodeSide},
    program::ProgramError,
};

/// Why an agent could not be started or told a new state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A command or a namespace failed.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// A program could not be started, or ended on its own.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The state could not be written.
    #[error(transparent)]
    Manifests(#[from] ManifestError),
    /// What it takes to start it is not there, or could not be written.
    #[error("{}: {source}", path.display())]
    Driver {
        /// Where it would be.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// What it tells of flows could not be read.
    #[error("{}: {source}", path.display())]
    Flows {
        /// Path of the file that has it.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// It could not be asked how it is.
    #[error("status at {}: {source}", path.display())]
    Status {
        /// Path of its socket.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// What the agent reads from could not be started.
    #[error("the datastore: {0}")]
    Datastore(#[source] std::io::Error),
}

/// The node that an agent is started on.
#[derive(Debug)]
pub struct NodeUnderTest<'a> {
    /// The node's name in the cluster.
    pub name: &'a str,
    /// Its network namespace.
    pub namespace: &'a Namespace,
    /// A folder for the agent's state and log.
    pub folder: &'a Path,
}

/// One complete state that an agent is told.
#[derive(Debug)]
pub struct State<'a> {
    /// The pods and namespaces, those of the canary included.
    pub cluster: &'a Cluster,
    /// How many nodes there are.
    pub nodes: usize,
    /// All policies in force; the canary's is the last.
    pub policies: &'a [Value],
    /// What must become of each flow. An agent must not look at it; doubles do.
    pub expected: &'a [(Flow, Verdict)],
}

impl State<'_> {
    /// All that bears on verdicts, as objects of Kubernetes.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        let mut objects = self.cluster.objects();
        objects.extend(self.policies.iter().cloned());
        objects
    }
}

/// Something that can enforce policies on a node.
pub trait Agent: fmt::Debug + Send + Sync {
    /// Who sets up routes and interfaces on the node.
    fn node_side(&self) -> NodeSide;

    /// Whether it tells flows, so that these are to be compared as well.
    fn tells_flows(&self) -> bool {
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
    /// Tells the agent a new state. It may still be at work when this returns.
    ///
    /// # Errors
    /// If it cannot be told.
    fn apply(&mut self, node: &NodeUnderTest<'_>, state: &State<'_>) -> Result<(), AgentError>;

    /// Is it still alive?
    ///
    /// # Errors
    /// Why it is not.
    fn check(&mut self) -> Result<(), AgentError>;

    /// What it says is out of sync in the kernel; `None` while it is busy. Nothing of one that cannot be asked.
    ///
    /// # Errors
    /// If it does not answer.
    fn problems(&mut self) -> Result<Option<Vec<String>>, AgentError> {
        Ok(Some(Vec::new()))
    }

    /// What it has told of flows since it was asked before; nothing before the first time.
    ///
    /// # Errors
    /// If that cannot be read.
    fn flows(&mut self, _node: &NodeUnderTest<'_>) -> Result<Vec<ToldFlow>, AgentError> {
        Ok(Vec::new())
    }
}
