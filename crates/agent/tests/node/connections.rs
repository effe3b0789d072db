//! Established connections that a change of policy denies.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tortie_lab::netns::Namespace;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;

pub(super) const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.3}]}
";

/// A pod without an interface, which a separate policy selects.
const AWAY: &str = "
apiVersion: v1
kind: Pod
metadata: {name: away, namespace: shop, labels: {app: away}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.4}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: away, namespace: shop}
spec: {podSelector: {matchLabels: {app: away}}, ingress: [{ports: [{protocol: TCP, port: 443}]}]}
";

/// Returns a policy by which the client may reach these ports of the web server.
pub(super) fn policy(tcp: &[u16], udp: &[u16]) -> String {
    let port = |protocol| move |port: &u16| format!("{{protocol: {protocol}, port: {port}}}");
    let ports: Vec<String> = tcp.iter().map(port("TCP")).chain(udp.iter().map(port("UDP"))).collect();
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: web, namespace: shop}}\nspec: {{podSelector: \
         {{matchLabels: {{app: web}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: client}}}}}}], ports: [{}]}}]}}\n",
        ports.join(", ")
    )
}

/// Returns a pod with the interface that Calico's CNI plugin would make.
pub(super) fn connect(node: &Node, name: &str, last: u8) -> Namespace {
    let pod = Namespace::new().unwrap();
    let interface = interface_name(&LabHost::pod("shop", name)).unwrap();
    node.shell(&format!(
        "ip link add {interface} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {}; ip link set {interface} up",
        pod.path().display()
    ));
    pod.shell(&format!(
        "ip addr add 10.65.0.{last}/32 dev eth0; ip link set eth0 up; ip route add 169.254.1.1 dev eth0; ip route add default via \
         169.254.1.1 dev eth0; ip neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0"
    ))
    .unwrap();
    pod
}

/// Echoes packets on these ports as long as the test runs.
pub(super) fn serve(pod: &Namespace, tcp: &[u16], udp: &[u16]) {
    for port in tcp {
        let listener = pod.run(|| TcpListener::bind(("0.0.0.0", *port))).unwrap().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
                });
            }
        });
    }
    for port in udp {
        let socket = pod.run(|| UdpSocket::bind(("0.0.0.0", *port))).unwrap().unwrap();
        thread::spawn(move || {
            let mut byte = [0];
            while let Ok((_, from)) = socket.recv_from(&mut byte) {
                let _ = socket.send_to(&byte, from);
            }
        });
    }
}

/// An open connection of the client.
pub(super) enum Open {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Open {
    pub(super) fn tcp(client: &Namespace, address: &str, port: u16) -> Option<Self> {
        let address: IpAddr = address.parse().unwrap();
        let stream = client.run(|| TcpStream::connect_timeout(&(address, port).into(), PATIENCE)).unwrap();
        stream.ok().map(Self::Tcp)
    }

    fn udp(client: &Namespace, port: u16) -> Self {
        let socket = client.run(|| UdpSocket::bind(("0.0.0.0", 0))).unwrap().unwrap();
        socket.connect(("10.65.0.2", port)).unwrap();
        Self::Udp(socket)
    }

    /// Reports whether a byte is echoed in this time.
    pub(super) fn answers(&mut self, patience: Duration) -> bool {
        let mut byte = [0];
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(patience)).unwrap();
                stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok()
            }
            Self::Udp(socket) => {
                // One datagram may be lost, or late.
                let until = Instant::now() + patience;
                socket.set_read_timeout(Some(Duration::from_millis(500).min(patience))).unwrap();
                while Instant::now() < until {
                    let sent = [SENT.fetch_add(1, Ordering::Relaxed)];
                    if socket.send(&sent).is_ok() {
                        while socket.recv(&mut byte).is_ok() {
                            if byte == sent {
                                return true;
                            }
                        }
                    }
                }
                false
            }
        }
    }
}

