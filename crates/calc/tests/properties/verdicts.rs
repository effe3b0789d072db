//! The messages, applied incrementally, give the same verdicts as the datastore, evaluated by brute
//! force.

use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::select;
use tortie_calc::{AddressClaims, Graph, GraphConfig};
use tortie_classes::{Classes, Compiled, Question};
use tortie_evaluate::{Answer, Evaluator, Layer, Packet, Settings};
use tortie_model::desired::{Members, WorkloadEndpointState};
use tortie_model::{Cidr, Direction, Family, Hostname, Protocol, SyncStatus, Update};
use tortie_testkit::evaluator::{DesiredState, Layer as OracleLayer, OracleVerdict};
use tortie_testkit::mock::MemberSet;
use tortie_testkit::oracle::{Datastore, expected};
use tortie_testkit::packet;

use crate::generate::{HOST, update};

/// Source, destination and ports; of one family.
type Flow = ((IpAddr, IpAddr), Protocol, (u16, u16));

fn flows() -> impl Strategy<Value = Flow> {
    let v4 = || {
        select(vec![
            [10, 0, 0, 1],
            [10, 0, 0, 2],
            [10, 0, 0, 3],
            [10, 0, 0, 9],
            [10, 1, 0, 1],
            [10, 1, 0, 2],
            [9, 9, 9, 9],
        ])
        .prop_map(IpAddr::from)
    };
    let v6 = || select(vec!["fd00::1", "fd00::2", "2001:db8::1"]).prop_map(|text| text.parse::<IpAddr>().unwrap());
    let port = || select(vec![53, 80, 443, 8080, 1]);
    let ends = prop_oneof![4 => (v4(), v4()), 1 => (v6(), v6())];
    (ends, select(vec![Protocol::TCP, Protocol::UDP, Protocol::SCTP]), (port(), port()))
}

fn expected_state(datastore: &Datastore) -> DesiredState {
    let mock = expected(datastore, false, false);
    let ip_sets = mock.ip_sets.into_iter().map(|(id, (_, members))| {
        let members = match members {
            MemberSet::Nets(nets) => Members::Nets(nets.into_iter().collect()),
            MemberSet::IpPorts(members) => Members::IpPorts(members.into_iter().collect()),
            MemberSet::Domains(patterns) => Members::Domains(patterns.into_iter().collect()),
        };
        (id, members)
    });
    DesiredState {
        ip_sets: ip_sets.collect(),
        policies: mock.policies,
        profiles: mock.profiles,
        workloads: mock.workload_endpoints,
        hosts: mock.host_endpoints,
    }
}

fn same(verdict: tortie_evaluate::Verdict) -> OracleVerdict {
    match verdict {
        tortie_evaluate::Verdict::Allow => OracleVerdict::Allow,
        tortie_evaluate::Verdict::Deny => OracleVerdict::Deny,
        tortie_evaluate::Verdict::Undecided => OracleVerdict::Undecided,
    }
}

/// Tables have no alternative for destinations with unknown names.
fn without_names(answer: &Answer) -> Answer {
    Answer { alternative: None, ..answer.clone() }
}

fn compare(
    evaluator: &Evaluator,
    tables: &Compiled<'_>,
    expected_state: &DesiredState,
    ((source, destination), protocol, ports): Flow,
) {
    const LAYERS: [(Layer, OracleLayer); 4] = [
        (Layer::Normal, OracleLayer::Normal),
        (Layer::Forward, OracleLayer::Forward),
        (Layer::Untracked, OracleLayer::Untracked),
        (Layer::PreDnat, OracleLayer::PreDnat),
    ];
    let ours = Packet::with_ports(protocol, (source, ports.0), (destination, ports.1)).unwrap();
    let theirs = packet::Packet::with_ports(protocol.number(), (source, ports.0), (destination, ports.1));
    for direction in [Direction::Ingress, Direction::Egress] {
        for id in expected_state.workloads.keys() {
            let answer = evaluator.workload(id, direction, &ours).unwrap();
            assert_eq!(tables.workload(id, direction, &ours).unwrap(), without_names(&answer), "{id} {ours:?}");
            assert_eq!(
                same(answer.verdict),
                expected_state.workload_verdict(id, direction, &theirs).unwrap(),
                "{id} {ours:?}"
            );
        }
        for name in expected_state.hosts.keys() {
            for (layer, oracle_layer) in LAYERS {
                let answer = evaluator.host(name, layer, direction, &ours).unwrap();
                let table = tables.host(name, layer, direction, &ours).unwrap();
                assert_eq!(table, without_names(&answer), "{name} {layer:?} {ours:?}");
                let expected = expected_state.host_verdict(name, oracle_layer, direction, &theirs).unwrap();
                assert_eq!(same(answer.verdict), expected, "{name} {layer:?} {ours:?}");
            }
        }
    }
    for address in [source, destination] {
        let has = |state: &WorkloadEndpointState| state.endpoint.nets().any(|net| net.address() == address);
        let mut found = evaluator.workloads_with_address(address).to_vec();
        found.sort();
        let expected: Vec<_> =
            expected_state.workloads.iter().filter(|(_, state)| has(state)).map(|(id, _)| id.clone()).collect();
        assert_eq!(found, expected);
    }
}

