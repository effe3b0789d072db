//! Behaviour of the graph that the comparisons do not show.
#![allow(clippy::unwrap_used, reason = "a test may stop at what cannot be")]

use std::sync::Arc;

use tortie_calc::{Graph, GraphConfig, Reason};
use tortie_model::desired::{DesiredUpdate, TierList};
use tortie_model::{
    Hostname, Key, Labels, Policy, PolicyId, PolicyKind, PolicyTypes, Rule, RuleAction, SelectorText, SyncStatus, Tier,
    Update, Value, WorkloadEndpoint, WorkloadEndpointKey,
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

/// What an invalid policy becomes: of which endpoints, with which rules.
fn denied_pods(policies: impl IntoIterator<Item = (PolicyId, Policy)>) -> Vec<String> {
    let mut graph = graph();
    for (pod, namespace) in [("pod-1", "shop"), ("pod-2", "other")] {
        let mut update = endpoint(pod, "x");
        if let Some(Value::WorkloadEndpoint(endpoint)) = &mut update.value {
            let labels = [("a", "x"), ("projectcalico.org/namespace", namespace)];
            Arc::make_mut(endpoint).labels = Labels::from_pairs(labels).unwrap();
        }
        graph.on_update(update);
    }
    for (id, policy) in policies {
        graph.on_update(Update::set(Key::Policy(id), Value::Policy(policy.into())));
    }
    let out = flush(&mut graph);
    for update in &out {
        if let DesiredUpdate::Policy(id, policy) = update {
            let deny = [Rule { action: RuleAction::Deny, ..Rule::default() }];
            for rules in [&policy.source.inbound, &policy.source.outbound] {
                assert!(rules.is_empty() || **rules == deny, "{id}: {rules:?}");
            }
        }
    }
    let mut denied = Vec::new();
    for update in &out {
        if let DesiredUpdate::WorkloadEndpoint(id, state) = update {
            for tier in state.tiers.iter() {
                denied.extend(tier.ingress.iter().map(|policy| format!("{} in {policy}", id.workload)));
                denied.extend(tier.egress.iter().map(|policy| format!("{} out {policy}", id.workload)));
            }
        }
    }
    denied
}

#[test]
fn an_invalid_policy_denies_instead_of_vanishing() {
    let bad_rule = || {
        let mut rule = Rule { action: RuleAction::Allow, ..Rule::default() };
        rule.source.selector = Some(SelectorText::new("b =="));
        rule
    };
    let selecting = |selector: &str| Policy { selector: SelectorText::new(selector), ..Policy::default() };
    let ingress = PolicyTypes { ingress: true, egress: false };
    let namespaced = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "p");
    let global = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "p");
    // What it selects is known.
    let known =
        Policy { inbound: [bad_rule()].into(), types: ingress, ..selecting("projectcalico.org/namespace == 'other'") };
    assert_eq!(denied_pods([(global.clone(), known)]), ["pod-2 in GlobalNetworkPolicy/p"]);
    // It is not: everything of the namespace, or everything.
    let unknown = || Policy { types: ingress, ..selecting("a ==") };
    assert_eq!(denied_pods([(namespaced.clone(), unknown())]), ["pod-1 in NetworkPolicy/shop/p"]);
    let everywhere = ["pod-1 in GlobalNetworkPolicy/p", "pod-2 in GlobalNetworkPolicy/p"];
    assert_eq!(denied_pods([(global, unknown())]), everywhere);
    let of_both = selecting("a ==");
    assert_eq!(
        denied_pods([(namespaced, of_both)]),
        ["pod-1 in NetworkPolicy/shop/p", "pod-1 out NetworkPolicy/shop/p"]
    );
    // Nobody enforces a staged one.
    assert_eq!(denied_pods([(PolicyId::new(PolicyKind::StagedNetworkPolicy, "shop", "p"), unknown())]), [""; 0]);
}

#[test]
fn an_invalid_policy_of_kubernetes_isolates_and_leaves_others_their_say() {
    let id = PolicyId::new(PolicyKind::KubernetesNetworkPolicy, "shop", "p");
    let mut graph = graph();
    let policy = Policy { selector: SelectorText::new("a =="), ..Policy::default() };
    graph.on_update(Update::set(Key::Policy(id.clone()), Value::Policy(policy.into())));
    let mut update = endpoint("pod", "x");
    if let Some(Value::WorkloadEndpoint(endpoint)) = &mut update.value {
        Arc::make_mut(endpoint).labels = Labels::from_pairs([("projectcalico.org/namespace", "shop")]).unwrap();
    }
    graph.on_update(update);
    let out = flush(&mut graph);
    let compiled = out.iter().find_map(|update| match update {
        DesiredUpdate::Policy(of, policy) if *of == id => Some(policy),
        _ => None,
    });
    let policy = compiled.expect("it is in force");
    assert!(policy.source.inbound.is_empty() && policy.source.outbound.is_empty());
    let problem = graph.problems().next().unwrap().to_string();
    assert!(problem.starts_with("policy KubernetesNetworkPolicy/shop/p: selector: invalid selector"), "{problem}");
}
