//! A whole cluster as one node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_calc::{GraphConfig, IgnoredObject};
use tortie_classes::evaluate::{Settings, UpdateError};
use tortie_classes::{Budget, Classes, Compiled};
use tortie_model::desired::{DesiredUpdate, Rules};
use tortie_model::{Direction, Hostname, Update};

use crate::plan::findings::{Finding, of_policies};
use crate::plan::name_rows::NameRows;
use crate::plan::named_sets::NamedSets;
use crate::plan::one_node::OneNode;
use crate::plan::policy_state::PolicyState;

/// All endpoints of a cluster as if they were on one node, whose tables answer for the whole
/// cluster.
#[allow(missing_debug_implementations, reason = "a graph has none")]
pub struct Cluster {
    node: OneNode,
    named: NamedSets,
    pub(crate) state: State,
}

/// Desired state of the node.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) classes: Classes,
    pub(crate) policy_state: PolicyState,
    /// Whether rules may match names that have no row.
    names_left_out: bool,
}

impl Cluster {
    /// Returns a cluster without objects. The name of the node has no effect.
    #[must_use]
    pub fn new(config: &GraphConfig, settings: Settings) -> Self {
        let state =
            State { classes: Classes::new(settings), policy_state: PolicyState::default(), names_left_out: false };
        Self { node: OneNode::new(config), named: NamedSets::default(), state }
    }

    /// Makes rows for the destinations by domain name that rules of these objects distinguish,
    /// before any object is applied. Without them, rules match nothing by name.
    pub fn distinguish_names<'u>(&mut self, objects: impl Iterator<Item = &'u Update> + Clone) {
        self.set_names(NameRows::of(objects));
    }

    /// As [`Cluster::distinguish_names`], with these rows.
    pub(crate) fn set_names(&mut self, rows: NameRows) {
        self.state.names_left_out = rows.is_incomplete;
        self.named.rows = rows;
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
            if self.named.rows.is_empty() {
                self.state.classes.apply(update)?;
            } else {
                let translated = self.named.translate(update);
                translated.iter().try_for_each(|update| self.state.classes.apply(update))?;
            }
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
        let mut findings = of_policies(&policies.collect(), &self.policy_state, &self.classes.flush());
        if self.names_left_out {
            findings.retain(|finding| !self.is_about_names(finding));
        }
        findings
    }

    /// Reports whether a finding is about a rule that matches by name, or a policy with such rules.
    fn is_about_names(&self, finding: &Finding) -> bool {
        let rules = finding.policy().and_then(|id| self.policy_state.policies.get(id)).map(|policy| &policy.outbound);
        let by_name = |index: usize| {
            rules.and_then(|rules| rules.iter().nth(index)).is_some_and(|rule| !rule.sets.dst_domains.is_empty())
        };
        match (finding, finding.rule()) {
            (_, Some((direction, index))) => direction == Direction::Egress && by_name(index),
            (Finding::Shadowed { .. }, None) => (0..rules.map_or(0, Rules::len)).any(by_name),
            _ => false,
        }
    }
}
