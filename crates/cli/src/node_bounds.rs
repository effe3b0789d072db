//! Policies that nodes refuse because tables have bounds.

mod blocks;
mod layouts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_analysis::plan::Finding;
use tortie_config::{Config, Sources};
use tortie_model::{Hostname, PolicyId, Update};

use super::cluster::{bears_on_parameters, config_of};
use super::exit::Failure;

/// Those whose eBPF tables exceed the blocks of maps, and those whose layouts of
/// `NFTablesLayout=Fast` exceed the memory budget. Nodes whose parameters do not fit are left out.
pub(super) fn refused(sources: &Sources, local: &Config, objects: &[Update]) -> Result<BTreeSet<Finding>, Failure> {
    let nodes = nodes(sources, local, objects);
    let mut findings = layouts::over_budget(&nodes, objects);
    findings.extend(blocks::over_budget(&nodes, objects).map_err(Failure::failed)?);
    Ok(findings)
}

/// A node that has endpoints.
struct Node {
    name: Hostname,
    config: Arc<Config>,
}

fn nodes(sources: &Sources, local: &Config, objects: &[Update]) -> Vec<Node> {
    let parameters: Vec<&Update> = objects.iter().filter(|update| bears_on_parameters(update)).collect();
    let config = |host: &Hostname| config_of(sources, local, parameters.iter().copied(), host).ok().map(Arc::new);
    let is_own = |update: &&Update| matches!(update, Update::HostConfig(..) | Update::ScopedConfig(..));
    let has_own = parameters.iter().any(is_own);
    let of_all = config(&Hostname::new(""));
    let hosts: BTreeSet<Hostname> = objects.iter().filter_map(host).collect();
    let node = |name: Hostname| {
        let config = if has_own { config(&name) } else { of_all.clone() }?;
        Some(Node { name, config })
    };
    hosts.into_iter().filter_map(node).collect()
}

fn host(update: &Update) -> Option<Hostname> {
    match update {
        Update::WorkloadEndpoint(key, Some(_)) => Some(Hostname::new(key.host())),
        Update::HostEndpoint(key, Some(_)) => Some(key.host.clone()),
        _ => None,
    }
}

struct RuleCounts<'u>(BTreeMap<&'u PolicyId, usize>);

impl<'u> RuleCounts<'u> {
    fn new(objects: &'u [Update]) -> Self {
        let counts = objects.iter().filter_map(|update| match update {
            Update::Policy(id, Some(policy)) => Some((id, policy.inbound.len() + policy.outbound.len())),
            _ => None,
        });
        Self(counts.collect())
    }

    fn largest(&self, policies: Vec<PolicyId>) -> Vec<PolicyId> {
        let count = |policy: &PolicyId| self.0.get(policy).copied().unwrap_or_default();
        let most = policies.iter().map(count).max().unwrap_or_default();
        policies.into_iter().filter(|policy| count(policy) == most).collect()
    }
}
