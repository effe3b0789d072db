//! A plan names the policies whose tables exceed the bound of a group.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

use tortie_analysis::plan::{Finding, Options, plan};
use tortie_calc::GraphConfig;
use tortie_classes::Budget;
use tortie_classes::evaluate::Settings;
use tortie_model::{
    Policy, PolicyId, PolicyKind, Rule, RuleAction, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};

fn pod() -> Update {
    let endpoint = WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        ipv4_nets: ["10.0.0.50/32".parse().unwrap()].into(),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new("n1", "k8s", "prod/db", "eth0");
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
}

/// Returns a policy that allows this number of single addresses, one per rule.
fn policy(rules: u32) -> Update {
    let rule = |n: u32| {
        let mut rule = Rule::new(RuleAction::Allow);
        let address = std::net::Ipv4Addr::from_bits(0x0b00_0000 + 2 * n);
        rule.source.nets = [format!("{address}/32").parse().unwrap()].into();
        rule
    };
    let policy = Policy { inbound: (0..rules).map(rule).collect(), ..Policy::default() };
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "wide");
    Update::Policy(id, Some(Valid::new(policy).unwrap()))
}

/// Returns the findings, which name the bound of one policy, an eighth of the bound of a group.
fn over_budget(rules: u32, group: usize) -> Vec<String> {
    let mut options = Options::new(GraphConfig::new("any".into()), Settings::default());
    options.budget = Budget { group, ..Budget::default() };
    let plan = plan(vec![pod()], vec![policy(rules)], &options).unwrap();
    let limits = plan.findings.iter().filter_map(|finding| match finding {
        Finding::OverBudget { policy, limit } => Some(format!("{policy}: {limit}")),
        _ => None,
    });
    limits.collect()
}

#[test]
fn a_policy_over_the_budget_is_reported() {
    assert_eq!(over_budget(1000, 32 << 10), ["GlobalNetworkPolicy/wide: 4096"]);
    assert_eq!(over_budget(1000, 64 << 20), [""; 0]);
}
