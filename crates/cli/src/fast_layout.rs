//! Layouts of `NFTablesLayout=Fast` that nodes refuse because of their memory budget.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_analysis::plan::{Finding, on_one_node};
use tortie_config::{Config, NftablesLayout, Sources, settings};
use tortie_dataplane::{Dataplane, DataplaneConfig, DataplaneProblem, Owner};
use tortie_iptables::{Backend, ChainProblem};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Budget, Hostname, PolicyId, Update};

use super::cluster::{bears_on_parameters, config_of};
use super::render::calculate;

/// A node with the layout `Fast`.
struct Node {
    name: Hostname,
    config: Arc<Config>,
    /// Bounds on the tables of one address family.
    budget: Budget,
}

/// Returns the policies whose chains exceed the memory budget of a node with the layout `Fast`. Nodes whose parameters do not
/// fit are left out.
pub(super) fn over_budget(sources: &Sources, local: &Config, objects: &[Update]) -> BTreeSet<Finding> {
    let hosts = hosts(objects);
    let nodes = fast_nodes(sources, local, objects, &hosts);
    let Some(first) = nodes.first() else { return BTreeSet::new() };
    let rules = rule_counts(objects);
    // One calculation for all nodes shows whether a group exceeds its bound, and whether a node may.
    if nodes.len() == hosts.len() && nodes.iter().all(|node| node.budget == first.budget) {
        let desired = on_one_node(&settings::graph(&first.config, first.name.clone()), objects.iter().cloned());
        let refused = refused(first, desired);
        let Budget { group, node } = first.budget;
        if refused.iter().all(|(_, limit)| *limit == group && group != node) {
            return findings(&refused, &rules);
        }
    }
    let of_node = |node: &Node| refused(node, calculate(&node.config, &node.name, objects.to_vec()).0);
    nodes.iter().flat_map(|node| findings(&of_node(node), &rules)).collect()
}

/// The nodes that have endpoints.
fn hosts(objects: &[Update]) -> BTreeSet<Hostname> {
    let host = |update: &Update| match update {
        Update::WorkloadEndpoint(key, Some(_)) => Some(Hostname::new(key.host())),
        Update::HostEndpoint(key, Some(_)) => Some(key.host.clone()),
        _ => None,
    };
    objects.iter().filter_map(host).collect()
}

fn fast_nodes(sources: &Sources, local: &Config, objects: &[Update], hosts: &BTreeSet<Hostname>) -> Vec<Node> {
    let parameters: Vec<&Update> = objects.iter().filter(|update| bears_on_parameters(update)).collect();
    let config = |host: &Hostname| config_of(sources, local, parameters.iter().copied(), host).ok().map(Arc::new);
    let is_own = |update: &&Update| matches!(update, Update::HostConfig(..) | Update::ScopedConfig(..));
    let has_own = parameters.iter().any(is_own);
    let of_all = config(&Hostname::new(""));
    let node = |host: &Hostname| {
        let config = if has_own { config(host) } else { of_all.clone() }?;
        let made = dataplane(&config, host)?;
        let families = made.families.len().max(1);
        let budget = made.nftables?.budget;
        let budget = Budget { node: budget.node / families, ..budget };
        Some(Node { name: host.clone(), config, budget })
    };
    hosts.iter().filter_map(node).collect()
}

/// The dataplane of a node; `None` if its policy is not in force by the layout `Fast`.
fn dataplane(config: &Config, host: &Hostname) -> Option<DataplaneConfig> {
    let is_by_nftables = !config.bpf_enabled && settings::uses_nftables(config, true);
    if !is_by_nftables || config.nftables_layout != NftablesLayout::Fast {
        return None;
    }
    let mut made = settings::dataplane(config, host.clone(), Backend::Nft).ok()?;
    settings::for_nftables(config, &mut made).ok()?;
    Some(made)
}

/// The policies of each refused chain, and the bound that it exceeds.
fn refused(node: &Node, desired: Vec<DesiredUpdate>) -> Vec<(Vec<PolicyId>, usize)> {
    let Some(config) = dataplane(&node.config, &node.name) else { return Vec::new() };
    let mut dataplane = Dataplane::new(config);
    desired.into_iter().for_each(|update| dataplane.on_update(update));
    let problems = dataplane.chain_problems().into_iter().filter_map(|problem| match problem {
        DataplaneProblem::Chain { problem: ChainProblem::OverBudget { limit, .. }, owners, .. } => {
            Some((owners.into_iter().filter_map(policy).collect(), limit))
        }
        _ => None,
    });
    problems.collect()
}

fn policy(owner: Owner) -> Option<PolicyId> {
    match owner {
        Owner::Policy(id) => Some(id),
        _ => None,
    }
}

fn rule_counts(objects: &[Update]) -> BTreeMap<&PolicyId, usize> {
    let counts = objects.iter().filter_map(|update| match update {
        Update::Policy(id, Some(policy)) => Some((id, policy.inbound.len() + policy.outbound.len())),
        _ => None,
    });
    counts.collect()
}

/// Names the policies with the most rules of each chain.
fn findings(refused: &[(Vec<PolicyId>, usize)], rules: &BTreeMap<&PolicyId, usize>) -> BTreeSet<Finding> {
    let count = |policy: &PolicyId| rules.get(policy).copied().unwrap_or_default();
    let of_chain = |(policies, limit): &(Vec<PolicyId>, usize)| {
        let most = policies.iter().map(count).max().unwrap_or_default();
        let largest = policies.iter().filter(|policy| count(policy) == most).cloned();
        let limit = *limit;
        largest.map(|policy| Finding::LayoutOverBudget { policy, limit }).collect::<Vec<_>>()
    };
    refused.iter().flat_map(of_chain).collect()
}
