//! Effort and memory of a policy whose selectors match more members than the limit, at a tenth of
//! the default size.

#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

use std::alloc::System;
use std::net::Ipv4Addr;

use cap::Cap;
use tortie_calc::{Graph, GraphConfig};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{
    Cidr, Labels, Policy, PolicyId, PolicyKind, Rule, RuleAction, SyncStatus, Update, Valid, WorkloadEndpoint,
    WorkloadEndpointKey,
};
use tortie_selector::Selector;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// A tenth of the default limit of members.
const MEMBERS: u64 = GraphConfig::POLICY_MEMBERS / 10;

/// A tenth of 20,000 endpoints.
const ENDPOINTS: u32 = 2_000;

/// A tenth of the memory limit of an object, in bytes.
const MEMORY: usize = 100_000_000 / 10;

/// Returns an endpoint with a unique label value, the most expensive case for selectors.
fn endpoint(number: u32) -> Update {
    let host = if number == 0 { "here" } else { "there" };
    let value = WorkloadEndpoint {
        iface: Some("cali0".parse().unwrap()),
        labels: Labels::from_pairs([("pod", number.to_string())]).unwrap(),
        ipv4_nets: [Cidr::host(Ipv4Addr::from_bits(0x0a00_0000 + number).into())].into_iter().collect(),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new(host, "k8s", &format!("pod-{number}"), "eth0");
    Update::WorkloadEndpoint(key, Some(Valid::new(value).unwrap()))
}

fn rule(number: u32) -> Rule {
    let mut rule = Rule::new(RuleAction::Allow);
    rule.source.selector = Some(Selector::parse(&format!("pod != 'x{number}'")).unwrap());
    rule
}

#[test]
fn a_policy_beyond_the_bound_on_members_lists_none() {
    let mut graph = Graph::new(&GraphConfig { policy_members: MEMBERS, ..GraphConfig::new("here".into()) });
    graph.on_status(SyncStatus::InSync);
    (0..ENDPOINTS).for_each(|number| graph.on_update(endpoint(number)));
    drop(graph.take_changes());
    let policy = Policy { inbound: (0..1_000).map(rule).collect(), ..Policy::default() };
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "wide");
    let update = Update::Policy(id, Some(Valid::new(policy).unwrap()));

    let (before, evaluations) = (ALLOCATOR.allocated(), graph.stats().evaluations);
    graph.on_update(update);
    let changes = graph.take_changes();
    let peak = ALLOCATOR.max_allocated() - before;
    assert!(changes.iter().any(|change| matches!(change, DesiredUpdate::Policy(..))));
    assert!(!changes.iter().any(|change| matches!(change, DesiredUpdate::IpSet(_))));
    assert_eq!(graph.problems().count(), 1);
    let evaluations = graph.stats().evaluations - evaluations;
    assert!(evaluations <= MEMBERS / 8 * 9, "{evaluations} evaluations");
    assert!(peak < MEMORY, "{peak} bytes");
}
