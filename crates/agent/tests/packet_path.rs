//! The verdict of `tortie_analysis::trace` on a connection equals that of the kernel of the agent's
//! node, for random host endpoints and policies of all layers, in each back end.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program on the kernel")]

#[path = "node/agent.rs"]
mod agent;
#[path = "../../node/tests/packet_path/state.rs"]
mod state;

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use agent::Node;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config as TestConfig, TestRunner};
use rustix::process::Signal;
use state::{NODES, PARAMETERS, State, config, node_address, outside, pod_address, states};
use tortie_analysis::trace::Cluster;
use tortie_config::settings;
use tortie_evaluate::{Packet, Payload, Verdict};
use tortie_lab::netns::Namespace;
use tortie_lab::pods::{LabHost, interface_name};
use tortie_model::Hostname;

/// The last one is a failsafe port of connections from the host.
const PORTS: [u16; 3] = [80, 81, 53];
const UDP: u8 = 17;
/// Random states for each back end.
const STATES: u16 = 6;
const PATIENCE: Duration = Duration::from_secs(90);
/// Time in which all packets arrive.
const QUIET: Duration = Duration::from_millis(150);

/// An end of packets: its address, its namespace and its servers.
struct End<'n> {
    address: IpAddr,
    namespace: &'n Namespace,
    servers: Vec<UdpSocket>,
}

impl<'n> End<'n> {
    fn new(address: IpAddr, namespace: &'n Namespace) -> Self {
        let serve = |port| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let servers = namespace.run(|| PORTS.map(serve).into()).unwrap();
        Self { address, namespace, servers }
    }

    /// Returns the contents of the packets that have arrived.
    fn received(&self) -> BTreeSet<Vec<u8>> {
        let mut buffer = [0; 64];
        let mut contents = BTreeSet::new();
        for server in &self.servers {
            while let Ok(length) = server.recv(&mut buffer) {
                contents.insert(buffer[..length].to_vec());
            }
        }
        contents
    }
}

/// The node of the agent with its pods, and a host outside the cluster.
struct Network {
    node: Node,
    pods: [Namespace; 2],
    outside: Namespace,
}

impl Network {
    fn new(backend: &'static str, cluster: &str) -> Self {
        let node = Node::new(backend, cluster);
        let [first, second, outside] = [(); 3].map(|()| Namespace::new().unwrap());
        let own = node_address(0);
        node.shell("sysctl -qw net.ipv4.ip_forward=1");
        node.shell(&format!(
            "ip link add eth0 type veth peer name eth0 netns {}; ip link set eth0 up; ip addr add {own}/24 dev eth0",
            outside.path().display()
        ));
        outside
            .shell(&format!(
                "ip link set lo up; ip link set eth0 up; ip addr add 192.0.2.9/24 dev eth0; ip addr add {}/32 dev lo\n\
                 ip route add 10.0.0.0/16 via {own}",
                self::outside()
            ))
            .unwrap();
        node.shell(&format!("ip route add {} via 192.0.2.9", self::outside()));
        for (number, pod) in [&first, &second].into_iter().enumerate() {
            let interface = interface_name(&LabHost::pod("shop", &format!("{}-{number}", NODES[0]))).unwrap();
            // As Calico's CNI plugin does it.
            node.shell(&format!(
                "ip link add {interface} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {}; ip link set {interface} up",
                pod.path().display()
            ));
            pod.shell(&format!(
                "ip link set lo up; ip link set eth0 up; ip addr add {}/32 dev eth0; ip route add 169.254.1.1 dev eth0\n\
                 ip neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0; ip route add default via 169.254.1.1 dev eth0",
                pod_address(0, number)
            ))
            .unwrap();
        }
        Self { node, pods: [first, second], outside }
    }

    fn ends(&self) -> [End<'_>; 4] {
        [
            End::new(pod_address(0, 0), &self.pods[0]),
            End::new(pod_address(0, 1), &self.pods[1]),
            End::new(node_address(0), self.node.namespace()),
            End::new(outside(), &self.outside),
        ]
    }
}

/// A packet by the places of its ends and its destination port.
type Flow = (usize, usize, u16);

