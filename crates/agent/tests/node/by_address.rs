//! Workloads that are connected by CNI plugins other than Calico's.

use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tortie_lab::netns::Namespace;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;

const POLICY: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-friends, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
";

fn pod(name: &str, app: &str, last: u8) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}\nspec: {{nodeName: n1, \
         containers: [{{name: c, image: i}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.244.0.{last}}}, {{ip: \
         'fd00:244::{last:x}'}}]}}\n---\n"
    )
}

fn cluster(pods: &[(&str, &str, u8)]) -> String {
    let pods: String = pods.iter().map(|(name, app, last)| pod(name, app, *last)).collect();
    format!("{pods}{POLICY}")
}

const PODS: [(&str, &str, u8); 3] = [("web", "web", 2), ("friend", "friend", 3), ("stranger", "stranger", 4)];

/// Port of the pods' servers.
const PORT: u16 = 80;

/// Connection of pods to the node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plugin {
    /// Each pod by a separate interface, with a route for each address, as `ptp` and kindnet do.
    Ptp,
    /// All pods by one bridge, as `bridge` and flannel do.
    Bridge,
}

/// A pod that serves a port.
struct Pod {
    namespace: Namespace,
    _server: TcpListener,
}

/// Returns a pod that is connected by an interface of this name.
fn connect(node: &Node, plugin: Plugin, interface: &str, last: u8) -> Pod {
    let pod = Namespace::new().unwrap();
    pod.sysctl(&[("ipv6/conf/default/accept_dad".to_owned(), "0")]).unwrap();
    node.shell(&format!("ip link add {interface} type veth peer name eth0 netns {}", pod.path().display()));
    let (v4, v6) = match plugin {
        Plugin::Ptp => (32, 128),
        Plugin::Bridge => (24, 64),
    };
    pod.shell(&format!(
        "ip addr add 10.244.0.{last}/{v4} dev eth0; ip addr add fd00:244::{last:x}/{v6} dev eth0 nodad; ip link set eth0 up"
    ))
    .unwrap();
    match plugin {
        Plugin::Ptp => {
            node.shell(&format!(
                "ip link set {interface} up; ip addr add 10.244.0.1/32 dev {interface}; ip addr add fe80::1/64 dev {interface} \
                 nodad; ip route add 10.244.0.{last} dev {interface}; ip route add fd00:244::{last:x} dev {interface}"
            ));
            pod.shell(
                "ip route add 10.244.0.1 dev eth0; ip route add default via 10.244.0.1 dev eth0; ip -6 route add default via \
                 fe80::1 dev eth0",
            )
            .unwrap();
        }
        Plugin::Bridge => {
            node.shell(&format!("ip link set {interface} master cni0 up"));
            pod.shell("ip route add default via 10.244.0.1; ip -6 route add default via fd00:244::1").unwrap();
        }
    }
    let server = pod.run(|| TcpListener::bind(("::", PORT))).unwrap().unwrap();
    Pod { namespace: pod, _server: server }
}

fn node(plugin: Plugin, backend: &'static str) -> Node {
    let mut node = Node::new(backend, &cluster(&PODS));
    node.give(&["--workloads", "by-address"]);
    node.shell("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.default.accept_dad=0");
    if plugin == Plugin::Bridge {
        node.shell(
            "ip link add cni0 type bridge; ip addr add 10.244.0.1/24 dev cni0; ip addr add fd00:244::1/64 dev cni0 nodad; ip \
             link set cni0 up",
        );
    }
    node
}

/// Reports whether a pod reaches another one.
fn reaches(from: &Pod, address: &str) -> bool {
    let address: IpAddr = address.parse().unwrap();
    let connect = || TcpStream::connect_timeout(&(address, PORT).into(), Duration::from_secs(1)).is_ok();
    from.namespace.run(connect).unwrap()
}

