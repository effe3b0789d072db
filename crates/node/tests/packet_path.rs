//! The verdict of `tortie_analysis::trace` on a connection equals that of the nftables rules of all
//! nodes on its way, evaluated hook by hook, for random host endpoints and policies of all layers.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

#[path = "packet_path/state.rs"]
mod state;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use proptest::test_runner::{Config as TestConfig, TestCaseError, TestRunner};
use state::{NODES, State, config, node_address, outside, pod_address, states, tunnel_address};
use tortie_analysis::trace::{Cluster, EnforcementPoint, Place};
use tortie_calc::Graph;
use tortie_config::settings;
use tortie_dataplane::{Dataplane, LinkEvent};
use tortie_evaluate::{Layer, Packet, Payload, Verdict};
use tortie_iptables::Backend;
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, Hostname, SyncStatus};
use tortie_testkit::packet::{Packet as Walked, Payload as WalkedPayload};
use tortie_testkit::walker::nft::Ruleset;
use tortie_testkit::walker::{PacketOutcome, Skb};

const UPLINK: &str = "eth0";
const VXLAN: &str = "vxlan.calico";

/// The rules of a node.
struct NodeRules {
    rules: Ruleset,
    /// The base chains of each hook, in order of their priority.
    bases: BTreeMap<&'static str, Vec<String>>,
    own: [IpAddr; 2],
}

const HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];

impl NodeRules {
    fn new(state: &State, at: usize, interfaces: &BTreeMap<IpAddr, String>) -> Self {
        let (config, host) = (config(&[]), Hostname::new(NODES[at]));
        let mut graph = Graph::new(&settings::graph(&config, host.clone()));
        state.updates().into_iter().for_each(|update| graph.on_update(update));
        graph.on_status(SyncStatus::InSync);
        let mut desired = Vec::new();
        graph.flush(&mut desired);
        let mut settings = settings::dataplane(&config, host, Backend::Nft).unwrap();
        settings::for_nftables(&config, &mut settings).unwrap();
        let mut dataplane = Dataplane::new(settings);
        desired.into_iter().for_each(|update| dataplane.on_update(update));
        let pods = (0..2).map(|pod| (interfaces[&pod_address(at, pod)].clone(), None));
        let mut links =
            vec![("lo".to_owned(), Some("127.0.0.1".parse().unwrap())), (UPLINK.to_owned(), Some(node_address(at)))];
        if state.has_overlay {
            links.push((VXLAN.to_owned(), Some(tunnel_address(at))));
        }
        for (index, (name, address)) in (1..).zip(links.into_iter().chain(pods)) {
            let name = name.parse().unwrap();
            dataplane.on_link(LinkEvent::Up { name, index });
            dataplane.on_link(LinkEvent::Addresses { name, addresses: address.into_iter().collect() });
        }
        dataplane.on_update(DesiredUpdate::InSync);
        dataplane.on_links_in_sync();
        let rendered = dataplane.render();
        let rules = Ruleset::parse(rendered.nftables(Family::V4).unwrap()).unwrap();
        let mut bases: BTreeMap<&'static str, Vec<(i32, String)>> = BTreeMap::new();
        for (chain, _) in rules.chains() {
            let Some(words) = rules.base(chain).map(|base| base.replace(';', " ")) else { continue };
            let words: Vec<&str> = words.split_whitespace().collect();
            let after = |word: &str| words.iter().position(|other| *other == word).map(|place| words[place + 1]);
            // Addresses are translated by the test itself.
            let Some(hook) = HOOKS.into_iter().find(|hook| after("hook") == Some(hook)) else { continue };
            if after("type") != Some("nat") {
                let priority = after("priority").unwrap().parse().unwrap();
                bases.entry(hook).or_default().push((priority, chain.to_owned()));
            }
        }
        let in_order = |mut chains: Vec<(i32, String)>| {
            chains.sort();
            chains.into_iter().map(|(_, chain)| chain).collect()
        };
        let bases = bases.into_iter().map(|(hook, chains)| (hook, in_order(chains))).collect();
        Self { rules, bases, own: [node_address(at), tunnel_address(at)] }
    }

