use proptest::prelude::*;
use tortie_model::desired::RuleSets;
use tortie_model::{EntityMatch, PolicyKind, PortSpec, Protocol, Rule, RuleAction};

use super::*;

fn id() -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", "db")
}

fn rules(list: Vec<Rule>) -> Rules {
    let sets = vec![RuleSets::default(); list.len()];
    Rules::new(list.into(), sets.into()).unwrap()
}

/// A rule for so many ports: more than fit into one line take several.
fn rule(action: RuleAction, ports: u16, version: Option<Family>) -> Rule {
    Rule {
        action,
        ip_version: version,
        protocol: Some(Protocol::TCP),
        destination: EntityMatch {
            ports: (1..=ports).map(|port| PortSpec::single(2 * port)).collect(),
            ..EntityMatch::default()
        },
        ..Rule::default()
    }
}

fn policy(inbound: Vec<Rule>) -> desired::Policy {
    desired::Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound: rules(inbound),
        outbound: rules(Vec::new()),
    }
}

/// The chain of a policy, and how many rules it has.
fn chain(policy: &desired::Policy) -> (OwnedChain, usize) {
    chain_with(policy, false)
}

/// The same on a node with other flow logs than those that are known.
fn chain_with(policy: &desired::Policy, flow_logs: bool) -> (OwnedChain, usize) {
    let renderer = Renderer::new(RulesConfig { flow_logs, ..RulesConfig::default() });
    let update = DesiredUpdate::Policy(id(), Arc::new(policy.clone()));
    let owners = Owners::new(&[update], renderer.config(), Family::V4);
    let rendered = renderer.policy(&id(), policy, Family::V4).unwrap().inbound;
    (owners.of(rendered.name.as_str()).unwrap().clone(), rendered.rules.len())
}

#[test]
fn rules_of_the_kernel_are_those_of_the_policy() {
    let allow = |ports| rule(RuleAction::Allow, ports, None);
    let other_family = rule(RuleAction::Deny, 1, Some(Family::V6));
    let list = vec![allow(1), other_family, rule(RuleAction::Deny, 1, None), allow(40), allow(1)];
    let (chain, length) = chain(&policy(list));
    let of: Vec<usize> = (0..length).map(|index| chain.rule(index, length).unwrap()).collect();
    assert_eq!(of[..2], [0, 0], "a mark, and a return");
    assert!(of.is_sorted() && !of.contains(&1), "nothing is there of the other family: {of:?}");
    assert!(of.iter().filter(|rule| **rule == 3).count() > 2, "{of:?}");
    assert_eq!(of.last(), Some(&4));
    assert_eq!(chain.rule(0, length + 1), None, "made from other rules");
    assert_eq!(chain.rule(length, length), None);
}

#[test]
fn flow_logs_make_chains_longer() {
    let list = [RuleAction::Allow, RuleAction::Deny].map(|action| rule(action, 1, None)).to_vec();
    let (_, short) = chain(&policy(list.clone()));
    let (chain, length) = chain_with(&policy(list), true);
    assert!(length > short);
    let of: Vec<usize> = (0..length).map(|index| chain.rule(index, length).unwrap()).collect();
    assert_eq!(of, [0, 0, 0, 1, 1, 1]);
    assert_eq!(chain.rule(short - 1, short), Some(1));
}

#[test]
fn chains_without_rules_have_owners() {
    let (chain, length) = chain(&policy(Vec::new()));
    assert_eq!((chain.owner.clone(), chain.direction, length), (Owner::Policy(id()), Direction::Ingress, 1));
    assert_eq!(chain.rule(0, length), None);
}

proptest! {
    /// Each rule of a policy that comes to anything has its part of the chain, in order.
    #[test]
    fn each_part_of_a_chain_belongs_to_one_rule(kinds in proptest::collection::vec((0_usize..4, 1_u16..40, any::<bool>()), 1..8)) {
        let actions = [RuleAction::Allow, RuleAction::Deny, RuleAction::NextTier, RuleAction::Log];
        let list: Vec<Rule> = kinds
            .iter()
            .map(|(action, ports, is_v6)| rule(actions[*action], *ports, is_v6.then_some(Family::V6)))
            .collect();
        let (chain, length) = chain(&policy(list.clone()));
        let present: Vec<usize> = (0..list.len()).filter(|index| !kinds[*index].2).collect();
        prop_assume!(!present.is_empty());
        let mut of: Vec<usize> = (0..length).map(|index| chain.rule(index, length).unwrap()).collect();
        prop_assert!(of.is_sorted());
        of.dedup();
        prop_assert_eq!(of, present);
    }
}
