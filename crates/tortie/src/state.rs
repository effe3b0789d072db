//! Desired state of a node at one time.

use tortie_dataplane::{Dataplane, DataplaneConfig, Rendered};
use tortie_model::desired::DesiredUpdate;

use crate::ClusterProblem;

/// Desired state of a node at one time.
#[derive(Clone, Debug)]
pub struct NodeState {
    pub(crate) desired: Vec<DesiredUpdate>,
    pub(crate) problems: Vec<ClusterProblem>,
    pub(crate) dataplane_config: DataplaneConfig,
}

impl NodeState {
    /// Returns the whole desired state, in an order for an empty dataplane: no update refers to a
    /// later one.
    #[must_use]
    pub fn desired(&self) -> &[DesiredUpdate] {
        &self.desired
    }

    /// [`NodeState::desired`], to keep.
    #[must_use]
    pub fn into_desired(self) -> Vec<DesiredUpdate> {
        self.desired
    }

    /// Returns the problems of the input, whose objects are left out. Where a policy is replaced by
    /// one that denies, the problem states it.
    #[must_use]
    pub fn problems(&self) -> &[ClusterProblem] {
        &self.problems
    }

    /// Returns the input of `ipset restore` and `iptables-restore` for a clean node.
    #[must_use]
    pub fn render(&self) -> Rendered {
        let mut dataplane = Dataplane::new(self.dataplane_config.clone());
        self.desired.iter().cloned().for_each(|update| dataplane.on_update(update));
        dataplane.render()
    }
}
