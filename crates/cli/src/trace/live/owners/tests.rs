use proptest::prelude::*;
use tortie_model::desired::RuleSets;
use tortie_model::{EntityMatch, PolicyKind, PortSpec, Protocol, Rule};

use super::*;

const OTHERS: RuleAction = RuleAction::NextTier;

/// Returns a rule for this number of ports; many ports take several kernel rules.
fn rule(action: RuleAction, ports: u16, version: Option<Family>) -> Rule {
    let ports = (1..=ports).map(|port| PortSpec::single(2 * port)).collect();
    Rule {
        ip_version: version,
        protocol: Some(Protocol::TCP),
        destination: EntityMatch { ports, ..EntityMatch::default() },
        ..Rule::new(action)
    }
}

fn rules(list: Vec<Rule>) -> Rules {
    let sets = vec![RuleSets::default(); list.len()];
    Rules::new(list.into(), sets.into()).unwrap()
}

fn config(flow_logs: bool) -> RulesConfig {
    RulesConfig { flow_logs, ..RulesConfig::default() }
}

/// Returns the policy rule of each rule in the chain, on a node with this setting of flow logs.
fn of_policy(list: Vec<Rule>, flow_logs: bool) -> Vec<Option<usize>> {
    let id = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "db");
    let (inbound, outbound) = (rules(list), Rules::default());
    let policy = desired::Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound };
    let rendered = Renderer::new(config(flow_logs)).policy(&id, &policy, Family::V4).unwrap().inbound;
    let owners = Owners::new(&[DesiredUpdate::Policy(id, policy.into())], &config(false), Family::V4);
    of_chain(&owners, rendered.name.as_str(), rendered.rules.len())
}

fn of_chain(owners: &Owners, name: &str, length: usize) -> Vec<Option<usize>> {
    let chain = owners.of(name).unwrap();
    assert_eq!(owners.rule(chain, length, length), None);
    (0..length).map(|index| owners.rule(chain, index, length)).collect()
}

#[test]
fn rules_of_the_kernel_are_those_of_the_policy() {
    let allow = |ports| rule(RuleAction::Allow, ports, None);
    let other_family = rule(RuleAction::Deny, 1, Some(Family::V6));
    let list = vec![allow(1), other_family, rule(RuleAction::Deny, 1, None), allow(40), allow(1)];
    let of: Vec<usize> = of_policy(list, false).into_iter().map(Option::unwrap).collect();
    assert_eq!(of[..2], [0, 0], "a mark, and a return");
    assert!(of.is_sorted() && !of.contains(&1), "nothing is there of the other family: {of:?}");
    assert!(of.iter().filter(|rule| **rule == 3).count() > 2, "{of:?}");
    assert_eq!(of.last(), Some(&4));
}

#[test]
fn flow_logs_make_chains_longer() {
    let list = [RuleAction::Allow, RuleAction::Deny].map(|action| rule(action, 1, None)).to_vec();
    assert_eq!(of_policy(list.clone(), false), [0, 0, 1, 1].map(Some));
    assert_eq!(of_policy(list, true), [0, 0, 0, 1, 1, 1].map(Some));
}

#[test]
fn a_chain_of_other_rules_has_no_owners() {
    let id = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "db");
    let inbound = rules(vec![rule(RuleAction::Deny, 1, None)]);
    let policy =
        desired::Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound: Rules::default() };
    let name = policy_chain(Direction::Ingress, &id).to_string();
    let owners = Owners::new(&[DesiredUpdate::Policy(id.clone(), policy.into())], &config(false), Family::V4);
    let chain = owners.of(&name).unwrap();
    assert_eq!((chain.owner.clone(), chain.direction), (Owner::Policy(id), Direction::Ingress));
    assert_eq!([2, 3, 4].map(|length| owners.rule(chain, 0, length)), [Some(0), Some(0), None]);
    assert!(owners.of("cali-pi-x").is_none());
    assert_eq!(of_policy(Vec::new(), false), [None], "the name of the chain has its owner");
}

#[test]
fn profiles_that_pass_are_not_numbered() {
    let name = ProfileName::from("kns.shop");
    let of = |actions: [RuleAction; 2]| {
        let outbound = rules(actions.map(|action| rule(action, 1, None)).to_vec());
        let profile = desired::Profile { inbound: Rules::default(), outbound };
        let rendered = Renderer::new(config(false)).profile(&name, &profile, Family::V4).outbound;
        let owners = Owners::new(&[DesiredUpdate::Profile(name.clone(), profile.into())], &config(false), Family::V4);
        of_chain(&owners, rendered.name.as_str(), rendered.rules.len())
    };
    assert_eq!(of([RuleAction::Deny, RuleAction::Allow]), [0, 0, 1].map(Some));
    assert!(of([OTHERS, RuleAction::Allow]).iter().all(Option::is_none));
}

proptest! {
    /// Each policy rule with kernel rules has its part of the chain, in order.
    #[test]
    fn each_part_of_a_chain_belongs_to_one_rule(
        kinds in proptest::collection::vec((0_usize..4, 1_u16..40, any::<bool>()), 1..8),
        flow_logs: bool,
    ) {
        let actions = [RuleAction::Allow, RuleAction::Deny, OTHERS, RuleAction::Log];
        let list: Vec<Rule> = kinds
            .iter()
            .map(|(action, ports, is_v6)| rule(actions[*action], *ports, is_v6.then_some(Family::V6)))
            .collect();
        let present: Vec<usize> = (0..list.len()).filter(|index| !kinds[*index].2).collect();
        prop_assume!(!present.is_empty());
        let mut of: Vec<usize> = of_policy(list, flow_logs).into_iter().map(Option::unwrap).collect();
        prop_assert!(of.is_sorted());
        of.dedup();
        prop_assert_eq!(of, present);
    }
}