    /// Returns whether a packet passes the chains of a hook.
    fn pass(&self, hook: &str, skb: &mut Skb, [incoming, outgoing]: [&str; 2]) -> bool {
        (skb.in_interface, skb.out_interface) = (incoming.to_owned(), outgoing.to_owned());
        skb.local_addresses = self.own.into();
        for chain in self.bases.get(hook).into_iter().flatten() {
            let walk = self.rules.walk(chain, skb).unwrap();
            skb.mark = walk.mark;
            if walk.untracked {
                skb.conntrack.clear();
            }
            if matches!(walk.outcome, PacketOutcome::Dropped | PacketOutcome::Rejected(_)) {
                return false;
            }
        }
        true
    }

    /// Returns whether a packet passes the node; `None` stands for the node itself.
    fn passes(&self, packet: &Packet, from: Option<&str>, to: Option<&str>) -> bool {
        let skb = &mut Skb::new(walked(packet), "", "");
        match (from, to) {
            (Some(from), Some(to)) => {
                self.pass("prerouting", skb, [from, ""])
                    && self.pass("forward", skb, [from, to])
                    && self.pass("postrouting", skb, ["", to])
            }
            (Some(from), None) => self.pass("prerouting", skb, [from, ""]) && self.pass("input", skb, [from, ""]),
            (None, Some(to)) => self.pass("output", skb, ["", to]) && self.pass("postrouting", skb, ["", to]),
            (None, None) => {
                self.pass("output", skb, ["", "lo"])
                    && self.pass("postrouting", skb, ["", "lo"])
                    && self.pass("prerouting", skb, ["lo", ""])
                    && self.pass("input", skb, ["lo", ""])
            }
        }
    }
}

fn walked(packet: &Packet) -> Walked {
    let payload = match packet.payload() {
        Payload::Ports { source, destination } => WalkedPayload::Ports { source, destination },
        Payload::Icmp { icmp_type, code } => WalkedPayload::Icmp { kind: icmp_type, code },
        Payload::Other => WalkedPayload::Opaque,
    };
    Walked { source: packet.source(), destination: packet.destination(), protocol: packet.protocol(), payload }
}

/// An end of a connection: the number of its node, and the workload's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Pod(usize, usize),
    Node(usize),
    Outside,
}

impl End {
    fn address(self) -> IpAddr {
        match self {
            Self::Pod(node, pod) => pod_address(node, pod),
            Self::Node(node) => node_address(node),
            Self::Outside => outside(),
        }
    }

    fn node(self) -> Option<usize> {
        match self {
            Self::Pod(node, _) | Self::Node(node) => Some(node),
            Self::Outside => None,
        }
    }
}

/// Returns whether the kernels of all nodes on its way let a packet pass.
fn passes(
    state: &State,
    rules: &[NodeRules],
    interfaces: &BTreeMap<IpAddr, String>,
    ends: [End; 2],
    packet: &Packet,
) -> bool {
    let [from, to] = ends;
    let interface = |end: End| match end {
        End::Pod(..) => Some(interfaces[&end.address()].as_str()),
        End::Node(_) | End::Outside => None,
    };
    if from.node().is_some() && from.node() == to.node() {
        return rules[from.node().unwrap()].passes(packet, interface(from), interface(to));
    }
    // Packets to pods of other nodes pass the tunnel.
    let is_tunnelled = state.has_overlay && from.node().is_some() && matches!(to, End::Pod(..));
    let link = if is_tunnelled { VXLAN } else { UPLINK };
    let packet = match from {
        End::Node(node) if is_tunnelled => packet.with_source(tunnel_address(node)).unwrap(),
        _ => *packet,
    };
    let leaves = from.node().is_none_or(|node| rules[node].passes(&packet, interface(from), Some(link)));
    leaves && to.node().is_none_or(|node| rules[node].passes(&packet, Some(link), interface(to)))
}

