//! A picture has the verdict of each flow, for each step of each policy case.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

use std::collections::BTreeMap;
use std::path::Path;

use tortie_analysis::map::classes::evaluate::{Settings, Verdict};
use tortie_analysis::map::classes::{L4Detail, Ruling};
use tortie_analysis::map::{Access, Anchor, Map, Options, map};
use tortie_calc::GraphConfig;
use tortie_lab::cases::{self, Case};
use tortie_lab::pods::{self, Flow};
use tortie_model::{Direction, Family, Key, Protocol, Update};

const NODES: usize = 2;
/// Number of ports of a case with separate pictures.
const PORTS: usize = 3;
/// Number of parts of the cases of a file; a change is tested with one.
const PARTS: usize = 4;

fn node(map: &Map, place: &pods::LabHost) -> usize {
    let pods::LabHost::Pod { namespace, name } = place else { panic!("cases are about pods, not {place}") };
    let name = format!("{namespace}/{name}");
    map.nodes.iter().position(|node| node.members.iter().any(|member| **member == *name)).unwrap()
}

fn protocol(flow: &Flow) -> Protocol {
    match flow.port.protocol {
        pods::Protocol::Tcp => Protocol::TCP,
        pods::Protocol::Udp => Protocol::UDP,
        pods::Protocol::Sctp => Protocol::SCTP,
    }
}

/// Reports whether the rulings of an end allow a flow.
fn lets(map: &Map, (own, direction, peer): (usize, Direction, usize), flow: &Flow) -> bool {
    let rulings = map.ends().nth(map.ruling_number(own, direction, peer).unwrap()).unwrap();
    let is_about = |ruling: &&Ruling| {
        ruling.traffic.contains(protocol(flow).number(), L4Detail::Port(flow.port.number))
            && ruling.source_ports.is_none_or(|(first, last)| (first..=last).contains(&40000))
    };
    let found: Vec<&Ruling> = rulings.iter().filter(is_about).collect();
    assert_eq!(found.len(), 1, "{flow}: {rulings:#?}");
    found[0].verdict == Verdict::Allow
}

fn is_at(map: &Map, anchor: Anchor, node: usize) -> bool {
    match anchor {
        Anchor::AnyPeer => true,
        Anchor::AllPods => !map.nodes[node].is_networks(),
        Anchor::Group(group) => map.nodes[node].group == group,
        Anchor::Node(other) => node == other,
    }
}

/// Reports whether an edge exists for it, or both ends allow it regardless of the peer. The map is
/// limited to one port, so that an open end is open for that port.
fn is_drawn(map: &Map, from: usize, to: usize) -> bool {
    let opens = |access: &Access| matches!(access, Access::Everything | Access::Some(_));
    if map.is_alike(from, to) {
        return opens(&map.nodes[from].egress) && opens(&map.nodes[to].ingress);
    }
    let is_real = |edge: &&tortie_analysis::map::Edge| edge.from != Anchor::AnyPeer && edge.to != Anchor::AnyPeer;
    map.edges.iter().filter(is_real).any(|edge| is_at(map, edge.from, from) && is_at(map, edge.to, to))
}

/// Returns the number of flows, and the number of those that pass.
fn agrees(case: &Case) -> (usize, usize) {
    let mut followed = cases::CaseDirectory::new(NODES);
    let mut objects: BTreeMap<Key, Update> = BTreeMap::new();
    let (mut checked, mut passing) = (0, 0);
    for (number, step) in case.steps.iter().enumerate() {
        for update in followed.follow(step) {
            update.apply_to(&mut objects);
        }
        let updates: Vec<Update> = objects.values().cloned().collect();
        let draw = |family, ports: &[(Protocol, u16)]| {
            let mut options = Options::new(GraphConfig::new("any".into()), Settings::default());
            options.family = family;
            options.ports = ports.to_vec();
            map(&updates, &options).unwrap()
        };
        let whole = [draw(Family::V4, &[]), draw(Family::V6, &[])];
        let mut by_port: BTreeMap<(u8, u16), Map> = BTreeMap::new();
        for (flow, verdict) in &step.expected {
            if flow.from == flow.to || step.contested.contains(flow) {
                continue;
            }
            let is_v6 = flow.family != pods::Family::V4;
            let map = &whole[usize::from(is_v6)];
            let (from, to) = (node(map, &flow.from), node(map, &flow.to));
            let found =
                lets(map, (from, Direction::Egress, to), flow) && lets(map, (to, Direction::Ingress, from), flow);
            let case_name = format!("{}, step {number}, {flow}", case.name);
            assert_eq!(found, verdict.allowed(), "{case_name}");
            assert!(!found || !map.passes(from, to).unwrap().is_empty(), "{case_name}");
            assert!(!found || is_drawn(map, from, to), "{case_name}");

            checked += 1;
            passing += usize::from(found);
            // Single ports are checked after the last step only: each needs a separate picture.
            if is_v6 || number + 1 < case.steps.len() {
                continue;
            }
            let key = (protocol(flow).number(), flow.port.number);
            if by_port.len() == PORTS && !by_port.contains_key(&key) {
                continue;
            }
            let map = by_port.entry(key).or_insert_with(|| draw(Family::V4, &[(protocol(flow), flow.port.number)]));
            let (from, to) = (node(map, &flow.from), node(map, &flow.to));
            assert_eq!(is_drawn(map, from, to), verdict.allowed(), "{case_name}: {:#?}", map.edges);
        }
    }
    (checked, passing)
}

fn all_agree(file: &Path) {
    let cases = cases::of_change(cases::read(file).unwrap(), PARTS);
    let counts = cases.iter().map(agrees).reduce(|all, one| (all.0 + one.0, all.1 + one.1));
    let (checked, passing) = counts.unwrap();
    println!("{}: {checked} flows, of which {passing} pass", file.display());
    assert!(passing > 0 && passing < checked);
}

#[test]
fn flows_of_network_policies() {
    let [generated, _] = cases::bundled();
    all_agree(&generated);
}

#[test]
fn flows_of_the_end_to_end_suite() {
    let [_, end_to_end] = cases::bundled();
    all_agree(&end_to_end);
}

#[test]
fn flows_of_admin_policies() {
    all_agree(&cases::bundled_admin());
}
