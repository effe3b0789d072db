//! What is desired of a node at one time.

use tortie_dataplane::{Dataplane, DataplaneConfig, Rendered};
use tortie_model::desired::DesiredUpdate;

use crate::ClusterProblem;

/// What is desired of a node at one time.
#[derive(Clone, Debug)]
pub struct NodeState {
    pub(crate) desired: Vec<DesiredUpdate>,
    pub(crate) problems: Vec<ClusterProblem>,
    pub(crate) dataplane_config: DataplaneConfig,
}

impl NodeState {
    /// All that is desired, as it is told to a dataplane that knows nothing: nothing refers to what comes later.
    #[must_use]
    pub fn desired(&self) -> &[DesiredUpdate] {
        &self.desired
    }

    /// [`NodeState::desired`], to keep.
    #[must_use]
    pub fn into_desired(self) -> Vec<DesiredUpdate> {
        self.desired
    }

    /// What is wrong with the input, and left out. Where a policy is replaced by one that denies, the problem says so.
    #[must_use]
    pub fn problems(&self) -> &[ClusterProblem] {
        &self.problems
    }

    /// What `ipset restore` and `iptables-restore` would read on a clean node.
    #[must_use]
    pub fn render(&self) -> Rendered {
        let mut dataplane = Dataplane::new(self.dataplane_config.clone());
        self.desired.iter().cloned().for_each(|update| dataplane.on_update(update));
        dataplane.render()
    }
}
