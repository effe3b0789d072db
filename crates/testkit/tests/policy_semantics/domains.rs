//! Rules by domains alone, of which no address is known, decide about no packet.

use std::sync::Arc;

use tortie_evaluate::Verdict;
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
    let by_domains = RuleSets { dst_domains: ["d:x".into()].into(), ..RuleSets::default() };
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
