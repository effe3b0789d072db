//! Rules of objects in memory, without I/O: `cargo run --package tortie --example calculate`.

use std::error::Error;

use tortie::Node;
use tortie::iptables::Table;
use tortie::model::{Family, Policy, PolicyId, PolicyKind, Rule, RuleAction, SyncStatus, Update, Valid};
use tortie::model::{WorkloadEndpoint, WorkloadEndpointKey};

/// Prints the rules of a policy that allows all traffic to a pod, and the rule that jumps to them.
pub fn main() -> Result<(), Box<dyn Error>> {
    let node = Node::new("node-1");
    let (mut graph, mut dataplane) = (node.graph(), node.dataplane());

    let pod = WorkloadEndpoint { iface: Some("cali1".parse()?), ..WorkloadEndpoint::default() };
    let key = WorkloadEndpointKey::new("node-1", "k8s", "shop/web", "eth0");
    let policy = Policy { inbound: [Rule::new(RuleAction::Allow)].into(), ..Policy::default() };
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "open");
    graph.on_update(Update::WorkloadEndpoint(key, Some(Valid::new(pod)?)));
    graph.on_update(Update::Policy(id, Some(Valid::new(policy)?)));
    graph.on_status(SyncStatus::InSync);

    graph.take_changes().into_iter().for_each(|change| dataplane.on_update(change));
    let rendered = dataplane.render();
    let rules = rendered.table(Family::V4, Table::Filter).into_iter().flat_map(str::lines);
    rules.filter(|line| line.contains(" cali-pi-gnp/open")).for_each(|line| println!("{line}"));
    Ok(())
}
