//! L4 classes as they are listed.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::sync::Arc;

use tortie_classes::evaluate::Settings;
use tortie_classes::{Classes, L4Detail};
use tortie_model::desired::{DesiredUpdate, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState};
use tortie_model::{PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierName, WorkloadEndpointId};

#[test]
fn the_last_port_is_a_separate_stretch() {
    let mut classes = Classes::new(Settings::default());
    let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
    rule.destination.ports = [PortSpec::single(u16::MAX)].into();
    let inbound = Rules::new([rule].into(), [RuleSets::default()].into()).unwrap();
    let id = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "web");
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound: Rules::default() };
    let tier = TierPolicies {
        name: TierName::default_tier(),
        default_action: None,
        ingress: [id.clone()].into(),
        egress: [].into(),
    };
    let pod = WorkloadEndpointId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() };
    classes.apply(&DesiredUpdate::Policy(id, policy.into())).unwrap();
    let state = WorkloadEndpointState { tiers: [tier].into(), ..WorkloadEndpointState::default() };
    classes.apply(&DesiredUpdate::WorkloadEndpoint(pod, state)).unwrap();
    let compiled = classes.flush();
    let listed: Vec<_> = compiled.l4_classes().collect();
    let at = listed.iter().position(|(protocol, detail, _)| (*protocol, *detail) == (6, L4Detail::Port(u16::MAX)));
    let at = at.expect("the port has a separate class");
    // Behind it there is no stretch before the next protocol, and no stretch is listed twice.
    assert_eq!(listed.get(at + 1).map(|(protocol, detail, _)| (*protocol, *detail)), Some((7, L4Detail::Other)));
    assert!(listed.windows(2).all(|pair| (pair[0].0, pair[0].1) < (pair[1].0, pair[1].1)), "{listed:?}");
    assert_ne!(listed[at].2, listed[at + 1].2);
}
