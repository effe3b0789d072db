//! A node's maps hold the desired state after any history, and no other state at any moment on the
//! way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use proptest::sample::select;
use proptest::test_runner::TestCaseError;
use tortie_classes::{ClassId, Classes};
use tortie_ebpf::layout::{EndpointKind, MapKind};
use tortie_ebpf::{Closed, DecisionId, EndpointName, Interface, Node, NodeSettings, Problem, Write};
use tortie_evaluate::{Answer, Evaluator, Layer, Packet, Settings, Verdict};
use tortie_model::desired::{DesiredUpdate, HostEndpointState, TierList, WorkloadEndpointState};
use tortie_model::{
    AdminState, Cidr, Direction, HostEndpoint, HostEndpointName, HostInterface, WorkloadEndpoint, WorkloadEndpointId,
    WorkloadExtras,
};

use crate::histories::{History, histories, removal};
use crate::maps::{Entry, Maps};
use crate::runner;
use crate::scenario::{HOST_INTERFACE, WORKLOAD_INTERFACE};

const INTERFACES: u32 = 7;
const NAMES: [&str; 7] = ["cali1", "cali2", WORKLOAD_INTERFACE, HOST_INTERFACE, "eth1", "eth2", "wg0"];
const ADDRESSES: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];
const LAYERS: [Layer; 4] = [Layer::Normal, Layer::Forward, Layer::Untracked, Layer::PreDnat];
const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

#[derive(Clone, Debug)]
enum Event {
    Interface(Interface),
    Gone(u32),
    /// An additional endpoint, in its first or second state, or removed.
    Endpoint(usize, Option<bool>),
}

fn events() -> impl Strategy<Value = Event> {
    let interface = (1..=INTERFACES, select(&NAMES[..]), vec(select(&ADDRESSES[..]), 0..2));
    let interface = interface.prop_map(|(index, name, addresses)| {
        let addresses = addresses.into_iter().map(IpAddr::from).collect();
        Event::Interface(Interface { name: name.parse().unwrap(), index, addresses })
    });
    let state = prop_oneof![Just(None), Just(Some(false)), Just(Some(true))];
    prop_oneof![
        5 => interface,
        1 => (1..=INTERFACES).prop_map(Event::Gone),
        3 => (0..8_usize, state).prop_map(|(endpoint, state)| Event::Endpoint(endpoint, state)),
    ]
}

fn workload(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() }
}

