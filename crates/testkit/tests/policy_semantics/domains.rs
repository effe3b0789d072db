//! Rules by domains alone decide about no packet unless the names of its destination are known. An
//! answer without this knowledge has the alternative.

use std::sync::Arc;

use tortie_evaluate::{Answer, Evaluator, NamedPacket, Names, Verdict};
use tortie_model::{
    AdminState, Direction, DomainName, Rule, RuleAction,
    desired::{Members, Policy, RuleSets, Rules},
};
use tortie_testkit::evaluator::{DesiredState, OracleVerdict};

use crate::{
    chains::{Question, config},
    classes,
    evaluate::{ask, evaluated, evaluator, settings},
    runner,
    scenario::{scenarios, workload_id},
};

/// Inserts a rule that allows all packets to some domains before all other egress rules.
fn with_domains(mut state: DesiredState) -> DesiredState {
    state.ip_sets.insert("d:x".into(), Members::Domains(["*.a.io".parse().unwrap()].into()));
    with_first_rule(state, &RuleSets { dst_domains: ["d:x".into()].into(), ..RuleSets::default() })
}

/// Inserts a rule that allows all packets to these sets before all other egress rules.
fn with_first_rule(mut state: DesiredState, first: &RuleSets) -> DesiredState {
    for policy in state.policies.values_mut() {
        let views = policy.outbound.iter();
        let rules = [Rule::new(RuleAction::Allow)].into_iter().chain(views.clone().map(|view| view.rule.clone()));
        let sets = [first.clone()].into_iter().chain(views.map(|view| view.sets.clone()));
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

#[test]
fn known_names_decide_and_unknown_ones_leave_an_alternative() {
    let names = |texts: &[&str]| -> Vec<DomainName> { texts.iter().map(|text| text.parse().unwrap()).collect() };
    let (matching, others) = (names(&["b.io", "x.a.io"]), names(&["a.io", "xa.io"]));
    let result = runner(80, 200).run(&scenarios(), |scenario| {
        let evaluator = |state: &DesiredState| evaluator(settings(&config()), state);
        let (closed, open) =
            (evaluator(&scenario.state), evaluator(&with_first_rule(scenario.state.clone(), &RuleSets::default())));
        let by_name = evaluator(&with_domains(scenario.state));
        let id = workload_id(AdminState::Active);
        for packet in scenario.packets.iter().map(evaluated) {
            let expected = |evaluator: &Evaluator| evaluator.workload(&id, Direction::Egress, &packet).unwrap();
            let ask = |names| by_name.workload(&id, Direction::Egress, NamedPacket::new(&packet, names)).unwrap();

            let known = ask(Names::Known(&matching));
            assert_eq!(Answer { by_name: None, ..known.clone() }, expected(&open));
            for names in [&others[..], &[]] {
                let answer = ask(Names::Known(names));
                assert_eq!(
                    (answer.verdict, answer.by_name, answer.alternative),
                    (expected(&closed).verdict, None, None)
                );
            }
            let unknown = ask(Names::Unknown);
            assert_eq!((unknown.verdict, &unknown.by_name), (expected(&closed).verdict, &None));
            let alternative: Option<Answer> = unknown.alternative.map(|alternative| alternative.answer);
            assert_eq!(alternative, Some(known).filter(|known| known.verdict != unknown.verdict));
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// With names but no address, only rules by address leave an alternative.
#[test]
fn without_an_address_the_verdict_holds_for_all_addresses_or_has_an_alternative() {
    let name: [DomainName; 1] = ["x.a.io".parse().unwrap()];
    let result = runner(80, 200).run(&scenarios(), |scenario| {
        let evaluator = evaluator(settings(&config()), &with_domains(scenario.state));
        let id = workload_id(AdminState::Active);
        let packets: Vec<_> = scenario.packets.iter().map(evaluated).collect();
        for packet in &packets {
            let named = NamedPacket::new(packet, Names::Known(&name));
            let blind = evaluator.workload(&id, Direction::Egress, named.without_address()).unwrap();
            let seen = evaluator.workload(&id, Direction::Egress, named).unwrap();
            assert!(seen.verdict == blind.verdict || blind.alternative.is_some(), "{seen:?} {blind:?}");
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
