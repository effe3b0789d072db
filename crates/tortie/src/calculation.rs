//! A node of the cluster, and the calculation of its desired state.

use std::io;
use std::path::Path;
use std::time::Duration;

use tortie_calc::{Graph, GraphConfig};
use tortie_dataplane::{Dataplane, DataplaneConfig};
use tortie_datastore::{DirSource, DirState, FileContent, InputProblem, ReadError, Source};
use tortie_iptables::Backend;
use tortie_model::{Hostname, SyncStatus, Update};
use tortie_resources::manifest::Options;
use tortie_rules::RulesConfig;

use crate::{Changes, ClusterProblem, NodeState};

/// A node of the cluster, by its name and with its configuration.
///
/// The configuration begins with Felix's defaults. Parameters in the cluster's own
/// `FelixConfiguration` do not change it: they are returned as
/// [`DesiredUpdate::Config`](tortie_model::desired::DesiredUpdate::Config), for the embedding
/// program to apply.
///
/// ```
/// use tortie::Node;
/// use tortie::rules::DenyAction;
///
/// let mut node = Node::new("node-1");
/// node.dataplane_config.rules.deny = DenyAction::Reject;
/// node.graph_config.ipip_enabled = Some(false);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    /// Options for reading manifests.
    pub manifest_options: Options,
    /// Parameters of the calculation besides the cluster.
    pub graph_config: GraphConfig,
    /// Parameters of the text of rules, and of its enforcement, besides the desired state.
    pub dataplane_config: DataplaneConfig,
}

impl Node {
    /// A node with Felix's defaults, by the name that the cluster gives it: `spec.nodeName` of
    /// pods.
    #[must_use]
    pub fn new(name: impl Into<Hostname>) -> Self {
        let name = name.into();
        Self {
            manifest_options: Options::default(),
            graph_config: GraphConfig::new(name.clone()),
            dataplane_config: DataplaneConfig::new(name, RulesConfig::default(), Backend::Nft),
        }
    }

    /// Calculates this node's state from a directory of manifests. Files end in `.yaml`, `.yml` or
    /// `.json`; others are skipped.
    ///
    /// # Errors
    /// If the directory cannot be listed. Files that cannot be read are among
    /// [`NodeState::problems`].
    pub fn read_dir(&self, directory: impl AsRef<Path>) -> io::Result<NodeState> {
        let mut source = DirSource::new(directory.as_ref(), self.manifest_options.clone());
        let updates = source.read()?;
        Ok(self.state(updates, source.problems()))
    }

    /// Calculates this node's state from a text of YAML documents.
    ///
    /// ```
    /// let state = tortie::Node::new("node-1").read_yaml("apiVersion: v1\nkind: Namespace\nmetadata: {nam: shop}\n");
    /// assert!(state.problems()[0].to_string().starts_with("manifests.yaml:"));
    /// ```
    #[must_use]
    pub fn read_yaml(&self, manifests: &str) -> NodeState {
        let mut state = DirState::new(self.manifest_options.clone());
        let mut updates = state.take_updates();
        updates.extend(state.set_file(Path::new("manifests.yaml"), Some(FileContent::Text(manifests))));
        self.state(updates, state.problems())
    }

    /// Calculates this node's state from any source, once it has been read as a whole. While the
    /// source cannot be read, reading is retried for as long as `patience`.
    ///
    /// # Errors
    /// If it refuses to be read, or cannot be read for so long.
    pub fn read(&self, source: impl Source, patience: Duration) -> Result<NodeState, ReadError> {
        let all = tortie_datastore::read(source, patience, |_| ())?;
        Ok(self.state(all.updates, all.problems))
    }

    /// Calculates this node's state from these objects. Of several with one key the last counts.
    #[must_use]
    pub fn calculate(&self, updates: impl IntoIterator<Item = Update>) -> NodeState {
        self.state(updates, [])
    }

    /// Follows a source for as long as the iterator lives.
    ///
    /// # Errors
    /// If the source's thread cannot be started.
    pub fn watch(&self, source: impl Source) -> io::Result<Changes> {
        let watching = tortie_datastore::watch(source)?;
        Ok(Changes::new(self.graph(), watching))
    }

    /// Returns the calculation by itself: updates in, changes of the desired state out, as
    /// [`Graph`] describes.
    #[must_use]
    pub fn graph(&self) -> Graph {
        Graph::new(&self.graph_config)
    }

    /// Returns a dataplane, which enforces or renders the changes of the calculation.
    #[must_use]
    pub fn dataplane(&self) -> Dataplane {
        Dataplane::new(self.dataplane_config.clone())
    }

    fn state(
        &self,
        updates: impl IntoIterator<Item = Update>,
        problems: impl IntoIterator<Item = InputProblem>,
    ) -> NodeState {
        let mut graph = self.graph();
        updates.into_iter().for_each(|update| graph.on_update(update));
        graph.on_status(SyncStatus::InSync);
        let desired = graph.take_changes();
        let input = problems.into_iter().map(ClusterProblem::Input);
        let problems = input.chain(graph.problems().map(ClusterProblem::Ignored)).collect();
        NodeState { desired, problems, dataplane_config: self.dataplane_config.clone() }
    }
}