/// Returns an endpoint with the scenario's policies that competes for an interface, in one of two
/// states.
fn endpoint(number: usize, tiers: &TierList, is_second: bool) -> DesiredUpdate {
    let pod = |name: &str, interface: &str, state, nets: &[&str], allowed: &[&str]| {
        let nets: Vec<Cidr> = nets.iter().map(|net| net.parse().unwrap()).collect();
        let allowed_source_prefixes = allowed.iter().map(|net| net.parse().unwrap()).collect();
        let endpoint = WorkloadEndpoint {
            state,
            iface: Some(interface.parse().unwrap()),
            ipv4_nets: nets.iter().copied().filter(|net| net.address().is_ipv4()).collect(),
            ipv6_nets: nets.iter().copied().filter(|net| net.address().is_ipv6()).collect(),
            extras: Some(WorkloadExtras { allowed_source_prefixes, ..WorkloadExtras::default() }.into()),
            ..WorkloadEndpoint::default()
        };
        let state = WorkloadEndpointState { endpoint: Arc::new(endpoint), tiers: Arc::clone(tiers), computed: None };
        DesiredUpdate::WorkloadEndpoint(workload(name), state)
    };
    let host = |name: &str, interface: Option<&str>, expected: &[[u8; 4]], has_more: bool| {
        let endpoint = HostEndpoint {
            iface: interface.map(|interface| interface.parse().unwrap()),
            expected_ipv4: expected.iter().copied().map(IpAddr::from).collect(),
            ..HostEndpoint::default()
        };
        let more = if has_more { Arc::clone(tiers) } else { [].into() };
        let state = HostEndpointState {
            endpoint: Arc::new(endpoint),
            tiers: Arc::clone(tiers),
            untracked_tiers: Arc::clone(&more),
            pre_dnat_tiers: Arc::clone(&more),
            forward_tiers: more,
            qos_policies: [].into(),
        };
        DesiredUpdate::HostEndpoint(name.into(), state)
    };
    let state = if is_second { AdminState::Inactive } else { AdminState::Active };
    match number {
        0 => {
            let allowed = if is_second { "10.0.0.6/32" } else { "10.0.0.4/30" };
            pod("a/one", "cali1", AdminState::Active, &["10.0.0.1/32", "fd00::1/128"], &[allowed])
        }
        1 => pod("a/two", if is_second { "cali2" } else { "cali1" }, state, &["10.0.0.2/32"], &["0.0.0.0/0"]),
        2 => pod("b/one", "cali2", state, &["fd00::2/128"], &["::/0"]),
        3 => pod("b/two", if is_second { "eth1" } else { "cali2" }, AdminState::Active, &[], &[]),
        4 => host("all", Some("*"), &[], !is_second),
        5 => host("by-address", None, &ADDRESSES[..1], is_second),
        6 => host("eth1", Some("eth1"), &ADDRESSES[1..], !is_second),
        _ => host(if is_second { "eth" } else { "eth1-too" }, Some("eth1"), &[], is_second),
    }
}

/// All updates sent so far, and the resulting owners of interfaces, computed by brute force.
struct SentUpdates {
    updates: Vec<DesiredUpdate>,
    workloads: BTreeMap<WorkloadEndpointId, WorkloadEndpointState>,
    hosts: BTreeMap<HostEndpointName, HostEndpointState>,
    interfaces: BTreeMap<u32, Interface>,
    evaluator: Evaluator,
}

enum Owner<'a> {
    None,
    Workload(&'a WorkloadEndpointId, &'a WorkloadEndpoint),
    Host(&'a HostEndpointName, &'a HostEndpointState),
}

impl Owner<'_> {
    fn kind(&self) -> EndpointKind {
        match self {
            Self::None => EndpointKind::None,
            Self::Workload(..) => EndpointKind::Workload,
            Self::Host(..) => EndpointKind::Host,
        }
    }

    fn name(&self) -> Option<EndpointName> {
        match self {
            Self::None => None,
            Self::Workload(id, _) => Some(EndpointName::Workload((*id).clone())),
            Self::Host(name, _) => Some(EndpointName::Host((*name).clone())),
        }
    }
}

impl SentUpdates {
    fn apply(&mut self, node: &mut Node, update: DesiredUpdate) {
        let result = self.evaluator.apply(&update);
        assert_eq!(node.on_update(&update), result);
        match &update {
            DesiredUpdate::WorkloadEndpoint(id, state) => drop(self.workloads.insert(id.clone(), state.clone())),
            DesiredUpdate::WorkloadEndpointRemove(id) => drop(self.workloads.remove(id)),
            DesiredUpdate::HostEndpoint(name, state) => drop(self.hosts.insert(name.clone(), state.clone())),
            DesiredUpdate::HostEndpointRemove(name) => drop(self.hosts.remove(name)),
            _ => {}
        }
        self.updates.push(update);
    }

    fn apply_event(&mut self, node: &mut Node, event: &Event, tiers: &TierList) {
        match event {
            Event::Interface(interface) => {
                self.interfaces.retain(|_, other| other.name != interface.name);
                self.interfaces.insert(interface.index, interface.clone());
                node.on_interface(interface.clone());
            }
            Event::Gone(index) => {
                self.interfaces.remove(index);
                node.on_interface_gone(*index);
            }
            Event::Endpoint(number, state) => {
                let update = endpoint(*number, tiers, state.unwrap_or(false));
                self.apply(node, if state.is_none() { removal(update) } else { update });
            }
        }
    }

