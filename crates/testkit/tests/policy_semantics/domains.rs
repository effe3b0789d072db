//! Rules by domains alone, of which no address is known, decide about no packet, unless domains are
//! assumed to hold every destination.

use std::sync::Arc;

use tortie_evaluate::{Settings, Verdict};
use tortie_model::{
    Direction, Rule, RuleAction,
    desired::{Members, Policy, RuleSets, Rules},
};
use tortie_testkit::evaluator::{DesiredState, OracleVerdict};

use crate::{
    chains::{Question, config},
    classes,
    evaluate::{ask, evaluator, settings},
    runner,
    scenario::scenarios,
};

/// Inserts a rule that allows all packets to some domains before all other egress rules.
fn with_domains(mut state: DesiredState) -> DesiredState {
    state.ip_sets.insert("d:x".into(), Members::Domains(["*.a.io".parse().unwrap()].into()));
    with_allow(state, &RuleSets { dst_domains: ["d:x".into()].into(), ..RuleSets::default() })
}

/// Inserts a rule that allows with these sets before all other egress rules.
fn with_allow(mut state: DesiredState, by_domains: &RuleSets) -> DesiredState {
    for policy in state.policies.values_mut() {
        let views = policy.outbound.iter();
        let rules = [Rule::new(RuleAction::Allow)].into_iter().chain(views.clone().map(|view| view.rule.clone()));
        let sets = [by_domains.clone()].into_iter().chain(views.map(|view| view.sets.clone()));
        let outbound = Rules::new(rules.collect(), sets.collect()).unwrap();
        *policy = Arc::new(Policy { outbound, ..Policy::clone(policy) });
    }
    state
}

#[test]
fn rules_by_domains_alone_decide_nothing() {
    let result = runner(40, 200).run(&scenarios(), |mut scenario| {
        let without = scenario.state.clone();
        scenario.state = with_domains(scenario.state);
        let evaluator = evaluator(settings(&config()), &scenario.state);
        let question = Question::Workload(Direction::Egress);
        for packet in &scenario.packets {
            let expected = question.evaluate(&without, packet).unwrap();
            assert_eq!(question.evaluate(&scenario.state, packet).unwrap(), expected);
            let answer = ask(&evaluator, question, packet);
            assert_eq!(answer.verdict == Verdict::Allow, expected == OracleVerdict::Allow, "{packet:?}");
        }
        classes::check(&scenario, &config())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Both kinds of rules count: by domains alone, and with other sets for the destination.
#[test]
fn assumed_domains_hold_every_destination() {
    let result = runner(40, 200).run(&scenarios(), |mut scenario| {
        let open = with_allow(scenario.state.clone(), &RuleSets::default());
        for dst in [vec![], vec!["s:nothing".into()]] {
            let sets =
                RuleSets { dst: dst.into_iter().collect(), dst_domains: ["d:x".into()].into(), ..RuleSets::default() };
            scenario.state.ip_sets.insert("d:x".into(), Members::Domains(["*.a.io".parse().unwrap()].into()));
            scenario.state.ip_sets.insert("s:nothing".into(), Members::Nets(Vec::new()));
            let state = with_allow(scenario.state.clone(), &sets);
            let assuming = Settings { assume_domains: true, ..settings(&config()) };
            let (evaluator, expected) = (evaluator(assuming, &state), evaluator(settings(&config()), &open));
            for packet in &scenario.packets {
                for direction in [Direction::Egress, Direction::Ingress] {
                    let question = Question::Workload(direction);
                    assert_eq!(ask(&evaluator, question, packet), ask(&expected, question, packet), "{packet:?}");
                }
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
