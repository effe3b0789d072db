//! Anything that can enforce policies on a node.

use std::{
    fmt,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    cases::{Cluster, Verdict},
    lab::{Flow, NodeSide},
    manifests::{ManifestDir, ManifestError, cluster_objects},
    netns::{Namespace, NetnsError},
};

/// Why an agent could not be started or told a new state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A command or a namespace failed.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The state could not be written.
    #[error(transparent)]
    Manifests(#[from] ManifestError),
    /// The log could not be opened.
    #[error("{}: {source}", path.display())]
    Log {
        /// Path of the log.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The agent ended on its own.
    #[error("the agent ended ({status}); the end of its log:\n{log}")]
    Died {
        /// Exit status in words.
        status: String,
        /// The last lines of its log.
        log: String,
    },
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
    /// All policies in force; the canary's is the last.
    pub policies: &'a [Value],
    /// What must become of each flow. An agent must not look at it; doubles do.
    pub expected: &'a [(Flow, Verdict)],
}

/// Something that can enforce policies on a node.
pub trait Agent: fmt::Debug + Send + Sync {
    /// Who sets up routes and interfaces on the node.
    fn node_side(&self) -> NodeSide;

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
}

/// A program that reads manifests from a directory. In its arguments `{manifests}` stands for the directory, `{node}`
/// for the node's name.
#[derive(Debug, Clone)]
pub struct CommandAgent {
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl CommandAgent {
    /// A program with its arguments.
    #[must_use]
    pub fn new<S: Into<String>>(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = S>) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
        }
    }

    /// `tortie run` with a file datastore.
    #[must_use]
    pub fn tortie(program: impl Into<PathBuf>) -> Self {
        Self::new(program, ["run", "--datastore", "file:{manifests}", "--node", "{node}"])
    }

    /// Adds a variable to its environment.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl Agent for CommandAgent {
    fn node_side(&self) -> NodeSide {
        NodeSide::ByAgent
    }

    fn start(&self, node: &NodeUnderTest<'_>) -> Result<Box<dyn RunningAgent>, AgentError> {
        let manifests = ManifestDir::create(&node.folder.join("manifests"))?;
        let log = node.folder.join("agent.log");
        let failed = |source| AgentError::Log { path: log.clone(), source };
        let output = File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let folder = manifests.path().display().to_string();
        let arguments =
            self.arguments.iter().map(|text| text.replace("{manifests}", &folder).replace("{node}", node.name));
        // A relative path is relative to where this process is, not to the agent's folder; a bare name is looked up.
        let program = std::fs::canonicalize(&self.program).unwrap_or_else(|_| self.program.clone());
        let mut command = Command::new(program);
        command
            .args(arguments)
            // One lock for all nodes of this machine would make them wait for each other.
            .env("XTABLES_LOCKFILE", node.folder.join("xtables.lock"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(node.folder)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        let child = node.namespace.spawn(&mut command)?;
        Ok(Box::new(RunningCommand { child, manifests, log }))
    }
}

#[derive(Debug)]
struct RunningCommand {
    child: Child,
    manifests: ManifestDir,
    log: PathBuf,
}

impl RunningAgent for RunningCommand {
    fn apply(&mut self, node: &NodeUnderTest<'_>, state: &State<'_>) -> Result<(), AgentError> {
        let mut objects = cluster_objects(state.cluster, node.name);
        objects.extend(state.policies.iter().cloned());
        self.manifests.replace(&objects)?;
        Ok(())
    }

    fn check(&mut self) -> Result<(), AgentError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(AgentError::Died { status: status.to_string(), log: tail(&self.log) }),
            Err(source) => Err(AgentError::Log { path: self.log.clone(), source }),
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let patience = Instant::now() + Duration::from_secs(3);
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of a log, for an error message.
fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
