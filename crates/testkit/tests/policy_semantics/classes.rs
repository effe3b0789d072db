//! Differential test: `tortie-classes` agrees with `tortie-evaluate` for any rules, including
//! deciding rule and staged policies.

use proptest::{prelude::Strategy, test_runner::TestCaseError};
use tortie_classes::{Classes, Compiled, GroupId, StagedRuling};
use tortie_evaluate::{Answer, DecidedBy, Evaluator, Explanation, Layer, Packet, Ruling, Step};
use tortie_model::{AdminState, Direction, desired::DesiredUpdate, desired::IpSetDelta, desired::Members};

use crate::{
    evaluate::{evaluated, messages, settings},
    histories::removal,
    runner,
    scenario::{Scenario, host_name, scenarios, unenforceable, workload_id},
};

const LAYERS: [Layer; 4] = [Layer::Normal, Layer::Forward, Layer::Untracked, Layer::PreDnat];

/// Returns the rulings of staged policies along the evaluation.
fn staged(explanation: &Explanation) -> Vec<StagedRuling> {
    let ruling = |step: &Step| match step {
        Step::Policy { tier, policy, staged: true, rules, ruling } if *ruling != Ruling::Silent => {
            let (tier, policy) = (tier.clone(), policy.clone());
            Some(StagedRuling { tier, policy, ruling: *ruling, index: rules.last()?.index })
        }
        _ => None,
    };
    explanation.steps.iter().filter_map(ruling).collect()
}

/// Returns the answer of the cell for the packet's classes.
pub(crate) fn by_cell(compiled: &Compiled<'_>, group: GroupId, direction: Direction, packet: &Packet) -> Answer {
    let table = compiled.table(group).unwrap().unwrap();
    let [source, destination] = [packet.source(), packet.destination()].map(|address| compiled.class_of(address));
    let (own, peer) = match direction {
        Direction::Ingress => (destination, source),
        Direction::Egress => (source, destination),
    };
    let (own, peer) = (table.own_row(own).unwrap(), table.peer_row(peer).unwrap());
    let l4 = table.l4_column(compiled.l4_class_of(packet));
    let source_port = table.source_port_column(compiled.source_port_class_of(packet));
    assert!(l4 < table.l4_columns() && source_port < table.source_port_columns());
    let (verdict, by) = table.cell(own, peer, l4, source_port).unwrap();
    Answer::new(verdict, by.clone())
}

fn same(
    compiled: &Compiled<'_>,
    (group, direction): (GroupId, Direction),
    packet: &Packet,
    explanation: &Explanation,
    answer: &Answer,
) -> Result<(), TestCaseError> {
    // A table knows no names, so that rules by name match nothing.
    let without_names = Answer { alternative: None, ..explanation.answer.clone() };
    if without_names != *answer {
        return Err(TestCaseError::fail(format!("{packet:?}: the table says {answer:?}, {explanation:#?}")));
    }
    let by_table =
        !matches!(answer.decided_by, DecidedBy::Guard(_) | DecidedBy::Failsafe(_) | DecidedBy::EndpointInactive);
    if by_table {
        let found = by_cell(compiled, group, direction, packet);
        if found != *answer {
            return Err(TestCaseError::fail(format!("{packet:?}: the cell says {found:?}, not {answer:?}")));
        }
    }
    let noted = compiled.staged(group, packet).unwrap();
    if by_table && noted != staged(explanation) {
        return Err(TestCaseError::fail(format!("{packet:?}: noted {noted:?}, {explanation:#?}")));
    }
    Ok(())
}

fn agree(evaluator: &Evaluator, compiled: &Compiled<'_>, packets: &[Packet]) -> Result<(), TestCaseError> {
    for packet in packets {
        for direction in [Direction::Ingress, Direction::Egress] {
            for state in [AdminState::Active, AdminState::Inactive] {
                let id = workload_id(state);
                let explanation = evaluator.explain_workload(&id, direction, packet).unwrap();
                let group = compiled.workload_group(&id, direction).unwrap();
                same(
                    compiled,
                    (group, direction),
                    packet,
                    &explanation,
                    &compiled.workload(&id, direction, packet).unwrap(),
                )?;
            }
            for layer in LAYERS {
                let name = host_name();
                let explanation = evaluator.explain_host(&name, layer, direction, packet).unwrap();
                let group = compiled.host_group(&name, layer, direction).unwrap();
                same(
                    compiled,
                    (group, direction),
                    packet,
                    &explanation,
                    &compiled.host(&name, layer, direction, packet).unwrap(),
                )?;
            }
        }
    }
    Ok(())
}

fn apply(evaluator: &mut Evaluator, classes: &mut Classes, update: &DesiredUpdate) {
    evaluator.apply(update).unwrap();
    classes.apply(update).unwrap();
}

/// Returns updates that remove and add the members of each set, one at a time.
fn deltas(scenario: &Scenario) -> impl Iterator<Item = [DesiredUpdate; 2]> + '_ {
    scenario.state.ip_sets.iter().flat_map(|(id, members)| {
        let delta = move |added, removed| DesiredUpdate::IpSetDelta(IpSetDelta { id: id.clone(), added, removed });
        let parts: Vec<(Members, Members)> = match members {
            Members::Nets(nets) => {
                nets.iter().map(|net| (Members::Nets(vec![*net]), Members::Nets(Vec::new()))).collect()
            }
            Members::IpPorts(ports) => {
                ports.chunks(30).map(|ports| (Members::IpPorts(ports.to_vec()), Members::IpPorts(Vec::new()))).collect()
            }
            // They have no deltas.
            Members::Domains(_) => Vec::new(),
        };
        parts.into_iter().map(move |(some, none)| [delta(none.clone(), some.clone()), delta(some, none)])
    })
}

pub(crate) fn check(scenario: &Scenario, config: &tortie_rules::RulesConfig) -> Result<(), TestCaseError> {
    let mut evaluator = Evaluator::new(settings(config));
    let mut classes = Classes::new(settings(config));
    let packets: Vec<Packet> = scenario.packets.iter().map(evaluated).collect();
    for update in messages(&scenario.state) {
        apply(&mut evaluator, &mut classes, &update);
    }
    agree(&evaluator, &classes.flush(), &packets)?;
    for updates in deltas(scenario).step_by(3) {
        for update in &updates {
            apply(&mut evaluator, &mut classes, update);
            agree(&evaluator, &classes.flush(), packets.get(..3).unwrap_or_default())?;
        }
    }
    let mut fresh = Classes::new(settings(config));
    messages(&scenario.state).for_each(|update| fresh.apply(&update).unwrap());
    assert_eq!(classes.flush().class_count(), fresh.flush().class_count());
    for update in messages(&scenario.state).collect::<Vec<_>>().into_iter().rev() {
        classes.apply(&removal(update)).unwrap();
    }
    classes.flush();
    assert!(classes.is_empty(), "{classes:#?}");
    Ok(())
}

fn run(cases: u32, config: &tortie_rules::RulesConfig, spoil: bool) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    let strategy = (scenarios(), unenforceable());
    let strategy = strategy.prop_map(|(scenario, spoils)| if spoil { scenario.spoilt(&spoils) } else { scenario });
    if let Err(error) = runner(cases, 200).run(&strategy, |scenario| check(&scenario, config)) {
        panic!("{error}");
    }
}

#[test]
fn tables_agree_with_the_evaluator() {
    run(25, &crate::chains::config(), false);
}

#[test]
fn tables_agree_with_the_evaluator_with_failsafe_ports_and_odd_rules() {
    run(25, &crate::evaluate::busy_config(tortie_rules::EndpointToHostAction::Drop), true);
}
