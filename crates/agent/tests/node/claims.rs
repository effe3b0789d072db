//! Pods of one namespace that claim addresses and interfaces of another one's.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use tortie_lab::netns::Namespace;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;

const BASE: &str = include_str!("../../../../testdata/hostile/base.json");
const CLAIM: &str = include_str!("../../../../testdata/hostile/pending-pod-claims-an-address.json");
const COLLISION: &str = include_str!("../../../../testdata/hostile/pod-whose-interface-name-collides.json");

const DB: &str = "10.0.0.50";
const CLIENT: &str = "10.0.0.20";
const PORT: u16 = 80;

/// A client that the platform's policy allows to reach only the service `dev/partner`.
const SERVICE: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: prod}
---
apiVersion: v1
kind: Namespace
metadata: {name: dev}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: prod}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.50}]}
---
apiVersion: v1
kind: Pod
metadata: {name: partner, namespace: dev}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.21}]}
---
apiVersion: v1
kind: Pod
metadata: {name: cl, namespace: dev, labels: {app: client}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.20}]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: clients}
spec:
  selector: app == 'client'
  types: [Egress]
  egress: [{action: Allow, protocol: TCP, destination: {services: {name: partner, namespace: dev}}}]
";
const SLICE: &str = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: partner-1, namespace: dev, labels: {kubernetes.io/service-name: partner}}
addressType: IPv4
ports: [{port: 80, protocol: TCP}]
endpoints: [{addresses: [10.0.0.21]}, {addresses: [10.0.0.50]}]
";
const PARTNER: &str = "10.0.0.21";

/// Back end of a test.
#[derive(Clone, Copy, Debug)]
enum TestBackend {
    Iptables,
    IptablesByAddress,
    Nftables,
    Ebpf,
}

const ALL: [TestBackend; 4] =
    [TestBackend::Iptables, TestBackend::IptablesByAddress, TestBackend::Nftables, TestBackend::Ebpf];

impl TestBackend {
    fn is_by_address(self) -> bool {
        matches!(self, Self::IptablesByAddress)
    }

    fn node(self, cluster: &str) -> Node {
        let mut node = Node::new("nft", cluster);
        if matches!(self, Self::Nftables) {
            node.set("FELIX_NFTABLESMODE", "Enabled");
        }
        if matches!(self, Self::Ebpf) {
            node.set("FELIX_BPFENABLED", "true");
        }
        if self.is_by_address() {
            node.give(&["--workloads", "by-address"]);
        }
        node.shell("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.default.accept_dad=0");
        node
    }
}

struct Pod {
    namespace: Namespace,
    _server: TcpListener,
}

/// Returns a pod that serves a port, connected by an interface with the name that Calico's CNI
/// plugin gives it.
fn connect(node: &Node, namespace: &str, name: &str, address: &str) -> Pod {
    let interface = interface_name(&LabHost::pod(namespace, name)).unwrap();
    let pod = Namespace::new().unwrap();
    node.shell(&format!(
        "ip link add {interface} type veth peer name eth0 netns {}; ip addr add 10.0.1.1/32 dev {interface}; ip link set \
         {interface} up; ip route add {address} dev {interface}",
        pod.path().display()
    ));
    pod.shell(&format!(
        "ip addr add {address}/32 dev eth0; ip link set eth0 up; ip route add 10.0.1.1 dev eth0; ip route add default via \
         10.0.1.1 dev eth0"
    ))
    .unwrap();
    let server = pod.run(|| TcpListener::bind(("0.0.0.0", PORT))).unwrap().unwrap();
    Pod { namespace: pod, _server: server }
}

fn reaches(from: &Pod, address: &str) -> bool {
    let address: IpAddr = address.parse().unwrap();
    let connect = || TcpStream::connect_timeout(&(address, PORT).into(), Duration::from_secs(1)).is_ok();
    from.namespace.run(connect).unwrap()
}

