use std::sync::Arc;

use tortie_model::{
    EndpointPort, Hostname, Key, NamedProtocol, Policy, PolicyId, PolicyKind, PortSpec, Protocol, Rule, SelectorText,
    WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_selector::Selector;

use super::ValidationFilter;
use crate::GraphConfig;

fn filter() -> ValidationFilter {
    ValidationFilter::new(&GraphConfig::new(Hostname::new("node")))
}

fn policy_key() -> Key {
    Key::Policy(PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "p"))
}

fn with_rule(rule: Rule) -> Policy {
    Policy { inbound: [Rule::default(), rule].into(), ..Policy::default() }
}

fn check(filter: &mut ValidationFilter, policy: &Policy) -> Option<(Arc<Policy>, Selector)> {
    let key = policy_key();
    let Key::Policy(id) = &key else { return None };
    filter.policy(&key, id, policy.clone().into())
}

/// The field and the reason, or nothing if the policy is valid.
fn complaint(policy: &Policy) -> Option<String> {
    let mut filter = filter();
    check(&mut filter, policy);
    filter.problems().next().map(|p| format!("{}: {}", p.field, p.reason))
}

#[test]
fn numeric_ports_need_a_protocol_with_ports() {
    let mut rule = Rule::default();
    rule.source.ports = [PortSpec::Named("http".into()), PortSpec::single(80)].into();
    assert_eq!(
        complaint(&with_rule(rule.clone())).unwrap(),
        "inbound_rules[1].src_ports[1]: numeric ports need the protocol TCP, UDP or SCTP"
    );
    rule.protocol = Some(Protocol::Number(6));
    assert_eq!(complaint(&with_rule(rule.clone())), None);
    rule.protocol = Some(Protocol::Named(NamedProtocol::UdpLite));
    assert_eq!(complaint(&with_rule(rule)).unwrap(), "inbound_rules[1].src_ports[0]: protocol udplite has no ports");
}

#[test]
fn selectors_must_parse() {
    let policy = Policy { selector: SelectorText::new("a =="), ..Policy::default() };
    assert!(complaint(&policy).unwrap().starts_with("selector: invalid selector"));
    let mut rule = Rule::default();
    rule.destination.not_selector = Some(SelectorText::new("!"));
    assert!(complaint(&with_rule(rule)).unwrap().starts_with("inbound_rules[1].!dst_selector: "));
}

#[test]
fn a_problem_ends_with_its_object() {
    let mut filter = filter();
    let bad = Policy { selector: SelectorText::new("a =="), ..Policy::default() };
    let (instead, selector) = check(&mut filter, &bad).unwrap();
    assert_eq!((selector.canonical(), instead.inbound.len()), ("all()", 1));
    assert!(!filter.is_empty());
    assert_eq!(filter.take_new_problems().len(), 1);
    assert_eq!(check(&mut filter, &Policy::default()).unwrap().0, Policy::default().into());
    assert!(filter.is_empty());
    assert!(filter.take_new_problems().is_empty());
}

#[test]
fn workload_ports_carry_a_protocol_by_name() {
    let endpoint = |protocol, port| WorkloadEndpoint {
        iface: Some("cali1".into()),
        ports: [EndpointPort { name: "http".into(), protocol, port }].into(),
        ..WorkloadEndpoint::default()
    };
    let key = Key::WorkloadEndpoint(WorkloadEndpointKey::new("node", "k8s", "ns/pod", "eth0"));
    let mut filter = filter();
    let tcp = Protocol::Named(NamedProtocol::Tcp);
    assert!(filter.workload_endpoint(&key, &endpoint(tcp, 80)).is_some());
    assert!(filter.workload_endpoint(&key, &endpoint(tcp, 0)).is_none());
    assert!(filter.workload_endpoint(&key, &endpoint(Protocol::Number(6), 80)).is_none());
    assert!(filter.workload_endpoint(&key, &WorkloadEndpoint { iface: None, ..endpoint(tcp, 80) }).is_none());
}
