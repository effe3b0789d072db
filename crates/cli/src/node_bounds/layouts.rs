//! Layouts of `NFTablesLayout=Fast` that nodes refuse because of their memory budget.

use std::collections::BTreeSet;

use tortie_analysis::plan::{Finding, on_one_node};
use tortie_config::{Config, NftablesLayout, settings};
use tortie_dataplane::{Dataplane, DataplaneConfig, DataplaneProblem, Owner};
use tortie_iptables::{Backend, ChainProblem};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Budget, Hostname, PolicyId, Update};

use super::super::render::calculate;
use super::{Node, RuleCounts, host};

struct FastNode<'n> {
    node: &'n Node,
    budget: Budget,
}

pub(super) fn over_budget(nodes: &[Node], objects: &[Update]) -> BTreeSet<Finding> {
    let fast: Vec<FastNode<'_>> = nodes.iter().filter_map(FastNode::new).collect();
    let Some(first) = fast.first() else { return BTreeSet::new() };
    let rules = RuleCounts::new(objects);
    let hosts: BTreeSet<Hostname> = objects.iter().filter_map(host).collect();
    // One calculation for all nodes shows whether a group exceeds its bound, and whether a node
    // may.
    if fast.len() == hosts.len() && fast.iter().all(|other| other.budget == first.budget) {
        let node = first.node;
        let desired = on_one_node(&settings::graph(&node.config, node.name.clone()), objects.iter().cloned());
        let refused = refused(node, desired);
        let Budget { group, node } = first.budget;
        if refused.iter().all(|(_, limit)| *limit == group && group != node) {
            return findings(refused, &rules);
        }
    }
    let of_node = |node: &Node| refused(node, calculate(&node.config, &node.name, objects.to_vec()).0);
    fast.iter().flat_map(|fast| findings(of_node(fast.node), &rules)).collect()
}

impl<'n> FastNode<'n> {
    fn new(node: &'n Node) -> Option<Self> {
        let made = dataplane(&node.config, &node.name)?;
        let families = made.families.len().max(1);
        let budget = made.nftables?.budget;
        Some(Self { node, budget: Budget { node: budget.node / families, ..budget } })
    }
}

/// `None` if the policy is not in force by the layout `Fast`.
fn dataplane(config: &Config, host: &Hostname) -> Option<DataplaneConfig> {
    let is_by_nftables = !config.bpf_enabled && settings::uses_nftables(config, true);
    if !is_by_nftables || config.nftables_layout != NftablesLayout::Fast {
        return None;
    }
    let mut made = settings::dataplane(config, host.clone(), Backend::Nft).ok()?;
    settings::for_nftables(config, &mut made).ok()?;
    Some(made)
}

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

fn findings(refused: Vec<(Vec<PolicyId>, usize)>, rules: &RuleCounts<'_>) -> BTreeSet<Finding> {
    let of_chain = |(policies, limit)| {
        let largest = rules.largest(policies).into_iter();
        largest.map(move |policy| Finding::LayoutOverBudget { policy, limit })
    };
    refused.into_iter().flat_map(of_chain).collect()
}
