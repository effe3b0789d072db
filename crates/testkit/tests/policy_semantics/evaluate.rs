//! Differential test: `tortie-evaluate` agrees with rendered chains, including the deciding rule,
//! also for rules that cannot be rendered unchanged.

use std::collections::HashMap;

use proptest::{
    prelude::{Strategy, any},
    test_runner::TestCaseError,
};
use tortie_evaluate::{
    Answer, DecidedBy, EndpointToHost, Evaluator, FailsafePort, Guard, Layer as EvaluatedLayer, Packet as Evaluated,
    Payload as EvaluatedPayload, Settings, Step, Verdict,
};
use tortie_iptables::{Chain, Protocol};
use tortie_model::{
    AdminState, Direction,
    desired::{DesiredUpdate, IpSetType, IpSetUpdate, Members},
};
use tortie_rules::{EndpointToHostAction, RulesConfig, names::chain};
use tortie_testkit::{
    evaluator::{DesiredState, Layer, OracleVerdict},
    packet::{Packet, Payload},
    walker::{PacketOutcome, Skb, Tables, Walk},
};

use crate::{
    QUESTIONS,
    chains::{Chains, Question, config},
    runner,
    scenario::{Scenario, WORKLOAD_INTERFACE, host_name, scenarios, unenforceable, workload_id},
    verdict,
};

/// Returns a configuration with failsafe ports, and with VXLAN ports that packets use.
pub(crate) fn busy_config(to_host: EndpointToHostAction) -> RulesConfig {
    let port = |protocol, port, net: Option<&str>| tortie_rules::FailsafePort {
        protocol,
        port,
        net: net.map(|net| net.parse().unwrap()),
    };
    RulesConfig {
        failsafe_inbound: vec![port(Protocol::TCP, 5, None), port(Protocol::UDP, 6, Some("10.0.0.4/30"))],
        failsafe_outbound: vec![port(Protocol::TCP, 7, Some("fd00::/126")), port(Protocol::UDP, 8, None)],
        endpoint_to_host: to_host,
        vxlan_port: 9,
        ..config()
    }
}

pub(crate) fn settings(config: &RulesConfig) -> Settings {
    let ports = |ports: &[tortie_rules::FailsafePort]| {
        let port = |port: &tortie_rules::FailsafePort| FailsafePort {
            protocol: Protocol::Number(port.protocol.number()),
            port: port.port,
            net: port.net,
        };
        ports.iter().map(port).collect()
    };
    Settings {
        failsafe_inbound: ports(&config.failsafe_inbound),
        failsafe_outbound: ports(&config.failsafe_outbound),
        endpoint_to_host: match config.endpoint_to_host {
            EndpointToHostAction::Accept => EndpointToHost::Allow,
            EndpointToHostAction::Drop | EndpointToHostAction::Reject => EndpointToHost::Deny,
            EndpointToHostAction::Return => EndpointToHost::Undecided,
        },
        vxlan_port: config.vxlan_port,
        vxlan_from_workloads: config.vxlan_from_workloads,
        ipip_from_workloads: config.ipip_from_workloads,
    }
}

/// Returns messages that describe a complete state.
pub(crate) fn messages(state: &DesiredState) -> impl Iterator<Item = DesiredUpdate> + '_ {
    let sets = state.ip_sets.iter().map(|(id, members)| {
        let set_type = if matches!(members, Members::Nets(_)) { IpSetType::Net } else { IpSetType::IpAndPort };
        DesiredUpdate::IpSet(IpSetUpdate { id: id.clone(), set_type, members: members.clone() })
    });
    let policies = state.policies.iter().map(|(id, policy)| DesiredUpdate::Policy(id.clone(), policy.clone()));
    let profiles = state.profiles.iter().map(|(name, profile)| DesiredUpdate::Profile(name.clone(), profile.clone()));
    let workloads =
        state.workloads.iter().map(|(id, state)| DesiredUpdate::WorkloadEndpoint(id.clone(), state.clone()));
    let hosts = state.hosts.iter().map(|(name, state)| DesiredUpdate::HostEndpoint(name.clone(), state.clone()));
    sets.chain(policies).chain(profiles).chain(workloads).chain(hosts)
}