fn packets(from: IpAddr, to: IpAddr) -> Vec<Packet> {
    let ports = |source, destination| Payload::Ports { source, destination };
    // Port 22 is a failsafe port for connections to the host, 53 one for connections from it.
    [
        (6, ports(40000, 80)),
        (6, ports(40000, 22)),
        (6, ports(22, 81)),
        (17, ports(40000, 53)),
        (17, ports(53, 80)),
        (1, Payload::Icmp { icmp_type: 8, code: 0 }),
    ]
    .map(|(protocol, payload)| Packet::new(from, to, protocol, payload).unwrap())
    .to_vec()
}

/// Numbers of denied connections, by deciding layer.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    allowed: usize,
    layers: [usize; 4],
}

fn check(state: &State, counts: &mut Counts) -> Result<(), TestCaseError> {
    let config = config(&[]);
    let evaluation = settings::evaluation(&settings::rules(&config).unwrap());
    let mut cluster = Cluster::new(settings::graph(&config, Hostname::new("")), evaluation);
    state.updates().into_iter().for_each(|update| cluster.apply(update));
    let interface = |address: IpAddr| match cluster.place_of(address) {
        Place::Workload(key) => cluster.workload(&key).unwrap().iface.unwrap().to_string(),
        other => panic!("{other:?}"),
    };
    let pods = [End::Pod(0, 0), End::Pod(0, 1), End::Pod(1, 0), End::Pod(1, 1)];
    let interfaces = pods.map(|pod| (pod.address(), interface(pod.address()))).into_iter().collect();
    let rules = [0, 1].map(|at| NodeRules::new(state, at, &interfaces));
    let ends = pods.into_iter().chain([End::Node(0), End::Node(1), End::Outside]);
    for from in ends.clone() {
        for to in ends.clone() {
            let is_itself = matches!(from, End::Pod(..)) && from == to;
            if is_itself || from.node().or(to.node()).is_none() {
                continue;
            }
            for packet in packets(from.address(), to.address()) {
                let places = [from, to].map(|end| cluster.place_of(end.address()));
                let traced = cluster.connection(&places[0], &places[1], &packet).unwrap();
                let passes = passes(state, &rules, &interfaces, [from, to], &packet);
                prop_assert_eq!(
                    traced.verdict() == Verdict::Allow,
                    passes,
                    "{:?} {:#?}\n{}",
                    packet,
                    traced.legs.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    state.text()
                );
                counts.allowed += usize::from(passes);
                let layer = traced.denied_by().and_then(|leg| match leg.at {
                    EnforcementPoint::Host(_, layer) => Some(layer),
                    _ => None,
                });
                let place = layer.and_then(|layer| {
                    [Layer::Normal, Layer::Forward, Layer::Untracked, Layer::PreDnat].iter().position(|of| *of == layer)
                });
                if let Some(place) = place {
                    counts.layers[place] += 1;
                }
            }
        }
    }
    Ok(())
}

const CASES: u32 = 48;
/// A batch of random cases may lack a denial by one of the layers.
const BATCHES: usize = 5;

#[test]
fn trace_answers_as_the_rules_of_all_nodes_on_the_way() {
    let counts = Cell::new(Counts::default());
    for _ in 0..BATCHES {
        let config =
            TestConfig { cases: CASES, failure_persistence: None, max_shrink_iters: 200, ..TestConfig::default() };
        let result = TestRunner::new(config).run(&states(), |state| {
            let mut now = counts.get();
            check(&state, &mut now)?;
            counts.set(now);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
        let Counts { allowed, layers } = counts.get();
        if allowed > 0 && layers.iter().all(|denied| *denied > 0) {
            return;
        }
    }
    panic!("{:?}", counts.get());
}
