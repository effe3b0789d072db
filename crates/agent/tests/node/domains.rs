//! Egress policy by domain name: DNS answers open addresses for the pod that asked.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tortie_lab::netns::Namespace;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;
use super::connections::{CLUSTER, connect};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 53);
const NAMED: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 80);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 81);
/// Less than the time after which a client sends its first packet again.
const ONE_PACKET: Duration = Duration::from_millis(800);

const POLICY: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: names, namespace: shop}
spec:
  selector: all()
  types: [Egress]
  egress:
  - {action: Allow, protocol: UDP, destination: {nets: [10.99.0.53/32], ports: [53]}}
  - {action: Allow, protocol: TCP, destination: {domains: ['*.example.com'], ports: [80]}}
";

/// Two pods of a node, and a network outside with a DNS server.
struct World {
    node: Node,
    pods: [Namespace; 2],
    _outside: Namespace,
}

/// Denies the address before its name counts.
const NEVER: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: never, namespace: shop}
spec:
  order: 1
  selector: all()
  types: [Egress]
  egress:
  - {action: Deny, protocol: TCP, destination: {nets: [10.99.0.80/32]}}
";

impl World {
    /// With the back end `ebpf`, chains of iptables-nft or of nftables are beside the programs.
    fn new(backend: &'static str, layout: Option<&str>) -> Self {
        let mut node = Node::new(if backend == "ebpf" { "nft" } else { backend }, CLUSTER);
        node.set("FELIX_BPFENABLED", if backend == "ebpf" { "true" } else { "false" });
        node.set("FELIX_NFTABLESMODE", if layout.is_some() { "Enabled" } else { "Disabled" });
        node.set("FELIX_NFTABLESLAYOUT", layout.unwrap_or("Felix"));
        node.write("policy.yaml", POLICY);
        let cache = node.folder().join("dns-cache").display().to_string();
        node.set("FELIX_DNSCACHEFILE", &cache);
        node.set("FELIX_DNSTRUSTEDSERVERS", &SERVER.to_string());
        let pods = [connect(&node, "web", 2), connect(&node, "client", 3)];
        let outside = Namespace::new().unwrap();
        node.shell(&format!(
            "sysctl -qw net.ipv4.ip_forward=1; ip link add out0 type veth peer name eth0 netns {}; ip addr add 10.99.0.1/24 dev out0; ip \
             link set out0 up",
            outside.path().display()
        ));
        outside
            .shell(&format!(
                "for address in {SERVER} {NAMED} {OTHER}; do ip addr add $address/24 dev eth0; done; ip link set eth0 up; ip route add \
                 10.65.0.0/24 via 10.99.0.1"
            ))
            .unwrap();
        for address in [NAMED, OTHER] {
            let listener = outside.run(|| TcpListener::bind((address, 80))).unwrap().unwrap();
            thread::spawn(move || listener.incoming().for_each(drop));
        }
        let socket = outside.run(|| UdpSocket::bind((SERVER, 53))).unwrap().unwrap();
        thread::spawn(move || answer_all(&socket));
        node.start();
        Self { node, pods, _outside: outside }
    }

    /// Reports whether the first packet of a connection passes.
    fn connects(&self, pod: usize, address: Ipv4Addr) -> bool {
        let address = SocketAddr::from((address, 80));
        self.pods[pod].run(|| TcpStream::connect_timeout(&address, ONE_PACKET)).unwrap().is_ok()
    }

    /// Asks for a name until the server answers, and returns the answer.
    fn look_up(&self, pod: usize, name: &str) -> Vec<u8> {
        let socket = self.pods[pod].run(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket.connect((SERVER, 53)).unwrap();
        let mut received = [0; 512];
        let begin = Instant::now();
        loop {
            socket.send(&question(name)).unwrap();
            match socket.recv(&mut received) {
                Ok(length) => return received[..length].to_vec(),
                Err(error) => assert!(begin.elapsed() < Duration::from_secs(20), "{error}\n{}", self.node.log()),
            }
        }
    }

    /// Waits until connections pass or no longer pass.
    #[track_caller]
    fn wait_until_connects(&self, pod: usize, address: Ipv4Addr, expected: bool) {
        let begin = Instant::now();
        while self.connects(pod, address) != expected {
            assert!(begin.elapsed() < Duration::from_secs(20), "{}\n{}", self.node.kernel_state(), self.node.log());
        }
    }

    #[track_caller]
    fn assert_connects(&self, pod: usize, address: Ipv4Addr, expected: bool) {
        if self.connects(pod, address) != expected {
            panic!("pod {pod} to {address}: not {expected}\n{}\n{}", self.node.kernel_state(), self.node.log());
        }
    }
}

fn question(name: &str) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// Answers every question with one address: a name below `example.com` has [`NAMED`].
fn answer_all(socket: &UdpSocket) {
    let mut received = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut received) {
        let mut answer = received[..length].to_vec();
        (answer[2], answer[3], answer[7]) = (0x81, 0x80, 1);
        let address = if answer.windows(13).any(|bytes| bytes == b"\x07example\x03com\0") { NAMED } else { OTHER };
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 0, 0, 4]);
        answer.extend(address.octets());
        let _ = socket.send_to(&answer, from);
    }
}

