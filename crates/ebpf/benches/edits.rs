//! Processor time of edits of one policy, from the update to the map writes.
#![allow(clippy::unwrap_used, reason = "a benchmark without its input has no result")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};
use tortie_ebpf::{Interface, Node, NodeSettings};
use tortie_model::desired::{DesiredUpdate, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState};
use tortie_model::{
    Cidr, EntityMatch, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierName, WorkloadEndpoint,
    WorkloadEndpointId,
};

/// Numbers of rules of the edited policy. Builds without optimizations are only tried.
const RULES: &[u32] = if cfg!(debug_assertions) { &[10] } else { &[10, 100, 1_000, 10_000] };

fn policy_id() -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "ns", "policy")
}

/// A rule with a separate network and port.
fn rule(number: u32) -> Rule {
    rule_of(number, u16::try_from(1_000 + number).unwrap())
}

fn rule_of(network: u32, port: u16) -> Rule {
    let net = Cidr::new(Ipv4Addr::from_bits(0x0a00_0000 + network * 256).into(), 24).unwrap();
    Rule {
        protocol: Some(Protocol::TCP),
        source: EntityMatch { nets: [net].into(), ..EntityMatch::default() },
        destination: EntityMatch { ports: [PortSpec::single(port)].into(), ..EntityMatch::default() },
        ..Rule::new(RuleAction::Allow)
    }
}

/// Returns the policy with these inbound rules. No part of it is shared with an earlier one, as if
/// it was just decoded.
fn policy(rules: impl Iterator<Item = Rule>) -> DesiredUpdate {
    let rules: Arc<[Rule]> = rules.collect();
    let sets = vec![RuleSets::default(); rules.len()];
    let inbound = Rules::new(rules, sets.into()).unwrap();
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound: Rules::default() };
    DesiredUpdate::Policy(policy_id(), policy.into())
}

/// Returns a node with a workload that the policy selects.
fn node(count: u32) -> Node {
    let mut node = Node::new(NodeSettings::default());
    node.on_interface(Interface { name: "cali0".parse().unwrap(), index: 10, addresses: Vec::new() });
    let policies: Arc<[PolicyId]> = [policy_id()].into();
    let tier = TierPolicies {
        name: TierName::default_tier(),
        default_action: None,
        ingress: Arc::clone(&policies),
        egress: policies,
    };
    let endpoint = WorkloadEndpoint {
        iface: Some("cali0".parse().unwrap()),
        ipv4_nets: [Cidr::host(Ipv4Addr::new(192, 0, 2, 1).into())].into(),
        ..WorkloadEndpoint::default()
    };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
    let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: "ns/pod".into(), endpoint: "eth0".into() };
    apply(&mut node, &policy((0..count).map(rule)));
    apply(&mut node, &DesiredUpdate::WorkloadEndpoint(id, state));
    apply(&mut node, &DesiredUpdate::InSync);
    node
}

/// Applies an update. Returns the number of written bytes.
fn apply(node: &mut Node, update: &DesiredUpdate) -> usize {
    node.on_update(update).unwrap();
    let flush = node.flush();
    assert!(flush.problems().is_empty(), "{:?}", flush.problems());
    let written = flush.writes().map(|write| write.value.len()).sum();
    node.reclaim();
    written
}

/// An edit at a place of a policy with this many rules.
type Edit = fn(u32, u32) -> DesiredUpdate;

fn other_port(count: u32, place: u32) -> DesiredUpdate {
    policy((0..count).map(|number| if number == place { rule_of(number, 999) } else { rule(number) }))
}

fn other_network(count: u32, place: u32) -> DesiredUpdate {
    let changed = |number| rule_of(count, u16::try_from(1_000 + number).unwrap());
    policy((0..count).map(|number| if number == place { changed(number) } else { rule(number) }))
}

fn one_more(count: u32, place: u32) -> DesiredUpdate {
    let new = std::iter::once(rule_of(count, 999));
    policy((0..place).map(rule).chain(new).chain((place..count).map(rule)))
}

const EDITS: [(&str, Edit); 3] = [("port", other_port), ("network", other_network), ("insertion", one_more)];

fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

/// Returns the processor time of an edit and its reversal.
fn edit_and_back(node: &mut Node, edit: &DesiredUpdate, count: u32) -> Duration {
    let back = policy((0..count).map(rule));
    let begin = now();
    black_box(apply(node, edit) + apply(node, &back));
    now() - begin
}

/// Each iteration is an edit and its reversal, which removes an inserted rule.
fn edits(c: &mut Criterion) {
    for count in RULES.iter().copied() {
        let mut group = c.benchmark_group(format!("edit_and_back/{count}"));
        group.sample_size(10);
        let mut node = node(count);
        for (name, edit) in EDITS {
            for (place, at) in [("first", 0), ("middle", count / 2), ("last", count - 1)] {
                group.bench_function(format!("{name}/{place}"), |b| {
                    b.iter_custom(|iterations| {
                        (0..iterations).map(|_| edit_and_back(&mut node, &edit(count, at), count)).sum()
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, edits);
criterion_main!(benches);