pub(crate) fn evaluator(settings: Settings, state: &DesiredState) -> Evaluator {
    let mut evaluator = Evaluator::new(settings);
    messages(state).for_each(|update| evaluator.apply(&update).unwrap());
    evaluator
}

pub(crate) fn evaluated(packet: &Packet) -> Evaluated {
    let payload = match packet.payload {
        Payload::Ports { source, destination } => EvaluatedPayload::Ports { source, destination },
        Payload::Icmp { kind, code } => EvaluatedPayload::Icmp { icmp_type: kind, code },
        Payload::Opaque => EvaluatedPayload::Other,
    };
    Evaluated::new(packet.source, packet.destination, packet.protocol, payload).unwrap()
}

/// Returns the answer, which must be the same with and without an explanation.
pub(crate) fn ask(evaluator: &Evaluator, question: Question, packet: &Packet) -> Answer {
    let packet = evaluated(packet);
    let workload = |state, direction| {
        let id = workload_id(state);
        let explained = evaluator.explain_workload(&id, direction, &packet).unwrap();
        (evaluator.workload(&id, direction, &packet).unwrap(), explained)
    };
    let host = |layer, direction| {
        let explained = evaluator.explain_host(&host_name(), layer, direction, &packet).unwrap();
        (evaluator.host(&host_name(), layer, direction, &packet).unwrap(), explained)
    };
    let (answer, explained) = match question {
        Question::Workload(direction) => workload(AdminState::Active, direction),
        Question::InactiveWorkload => workload(AdminState::Inactive, Direction::Ingress),
        Question::Host(layer, direction) => {
            let layer = match layer {
                Layer::Normal => EvaluatedLayer::Normal,
                Layer::Forward => EvaluatedLayer::Forward,
                Layer::Untracked => EvaluatedLayer::Untracked,
                Layer::PreDnat => EvaluatedLayer::PreDnat,
            };
            host(layer, direction)
        }
        Question::TranslatedFromHost => host(EvaluatedLayer::Normal, Direction::Egress),
        Question::WorkloadToHost => {
            let id = workload_id(AdminState::Active);
            let explained = evaluator.explain_workload_to_host(&id, &packet).unwrap();
            (evaluator.workload_to_host(&id, &packet).unwrap(), explained)
        }
    };
    assert_eq!(answer, explained.answer);
    match (&answer.decided_by, explained.steps.last()) {
        (DecidedBy::PolicyRule { policy: by, .. }, Some(Step::Policy { policy, .. })) => assert_eq!(by, policy),
        (DecidedBy::ProfileRule { profile: by, .. }, Some(Step::Profile { profile, .. })) => assert_eq!(by, profile),
        (DecidedBy::EndOfTier { tier: by }, Some(Step::EndOfTier { tier, .. })) => assert_eq!(by, tier),
        (DecidedBy::EndOfProfiles, Some(Step::EndOfProfiles))
        | (DecidedBy::Failsafe(_), Some(Step::Failsafe { matched: true }))
        | (DecidedBy::Guard(_), Some(Step::Guard { matched: true, .. }))
        | (
            DecidedBy::EndpointInactive
            | DecidedBy::NoForwardPolicy
            | DecidedBy::EndpointToHostAction
            | DecidedBy::Nothing,
            _,
        ) => {}
        (by, last) => panic!("decided by {by:?}, last looked at {last:?}"),
    }
    answer
}