fn until(condition: &str, node: &Node, done: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < patience, "waiting until {condition}\n{}\n{}", node.kernel_state(), node.log());
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the cluster with another pod in place of `prod/db`.
fn with_victim(name: &str) -> String {
    let cluster = BASE.replace("\"name\": \"db\"", &format!("\"name\": \"{name}\""));
    assert_eq!(cluster == BASE, name == "db");
    cluster
}

/// Returns the hostile pod after the kubelet has started it, with a separate address.
fn started(pod: &str, address: &str) -> String {
    let running = format!("\"phase\": \"Running\", \"podIPs\": [{{\"ip\": \"{address}\"}}]");
    pod.replace("\"phase\": \"Pending\"", &running)
}

/// Writes an object of `dev`, and asserts that the pod of `prod` stays as isolated and as reachable
/// as before.
fn isolated(by: TestBackend, victim: &str, hostile: &str) {
    let mut node = by.node(&with_victim(victim));
    let db = connect(&node, "prod", victim, DB);
    let client = connect(&node, "dev", "cl", CLIENT);
    until("pods are connected", &node, || reaches(&client, DB));
    node.start();
    until("the database reaches the client", &node, || reaches(&db, CLIENT));
    assert!(!reaches(&client, DB), "{by:?} before");
    node.write("hostile.json", hostile);
    node.until_ready("10.0.0.50 is the address of another endpoint");
    for _ in 0..3 {
        assert!(!reaches(&client, DB), "{by:?}: {}\n{}", node.kernel_state(), node.log());
        assert!(reaches(&db, CLIENT), "{by:?}: {}\n{}", node.kernel_state(), node.log());
    }
    let status = String::from_utf8(node.ask(&["status"]).stdout).unwrap();
    assert!(status.contains("10.0.0.50 is the address of another endpoint"), "{status}");
    std::fs::remove_file(node.manifests().join("hostile.json")).unwrap();
    node.until_readiness("200", |answer| !answer.contains("another endpoint"));
    assert!(!reaches(&client, DB) && reaches(&db, CLIENT), "{by:?} after");
}

tortie_lab::kernel_test! {
    fn a_pending_pod_does_not_take_the_address_of_a_running_one() {
        ALL.into_iter().for_each(|by| isolated(by, "db", CLAIM));
    }

    fn a_pending_pod_does_not_take_the_interface_of_a_running_one() {
        ALL.into_iter().for_each(|by| isolated(by, "db-5", COLLISION));
    }

    fn a_slice_leads_no_rule_to_pods_of_other_namespaces() {
        for by in ALL {
            let mut node = by.node(SERVICE);
            let _db = connect(&node, "prod", "db", DB);
            let partner = connect(&node, "dev", "partner", PARTNER);
            let client = connect(&node, "dev", "cl", CLIENT);
            node.start();
            until("the partner reaches the database", &node, || reaches(&partner, DB));
            assert!(!reaches(&client, PARTNER) && !reaches(&client, DB), "{by:?} before");
            node.write("slice.yaml", SLICE);
            until("the client reaches the service", &node, || reaches(&client, PARTNER));
            node.until_ready("10.0.0.50 is the address of a pod of another namespace");
            for _ in 0..2 {
                assert!(!reaches(&client, DB), "{by:?}: {}\n{}", node.kernel_state(), node.log());
            }
        }
    }

    fn two_running_pods_with_one_interface_are_denied_until_one_ends() {
        for by in ALL {
            let mut node = by.node(&with_victim("db-5"));
            let db = connect(&node, "prod", "db-5", DB);
            let client = connect(&node, "dev", "cl", CLIENT);
            node.start();
            until("the database reaches the client", &node, || reaches(&db, CLIENT));
            node.write("hostile.json", &started(COLLISION, "10.0.0.77"));
            node.until_ready("is also claimed by");
            until("the database is denied", &node, || !reaches(&db, CLIENT));
            assert!(!reaches(&client, DB), "{by:?}: {}\n{}", node.kernel_state(), node.log());
            std::fs::remove_file(node.manifests().join("hostile.json")).unwrap();
            until("the database is released", &node, || reaches(&db, CLIENT));
            assert!(!reaches(&client, DB), "{by:?} after");
        }
    }
}