fn names_open_addresses(backend: &'static str, layout: Option<&str>) {
    let world = World::new(backend, layout);
    world.assert_connects(0, NAMED, false);
    world.look_up(0, "api.example.com");
    world.assert_connects(0, NAMED, true);
    // Neither another address, nor another pod.
    world.assert_connects(0, OTHER, false);
    world.assert_connects(1, NAMED, false);
    // The name matches no rule.
    let answer = world.look_up(0, "www.example.org.other.net");
    assert!(answer.ends_with(&OTHER.octets()), "{answer:?}");
    world.assert_connects(0, OTHER, false);
    world.look_up(1, "a.b.example.com");
    world.assert_connects(1, NAMED, true);
}

tortie_lab::kernel_test! {
    fn names_open_addresses_for_the_pod_that_asked_with_nft() {
        names_open_addresses("nft", None);
    }

    fn names_open_addresses_for_the_pod_that_asked_with_legacy() {
        names_open_addresses("legacy", None);
    }

    fn names_open_addresses_for_the_pod_that_asked_with_nftables() {
        names_open_addresses("nft", Some("Felix"));
    }

    fn names_open_addresses_for_the_pod_that_asked_with_fast_nftables() {
        names_open_addresses("nft", Some("Fast"));
    }

    fn names_open_addresses_for_the_pod_that_asked_with_ebpf() {
        names_open_addresses("ebpf", None);
    }

    fn names_open_addresses_for_the_pod_that_asked_with_ebpf_beside_nftables() {
        names_open_addresses("ebpf", Some("Felix"));
    }

    fn addresses_in_programs_survive_a_restart_and_end_with_their_pod_or_pattern() {
        let mut world = World::new("ebpf", None);
        world.look_up(0, "api.example.com");
        world.assert_connects(0, NAMED, true);
        world.node.stop(Signal::TERM);
        world.assert_connects(0, NAMED, true);
        // Only the maps still have the address now.
        std::fs::remove_file(world.node.folder().join("dns-cache")).unwrap();
        world.node.start();
        world.assert_connects(0, NAMED, true);
        world.assert_connects(1, NAMED, false);
        // The address has another class, and then the former one again.
        world.node.write("never.yaml", NEVER);
        world.wait_until_connects(0, NAMED, false);
        std::fs::remove_file(world.node.manifests().join("never.yaml")).unwrap();
        world.wait_until_connects(0, NAMED, true);

        let interface = interface_name(&LabHost::pod("shop", "web")).unwrap();
        world.node.shell(&format!("ip link del {interface}"));
        world.pods[0] = connect(&world.node, "web", 2);
        world.look_up(0, "www.other.net");
        world.assert_connects(0, NAMED, false);
        world.look_up(0, "api.example.com");
        world.assert_connects(0, NAMED, true);
        world.node.write("policy.yaml", &POLICY.replace("*.example.com", "*.example.net"));
        world.wait_until_connects(0, NAMED, false);
    }

    fn learned_addresses_survive_a_restart_and_end_with_the_policy() {
        let mut world = World::new("nft", None);
        world.look_up(0, "api.example.com");
        world.assert_connects(0, NAMED, true);
        world.node.stop(Signal::TERM);
        world.assert_connects(0, NAMED, true);
        // Only the file still has the address now.
        let flushed = world.node.shell("ipset list -n | grep '^cali40d:' | xargs -n1 -t ipset flush 2>&1");
        assert!(flushed.contains("cali40d:"), "{flushed}");
        world.assert_connects(0, NAMED, false);
        world.node.start();
        world.assert_connects(0, NAMED, true);
        world.assert_connects(1, NAMED, false);
        world.node.write("policy.yaml", &POLICY.replace("*.example.com", "*.example.net"));
        world.wait_until_connects(0, NAMED, false);
    }

    fn a_pod_that_replaces_another_on_its_interface_has_no_address_of_it() {
        let mut world = World::new("nft", None);
        world.look_up(0, "api.example.com");
        world.assert_connects(0, NAMED, true);
        let interface = interface_name(&LabHost::pod("shop", "web")).unwrap();
        world.node.shell(&format!("ip link del {interface}"));
        world.pods[0] = connect(&world.node, "web", 2);
        // The node is ready for the new interface when an answer arrives.
        world.look_up(0, "www.other.net");
        world.assert_connects(0, NAMED, false);
        world.look_up(0, "api.example.com");
        world.assert_connects(0, NAMED, true);
    }
}