/// Describes the deciding place, in the same form for an answer and a walk.
fn place_of_answer(answer: &Answer) -> String {
    match &answer.decided_by {
        DecidedBy::PolicyRule { policy, index, .. } => format!("{policy} rule {index}"),
        DecidedBy::ProfileRule { profile, index } => format!("Profile/{profile} rule {index}"),
        DecidedBy::EndOfTier { tier } => format!("end of tier {tier}"),
        DecidedBy::EndOfProfiles => "end of profiles".to_owned(),
        DecidedBy::Failsafe(_) => "failsafe".to_owned(),
        DecidedBy::Guard(Guard::Vxlan) => "VXLAN".to_owned(),
        DecidedBy::Guard(Guard::IpIp) => "IPinIP".to_owned(),
        DecidedBy::Guard(_) => "ICMPv6".to_owned(),
        DecidedBy::EndpointInactive => "inactive".to_owned(),
        DecidedBy::NoForwardPolicy => "no forward policy".to_owned(),
        DecidedBy::EndpointToHostAction => "to host".to_owned(),
        _ => "nothing".to_owned(),
    }
}

/// Returns the place that decided a walk: its last rule if the packet ended there, otherwise the
/// last rule that marked it.
fn place_of_walk(walk: &Walk, tables: &Tables, decided: OracleVerdict) -> String {
    let chains: HashMap<_, &Chain> = tables.chains().map(|chain| (chain.name, chain)).collect();
    let origin = |(name, position): &(_, usize)| {
        let origin = chains[name].rules[*position].origin.as_ref()?;
        Some(format!("{} rule {}", origin.owner, origin.part?))
    };
    // The rule that leads to the chain for rejected packets has decided.
    let last = walk.path.iter().rfind(|(name, _)| *name != chain::REJECT);
    let Some((name, position)) = last else { return "nothing".to_owned() };
    let comments = chains[name].rules[*position].comments.iter().map(|comment| comment.as_str().to_owned());
    let comments = comments.collect::<Vec<_>>().join(" ");
    if walk.outcome == PacketOutcome::Returned {
        if decided == OracleVerdict::Undecided {
            return "nothing".to_owned();
        }
        if comments.contains("Return for accepted forward traffic") {
            return "no forward policy".to_owned();
        }
        return walk.path.iter().rev().find_map(origin).unwrap_or_else(|| "nothing".to_owned());
    }
    let known = [
        ("VXLAN encapped", "VXLAN"),
        ("IPinIP encapped", "IPinIP"),
        ("if no profiles matched", "end of profiles"),
        ("Endpoint admin disabled", "inactive"),
        ("Configured DefaultEndpointToHostAction", "to host"),
    ];
    if let Some((_, place)) = known.iter().find(|(comment, _)| comments.contains(comment)) {
        return (*place).to_owned();
    }
    if let Some((_, rest)) = comments.split_once("End of tier ") {
        return format!("end of tier {}", rest.split('.').next().unwrap());
    }
    if [chain::FAILSAFE_IN, chain::FAILSAFE_OUT].contains(name) {
        return "failsafe".to_owned();
    }
    if *name == chain::WORKLOAD_TO_HOST {
        return "ICMPv6".to_owned();
    }
    last.and_then(origin).unwrap_or_else(|| comments.clone())
}