    fn owner(&self, index: u32) -> Owner<'_> {
        let Some(interface) = self.interfaces.get(&index) else { return Owner::None };
        if interface.name.as_str().starts_with("cali") {
            let first = self.workloads.iter().find(|(_, state)| state.endpoint.iface == Some(interface.name));
            return match first {
                Some((id, state)) if state.endpoint.state != AdminState::Inactive => {
                    Owner::Workload(id, &state.endpoint)
                }
                _ => Owner::None,
            };
        }
        for (name, state) in &self.hosts {
            let is_expected =
                || state.endpoint.expected_ipv4.iter().any(|address| interface.addresses.contains(address));
            if state.endpoint.iface.map_or_else(is_expected, |named| named == HostInterface::Named(interface.name)) {
                return Owner::Host(name, state);
            }
        }
        Owner::None
    }

    fn all_interfaces(&self) -> Owner<'_> {
        let mut all = self.hosts.iter().filter(|(_, state)| state.endpoint.iface == Some(HostInterface::All));
        all.next().map_or(Owner::None, |(name, state)| Owner::Host(name, state))
    }
}

/// Verdicts for packets, by endpoint and group.
type Decisions = Vec<(u32, u32, Option<Verdict>)>;

fn decisions(maps: &Maps, node: &Node, packets: &[Packet]) -> Decisions {
    let mut found = Vec::new();
    let endpoints = (1..=INTERFACES).map(|index| (index, maps.endpoint_at(index)));
    for (index, endpoint) in endpoints.chain([(0, maps.endpoint_of_all())]) {
        for (place, direction) in (0..8).zip(DIRECTIONS.into_iter().cycle()) {
            for packet in packets {
                let cell = maps.ask(endpoint, place, direction, packet);
                let verdict = cell.map(|cell| {
                    let id = DecisionId::from_cell(cell);
                    let (verdict, _) = node.decided(id);
                    assert_eq!(cell, id.to_cell(verdict));
                    verdict
                });
                found.push((index, place, verdict));
            }
        }
        let sources = packets.iter().map(|packet| maps.may_send_from(endpoint, packet.source()));
        found.extend(sources.map(|may| (index, maps.kind(endpoint), may.then_some(Verdict::Allow))));
    }
    found
}

/// Returns the verdict of a cell.
fn verdict_of(cell: u32) -> Verdict {
    match cell & 3 {
        0 => Verdict::Deny,
        1 => Verdict::Allow,
        _ => Verdict::Undecided,
    }
}