pub(super) fn until<T>(condition: &str, node: &Node, mut done: impl FnMut() -> Option<T>) -> T {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < patience, "waiting until {condition}\n{}\n{}", node.kernel_state(), node.log());
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a node with a web server and its client, and connections that the policy allows: TCP to
/// 80 and 81 by the pod's own address, then by that of a service, then UDP to 53 and 54.
fn connected(cuts: bool, by_programs: bool) -> (Node, [Namespace; 2], Vec<Open>) {
    let mut node = Node::new("nft", CLUSTER);
    node.write("policy.yaml", &policy(&[80, 81], &[53, 54]));
    node.set("FELIX_CUTDENIEDCONNECTIONS", if cuts { "true" } else { "false" });
    node.set("FELIX_BPFENABLED", if by_programs { "true" } else { "false" });
    let pods = [connect(&node, "web", 2), connect(&node, "client", 3)];
    node.shell(
        "iptables-nft -t nat -A PREROUTING -d 10.96.0.1 -p tcp --dport 8000 -j DNAT --to 10.65.0.2:80; \
         iptables-nft -t nat -A PREROUTING -d 10.96.0.1 -p tcp --dport 8001 -j DNAT --to 10.65.0.2:81",
    );
    serve(&pods[0], &[80, 81], &[53, 54]);
    node.start();
    let mut open = Vec::new();
    for (address, port) in [("10.65.0.2", 80), ("10.65.0.2", 81), ("10.96.0.1", 8000), ("10.96.0.1", 8001)] {
        open.push(until("the client is allowed", &node, || Open::tcp(&pods[1], address, port)));
    }
    open.extend([53, 54].map(|port| Open::udp(&pods[1], port)));
    for connection in &mut open {
        assert!(connection.answers(PATIENCE), "{}", node.log());
    }
    (node, pods, open)
}

const PATIENCE: Duration = Duration::from_secs(30);
/// Number of a datagram.
static SENT: AtomicU8 = AtomicU8::new(0);
const CUT: &str = "tortie_connections_cut";

tortie_lab::kernel_test! {
    fn connections_that_a_change_denies_are_cut_and_no_others() {
        let (mut node, _pods, mut open) = connected(true, false);
        assert_eq!(node.metric(CUT), 0.0, "{}", node.log());
        // Changes that deny none of the connections cut none.
        node.write("policy.yaml", &policy(&[80, 81, 64_999], &[53, 54]));
        node.until("the change is in force", |state| state.contains("64999"));
        for connection in &mut open {
            assert!(connection.answers(PATIENCE), "{}", node.log());
        }
        node.write("policy.yaml", &policy(&[81], &[54]));
        until("connections are cut", &node, || (node.metric(CUT) >= 3.0).then_some(()));
        for (number, connection) in open.iter_mut().enumerate() {
            let stays = number % 2 == 1;
            let patience = if stays { PATIENCE } else { Duration::from_secs(1) };
            assert_eq!(connection.answers(patience), stays, "connection {number}\n{}", node.log());
        }
        assert!(node.metric("tortie_connections_check_timestamp_seconds") > 0.0);
        node.stop(Signal::TERM);
    }

    fn connections_are_cut_as_well_where_ebpf_programs_deny_them() {
        let (mut node, _pods, mut open) = connected(true, true);
        // Another program's chain that drops packets by default does no harm.
        node.shell("iptables-nft -P FORWARD DROP");
        assert!(open.iter_mut().all(|connection| connection.answers(PATIENCE)), "{}", node.log());
        node.write("policy.yaml", &policy(&[81], &[54]));
        until("connections are cut", &node, || (node.metric(CUT) >= 3.0).then_some(()));
        for (number, connection) in open.iter_mut().enumerate() {
            let stays = number % 2 == 1;
            let patience = if stays { PATIENCE } else { Duration::from_secs(1) };
            assert_eq!(connection.answers(patience), stays, "connection {number}\n{}", node.log());
        }
        assert!(node.metric("tortie_bpf_map_writes") > 0.0 && node.metric("tortie_bpf_generations_built") == 1.0);
        // A restarted agent continues with the existing maps, policy of a pod without an interface
        // included.
        let written = node.metric("tortie_bpf_map_writes");
        node.write("away.yaml", AWAY);
        until("it is in maps", &node, || (node.metric("tortie_bpf_map_writes") > written).then_some(()));
        node.stop(Signal::TERM);
        node.start();
        until("programs are known", &node, || (node.metric("tortie_bpf_generation") >= 1.0).then_some(()));
        let counted = ["tortie_bpf_map_writes", "tortie_bpf_generations_built"].map(|name| node.metric(name));
        assert_eq!(counted, [0.0, 0.0], "{}", node.log());
        node.stop(Signal::TERM);
        node.shell("rm -rf /sys/fs/bpf/tortie/$(stat -Lc %i /proc/self/ns/net)");
    }

    fn connections_go_on_unless_they_are_to_be_cut() {
        let (mut node, _pods, mut open) = connected(false, false);
        node.write("policy.yaml", &policy(&[64_999], &[]));
        node.until("the change is in force", |state| state.contains("64999"));
        for connection in &mut open {
            assert!(connection.answers(PATIENCE), "{}", node.log());
        }
        node.stop(Signal::TERM);
    }
}