fn check(scenario: &Scenario, config: &RulesConfig) -> Result<(), TestCaseError> {
    let chains = Chains::render(config, &scenario.state, |chain| chain);
    let evaluator = evaluator(settings(config), &scenario.state);
    for packet in &scenario.packets {
        for question in QUESTIONS.into_iter().chain([Question::WorkloadToHost]) {
            let to_host = question == Question::WorkloadToHost;
            let mut skb = Skb::new(*packet, if to_host { WORKLOAD_INTERFACE } else { "eth9" }, "eth9");
            skb.mark = config.marks.accept.get() | config.marks.pass.get();
            let (tables, start) = chains.enter(question, packet.is_ipv4());
            let walk = tables.walk(start, &skb).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let walked = match walk.outcome {
                // Foreign rules decide, whether the workload's policy accepts or not.
                PacketOutcome::Returned if to_host => OracleVerdict::Undecided,
                _ => verdict(walk.outcome, walk.mark, config.marks.accept.get()),
            };
            let answer = ask(&evaluator, question, packet);
            let evaluated = match answer.verdict {
                Verdict::Allow => OracleVerdict::Allow,
                Verdict::Deny => OracleVerdict::Deny,
                Verdict::Undecided => OracleVerdict::Undecided,
            };
            let places = match (to_host, walk.outcome) {
                (true, PacketOutcome::Returned) => ("to host".to_owned(), place_of_answer(&answer)),
                _ => (place_of_walk(&walk, tables, walked), place_of_answer(&answer)),
            };
            if walked != evaluated || places.0 != places.1 {
                return Err(TestCaseError::fail(format!(
                    "{question:?}, {packet}: walked {walked:?} at {}, evaluated {evaluated:?} at {}; {walk:?}",
                    places.0, places.1
                )));
            }
            let oracle_knows = config.failsafe_inbound.is_empty() && !to_host;
            if oracle_knows && question.evaluate(&scenario.state, packet) != Ok(evaluated) {
                return Err(TestCaseError::fail(format!("{question:?}, {packet}: the oracle differs")));
            }
        }
    }
    Ok(())
}

fn run(cases: u32, property: impl Fn(Scenario, EndpointToHostAction) -> Result<(), TestCaseError>, spoil: bool) {
    use EndpointToHostAction::{Accept, Drop, Return};
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    let strategy = (scenarios(), unenforceable(), any::<u8>()).prop_map(|(scenario, spoils, action)| {
        let scenario = if spoil { scenario.spoilt(&spoils) } else { scenario };
        (scenario, [Accept, Drop, Return][usize::from(action % 3)])
    });
    if let Err(error) = runner(cases, 3000).run(&strategy, |(scenario, action)| property(scenario, action)) {
        panic!("{error}");
    }
}

#[test]
fn answers_match_policies_and_rendered_chains() {
    run(60, |scenario, _| check(&scenario, &config()), false);
}

#[test]
fn answers_match_rendered_chains_with_failsafe_ports_and_odd_rules() {
    let property = |mut scenario: Scenario, action| {
        // Packets that only guards distinguish.
        let tunnelled = scenario.packets.iter().filter(|packet| packet.protocol == 47);
        let tunnelled: Vec<Packet> = tunnelled.map(|packet| Packet { protocol: 4, ..*packet }).collect();
        scenario.packets.extend(tunnelled);
        let first = scenario.packets.iter().find(|packet| !packet.is_ipv4()).copied();
        let ends = first.map(|packet| (packet.source, packet.destination));
        scenario.packets.extend(ends.map(|(source, destination)| Packet::icmp(source, destination, 135, 0)));
        check(&scenario, &busy_config(action))
    };
    run(120, property, true);
}

/// Checks that the test detects an evaluator with another state.
#[test]
fn an_evaluator_of_another_state_is_detected() {
    let result = runner(300, 0).run(&scenarios(), |scenario| {
        let mut other = scenario.state.clone();
        let members: Vec<_> = other.ip_sets.values_mut().collect();
        for set in members {
            match set {
                Members::Nets(nets) => nets.clear(),
                Members::IpPorts(ports) => ports.clear(),
                Members::Domains(_) => {}
            }
        }
        let evaluator = evaluator(settings(&config()), &other);
        for packet in &scenario.packets {
            let answer = ask(&evaluator, Question::Workload(Direction::Ingress), packet);
            let expected = Question::Workload(Direction::Ingress).evaluate(&scenario.state, packet).unwrap();
            if (answer.verdict == Verdict::Allow) != (expected == OracleVerdict::Allow) {
                return Err(TestCaseError::fail("noticed"));
            }
        }
        Ok(())
    });
    assert!(result.is_err());
}
