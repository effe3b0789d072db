//! Differential tests: rendered chains, evaluated packet by packet, give the verdicts of the
//! policies.
//!
//! The evaluator has no notion of chains and the walker none of policies; the renderer is the code
//! between them.
#![allow(clippy::disallowed_methods, reason = "tests may read the environment")]
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

#[path = "policy_semantics/chains.rs"]
mod chains;
#[path = "policy_semantics/classes.rs"]
mod classes;
#[path = "policy_semantics/defects.rs"]
mod defects;
#[path = "policy_semantics/difference.rs"]
mod difference;
#[path = "policy_semantics/domains.rs"]
mod domains;
#[path = "policy_semantics/evaluate.rs"]
mod evaluate;
#[path = "policy_semantics/histories.rs"]
mod histories;
#[path = "policy_semantics/kernel.rs"]
mod kernel;
#[path = "policy_semantics/layouts.rs"]
mod layouts;
#[path = "policy_semantics/learned.rs"]
mod learned;
#[path = "policy_semantics/maps.rs"]
mod maps;
#[path = "policy_semantics/nodes.rs"]
mod nodes;
#[path = "policy_semantics/preview.rs"]
mod preview;
#[path = "policy_semantics/reachability.rs"]
mod reachability;
#[path = "policy_semantics/recorded.rs"]
mod recorded;
#[path = "policy_semantics/recorded_format.rs"]
mod recorded_format;
#[path = "policy_semantics/scenario.rs"]
mod scenario;
#[path = "policy_semantics/tables.rs"]
mod tables;
#[path = "policy_semantics/texts.rs"]
mod texts;
#[path = "policy_semantics/unused.rs"]
mod unused;

use std::collections::BTreeSet;

use proptest::{
    prelude::ProptestConfig,
    test_runner::{TestCaseError, TestError, TestRng, TestRunner},
};
use tortie_iptables::{Action, Chain, ConntrackState};
use tortie_model::Direction;
use tortie_rules::RulesConfig;
use tortie_testkit::{
    evaluator::{Layer, OracleVerdict},
    walker::{PacketOutcome, Skb, Walk},
};

use crate::{
    chains::{Chains, Question, config, problems},
    scenario::{Scenario, scenarios},
};

/// All questions about a scenario's endpoints.
const QUESTIONS: [Question; 11] = [
    Question::Workload(Direction::Ingress),
    Question::Workload(Direction::Egress),
    Question::Host(Layer::Normal, Direction::Ingress),
    Question::Host(Layer::Normal, Direction::Egress),
    Question::Host(Layer::Forward, Direction::Ingress),
    Question::Host(Layer::Forward, Direction::Egress),
    Question::Host(Layer::Untracked, Direction::Ingress),
    Question::Host(Layer::Untracked, Direction::Egress),
    Question::Host(Layer::PreDnat, Direction::Ingress),
    Question::TranslatedFromHost,
    Question::InactiveWorkload,
];

/// Returns the verdict of a walk's result. If the chain returns, the accept mark decides.
fn verdict(outcome: PacketOutcome, mark: u32, accept: u32) -> OracleVerdict {
    match outcome {
        PacketOutcome::Accepted => OracleVerdict::Allow,
        PacketOutcome::Dropped | PacketOutcome::Rejected(_) => OracleVerdict::Deny,
        PacketOutcome::Returned if mark & accept != 0 => OracleVerdict::Allow,
        PacketOutcome::Returned => OracleVerdict::Undecided,
    }
}

/// Result of a walker for a packet.
#[derive(Debug)]
struct Walked {
    outcome: PacketOutcome,
    mark: u32,
    untracked: bool,
    /// The rules on the way.
    path: String,
}

