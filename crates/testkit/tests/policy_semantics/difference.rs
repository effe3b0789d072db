//! Differential test: the traffic that a change allows and denies, by `tortie-classes` and packet
//! by packet by `tortie-evaluate`.

use std::{net::IpAddr, sync::Arc};

use proptest::{prelude::Strategy, test_runner::TestCaseError};
use tortie_classes::{Classes, Difference, L4Detail, Party, Shift, Traffic};
use tortie_evaluate::{Evaluator, Layer, Packet, Payload, Verdict};
use tortie_model::{
    AdminState, Cidr, Direction, Family, WorkloadEndpointId,
    desired::{DesiredUpdate, HostEndpointState, WorkloadEndpointState},
};

use crate::{
    evaluate::{evaluated, messages, settings},
    runner,
    scenario::{Scenario, host_name, scenarios, workload_id},
};

const HOST: u8 = 2;
const LAYERS: [Layer; 4] = [Layer::Normal, Layer::Forward, Layer::Untracked, Layer::PreDnat];

/// Returns workloads with the scenario's policies, with addresses.
fn workloads() -> [(WorkloadEndpointId, AdminState, u8); 4] {
    let named = |name: &str, state, last| {
        (WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() }, state, last)
    };
    [
        named("one", AdminState::Active, 1),
        named("two", AdminState::Active, 4),
        named("three", AdminState::Active, 6),
        named("down", AdminState::Inactive, 5),
    ]
}

fn address(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 0, 0, last].into(),
        Family::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into(),
    }
}

/// A state in both forms.
pub(crate) struct State {
    pub(crate) evaluator: Evaluator,
    pub(crate) classes: Classes,
}

impl State {
    pub(crate) fn new(config: &tortie_rules::RulesConfig) -> Self {
        Self { evaluator: Evaluator::new(settings(config)), classes: Classes::new(settings(config)) }
    }

    fn apply(&mut self, update: &DesiredUpdate) {
        self.evaluator.apply(update).unwrap();
        self.classes.apply(update).unwrap();
    }

    pub(crate) fn follow(&mut self, scenario: &Scenario) {
        for update in messages(&scenario.state) {
            match update {
                DesiredUpdate::HostEndpoint(name, state) => {
                    let mut endpoint = (*state.endpoint).clone();
                    endpoint.expected_ipv4 = vec![address(Family::V4, HOST)].into();
                    endpoint.expected_ipv6 = vec![address(Family::V6, HOST)].into();
                    let state = HostEndpointState { endpoint: Arc::new(endpoint), ..state };
                    self.apply(&DesiredUpdate::HostEndpoint(name, state));
                }
                DesiredUpdate::WorkloadEndpoint(..) => {}
                other => self.apply(&other),
            }
        }
        for (id, state, last) in workloads() {
            let like = &scenario.state.workloads[&workload_id(state)];
            let mut endpoint = (*like.endpoint).clone();
            endpoint.ipv4_nets = [Cidr::host(address(Family::V4, last))].into();
            endpoint.ipv6_nets = [Cidr::host(address(Family::V6, last))].into();
            let state = WorkloadEndpointState { endpoint: Arc::new(endpoint), ..like.clone() };
            self.apply(&DesiredUpdate::WorkloadEndpoint(id, state));
        }
    }

    /// Reports whether the workloads at both ends of a connection allow it.
    pub(crate) fn passes(&self, packet: &Packet) -> bool {
        [(packet.source(), Direction::Egress), (packet.destination(), Direction::Ingress)].into_iter().all(
            |(end, direction)| {
                workload_at(end)
                    .is_none_or(|id| self.evaluator.workload(&id, direction, packet).unwrap().verdict == Verdict::Allow)
            },
        )
    }

    fn passes_host(&self, layer: Layer, direction: Direction, packet: &Packet) -> bool {
        self.evaluator.host(&host_name(), layer, direction, packet).unwrap().verdict != Verdict::Deny
    }
}

pub(crate) fn workload_at(end: IpAddr) -> Option<WorkloadEndpointId> {
    workloads().into_iter().find(|(_, _, last)| address(Family::of(end), *last) == end).map(|(id, _, _)| id)
}

/// Returns the party of an address, by its longest matching network.
pub(crate) fn party(parties: &[Party], end: IpAddr) -> usize {
    let workload = workload_at(end);
    let length = |party: &Party| match party {
        Party::Workloads(members) => workload.as_ref().filter(|id| members.contains(id)).map(|_| u8::MAX),
        Party::Networks(nets) if workload.is_none() => {
            nets.iter().filter(|net| net.contains(end)).map(|net| net.prefix_len()).max()
        }
        Party::Networks(_) => None,
    };
    let found = parties.iter().enumerate().filter_map(|(place, party)| Some((length(party)?, place))).max();
    found.expect("each address is of a party").1
}

/// Reports whether a packet belongs to the reported traffic.
pub(crate) fn is_in(packet: &Packet, traffic: &Traffic, source_ports: Option<(u16, u16)>) -> bool {
    let detail = match packet.payload() {
        Payload::Ports { destination, .. } => L4Detail::Port(destination),
        Payload::Icmp { icmp_type, code } => L4Detail::Icmp { icmp_type, code },
        Payload::Other => L4Detail::Other,
    };
    let from = packet.source_port().unwrap_or_default();
    traffic.contains(packet.protocol(), detail)
        && source_ports.is_none_or(|(first, last)| (first..=last).contains(&from))
}

/// Returns the change for a packet by the shifts: `Some(true)` if it passes only after the change.
fn shift<'a>(shifts: impl Iterator<Item = &'a Shift>, packet: &Packet) -> Result<Option<bool>, TestCaseError> {
    let found: Vec<&Shift> = shifts.filter(|shift| is_in(packet, &shift.traffic, shift.source_ports)).collect();
    match &found[..] {
        [] => Ok(None),
        [shift] => Ok(Some(shift.opens)),
        several => Err(TestCaseError::fail(format!("{packet:?}: reported more than once: {several:#?}"))),
    }
}