fn until(condition: &str, node: &Node, done: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < patience, "waiting until {condition}\n{}\n{}", node.kernel_state(), node.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn policy_is_in_force(plugin: Plugin, backend: &'static str) {
    let mut node = node(plugin, backend);
    let web = connect(&node, plugin, "vethweb", 2);
    let friend = connect(&node, plugin, "vethfriend", 3);
    let stranger = connect(&node, plugin, "vethstrange", 4);
    for address in ["10.244.0.2", "fd00:244::2"] {
        until("pods are connected", &node, || reaches(&stranger, address));
    }
    node.start();
    for (address, other) in [("10.244.0.2", "10.244.0.4"), ("fd00:244::2", "fd00:244::4")] {
        until("the friend reaches the web server", &node, || reaches(&friend, address));
        until("the web server reaches the stranger", &node, || reaches(&web, other));
        assert!(!reaches(&stranger, address), "{plugin:?}: {}", node.kernel_state());
    }

    // The datastore does not have this pod.
    let unknown = connect(&node, plugin, "vethunknown", 5);
    assert!(!reaches(&unknown, "10.244.0.4") && !reaches(&unknown, "fd00:244::4"), "{plugin:?}");
    node.write("more.yaml", &pod("late", "late", 5));
    until("it is known and found", &node, || reaches(&unknown, "10.244.0.4") && reaches(&unknown, "fd00:244::4"));
    assert!(!reaches(&unknown, "10.244.0.2"));

    // The friend's address, sent from the stranger's interface.
    stranger.namespace.shell("ip addr add 10.244.0.3/32 dev eth0").unwrap();
    let send = || UdpSocket::bind(("10.244.0.3", 0)).unwrap().send_to(b"spoofed", ("10.244.0.2", PORT));
    // A reverse path filter may be before the rule about addresses.
    let is_guard = |rule: &str| rule.contains("Not where this workload is") || rule.contains("rpfilter");
    until("the packet is dropped because of its source address", &node, || {
        // The neighbour entry of the other pod may be missing at first.
        let _ = stranger.namespace.run(send).unwrap();
        let rules = node.shell(&format!("iptables-{backend}-save -c"));
        rules.lines().any(|rule| is_guard(rule) && !rule.starts_with("[0:"))
    });
    stranger.namespace.shell("ip addr del 10.244.0.3/32 dev eth0").unwrap();

    // The pod is replaced: another interface gets its address, and then another workload.
    node.shell("ip link del vethfriend");
    drop(friend);
    let friend = connect(&node, plugin, "vethfriend2", 3);
    until("the friend is found again", &node, || reaches(&friend, "10.244.0.2"));
    node.write("cluster.yaml", &cluster(&[PODS[0], ("other", "stranger", 3), PODS[2]]));
    let chain = format!("-g cali-fw-{}", interface_name(&LabHost::pod("shop", "other")).unwrap());
    node.until("the address is another pod's", |state| {
        ["10.244.0.3/32", "fd00:244::3/128"]
            .iter()
            .all(|address| state.lines().any(|line| line.contains(&format!("-s {address} ")) && line.contains(&chain)))
    });
    until("the other pod is reached from there", &node, || reaches(&friend, "10.244.0.4"));
    assert!(!reaches(&friend, "10.244.0.2"), "{plugin:?}: {}", node.kernel_state());

    let state = node.kernel_state();
    node.stop(Signal::TERM);
    node.start();
    // Forwarding entries of a bridge expire, so that some addresses may have to be found again.
    node.until("all is as before", |now| now == state);
    if plugin == Plugin::Ptp {
        assert_eq!(node.metric("felix_iptables_restore_calls"), 0.0, "a restart writes nothing: {}", node.log());
    }
    node.stop(Signal::TERM);
    node.cleanup();
    assert!(!node.kernel_state().contains("cali"), "{}", node.kernel_state());
}

tortie_lab::kernel_test! {
    fn policy_holds_between_interfaces_of_their_own() {
        policy_is_in_force(Plugin::Ptp, "nft");
    }

    fn policy_holds_within_a_bridge() {
        policy_is_in_force(Plugin::Bridge, "nft");
        policy_is_in_force(Plugin::Bridge, "legacy");
    }

    fn a_bridge_that_bypasses_the_rules_is_reported() {
        let mut node = node(Plugin::Bridge, "nft");
        let _web = connect(&node, Plugin::Bridge, "vethweb", 2);
        node.shell("sysctl -qw net.bridge.bridge-nf-call-iptables=0");
        node.spawn();
        node.until_readiness("503", |answer| answer.contains("bridge-nf-call-iptables"));
        node.shell("sysctl -qw net.bridge.bridge-nf-call-iptables=1");
        node.until_ready("");
    }
}
