//! Differential test: `tortie-classes` for all pairs agrees with `tortie-evaluate` packet by
//! packet, including deciding rules.

use proptest::test_runner::TestCaseError;
use tortie_classes::{Reachability, Ruling};
use tortie_evaluate::{Answer, Packet};
use tortie_model::{Direction, Family, Protocol};

use crate::{
    difference::{State, at_the_edges, between, is_in, is_real, party, workload_at},
    evaluate::evaluated,
    runner,
    scenario::{Scenario, scenarios},
};

/// Returns the answer of an end for a packet; `None` if it has no policy.
fn answer(
    reachability: &Reachability<'_>,
    (own, direction, peer): (usize, Direction, usize),
    packet: &Packet,
) -> Result<Option<Answer>, TestCaseError> {
    let Some(rulings_id) = reachability.rulings_id(own, direction, peer) else { return Ok(None) };
    if let Some(to_all) = reachability.uniform_rulings_id(own, direction) {
        proptest::prop_assert_eq!(to_all, rulings_id);
    }
    let rulings = reachability.rulings(rulings_id).iter();
    let found: Vec<&Ruling> = rulings.filter(|ruling| is_in(packet, &ruling.traffic, ruling.source_ports)).collect();
    match &found[..] {
        [ruling] => Ok(Some(Answer::new(ruling.verdict, ruling.by.clone()))),
        others => Err(TestCaseError::fail(format!("{packet:?}: reported {} times: {others:#?}", others.len()))),
    }
}

/// Checks a packet, and returns 1 if it passes, otherwise 0.
fn check_packet(state: &State, reachability: &mut Reachability<'_>, packet: &Packet) -> Result<usize, TestCaseError> {
    if packet.source() == packet.destination() {
        return Ok(0);
    }
    let [from, to] = [packet.source(), packet.destination()].map(|end| party(reachability.parties(), end));
    for (end, own, direction, peer) in
        [(packet.source(), from, Direction::Egress, to), (packet.destination(), to, Direction::Ingress, from)]
    {
        let expected = workload_at(end).map(|id| state.evaluator.workload(&id, direction, packet).unwrap());
        let found = answer(reachability, (own, direction, peer), packet)?;
        proptest::prop_assert_eq!(found, expected, "{:?} of {:?}", direction, packet);
    }
    let [egress, ingress] =
        [reachability.rulings_id(from, Direction::Egress, to), reachability.rulings_id(to, Direction::Ingress, from)];
    let passing = reachability.passing(egress, ingress);
    let found = passing.iter().filter(|kind| is_in(packet, &kind.traffic, kind.source_ports)).count();
    proptest::prop_assert_eq!(found, usize::from(state.passes(packet)), "{:?}: {:#?}", packet, passing);
    Ok(found)
}

fn check(scenario: &Scenario, config: &tortie_rules::RulesConfig) -> Result<[usize; 2], TestCaseError> {
    let mut state = State::new(config);
    state.follow(scenario);
    let mut classes = state.classes.clone();
    let compiled = classes.flush();
    let (mut packets, mut passing) = (0, 0);
    for family in Family::ALL {
        let mut reachability = compiled.reachability(family, &[]);
        let of_scenario = scenario.packets.iter().map(evaluated).filter(is_real);
        for packet in of_scenario.filter(|packet| packet.family() == family).chain(at_the_edges(family)) {
            for (from, to) in [(1, 4), (4, 6), (1, 5), (5, 1), (6, 0), (3, 6), (7, 1), (1, 1)] {
                passing += check_packet(&state, &mut reachability, &between(&packet, from, to))?;
                packets += 1;
            }
            passing += check_packet(&state, &mut reachability, &packet)?;
        }
        // Restricted to some ports.
        let ports = [(Protocol::TCP, 8), (Protocol::UDP, 9)];
        let mut restricted = compiled.reachability(family, &ports);
        for from in 0..reachability.parties().len() {
            for to in 0..reachability.parties().len() {
                check_restricted([&mut reachability, &mut restricted], &ports, from, to)?;
            }
        }
    }
    Ok([packets, passing])
}

fn check_restricted(
    all: [&mut Reachability<'_>; 2],
    ports: &[(Protocol, u16)],
    from: usize,
    to: usize,
) -> Result<(), TestCaseError> {
    let [whole, restricted] = all.map(|reachability| {
        let egress = reachability.rulings_id(from, Direction::Egress, to);
        let ingress = reachability.rulings_id(to, Direction::Ingress, from);
        reachability.passing(egress, ingress)
    });
    for protocol in [Protocol::TCP, Protocol::UDP, Protocol::ICMP] {
        for port in 0..20 {
            let detail = tortie_classes::L4Detail::Port(port);
            let is_open = |kinds: &[tortie_classes::Passing]| {
                kinds.iter().any(|kind| {
                    kind.source_ports.is_none_or(|(first, last)| (first..=last).contains(&50_000))
                        && kind.traffic.contains(protocol.number(), detail)
                })
            };
            let expected = ports.contains(&(protocol, port)) && is_open(&whole);
            proptest::prop_assert_eq!(is_open(&restricted), expected, "{:?} {}", protocol, port);
        }
    }
    Ok(())
}

fn run(cases: u32, config: &tortie_rules::RulesConfig) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    let counts = std::cell::Cell::new([0, 0]);
    let result = runner(cases, 200).run(&scenarios(), |scenario| {
        let ([packets, passing], found) = (counts.get(), check(&scenario, config)?);
        counts.set([packets + found[0], passing + found[1]]);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let [packets, passing] = counts.get();
    assert!(passing > 0 && passing < packets, "{passing} of {packets} pass");
}

#[test]
fn reachability_matches_the_verdicts_of_packets() {
    run(10, &crate::chains::config());
}

#[test]
fn reachability_matches_the_verdicts_of_packets_with_tunnels_of_workloads() {
    run(10, &crate::evaluate::busy_config(tortie_rules::EndpointToHostAction::Drop));
}