/// Returns the packets that a trace allows, and those that it denies.
fn traced(state: &State, parameters: &[(&str, &str)], ends: &[End<'_>], source_port: u16) -> [Vec<Flow>; 2] {
    let config = config(parameters);
    let evaluation = settings::evaluation(&settings::rules(&config).unwrap());
    let mut cluster = Cluster::new(settings::graph(&config, Hostname::new("")), evaluation);
    state.updates().into_iter().for_each(|update| cluster.apply(update));
    let [mut allowed, mut denied] = [Vec::new(), Vec::new()];
    let last = ends.len() - 1;
    for (from, to) in (0..=last).flat_map(|from| (0..=last).map(move |to| (from, to))) {
        let is_pod = from < 2;
        if (from == to && is_pod) || (from, to) == (last, last) {
            continue;
        }
        for port in PORTS {
            let ports = Payload::Ports { source: source_port, destination: port };
            let packet = Packet::new(ends[from].address, ends[to].address, UDP, ports).unwrap();
            let places = [from, to].map(|end| cluster.place_of(ends[end].address));
            let verdict = cluster.connection(&places[0], &places[1], &packet).unwrap().verdict();
            if verdict == Verdict::Allow { &mut allowed } else { &mut denied }.push((from, to, port));
        }
    }
    [allowed, denied]
}

fn content((from, to, port): Flow) -> Vec<u8> {
    format!("{from} {to} {port}").into_bytes()
}

/// Sends packets, and returns the contents of those that arrive.
fn arrived(ends: &[End<'_>], flows: &[Flow], source_port: u16) -> BTreeSet<Vec<u8>> {
    for flow in flows {
        let (from, to, port) = *flow;
        let send = || {
            let socket = UdpSocket::bind((ends[from].address, source_port)).unwrap();
            // The kernel reports a packet that it drops on its way out.
            let _ = socket.send_to(&content(*flow), (ends[to].address, port));
        };
        ends[from].namespace.run(send).unwrap();
    }
    thread::sleep(QUIET);
    ends.iter().flat_map(End::received).collect()
}

/// Starts the agent, and waits until policy is in force. Policy may deny requests to its health
/// port.
fn start(node: &mut Node) {
    let before = node.log().matches("policy is in force").count();
    node.spawn();
    let until = Instant::now() + PATIENCE;
    while node.log().matches("policy is in force").count() == before {
        assert!(Instant::now() < until, "{}", node.log());
        thread::sleep(Duration::from_millis(20));
    }
}

fn check(network: &mut Network, state: &State, parameters: &[(&'static str, &str)], source_port: u16) -> [usize; 2] {
    network.node.write("cluster.yaml", &state.text());
    start(&mut network.node);
    let ends = network.ends();
    let [allowed, denied] = traced(state, parameters, &ends, source_port);
    let shown = |flows: &[Flow]| {
        let lines =
            flows.iter().map(|(from, to, port)| format!("{} {}:{port}\n", ends[*from].address, ends[*to].address));
        lines.collect::<String>()
    };
    let passed = arrived(&ends, &denied, source_port);
    let passed: Vec<Flow> = denied.iter().copied().filter(|flow| passed.contains(&content(*flow))).collect();
    assert!(passed.is_empty(), "these pass:\n{}\n{}\n{}", shown(&passed), state.text(), network.node.log());
    // The first packet may be lost while addresses are resolved.
    let mut missing = allowed.clone();
    for _ in 0..5 {
        let passed = arrived(&ends, &missing, source_port);
        missing.retain(|flow| !passed.contains(&content(*flow)));
    }
    assert!(missing.is_empty(), "these do not pass:\n{}\n{}\n{}", shown(&missing), state.text(), network.node.log());
    drop(ends);
    network.node.stop(Signal::TERM);
    // Otherwise objects of this state stay until the next manifest counts as complete.
    fs::remove_dir_all(network.node.state()).unwrap();
    [allowed.len(), denied.len()]
}

fn kernel_answers_as_trace(backend: &'static str, parameters: &[(&'static str, &str)]) {
    let mut runner = TestRunner::new(TestConfig::default());
    let mut state = || {
        let mut state = states().new_tree(&mut runner).unwrap().current();
        state.has_overlay = false;
        // No agent enforces the other node's policy.
        state.hosts[1].clear();
        state
    };
    let mut network = Network::new(backend, &state().text());
    for (name, value) in PARAMETERS.iter().chain(parameters) {
        network.node.set(Box::leak(format!("FELIX_{}", name.to_uppercase()).into_boxed_str()), value);
    }
    let mut counts = [0; 2];
    for number in 0..STATES {
        // A new source port is a new connection.
        let [allowed, denied] = check(&mut network, &state(), parameters, 40_000 + number);
        counts = [counts[0] + allowed, counts[1] + denied];
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

tortie_lab::kernel_test! {
    fn iptables_nft_answers_as_trace() {
        kernel_answers_as_trace("nft", &[]);
    }

    fn iptables_legacy_answers_as_trace() {
        kernel_answers_as_trace("legacy", &[]);
    }

    fn nftables_answers_as_trace() {
        kernel_answers_as_trace("nft", &[("NFTablesMode", "Enabled")]);
    }

    fn ebpf_programs_answer_as_trace() {
        kernel_answers_as_trace("nft", &[("BPFEnabled", "true")]);
    }
}
