//! Behaviour of the graph that the comparisons do not show.
#![allow(clippy::unwrap_used, reason = "a test may stop at what cannot be")]

use std::sync::Arc;

use tortie_calc::{Graph, GraphConfig, Reason};
use tortie_model::desired::{DesiredUpdate, TierList};
use tortie_model::{
    Hostname, Key, Labels, Policy, PolicyId, PolicyKind, SelectorText, SyncStatus, Tier, Update, Value,
    WorkloadEndpoint, WorkloadEndpointKey,
};

fn graph() -> Graph {
    let mut graph = Graph::new(&GraphConfig::new(Hostname::new("here")));
    graph.on_status(SyncStatus::InSync);
    graph
}

fn flush(graph: &mut Graph) -> Vec<DesiredUpdate> {
    let mut out = Vec::new();
    graph.flush(&mut out);
    out
}

fn endpoint(pod: &str, label: &str) -> Update {
    let endpoint = WorkloadEndpoint {
        iface: Some("cali0".into()),
        labels: Labels::from_pairs([("a", label)]).unwrap(),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new("here", "k8s", pod, "eth0");
    Update::set(Key::WorkloadEndpoint(key), Value::WorkloadEndpoint(endpoint.into()))
}

fn policy(name: &str, selector: &str) -> Update {
    let policy = Policy { selector: SelectorText::new(selector), ..Policy::default() };
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name);
    Update::set(Key::Policy(id), Value::Policy(policy.into()))
}

fn tier_lists(out: &[DesiredUpdate]) -> Vec<&TierList> {
    out.iter()
        .filter_map(|update| match update {
            DesiredUpdate::WorkloadEndpoint(_, state) => Some(&state.tiers),
            _ => None,
        })
        .collect()
}

#[test]
fn endpoints_with_the_same_policies_share_their_list() {
    let mut graph = graph();
    for n in 0..3 {
        graph.on_update(endpoint(&format!("pod{n}"), "x"));
    }
    graph.on_update(policy("p", "a == 'x'"));
    let out = flush(&mut graph);
    let lists = tier_lists(&out);
    assert_eq!(lists.len(), 3);
    assert!(lists.iter().all(|list| Arc::ptr_eq(list, lists[0]) && list.len() == 1));
}

#[test]
fn policies_that_match_nothing_are_not_evaluated_again() {
    let mut graph = graph();
    graph.on_update(endpoint("pod", "x"));
    flush(&mut graph);
    let before = graph.stats().evaluations;
    for n in 0..1_000 {
        graph.on_update(policy(&format!("p{n}"), &format!("a == 'v{n}'")));
    }
    assert!(flush(&mut graph).is_empty());
    let stats = graph.stats();
    assert_eq!((stats.policies, stats.active_policies, stats.ip_sets), (1_000, 0, 0));
    assert!(stats.evaluations - before < 10, "{} evaluations", stats.evaluations - before);
}

#[test]
fn hosts_are_counted_once_however_they_are_mentioned() {
    let mut graph = graph();
    for (host, workload) in [("n1", "a"), ("n1", "b"), ("n2", "c")] {
        let key = Key::WorkloadEndpoint(WorkloadEndpointKey::new(host, "k8s", workload, "eth0"));
        let value = WorkloadEndpoint { iface: Some("cali1".into()), ..WorkloadEndpoint::default() };
        let update = Update::set(key, Value::WorkloadEndpoint(value.into()));
        graph.on_update(update.clone());
        graph.on_update(update);
    }
    let counts = |graph: &Graph| (graph.stats().hosts, graph.stats().workload_endpoints);
    assert_eq!(counts(&graph), (2, 3));
    let key = |workload: &str| Key::WorkloadEndpoint(WorkloadEndpointKey::new("n1", "k8s", workload, "eth0"));
    for workload in ["a", "a", "unknown"] {
        graph.on_update(Update::delete(key(workload)));
    }
    assert_eq!(counts(&graph), (2, 2));
    graph.on_update(Update::delete(key("b")));
    assert_eq!(counts(&graph), (1, 1));
}

#[test]
fn a_policy_made_anew_in_one_batch_is_updated_not_removed() {
    let mut graph = graph();
    graph.on_update(endpoint("pod", "x"));
    graph.on_update(policy("p", "all()"));
    flush(&mut graph);
    let again = policy("p", "has(a)");
    graph.on_update(Update::delete(again.key.clone()));
    graph.on_update(again);
    let out = flush(&mut graph);
    assert!(matches!(&out[..], [DesiredUpdate::Policy(..)]), "{out:?}");
}

#[test]
fn a_value_of_another_kind_is_a_problem_and_a_deletion() {
    let mut graph = graph();
    graph.on_update(endpoint("pod", "x"));
    let valid = policy("p", "all()");
    graph.on_update(valid.clone());
    flush(&mut graph);
    graph.on_update(Update { key: valid.key.clone(), value: Some(Value::Tier(Tier::default())) });
    let problems: Vec<_> = graph.problems().collect();
    assert_eq!((&problems[0].key, &problems[0].reason), (&valid.key, &Reason::WrongKind));
    let out = flush(&mut graph);
    assert!(out.iter().any(|update| matches!(update, DesiredUpdate::PolicyRemove(_))));
    graph.on_update(valid);
    assert_eq!(graph.problems().count(), 0);
}
