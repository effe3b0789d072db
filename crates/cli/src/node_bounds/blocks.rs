//! Policies and workloads that eBPF programs deny because maps have no blocks for them.

use std::collections::{BTreeMap, BTreeSet};

use tortie_analysis::plan::{Finding, on_one_node};
use tortie_config::settings;
use tortie_ebpf::{Closed, EndpointName, Problem};
use tortie_evaluate::{Layer, Missing, UpdateError};
use tortie_model::desired::{DesiredUpdate, TierPolicies};
use tortie_model::{Direction, Hostname, Key, PolicyId, Update};

use super::super::render::calculate;
use super::{Node, RuleCounts, host};

pub(super) fn over_budget(nodes: &[Node], objects: &[Update]) -> Result<BTreeSet<Finding>, UpdateError> {
    let nodes: Vec<&Node> = nodes.iter().filter(|node| node.config.bpf_enabled).collect();
    let endpoints = endpoints(objects);
    let suspects = suspects(&nodes, &endpoints, objects)?;
    let rules = RuleCounts::new(objects);
    let mut findings = BTreeSet::new();
    for node in nodes.into_iter().filter(|node| suspects.contains(&node.name)) {
        let desired = calculate(&node.config, &node.name, objects.to_vec()).0;
        let policies = policies(&desired);
        for problem in problems(node, &desired)? {
            let Some(why) = reason(&problem.why) else { continue };
            let deny = |object| Finding::DeniedByPrograms { object, why: why.clone() };
            let governing = match &problem.why {
                Closed::NoBlocksForSources { .. } => Vec::new(),
                Closed::Missing(Missing::AddressBudget { policy, .. }) => policy.iter().cloned().collect(),
                _ => rules.largest(policies_of(&problem, &policies)),
            };
            if governing.is_empty() {
                findings.extend(endpoints.get(&problem.endpoint).map(|(_, key)| deny(key.clone())));
            }
            findings.extend(governing.into_iter().map(Key::Policy).map(deny));
        }
    }
    Ok(findings)
}

/// A node that refuses an endpoint has one that is refused if all are on one node, where more share
/// the same bounds.
fn suspects(
    nodes: &[&Node],
    endpoints: &BTreeMap<EndpointName, (Hostname, Key)>,
    objects: &[Update],
) -> Result<BTreeSet<Hostname>, UpdateError> {
    let Some(first) = nodes.first() else { return Ok(BTreeSet::new()) };
    let bounds = |node: &Node| (node.config.bpf_max_blocks, settings::table_budget(&node.config));
    if nodes.iter().any(|node| bounds(node) != bounds(first)) {
        return Ok(nodes.iter().map(|node| node.name.clone()).collect());
    }
    let graph = settings::graph(&first.config, first.name.clone());
    let problems = problems(first, &on_one_node(&graph, objects.iter().cloned()))?;
    let hosts = problems.iter().filter_map(|problem| endpoints.get(&problem.endpoint));
    Ok(hosts.map(|(host, _)| host.clone()).collect())
}

fn problems(node: &Node, desired: &[DesiredUpdate]) -> Result<Vec<Problem>, UpdateError> {
    let Ok(rules) = settings::rules(&node.config) else { return Ok(Vec::new()) };
    let mut programs = tortie_ebpf::Node::new(settings::programs(&rules, &node.config).1);
    for update in desired {
        programs.on_update(update)?;
    }
    drop(programs.flush());
    Ok(programs.problems())
}

/// The exceeded bound, without numbers that change with other objects; `None` if the refusal is not
/// about blocks.
fn reason(why: &Closed) -> Option<String> {
    match why {
        Closed::NoBlocks { limit, .. } => {
            Some(format!("its rules need more blocks of eBPF maps than its namespace's share of {limit} has left"))
        }
        Closed::NoBlocksForSources { limit, .. } => Some(format!(
            "its source networks need more blocks of eBPF maps than its namespace's share of {limit} has left"
        )),
        Closed::Missing(Missing::AddressBudget { limit, .. }) => {
            Some(format!("its networks exceed the budget of {limit} blocks for addresses"))
        }
        Closed::TooManyCells(_) | Closed::MapFull(_) | Closed::TooManyClasses(_) => Some(why.to_string()),
        _ => None,
    }
}

fn endpoints(objects: &[Update]) -> BTreeMap<EndpointName, (Hostname, Key)> {
    let endpoint = |update: &Update| {
        let name = match update {
            Update::WorkloadEndpoint(key, _) => EndpointName::Workload(key.id()),
            Update::HostEndpoint(key, _) => EndpointName::Host(key.name.clone()),
            _ => return None,
        };
        Some((name, (host(update)?, update.key())))
    };
    objects.iter().filter_map(endpoint).collect()
}

type Tiers<'d> = Vec<(Layer, &'d [TierPolicies])>;

fn policies(desired: &[DesiredUpdate]) -> BTreeMap<EndpointName, Tiers<'_>> {
    desired.iter().filter_map(tiers).collect()
}

fn tiers(update: &DesiredUpdate) -> Option<(EndpointName, Tiers<'_>)> {
    match update {
        DesiredUpdate::WorkloadEndpoint(id, state) => {
            Some((EndpointName::Workload(id.clone()), vec![(Layer::Normal, &*state.tiers)]))
        }
        DesiredUpdate::HostEndpoint(name, state) => {
            let tiers = vec![
                (Layer::Normal, &*state.tiers),
                (Layer::Forward, &*state.forward_tiers),
                (Layer::Untracked, &*state.untracked_tiers),
                (Layer::PreDnat, &*state.pre_dnat_tiers),
            ];
            Some((EndpointName::Host(name.clone()), tiers))
        }
        _ => None,
    }
}

fn policies_of(problem: &Problem, tiers: &BTreeMap<EndpointName, Tiers<'_>>) -> Vec<PolicyId> {
    let of_layer = tiers.get(&problem.endpoint).into_iter().flatten().filter(|(layer, _)| *layer == problem.layer);
    let policies = of_layer.flat_map(|(_, tiers)| *tiers).flat_map(|tier| match problem.direction {
        Direction::Ingress => tier.ingress.iter(),
        Direction::Egress => tier.egress.iter(),
    });
    policies.cloned().collect()
}
