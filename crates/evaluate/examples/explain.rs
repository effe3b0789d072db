//! Explains why a packet does not pass: each evaluated rule with its first mismatch.
//!
//! ```text
//! cargo run -p tortie-evaluate --example explain
//! ```

use std::sync::Arc;

use tortie_evaluate::{Evaluator, Packet, Settings, Step};
use tortie_model::desired::{
    DesiredUpdate, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Direction, EntityMatch, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierName, WorkloadEndpointId,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // "Allow TCP 5432 from members of the IP set s:clients."
    let rule = Rule {
        protocol: Some(Protocol::TCP),
        destination: EntityMatch { ports: [PortSpec::single(5432)].into(), ..EntityMatch::default() },
        ..Rule::new(RuleAction::Allow)
    };
    let sets = RuleSets { src: ["s:clients".into()].into_iter().collect(), ..RuleSets::default() };
    let policy = Policy {
        source: Arc::default(),
        selector: "app == \"db\"".into(),
        inbound: Rules::new([rule].into(), [sets].into())?,
        outbound: Rules::default(),
    };
    let clients = IpSetUpdate {
        id: "s:clients".into(),
        set_type: IpSetType::Net,
        members: Members::Nets(vec!["10.1.0.0/16".parse()?]),
    };
    let id = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "db-clients");
    let database =
        WorkloadEndpointId { orchestrator: "k8s".into(), workload: "shop/db-0".into(), endpoint: "eth0".into() };
    let tier = TierPolicies {
        name: TierName::default_tier(),
        default_action: None,
        ingress: [id.clone()].into(),
        egress: [].into(),
    };
    let endpoint = WorkloadEndpointState { tiers: [tier].into(), ..WorkloadEndpointState::default() };

    let mut evaluator = Evaluator::new(Settings::default());
    for update in [
        DesiredUpdate::IpSet(clients),
        DesiredUpdate::Policy(id, policy.into()),
        DesiredUpdate::WorkloadEndpoint(database.clone(), endpoint),
    ] {
        evaluator.apply(&update)?;
    }

    let packet = Packet::tcp(("10.2.0.7".parse()?, 40000), ("10.1.0.2".parse()?, 5432))?;
    let explanation = evaluator.explain_workload(&database, Direction::Ingress, &packet)?;
    println!("{:?}, decided by {:?}", explanation.answer.verdict, explanation.answer.decided_by);
    for step in &explanation.steps {
        match step {
            Step::Policy { tier, policy, rules, .. } => {
                println!("tier {tier}, {policy}:");
                for rule in rules {
                    println!("  rule {}, {}: {:?}", rule.index, rule.action.as_str(), rule.outcome);
                }
            }
            other => println!("{other:?}"),
        }
    }
    Ok(())
}
