//! A whole cluster as one node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_calc::{GraphConfig, IgnoredObject};
use tortie_classes::evaluate::{Settings, UpdateError};
use tortie_classes::{Budget, Classes, Compiled};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Hostname, Update};

use crate::plan::findings::{Finding, of_policies};
use crate::plan::one_node::OneNode;
use crate::plan::policy_state::PolicyState;

/// All endpoints of a cluster as if they were on one node, whose tables answer for the whole
/// cluster.
#[allow(missing_debug_implementations, reason = "a graph has none")]
pub struct Cluster {
    node: OneNode,
    pub(crate) state: State,
}

/// Desired state of the node.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) classes: Classes,
    pub(crate) policy_state: PolicyState,
}

impl Cluster {
    /// Returns a cluster without objects. The name of the node has no effect.
    #[must_use]
    pub fn new(config: &GraphConfig, settings: Settings) -> Self {
        let state = State { classes: Classes::new(settings), policy_state: PolicyState::default() };
        Self { node: OneNode::new(config), state }
    }

    /// Replaces the settings of all nodes, and those of nodes with different ones.
    pub fn set_settings(&mut self, settings: Settings, nodes: BTreeMap<Hostname, Settings>) {
        self.state.classes.set_settings(settings);
        self.state.classes.set_node_settings(nodes);
    }

    /// Replaces the memory bounds on tables with those of nodes.
    pub fn set_budget(&mut self, budget: Budget) {
        self.state.classes.set_budget(budget);
    }

    /// Applies changes of objects, and returns the changes of the desired state. Deletions come
    /// first, so that an endpoint that moves from one node to another stays.
    ///
    /// # Errors
    /// If the calculation contradicts itself.
    pub fn apply(&mut self, updates: impl Iterator<Item = Update>) -> Result<Vec<DesiredUpdate>, UpdateError> {
        let (there, gone): (Vec<Update>, Vec<Update>) = updates.partition(Update::exists);
        for update in gone.into_iter().chain(there) {
            self.note_node(&update);
            self.node.on_update(update);
        }
        let desired = self.node.flush();
        for update in &desired {
            self.state.classes.apply(update)?;
            self.state.policy_state.note(update);
        }
        self.state.classes.flush();
        Ok(desired)
    }

    /// Records the node of an endpoint, or the addresses of a node.
    fn note_node(&mut self, update: &Update) {
        let classes = &mut self.state.classes;
        match update {
            Update::WorkloadEndpoint(key, endpoint) => {
                classes.set_workload_node(&key.id(), endpoint.as_ref().map(|_| Hostname::new(key.host())));
            }
            Update::HostEndpoint(key, endpoint) => {
                classes.set_host_node(&key.name, endpoint.as_ref().map(|_| key.host.clone()));
            }
            Update::Node(host, node) => {
                let addresses: Vec<IpAddr> = node.iter().flat_map(|node| node.own_addresses()).collect();
                classes.set_node_addresses(host, &addresses);
            }
            _ => {}
        }
    }

    /// Returns the tables of all endpoints.
    pub fn compiled(&mut self) -> Compiled<'_> {
        self.state.classes.flush()
    }

    /// Returns objects and claims to addresses and interfaces that do not count on their nodes,
    /// sorted by key.
    #[must_use]
    pub fn ignored(&self) -> Vec<IgnoredObject> {
        self.node.ignored()
    }

    /// Returns the policies and policy rules without effect. `objects` are all objects of the
    /// cluster.
    pub fn without_effect<'u>(&mut self, objects: impl Iterator<Item = &'u Update>) -> BTreeSet<Finding> {
        self.state.without_effect(objects)
    }
}

impl State {
    /// As [`Cluster::without_effect`].
    pub(crate) fn without_effect<'u>(&mut self, objects: impl Iterator<Item = &'u Update>) -> BTreeSet<Finding> {
        let policies = objects.filter_map(|update| match update {
            Update::Policy(id, Some(policy)) => Some((id.clone(), &**policy)),
            _ => None,
        });
        of_policies(&policies.collect(), &self.policy_state, &self.classes.flush())
    }
}