fn expect(maps: &Maps, node: &Node, sent: &SentUpdates, packets: &[Packet]) -> Result<(), TestCaseError> {
    // Groups with a missing object deny everything; other groups are not affected.
    let place = |problem: &Problem| {
        let layer = LAYERS.iter().position(|layer| *layer == problem.layer).unwrap();
        2 * layer + usize::from(problem.direction == Direction::Egress)
    };
    let problems = node.problems();
    assert!(problems.iter().all(|problem| matches!(problem.why, Closed::Missing(_) | Closed::TooManyCells(_))));
    let closed: BTreeSet<(EndpointName, usize)> =
        problems.into_iter().map(|problem| (problem.endpoint.clone(), place(&problem))).collect();
    let fail = |message: String| Err(TestCaseError::fail(message));
    let owners = (1..=INTERFACES).map(|index| (maps.endpoint_at(index), sent.owner(index), false));
    for (endpoint, owner, is_all) in owners.chain([(maps.endpoint_of_all(), sent.all_interfaces(), true)]) {
        let kind = owner.kind();
        if maps.kind(endpoint) != kind as u32 || (endpoint == 0) != (kind == EndpointKind::None) {
            return fail(format!("endpoint {endpoint} is not {kind:?}"));
        }
        let name = owner.name();
        let verdict = |answer: Result<Answer, _>, place: u32| {
            let is_closed = name.clone().is_some_and(|name| closed.contains(&(name, place as usize)));
            // A rule that can never match may have missing objects.
            if is_closed { Some(Verdict::Deny) } else { answer.ok().map(|answer| answer.verdict) }
        };
        for packet in packets {
            for (place, direction) in (0..8_u32).zip(DIRECTIONS.into_iter().cycle()) {
                let cell = maps.ask(endpoint, place, direction, packet);
                let layer = LAYERS[place as usize / 2];
                let expected = match owner {
                    Owner::Workload(id, _) if place < 2 => {
                        Some(verdict(sent.evaluator.workload(id, direction, packet), place))
                    }
                    Owner::Host(name, state) => {
                        let is_evaluated = match layer {
                            Layer::Normal => true,
                            Layer::Forward => !state.forward_tiers.is_empty(),
                            Layer::Untracked => !state.untracked_tiers.is_empty() && !is_all,
                            Layer::PreDnat => !state.pre_dnat_tiers.is_empty() && direction == Direction::Ingress,
                        };
                        is_evaluated.then(|| verdict(sent.evaluator.host(name, layer, direction, packet), place))
                    }
                    _ => None,
                };
                let found = cell.map(verdict_of);
                let agrees = expected.is_none_or(|verdict| verdict.is_none() || verdict == found);
                if found.is_some() != expected.is_some() || !agrees {
                    return fail(format!("{packet:?}, {layer:?}, {direction:?}: {found:?}, not {expected:?}"));
                }
            }
            if let Owner::Workload(_, workload) = owner {
                let allowed = workload.extras.iter().flat_map(|extras| extras.allowed_source_prefixes.iter().copied());
                let may = workload.nets().chain(allowed).any(|net| net.contains(packet.source()));
                if maps.may_send_from(endpoint, packet.source()) != may {
                    return fail(format!("{:?} is allowed: {}", packet.source(), !may));
                }
            }
        }
    }
    Ok(())
}

/// Maps that are written one entry at a time.
#[derive(Default)]
struct Live {
    maps: Maps,
    /// Entries that packets may still use.
    held: BTreeSet<Entry>,
}

impl Live {
    fn flush(&mut self, node: &mut Node, packets: &[Packet]) -> Result<(), TestCaseError> {
        let mut flush = node.flush();
        if flush.needs_reclaim() {
            assert!(flush.is_empty());
            node.reclaim();
            self.held.clear();
            flush = node.flush();
        }
        let writes: Vec<_> = flush.writes().collect();
        let sizes = flush.sizes();
        assert!(!flush.needs_reclaim());
        self.held.extend(self.maps.reached());
        let before = decisions(&self.maps, node, packets);
        for (at, write) in (1..).zip(&writes) {
            assert!(write.index < sizes.get(write.map), "{:?} {}", write.map, write.index);
            let entry = (write.map, write.index);
            if self.held.contains(&entry) {
                return Err(TestCaseError::fail(format!("{entry:?} is in use")));
            }
            self.maps.write(write.map, write.index, &write.value);
            if matches!(write.map, MapKind::Current | MapKind::Exact) {
                self.expect_classes(packets)?;
            }
            if write.map == MapKind::Current {
                assert_eq!(at, writes.len(), "the last one");
            } else if decisions(&self.maps, node, packets) != before {
                return Err(TestCaseError::fail(format!("{entry:?} takes effect")));
            }
        }
        assert!(node.flush().is_empty(), "nothing has changed since");
        for write in node.all() {
            assert_eq!(self.maps.get((write.map, write.index)), Some(&write.value[..]), "{:?}", write.map);
        }
        Ok(())
    }