/// Compares the results of a walker with the verdicts of a scenario.
fn check_walks(
    scenario: &Scenario,
    config: &RulesConfig,
    walk: &dyn Fn(Question, &Skb) -> Result<Walked, TestCaseError>,
) -> Result<(), TestCaseError> {
    let fail = |reason: String| TestCaseError::fail(reason);
    scenario.state.check_references().map_err(|error| fail(error.to_string()))?;
    let problems = problems(config, &scenario.state);
    if !problems.is_empty() {
        return Err(fail(format!("{problems:?}")));
    }
    let accept = config.marks.accept.get();
    for packet in &scenario.packets {
        for question in QUESTIONS {
            let expected = question.evaluate(&scenario.state, packet).map_err(|error| fail(error.to_string()))?;
            let mut skb = Skb::new(*packet, "eth9", "eth9");
            // Mark bits left by earlier chains must not matter.
            skb.mark = accept | config.marks.pass.get() | 0xf;
            let walked = walk(question, &skb)?;
            let rendered = verdict(walked.outcome, walked.mark, accept);
            if rendered != expected {
                return Err(fail(format!(
                    "{question:?}, {packet}: means {expected:?}, rendered {rendered:?} by {}",
                    walked.path
                )));
            }
            if walked.mark & 0xf != 0xf {
                return Err(fail(format!("{question:?}, {packet}: a mark bit that is not ours was changed")));
            }
            let mut in_state = |state| -> Result<OracleVerdict, TestCaseError> {
                skb.conntrack = BTreeSet::from([state]);
                let walked = walk(question, &skb)?;
                Ok(verdict(walked.outcome, walked.mark, accept))
            };
            if question.is_untracked() {
                if walked.untracked != (expected == OracleVerdict::Allow) {
                    return Err(fail(format!("{packet}: {expected:?}, but untracked: {}", walked.untracked)));
                }
            } else if question != Question::InactiveWorkload {
                if in_state(ConntrackState::Established)? != OracleVerdict::Allow {
                    return Err(fail(format!("{question:?}, {packet}: known connections must go on")));
                }
                if in_state(ConntrackState::Invalid)? != OracleVerdict::Deny {
                    return Err(fail(format!("{question:?}, {packet}: invalid packets must be denied")));
                }
            }
        }
    }
    Ok(())
}

/// Compares the chains of a scenario, changed by `spoil`, with its verdicts.
fn check(scenario: &Scenario, spoil: impl Fn(Chain) -> Chain) -> Result<(), TestCaseError> {
    let config = config();
    let chains = Chains::render(&config, &scenario.state, spoil);
    check_walks(scenario, &config, &|question, skb| {
        let (tables, start) = chains.enter(question, skb.packet.is_ipv4());
        let walk = tables.walk(start, skb);
        let Walk { outcome, mark, untracked, path, .. } =
            walk.map_err(|error| TestCaseError::fail(format!("{question:?}: {error}")))?;
        Ok(Walked { outcome, mark, untracked, path: format!("{path:?}") })
    })
}

fn runner(cases: u32, max_shrink_iters: u32) -> TestRunner {
    let config = ProptestConfig { cases, failure_persistence: None, max_shrink_iters, ..ProptestConfig::default() };
    match std::env::var("TORTIE_PROPTEST_RANDOM") {
        Ok(_) => TestRunner::new(config),
        Err(_) => {
            TestRunner::new_with_rng(config, TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha))
        }
    }
}

#[test]
fn rendered_chains_have_the_verdicts_of_the_policies() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(100);
    if let Err(error) = runner(cases, 3000).run(&scenarios(), |scenario| check(&scenario, |chain| chain)) {
        panic!("{error}");
    }
}

/// Checks that the test detects each of these defects.
#[test]
fn known_defects_are_detected() {
    let config = config();
    let (scratch1, pass, accept) = (config.marks.scratch1, config.marks.pass, config.marks.accept);
    let without = |chain: Chain, drop: &dyn Fn(&tortie_iptables::Rule) -> bool| {
        let rules = chain.rules.into_iter().filter(|rule| !drop(rule)).collect();
        Chain { rules, ..chain }
    };
    let defects: [(&str, &dyn Fn(Chain) -> Chain); 6] = [
        ("match blocks after the second let everything through (the original's)", &|chain| {
            without(chain, &|rule| rule.matches.is_empty() && rule.action == Some(Action::ClearMark(scratch1)))
        }),
        ("the pass mark survives the end of a tier", &|chain| {
            without(chain, &|rule| {
                rule.action == Some(Action::ClearMark(pass))
                    && rule.comments.iter().any(|comment| comment.as_str().starts_with("Start of tier"))
            })
        }),
        ("a profile takes an earlier pass for its own (the original's)", &|chain| {
            without(chain, &|rule| {
                rule.action == Some(Action::ClearMark(pass))
                    && rule.comments.iter().any(|comment| comment.as_str().starts_with("Profile "))
            })
        }),
        ("tiers do not deny at their end", &|chain| {
            without(chain, &|rule| rule.comments.iter().any(|comment| comment.as_str().contains("End of tier")))
        }),
        ("a policy's verdict does not end the evaluation", &|chain| {
            without(chain, &|rule| {
                rule.action == Some(Action::Return)
                    && rule.comments.iter().any(|comment| comment.as_str() == "Return if policy accepted")
            })
        }),
        ("marks of earlier chains count", &|chain| {
            without(chain, &|rule| rule.action == Some(Action::ClearMark(accept | pass)))
        }),
    ];
    for (defect, spoil) in defects {
        let result = runner(300, 0).run(&scenarios(), |scenario| check(&scenario, spoil));
        assert!(matches!(result, Err(TestError::Fail(..))), "not noticed: {defect}");
    }
}
