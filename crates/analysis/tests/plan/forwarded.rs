//! In clusters with host endpoints, the connections that open and close between pods, nodes and
//! outside addresses are those whose answers of `tortie_analysis::trace` differ before and after.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tortie_analysis::plan::{Cluster, Options};
use tortie_analysis::trace::{EnforcementPoint, Leg, Place};
use tortie_calc::GraphConfig;
use tortie_classes::evaluate::{FailsafePort, Packet, Payload, Settings, Verdict};
use tortie_classes::{Change, Difference, L4Detail, Nodes, Party, Shift};
use tortie_datastore::{DirState, FileContent};
use tortie_model::{Cidr, Family, Hostname, Protocol, Update};
use tortie_resources::manifest;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const PODS: usize = 5;

/// One state of a cluster.
#[derive(Clone, Debug)]
struct State {
    /// The node of each pod.
    pods: Vec<&'static str>,
    /// The host endpoints of each node.
    hosts: Vec<&'static [&'static str]>,
    policies: Vec<String>,
    /// The settings of all nodes, and of single ones.
    settings: (Settings, BTreeMap<Hostname, Settings>),
}

fn pod(number: usize, node: &str) -> String {
    let app = if number.is_multiple_of(2) { "a" } else { "b" };
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{namespace: shop, name: pod-{number}, labels: {{app: {app}}}}}\n\
         spec: {{nodeName: {node}, containers: [{{name: c}}]}}\n\
         status: {{phase: Running, podIPs: [{{ip: 10.0.0.{number}}}, {{ip: \"fd00::{number}\"}}]}}\n"
    )
}

fn node(number: usize, name: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n\
         status: {{addresses: [{{type: InternalIP, address: 192.168.0.{number}}}, {{type: InternalIP, address: \"fd01::{number}\"}}]}}\n"
    )
}

impl State {
    fn updates(&self) -> Vec<Update> {
        let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n".to_owned();
        text.extend((1..).zip(&self.pods).map(|(number, node)| pod(number, node)));
        text.extend((1..).zip(NODES).map(|(number, name)| node(number, name)));
        for (at, (name, hosts)) in (1..).zip(NODES.iter().zip(&self.hosts)) {
            for (number, spec) in hosts.iter().enumerate() {
                let spec = spec.replace("0.N", &format!("0.{at}"));
                text += &format!(
                    "---\napiVersion: projectcalico.org/v3\nkind: HostEndpoint\n\
                     metadata: {{name: {name}-{number}, labels: {{host: {name}}}}}\nspec: {{node: {name}, {spec}}}\n"
                );
            }
        }
        for (number, spec) in self.policies.iter().enumerate() {
            text += &format!(
                "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: policy-{number}}}\n\
                 spec: {{order: {number}, {spec}}}\n"
            );
        }
        let mut directory = DirState::new(manifest::Options::default());
        let mut updates = directory.take_updates();
        updates.extend(directory.set_file("cluster.yaml".as_ref(), Some(FileContent::Text(&text))));
        assert_eq!(directory.problems().collect::<Vec<_>>(), [], "{text}");
        updates
    }

    fn trace(&self) -> tortie_analysis::trace::Cluster {
        let graph = GraphConfig::new("any".into());
        let (all, nodes) = &self.settings;
        let mut cluster = tortie_analysis::trace::Cluster::new(graph.clone(), all.clone());
        for (node, settings) in nodes {
            cluster.configure(node.clone(), graph.clone(), settings.clone());
        }
        self.updates().into_iter().for_each(|update| cluster.apply(update));
        cluster
    }

    fn plan(&self) -> Cluster {
        let (all, nodes) = &self.settings;
        let mut cluster = Cluster::new(&GraphConfig::new("any".into()), all.clone());
        cluster.set_settings(all.clone(), nodes.clone());
        cluster.apply(self.updates().into_iter()).unwrap();
        cluster
    }
}

/// Returns the host endpoints of a node; those with `*` alone are twice as frequent.
fn hosts() -> impl Strategy<Value = &'static [&'static str]> {
    let some: [&[&str]; 7] = [
        &[],
        &["interfaceName: \"*\""],
        &["interfaceName: \"*\""],
        &["interfaceName: eth0, expectedIPs: [192.168.0.N]"],
        &["interfaceName: eth0", "interfaceName: eth1"],
        &["interfaceName: \"*\"", "interfaceName: eth0, expectedIPs: [192.168.0.N]"],
        &["interfaceName: eth0, expectedIPs: [10.0.0.1, \"fd00::2\"]", "interfaceName: \"*\""],
    ];
    select(some.to_vec())
}

fn rule() -> impl Strategy<Value = String> {
    let protocol = select(vec!["", ", protocol: TCP", ", protocol: UDP"]);
    let source = select(vec![
        "",
        "",
        ", source: {selector: app == 'a'}",
        ", source: {nets: [203.0.113.0/24]}",
        ", source: {nets: [192.168.0.2/32]}",
        ", source: {ports: [\"1:1023\"], nets: [10.0.0.0/30]}",
    ]);
    let destination = select(vec![
        "",
        "",
        ", destination: {selector: app == 'b'}",
        ", destination: {ports: [80]}",
        ", destination: {notNets: [10.0.0.0/30]}",
    ]);
    let action = select(vec!["Allow", "Allow", "Deny", "Log"]);
    (action, protocol, source, destination).prop_filter_map(
        "ports are of a protocol",
        |(action, protocol, from, to)| {
            let has_ports = from.contains("ports") || to.contains("ports");
            (!has_ports || !protocol.is_empty()).then(|| format!("{{action: {action}{protocol}{from}{to}}}"))
        },
    )
}

fn policy() -> impl Strategy<Value = String> {
    let selector = select(vec!["has(host)", "host == 'n1'", "host in {'n1', 'n2'}", "app == 'a'", "all()"]);
    let kind =
        select(vec!["", "applyOnForward: true, ", "applyOnForward: true, ", "preDNAT: true, ", "doNotTrack: true, "]);
    let rules = || prop::collection::vec(rule(), 0..4);
    (selector, kind, rules(), rules(), 1..4_u8).prop_map(|(selector, kind, ingress, egress, types)| {
        let types = if kind.starts_with("preDNAT") { 1 } else { types };
        let forwarded = if kind.len() > 1 && !kind.starts_with("apply") { "applyOnForward: true, " } else { "" };
        let mut text = format!("selector: \"{selector}\", {kind}{forwarded}types: [");
        text += &["Ingress", "Egress"][usize::from(types == 2)..usize::from(types >= 2) + 1].join(", ");
        text += "]";
        if types != 2 {
            text += &format!(", ingress: [{}]", ingress.join(", "));
        }
        if types >= 2 {
            text += &format!(", egress: [{}]", egress.join(", "));
        }
        text
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    let port = |protocol: Protocol, port, net: Option<&str>| FailsafePort {
        protocol,
        port,
        net: net.map(|net| net.parse().unwrap()),
    };
    let ports = vec![
        vec![],
        vec![],
        vec![port(Protocol::TCP, 80, None)],
        vec![port(Protocol::TCP, 80, Some("10.0.0.0/31")), port(Protocol::UDP, 53, Some("192.0.0.0/4"))],
    ];
    (select(ports.clone()), select(ports), select(vec![4789, 53]), any::<bool>(), any::<bool>()).prop_map(
        |(failsafe_inbound, failsafe_outbound, vxlan_port, vxlan_from_workloads, ipip_from_workloads)| Settings {
            failsafe_inbound,
            failsafe_outbound,
            vxlan_port,
            vxlan_from_workloads,
            ipip_from_workloads,
            ..Settings::default()
        },
    )
}

fn all_settings() -> impl Strategy<Value = (Settings, BTreeMap<Hostname, Settings>)> {
    let nodes = prop::collection::btree_map(select(NODES.map(Hostname::new).to_vec()), settings(), 0..3);
    (settings(), prop_oneof![1 => Just(BTreeMap::new()), 1 => nodes])
}

fn states() -> impl Strategy<Value = State> {
    (
        prop::collection::vec(select(NODES.to_vec()), PODS),
        prop::collection::vec(hosts(), NODES.len()),
        prop::collection::vec(policy(), 0..5),
        all_settings(),
    )
        .prop_map(|(pods, hosts, policies, settings)| State { pods, hosts, policies, settings })
}

/// A state, and another one that shares parts of it.
fn changes() -> impl Strategy<Value = [State; 2]> {
    let kept = prop::array::uniform4(prop_oneof![2 => Just(true), 1 => Just(false)]);
    let single = prop::option::of((0..PODS, select(NODES.to_vec())));
    (states(), states(), kept, single, 0..5_usize).prop_map(
        |(before, other, [pods, hosts, policies, settings], moved, at)| {
            let mut after = before.clone();
            if !hosts {
                after.hosts[at % NODES.len()] = other.hosts[0];
            }
            if !policies {
                after.policies = other.policies;
            } else if !before.policies.is_empty() {
                let at = at % before.policies.len();
                drop(after.policies.remove(at));
            }
            if !settings {
                after.settings = other.settings;
            }
            if let Some((pod, node)) = moved.filter(|_| !pods) {
                after.pods[pod] = node;
            }
            [before, after]
        },
    )
}

fn address(family: Family, kind: &str, number: u16) -> IpAddr {
    let text = match (family, kind) {
        (Family::V4, "pod") => format!("10.0.0.{number}"),
        (Family::V4, "node") => format!("192.168.0.{number}"),
        (Family::V4, _) => format!("203.0.113.{number}"),
        (Family::V6, "pod") => format!("fd00::{number}"),
        (Family::V6, "node") => format!("fd01::{number}"),
        (Family::V6, _) => format!("2001:db8::{number}"),
    };
    text.parse().unwrap()
}

fn addresses(family: Family) -> Vec<IpAddr> {
    let pods = (1..).take(PODS).map(|number| address(family, "pod", number));
    let nodes = (1..).take(NODES.len()).map(|number| address(family, "node", number));
    pods.chain(nodes).chain([address(family, "outside", 9)]).collect()
}

fn packets(from: IpAddr, to: IpAddr) -> Vec<Packet> {
    let icmp = if from.is_ipv4() { 1 } else { 58 };
    let ports = |source, destination| Payload::Ports { source, destination };
    [
        (6, ports(40000, 80)),
        (6, ports(80, 40000)),
        (6, ports(1000, 81)),
        (17, ports(53, 53)),
        (17, ports(40000, 4789)),
        (icmp, Payload::Icmp { icmp_type: 8, code: 0 }),
        (4, Payload::Other),
    ]
    .map(|(protocol, payload)| Packet::new(from, to, protocol, payload).unwrap())
    .to_vec()
}

/// Traces a packet between a workload and another place. The inner value is the first denying leg.
/// `None` if one workload is at both ends, if the other end is the workload's node, or if no
/// workload is involved.
fn deciding_leg(cluster: &mut tortie_analysis::trace::Cluster, packet: &Packet) -> Option<Option<Leg>> {
    let (from, to) = (cluster.place_of(packet.source()), cluster.place_of(packet.destination()));
    // Policies of a node for the traffic of the node itself do not concern pods.
    let node = match (&from, &to) {
        (Place::Workload(one), Place::Workload(other)) if one == other => return None,
        (Place::Workload(pod), Place::Node(node)) | (Place::Node(node), Place::Workload(pod)) => {
            if pod.host() == node.as_str() {
                return None;
            }
            Some(Hostname::new(pod.host()))
        }
        (Place::Workload(_), Place::Workload(_) | Place::Outside) | (Place::Outside, Place::Workload(_)) => None,
        _ => return None,
    };
    let connection = cluster.connection(&from, &to, packet).unwrap();
    let mut legs = connection.legs.into_iter().filter(|leg| node.as_ref().is_none_or(|node| leg.node == *node));
    Some(legs.find(|leg| leg.verdict() == Verdict::Deny))
}

/// Returns the party of an address; of several networks, the longest counts.
fn party(cluster: &tortie_analysis::trace::Cluster, parties: &[Party], address: IpAddr) -> usize {
    let workload = match cluster.place_of(address) {
        Place::Workload(key) => Some(key.id()),
        _ => None,
    };
    let length = |party: &Party| match party {
        Party::Workloads(members) => workload.as_ref().filter(|id| members.contains(id)).map(|_| u8::MAX),
        Party::Networks(_) if workload.is_some() => None,
        Party::Networks(nets) => nets.iter().filter(|net| net.contains(address)).map(|net| net.prefix_len()).max(),
    };
    let found = parties.iter().enumerate().filter_map(|(place, party)| Some((length(party)?, place))).max();
    found.expect("each address is of a party").1
}

fn is_in(packet: &Packet, shift: &Shift) -> bool {
    let detail = match packet.payload() {
        Payload::Ports { destination, .. } => L4Detail::Port(destination),
        Payload::Icmp { icmp_type, code } => L4Detail::Icmp { icmp_type, code },
        Payload::Other => L4Detail::Other,
    };
    let from = packet.source_port().unwrap_or_default();
    shift.traffic.contains(packet.protocol(), detail)
        && shift.source_ports.is_none_or(|(first, last)| (first..=last).contains(&from))
}

/// Counts over all cases.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    opened: usize,
    closed: usize,
    by_hosts: usize,
    of_some_nodes: usize,
}

struct Comparison<'a> {
    states: &'a [State; 2],
    traces: [tortie_analysis::trace::Cluster; 2],
    difference: Difference,
}

impl Comparison<'_> {
    fn applies_to(&self, change: &Change, packet: &Packet) -> bool {
        let node = |address: IpAddr| match self.traces[1].place_of(address) {
            Place::Workload(key) => Some(key.host().to_owned()),
            Place::Node(node) => Some(node.to_string()),
            Place::Outside => None,
        };
        let (one, other) = (node(packet.source()), node(packet.destination()));
        match change.nodes {
            Nodes::Any => true,
            Nodes::Same => one.is_some() && one == other,
            Nodes::Different => one.is_none() || one != other,
        }
    }

    fn check(&mut self, packet: &Packet, counts: &mut Counts) -> Result<(), TestCaseError> {
        let [before, after] = &mut self.traces;
        let (Some(before), Some(after)) = (deciding_leg(before, packet), deciding_leg(after, packet)) else {
            return Ok(());
        };
        let [from, to] = [packet.source(), packet.destination()]
            .map(|address| party(&self.traces[1], &self.difference.parties, address));
        let changes: Vec<&Change> = self
            .difference
            .workloads
            .iter()
            .filter(|change| change.from.contains(&from) && change.to.contains(&to) && self.applies_to(change, packet))
            .collect();
        let found: Vec<&Shift> =
            changes.iter().flat_map(|change| change.shifts.iter()).filter(|shift| is_in(packet, shift)).collect();
        let decided = match (&before, &after) {
            (Some(leg), None) => Some((true, leg)),
            (None, Some(leg)) => Some((false, leg)),
            _ => None,
        };
        let describe = || format!("{packet:?}\n{:#?}\n{:#?}\n{:#?}", (&before, &after), self.difference, self.states);
        match (&found[..], decided) {
            ([], None) => {}
            ([shift], Some((opens, leg))) => {
                let layer = match leg.at {
                    EnforcementPoint::Host(_, layer) => Some(layer),
                    _ => None,
                };
                let by = if opens { &shift.before } else { &shift.after };
                prop_assert_eq!(
                    (shift.opens, shift.direction, shift.layer, by),
                    (opens, leg.direction, layer, &leg.explanation.answer.decided_by),
                    "{}",
                    describe()
                );
                counts.opened += usize::from(opens);
                counts.closed += usize::from(!opens);
                counts.by_hosts += usize::from(layer.is_some());
                counts.of_some_nodes += usize::from(changes.iter().any(|change| change.nodes != Nodes::Any));
            }
            _ => return Err(TestCaseError::fail(describe())),
        }
        Ok(())
    }
}

fn check(states: &[State; 2], counts: &mut Counts) -> Result<(), TestCaseError> {
    let [mut before, mut after] = [states[0].plan(), states[1].plan()];
    for family in Family::ALL {
        let difference = before.compiled().difference(&after.compiled(), family);
        let mut comparison = Comparison { states, traces: [states[0].trace(), states[1].trace()], difference };
        for from in addresses(family) {
            for to in addresses(family) {
                for packet in packets(from, to) {
                    comparison.check(&packet, counts)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn differences_match_traces_of_all_hops() {
    let counts = Cell::new(Counts::default());
    // The loop runs until every kind of result has occurred, which a few cases rarely achieve.
    for _ in 0..20 {
        let config = Config { cases: 24, failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
        let result = TestRunner::new(config).run(&changes(), |states| {
            let mut now = counts.get();
            check(&states, &mut now)?;
            counts.set(now);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
        let Counts { opened, closed, by_hosts, of_some_nodes } = counts.get();
        if opened > 0 && closed > 0 && by_hosts > 0 && of_some_nodes > 0 {
            break;
        }
    }
    let Counts { opened, closed, by_hosts, of_some_nodes } = counts.get();
    assert!(opened > 0 && closed > 0 && by_hosts > 0 && of_some_nodes > 0, "{:?}", counts.get());
}

/// A plan lists the same.
#[test]
fn a_plan_names_the_nodes_between_which_a_forward_policy_closes_connections() {
    let open = State {
        pods: vec!["n1", "n2", "n1", "n3", "n1"],
        hosts: vec![&["interfaceName: \"*\""], &["interfaceName: \"*\""], &[]],
        policies: Vec::new(),
        settings: (Settings::default(), BTreeMap::new()),
    };
    let policy =
        "selector: host == 'n1', applyOnForward: true, types: [Egress], egress: [{action: Allow, protocol: UDP}]";
    let closed = State { policies: vec![policy.to_owned()], ..open.clone() };
    let options = Options::new(GraphConfig::new("any".into()), Settings::default());
    let change = tortie_analysis::plan::between(&open.updates(), &closed.updates());
    let plan = tortie_analysis::plan::plan(open.updates(), change, &options).unwrap();
    let lines: Vec<String> = plan
        .connections
        .iter()
        .map(|found| {
            let v4: Vec<&Cidr> = found.to.networks.iter().filter(|net| net.family() == Family::V4).collect();
            assert!(!found.packets.opens && found.packets.families == Family::ALL);
            assert_eq!(found.packets.decision.layer, Some(tortie_classes::evaluate::Layer::Forward));
            assert!(!found.packets.traffic.contains(17, L4Detail::Port(1)), "{found:?}");
            format!("{:?} -> {:?} {v4:?} {:?}", found.from.workloads, found.to.workloads, found.nodes)
        })
        .collect();
    let expected = [
        "[] -> [\"shop/pod-1\", \"shop/pod-3\", \"shop/pod-5\"] [] Different",
        "[\"shop/pod-1\", \"shop/pod-3\", \"shop/pod-5\"] -> [] [0.0.0.0/0, 192.168.0.1/32] Different",
        "[\"shop/pod-1\", \"shop/pod-3\", \"shop/pod-5\"] -> [\"shop/pod-1\", \"shop/pod-2\", \"shop/pod-3\", \"shop/pod-4\", \"shop/pod-5\"] [] Any",
        "[\"shop/pod-2\", \"shop/pod-4\"] -> [\"shop/pod-1\", \"shop/pod-3\", \"shop/pod-5\"] [] Any",
    ];
    assert_eq!(lines, expected);
}