    /// Checks that every lookup of an address gives the class of the full address trie.
    fn expect_classes(&self, packets: &[Packet]) -> Result<(), TestCaseError> {
        let ends = packets.iter().flat_map(|packet| [packet.source(), packet.destination()]);
        let addresses = ends.filter_map(|end| if let IpAddr::V6(end) = end { Some(end) } else { None }).collect();
        match &self.maps.wrong_classes(&self.held, &addresses)[..] {
            [] => Ok(()),
            wrong => Err(TestCaseError::fail(format!("addresses with other classes than in the tree: {wrong:?}"))),
        }
    }

    fn reclaim(&mut self, node: &mut Node) {
        node.reclaim();
        self.held.clear();
    }
}

/// Reports whether a class of addresses has only networks that more specific ones cover completely.
/// Another process may number it differently, since the maps do not contain its number.
fn has_hidden_class(sent: &SentUpdates) -> bool {
    let mut classes = Classes::new(open_settings());
    sent.updates.iter().for_each(|update| drop(classes.apply(update)));
    let compiled = classes.flush();
    let nets: Vec<(Cidr, ClassId)> = compiled.prefixes().collect();
    let is_inside = |inner: Cidr, outer: Cidr| {
        outer.family() == inner.family() && outer.prefix_len() < inner.prefix_len() && outer.contains(inner.address())
    };
    let is_covered = |net: Cidr| {
        let inside = nets.iter().map(|(inner, _)| *inner).filter(|inner| is_inside(*inner, net));
        let outermost =
            inside.filter(|inner| !nets.iter().any(|(other, _)| is_inside(*other, net) && is_inside(*inner, *other)));
        let share = |inner: Cidr| 0.5_f64.powi(i32::from(inner.prefix_len() - net.prefix_len()));
        outermost.map(share).sum::<f64>() >= 1.0
    };
    let all: BTreeSet<ClassId> = nets.iter().map(|(_, class)| *class).collect();
    let visible: BTreeSet<ClassId> =
        nets.iter().filter(|(net, _)| !is_covered(*net)).map(|(_, class)| *class).collect();
    all != visible
}

/// Returns a node of another process with the same updates that continues with the maps.
fn restarted(sent: &SentUpdates, maps: &Maps, decisions: u32) -> Node {
    let mut node = Node::new(node_settings());
    sent.updates.iter().for_each(|update| drop(node.on_update(update)));
    sent.interfaces.values().for_each(|interface| node.on_interface(interface.clone()));
    let read = |map: MapKind, index| {
        Ok::<_, std::convert::Infallible>(
            maps.get((map, index)).map_or_else(|| vec![0; map.value_size()], <[u8]>::to_vec),
        )
    };
    node.adopt(decisions, read).unwrap();
    node
}

fn node_settings() -> NodeSettings {
    NodeSettings { evaluate: open_settings(), ..NodeSettings::default() }
}

/// Returns settings with which only policy decides.
fn open_settings() -> Settings {
    Settings { vxlan_from_workloads: true, ipip_from_workloads: true, ..Settings::default() }
}