/// Compares all pairs of workloads, one by one.
fn compare_matrix(evaluator: &Evaluator, tables: &Compiled<'_>, expected_state: &DesiredState) {
    for family in Family::ALL {
        let ports = [(Protocol::TCP, 80), (Protocol::UDP, 53)];
        let matrix = tables.matrix(family, &ports.map(|(protocol, port)| Question::port(protocol, port)));
        let address = |state: &WorkloadEndpointState| {
            let net = state.endpoint.nets().find(|net| net.family() == family);
            net.map(Cidr::address)
        };
        for (from, source) in &expected_state.workloads {
            assert_eq!(matrix.class_of(from).is_some(), address(source).is_some());
            let (Some(source_class), Some(source)) = (matrix.class_of(from), address(source)) else { continue };
            assert!(matrix.members(source_class).contains(from));
            for (to, destination) in &expected_state.workloads {
                let (Some(class), Some(destination)) = (matrix.class_of(to), address(destination)) else { continue };
                for (question, (protocol, port)) in ports.into_iter().enumerate() {
                    let packet = Packet::with_ports(protocol, (source, 50_000), (destination, port)).unwrap();
                    let is_open =
                        [(from, Direction::Egress), (to, Direction::Ingress)].iter().all(|(id, direction)| {
                            let verdict = evaluator.workload(id, *direction, &packet).unwrap().verdict;
                            verdict == tortie_evaluate::Verdict::Allow
                        });
                    assert_eq!(matrix.allows(question, source_class, class), is_open, "{from} {to} {packet:?}");
                    assert_eq!(matrix.reachable_from(question, source_class).any(|other| other == class), is_open);
                    assert_eq!(matrix.reaches(question, class).any(|other| other == source_class), is_open);
                }
            }
        }
        for (id, state) in &expected_state.workloads {
            let Some(class) = matrix.class_of(id) else { continue };
            let [inbound, outbound] = [Direction::Ingress, Direction::Egress]
                .map(|direction| matrix.policies_of(class, direction).collect::<Vec<_>>());
            assert_eq!(inbound, state.tiers.iter().flat_map(|tier| &*tier.ingress).collect::<Vec<_>>());
            assert_eq!(outbound, state.tiers.iter().flat_map(|tier| &*tier.egress).collect::<Vec<_>>());
            for policy in expected_state.policies.keys() {
                let is_governed = inbound.contains(&policy) || outbound.contains(&policy);
                assert_eq!(matrix.endpoints_of(policy).contains(&class), is_governed, "{policy} {id}");
            }
        }
    }
}

/// Asserts that state which was built step by step is as large as state that was built at once, so
/// no leftovers remain.
fn same_size(left: &Compiled<'_>, right: &Compiled<'_>) {
    let cells = |compiled: &Compiled<'_>| {
        let sizes = compiled.groups().map(|group| compiled.table(group).unwrap().unwrap().cell_count());
        let mut sizes: Vec<usize> = sizes.collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(left.class_count(), right.class_count());
    assert_eq!(left.l4_classes().count(), right.l4_classes().count());
    assert_eq!(left.source_port_classes().count(), right.source_port_classes().count());
    assert_eq!(cells(left), cells(right));
}

proptest! {
    #[test]
    fn messages_have_the_verdicts_of_the_datastore(
        batches in prop::collection::vec(prop::collection::vec(update(), 1..40), 1..5),
        flows in prop::collection::vec(flows(), 12),
    ) {
        let mut graph = Graph::new(&GraphConfig { address_claims: AddressClaims::Any, ..GraphConfig::new(Hostname::new(HOST)) });
        graph.on_status(SyncStatus::InSync);
        let mut evaluator = Evaluator::new(Settings::default());
        let mut classes = Classes::new(Settings::default());
        let mut in_force = Vec::new();
        let mut datastore = Datastore::new();
        for batch in batches {
            for update in batch {
                let key = update.key();
                match update.exists() {
                    true => datastore.insert(key, update.clone()),
                    false => datastore.remove(&key),
                };
                graph.on_update(update);
            }
            let mut messages = Vec::new();
            graph.flush(&mut messages);
            messages.iter().for_each(|message| evaluator.apply(message).unwrap());
            messages.iter().for_each(|message| classes.apply(message).unwrap());
            let (expected_state, tables) = (expected_state(&datastore), classes.flush());
            flows.iter().for_each(|flow| compare(&evaluator, &tables, &expected_state, *flow));
            compare_matrix(&evaluator, &tables, &expected_state);
            in_force.extend(messages);
            let mut at_once = Classes::new(Settings::default());
            in_force.iter().for_each(|message| at_once.apply(message).unwrap());
            same_size(&tables, &at_once.flush());
        }
        let keys: Vec<_> = datastore.into_keys().collect();
        keys.into_iter().for_each(|key| graph.on_update(Update::delete(key)));
        let mut messages = Vec::new();
        graph.flush(&mut messages);
        messages.iter().for_each(|message| evaluator.apply(message).unwrap());
        prop_assert!(evaluator.is_empty());
        messages.iter().for_each(|message| classes.apply(message).unwrap());
        classes.flush();
        prop_assert!(classes.is_empty(), "{:#?}", classes);
    }
}