fn expected_shift(before: bool, after: bool) -> Option<bool> {
    (before != after).then_some(after)
}

/// Reports whether a packet can exist: protocols with ports have ports, and each family has its own
/// ICMP.
pub(crate) fn is_real(packet: &Packet) -> bool {
    match (packet.protocol(), packet.payload()) {
        (6 | 17 | 132, payload) => matches!(payload, Payload::Ports { .. }),
        (1, payload) => packet.family() == Family::V4 && matches!(payload, Payload::Icmp { .. }),
        (58, payload) => packet.family() == Family::V6 && matches!(payload, Payload::Icmp { .. }),
        (_, payload) => payload == Payload::Other,
    }
}

fn check_packet(
    [before, after]: [&State; 2],
    differences: &[Difference; 2],
    packet: &Packet,
) -> Result<usize, TestCaseError> {
    let difference = &differences[usize::from(packet.family() == Family::V6)];
    let [from, to] = [packet.source(), packet.destination()].map(|end| party(&difference.parties, end));
    let itself = packet.source() == packet.destination();
    let named = |list: &[usize], party| list.contains(&party);
    let mut changed = 0;
    if !itself {
        let changes = difference.workloads.iter().filter(|change| named(&change.from, from) && named(&change.to, to));
        let found = shift(changes.flat_map(|change| change.shifts.iter()), packet)?;
        let expected = expected_shift(before.passes(packet), after.passes(packet));
        proptest::prop_assert_eq!(found, expected, "{:?}, {:#?}", packet, difference);
        changed += usize::from(found.is_some());
    }
    for layer in LAYERS {
        for (direction, own, peer) in
            [(Direction::Ingress, packet.destination(), from), (Direction::Egress, packet.source(), to)]
        {
            if own != address(packet.family(), HOST) {
                continue;
            }
            let changes = difference.hosts.iter();
            let changes = changes
                .filter(|change| (change.layer, change.direction) == (layer, direction) && named(&change.peers, peer));
            let found = shift(changes.flat_map(|change| change.shifts.iter()), packet)?;
            let passes = |state: &State| state.passes_host(layer, direction, packet);
            proptest::prop_assert_eq!(
                found,
                expected_shift(passes(before), passes(after)),
                "{:?} {:?} {:?}",
                layer,
                direction,
                packet
            );
            changed += usize::from(found.is_some());
        }
    }
    Ok(changed)
}

/// Returns packets next to the values that settings distinguish, and at the limits of ranges.
pub(crate) fn at_the_edges(family: Family) -> impl Iterator<Item = Packet> {
    let ports = [(17, 8), (17, 9), (17, 10), (6, 65535), (17, 0)];
    let ports = ports.map(|(protocol, destination)| (protocol, Payload::Ports { source: 65535, destination }));
    let icmp = if family == Family::V4 { 1 } else { 58 };
    let others = [3, 4, 5, 18, 255].map(|protocol| (protocol, Payload::Other));
    let message = (icmp, Payload::Icmp { icmp_type: 255, code: 255 });
    let all = ports.into_iter().chain(others).chain([message]);
    all.map(move |(protocol, payload)| Packet::new(address(family, 7), address(family, 7), protocol, payload).unwrap())
}

/// Returns the packet with other addresses.
pub(crate) fn between(packet: &Packet, from: u8, to: u8) -> Packet {
    let family = packet.family();
    Packet::new(address(family, from), address(family, to), packet.protocol(), packet.payload()).unwrap()
}

fn check(scenarios: &[Scenario; 2], config: &tortie_rules::RulesConfig, grows: bool) -> Result<usize, TestCaseError> {
    let mut before = State::new(config);
    before.follow(&scenarios[0]);
    before.classes.flush();
    // The second state is derived from the first, or created independently.
    let mut after = State::new(config);
    if grows {
        after.follow(&scenarios[0]);
        after.classes = before.classes.clone();
    }
    after.follow(&scenarios[1]);
    let differences = {
        let (compiled, other) = (before.classes.flush(), after.classes.flush());
        Family::ALL.map(|family| compiled.difference(&other, family))
    };
    let packets = scenarios.iter().flat_map(|scenario| &scenario.packets).map(evaluated).filter(is_real);
    let packets = packets.chain(Family::ALL.into_iter().flat_map(at_the_edges));
    let mut changed = 0;
    for packet in packets {
        for (from, to) in [(1, 4), (4, 6), (1, 5), (5, 1), (6, 0), (3, 6), (HOST, 1), (7, HOST), (HOST, 0), (1, 1)] {
            changed += check_packet([&before, &after], &differences, &between(&packet, from, to))?;
        }
        changed += check_packet([&before, &after], &differences, &packet)?;
    }
    Ok(changed)
}

fn run(cases: u32, config: &tortie_rules::RulesConfig, grows: bool) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    let changed = std::cell::Cell::new(0);
    let strategy = (scenarios(), scenarios()).prop_map(<[Scenario; 2]>::from);
    let result = runner(cases, 200).run(&strategy, |scenarios| {
        changed.set(changed.get() + check(&scenarios, config, grows)?);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(changed.get() > 0, "nothing changed for any packet");
}

#[test]
fn differences_of_two_states_are_those_of_their_packets() {
    run(10, &crate::chains::config(), false);
}

#[test]
fn differences_of_a_changed_state_are_those_of_its_packets() {
    run(10, &crate::evaluate::busy_config(tortie_rules::EndpointToHostAction::Drop), true);
}
