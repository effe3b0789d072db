//! Behaviour of the graph that the comparisons do not show.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tortie_calc::{Graph, GraphConfig, Reason, SourceSpoofing};
use tortie_model::desired::{DesiredUpdate, TierList};
use tortie_model::{
    Hostname, Interner, Key, Labels, Policy, PolicyId, PolicyKind, Rule, RuleAction, SyncStatus, Tier, Update, Valid,
    WorkloadEndpoint, WorkloadEndpointKey, WorkloadExtras,
};
use tortie_resources::v1;
use tortie_selector::Selector;

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
        iface: Some("cali0".parse().unwrap()),
        labels: Labels::from_pairs([("a", label)]).unwrap(),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new("here", "k8s", pod, "eth0");
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
}

fn policy(name: &str, selector: &str) -> Update {
    let policy = Policy { selector: Selector::parse(selector).unwrap(), ..Policy::default() };
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name);
    Update::Policy(id, Some(Valid::new(policy).unwrap()))
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
fn hosts_are_counted_once() {
    let mut graph = graph();
    for (host, workload) in [("n1", "a"), ("n1", "b"), ("n2", "c")] {
        let key = WorkloadEndpointKey::new(host, "k8s", workload, "eth0");
        let value = WorkloadEndpoint { iface: Some("cali1".parse().unwrap()), ..WorkloadEndpoint::default() };
        let update = Update::WorkloadEndpoint(key, Some(Valid::new(value).unwrap()));
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
fn a_policy_recreated_in_one_batch_is_updated_not_removed() {
    let mut graph = graph();
    graph.on_update(endpoint("pod", "x"));
    graph.on_update(policy("p", "all()"));
    flush(&mut graph);
    let again = policy("p", "has(a)");
    graph.on_update(Update::delete(again.key()));
    graph.on_update(again);
    let out = flush(&mut graph);
    assert!(matches!(&out[..], [DesiredUpdate::Policy(..)]), "{out:?}");
}

/// Returns a pod with this label, in this namespace.
fn pod(name: &str, namespace: &str) -> Update {
    let labels = [("a", "x"), ("projectcalico.org/namespace", namespace)];
    let endpoint = WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        labels: Labels::from_pairs(labels).unwrap(),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new("here", "k8s", name, "eth0");
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
}

/// Returns the update that replaces an invalid policy of this path.
fn fallback(path: &str, value: &Json) -> Update {
    v1::decode(path, Some(value), &mut Interner::new()).unwrap_err().fallback()
}

/// Returns the endpoints and directions that the fallback of an invalid policy denies.
fn denied_pods(path: &str, value: &Json) -> Vec<String> {
    let mut graph = graph();
    for (name, namespace) in [("pod-1", "shop"), ("pod-2", "other")] {
        graph.on_update(pod(name, namespace));
    }
    graph.on_update(fallback(path, value));
    let out = flush(&mut graph);
    for update in &out {
        if let DesiredUpdate::Policy(id, policy) = update {
            let deny = [Rule::new(RuleAction::Deny)];
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
fn an_invalid_policy_denies_instead_of_being_removed() {
    let namespaced = "/calico/v1/policy/NetworkPolicy/shop/p";
    let global = "/calico/v1/policy/GlobalNetworkPolicy//p";
    // The policy's selector is valid.
    for rule in [json!({"action": "allow", "src_selector": "b =="}), json!({"action": "allow", "src_ports": [80]})] {
        let selector = "projectcalico.org/namespace == 'other'";
        let known = json!({"selector": selector, "types": ["ingress"], "inbound_rules": [rule]});
        assert_eq!(denied_pods(global, &known), ["pod-2 in GlobalNetworkPolicy/p"]);
    }
    // It is not: the fallback selects the whole namespace, or all endpoints.
    let unknown = json!({"selector": "a ==", "types": ["ingress"]});
    assert_eq!(denied_pods(namespaced, &unknown), ["pod-1 in NetworkPolicy/shop/p"]);
    assert_eq!(denied_pods(global, &unknown), ["pod-1 in GlobalNetworkPolicy/p", "pod-2 in GlobalNetworkPolicy/p"]);
    assert_eq!(
        denied_pods(namespaced, &json!({"selector": "a =="})),
        ["pod-1 in NetworkPolicy/shop/p", "pod-1 out NetworkPolicy/shop/p"]
    );
    // A staged policy is not enforced.
    assert_eq!(denied_pods("/calico/v1/policy/StagedNetworkPolicy/shop/p", &unknown), [""; 0]);
}

#[test]
fn an_invalid_kubernetes_policy_isolates_and_other_policies_still_allow() {
    let id = PolicyId::new(PolicyKind::KubernetesNetworkPolicy, "shop", "p");
    let mut graph = graph();
    graph.on_update(fallback("/calico/v1/policy/KubernetesNetworkPolicy/shop/p", &json!({"selector": "a =="})));
    graph.on_update(pod("pod", "shop"));
    let out = flush(&mut graph);
    let compiled = out.iter().find_map(|update| match update {
        DesiredUpdate::Policy(of, policy) if *of == id => Some(policy),
        _ => None,
    });
    let policy = compiled.expect("it is in force");
    assert!(policy.source.inbound.is_empty() && policy.source.outbound.is_empty());
}

#[test]
fn workloads_that_send_from_foreign_addresses_count_as_absent_unless_they_may() {
    let spoofs = || {
        let extras = WorkloadExtras {
            allowed_source_prefixes: ["10.9.0.0/16".parse().unwrap()].into(),
            ..WorkloadExtras::default()
        };
        let endpoint = WorkloadEndpoint {
            iface: Some("cali1".parse().unwrap()),
            extras: Some(Box::new(extras)),
            ..WorkloadEndpoint::default()
        };
        Update::WorkloadEndpoint(
            WorkloadEndpointKey::new("here", "k8s", "pod", "eth0"),
            Some(Valid::new(endpoint).unwrap()),
        )
    };
    let is_there =
        |graph: &mut Graph| flush(graph).iter().any(|update| matches!(update, DesiredUpdate::WorkloadEndpoint(..)));
    let mut strict = graph();
    strict.on_update(spoofs());
    assert!(!is_there(&mut strict));
    let problem = strict.problems().next().unwrap().to_string();
    assert!(problem.starts_with("workload endpoint here/k8s/pod/eth0: allow_spoofed_source_ips: "), "{problem}");
    strict.on_update(Update::delete(spoofs().key()));
    assert_eq!(problems(&strict), [("node here".to_owned(), Reason::UnknownHost)], "nothing else names the host");

    let mut config = GraphConfig::new(Hostname::new("here"));
    config.source_spoofing = SourceSpoofing::Any;
    let mut lenient = Graph::new(&config);
    lenient.on_status(SyncStatus::InSync);
    lenient.on_update(spoofs());
    assert!(is_there(&mut lenient));
}

/// Returns the reasons of problems by the text of their objects.
fn problems(graph: &Graph) -> Vec<(String, Reason)> {
    graph.problems().map(|problem| (problem.key.to_string(), problem.reason)).collect()
}

#[test]
fn a_tier_that_does_not_exist_is_a_problem_while_policies_name_it() {
    let of_tier = |name: &str, tier: &str| {
        let policy = Policy { tier: tier.into(), ..Policy::default() };
        let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name);
        Update::Policy(id, Some(Valid::new(policy).unwrap()))
    };
    let tier = |tier| Update::Tier("security".into(), tier);
    let missing = |first: &str, count| {
        let reason = Reason::UnknownTier { tier: "security".into(), count };
        vec![(format!("policy GlobalNetworkPolicy/{first}"), reason)]
    };
    let mut graph = Graph::new(&GraphConfig::new(Hostname::new("here")));
    for update in [endpoint("pod", "x"), of_tier("b", "security"), of_tier("a", "security"), of_tier("c", "default")] {
        graph.on_update(update);
    }
    assert_eq!(problems(&graph), [], "the tier may still come");
    graph.on_status(SyncStatus::InSync);
    assert_eq!(problems(&graph), missing("a", 2));
    graph.on_update(tier(Some(Tier::default())));
    assert_eq!(problems(&graph), []);
    graph.on_update(tier(None));
    assert_eq!(problems(&graph), missing("a", 2));
    graph.on_update(of_tier("a", "default"));
    assert_eq!(problems(&graph), missing("b", 1));
    let Update::Policy(id, _) = of_tier("b", "security") else { unreachable!() };
    graph.on_update(Update::Policy(id, None));
    assert_eq!(problems(&graph), []);
}

#[test]
fn a_host_that_no_object_names_is_a_problem() {
    let mut graph = Graph::new(&GraphConfig::new(Hostname::new("here")));
    assert_eq!(problems(&graph), [], "an object may still come");
    graph.on_status(SyncStatus::InSync);
    let unknown = [("node here".to_owned(), Reason::UnknownHost)];
    assert_eq!(problems(&graph), unknown);
    let pod = endpoint("pod", "x");
    let key = pod.key();
    graph.on_update(pod);
    assert_eq!(problems(&graph), []);
    graph.on_update(Update::delete(key));
    let _ = flush(&mut graph);
    assert_eq!(problems(&graph), unknown);
}