/// Checks a history, and returns the number of addresses that were found in the hash table.
fn check(history: &History, events: &[Vec<Event>]) -> Result<usize, TestCaseError> {
    let mut found = 0;
    let packets: Vec<Packet> = history.packets().into_iter().step_by(4).collect();
    let tiers = history.first.state.hosts.values().next().map(|host| Arc::clone(&host.tiers)).unwrap();
    let (mut node, mut live) = (Node::new(node_settings()), Live::default());
    let mut sent = SentUpdates {
        updates: Vec::new(),
        workloads: BTreeMap::new(),
        hosts: BTreeMap::new(),
        interfaces: BTreeMap::new(),
        evaluator: Evaluator::new(open_settings()),
    };
    for update in history.messages().into_iter().take(history.first.state.ip_sets.len() * 4) {
        sent.apply(&mut node, update);
    }
    assert!(node.flush().is_empty(), "before it is in sync");
    sent.apply(&mut node, DesiredUpdate::InSync);
    live.flush(&mut node, &packets)?;
    for (step, events) in history.steps.iter().zip(events.iter().cycle()) {
        events.iter().for_each(|event| sent.apply_event(&mut node, event, &tiers));
        history.updates(step).into_iter().for_each(|update| sent.apply(&mut node, update));
        live.flush(&mut node, &packets)?;
        expect(&live.maps, &node, &sent, &packets)?;
        found += live.maps.exact_count();
        if step.reclaims {
            live.reclaim(&mut node);
            node = restarted(&sent, &live.maps, node.sizes().get(MapKind::Decisions));
            let in_use = live.maps.reached();
            let writes: Vec<Write> = node.flush().writes().collect();
            let entries: Vec<Entry> = writes.iter().map(|write| (write.map, write.index)).collect();
            // Addresses are opened in the hash table once no packet can use the old state.
            let is_again = entries.iter().any(|(map, _)| *map != MapKind::Exact);
            if is_again && !has_hidden_class(&sent) || entries.iter().any(|entry| in_use.contains(entry)) {
                return Err(TestCaseError::fail(format!("written again: {entries:?}")));
            }
            writes.iter().for_each(|write| live.maps.write(write.map, write.index, &write.value));
            live.held = in_use;
            live.expect_classes(&packets)?;
        }
    }
    // The resulting state, created at once.
    let mut fresh = Node::new(node_settings());
    sent.updates.iter().for_each(|update| drop(fresh.on_update(update)));
    sent.interfaces.values().for_each(|interface| fresh.on_interface(interface.clone()));
    let mut maps = Maps::default();
    fresh.flush().writes().for_each(|write| maps.write(write.map, write.index, &write.value));
    assert_eq!(decisions(&maps, &fresh, &packets), decisions(&live.maps, &node, &packets));
    assert_eq!(fresh.problems(), node.problems());
    expect_nothing_left(sent, node, live, &packets)?;
    Ok(found)
}

/// Removes all objects, and checks that no entries of them remain.
fn expect_nothing_left(
    mut sent: SentUpdates,
    mut node: Node,
    mut live: Live,
    packets: &[Packet],
) -> Result<(), TestCaseError> {
    for update in sent.updates.clone().into_iter().rev() {
        if !matches!(update, DesiredUpdate::InSync | DesiredUpdate::IpSetDelta(_)) {
            sent.apply(&mut node, all_removed(update));
        }
    }
    (1..=INTERFACES).for_each(|index| node.on_interface_gone(index));
    live.reclaim(&mut node);
    live.flush(&mut node, packets)?;
    live.reclaim(&mut node);
    assert!(node.is_empty(), "{node:#?}");
    // Addresses in the hash table are closed, and stay until their places are needed.
    assert_eq!(live.maps.exact_count(), 0);
    let others = node.all().filter(|write| write.map != MapKind::Exact);
    let left: Vec<Entry> = others.map(|write| (write.map, write.index)).collect();
    assert!(matches!(left[..], [(MapKind::Groups, 0), (MapKind::Roots, _), (MapKind::Current, 0)]), "{left:?}");
    Ok(())
}

fn all_removed(update: DesiredUpdate) -> DesiredUpdate {
    match update {
        DesiredUpdate::IpSetRemove(_)
        | DesiredUpdate::PolicyRemove(_)
        | DesiredUpdate::ProfileRemove(_)
        | DesiredUpdate::WorkloadEndpointRemove(_)
        | DesiredUpdate::HostEndpointRemove(_) => update,
        update => removal(update),
    }
}

#[test]
fn nodes_follow_any_history_in_single_steps() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(12);
    let strategy = (histories(), vec(vec(events(), 0..6), 1..14));
    let found = std::cell::Cell::new(0);
    let result = runner(cases, 200).run(&strategy, |(history, events)| {
        found.set(found.get() + check(&history, &events)?);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(found.get() > 0, "no address was found beside the tree");
}
