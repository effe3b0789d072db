//! Policy that the kernel refuses is denied, the rest is enforced, and the node is not ready
//! meanwhile.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tortie_lab::netns::Namespace;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;

const CLUSTER: &str = "
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
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: two-ports, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: 8080}]}, {ports: [{port: 8081}]}]
";

/// A set that only this policy uses.
const FROM_FRIENDS: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-friends, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}, {podSelector: {matchLabels: {friend: 'yes'}}}], ports: [{port: 8082}]}]
";

/// The longest pause of retries, with a margin for slow machines.
const BOUND: Duration = Duration::from_secs(35);

/// A pod behind the node, and a client at its other side.
struct Network {
    client: Namespace,
    /// Keeps the pod and its listeners.
    _pod: (Namespace, Vec<TcpListener>),
}

impl Network {
    fn new(node: &Node) -> Self {
        let (client, pod) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let interface = interface_name(&LabHost::pod("shop", "web")).unwrap();
        node.shell(&format!(
            "sysctl -qw net.ipv4.ip_forward=1
             ip link add eth0 type veth peer name eth0 netns {client}
             ip addr add 192.0.2.1/24 dev eth0 && ip link set eth0 up && ip route add default via 192.0.2.2
             ip link add {interface} type veth peer name eth0 netns {pod}
             ip link set {interface} up && ip route add 10.65.0.2/32 dev {interface}",
            client = client.path().display(),
            pod = pod.path().display(),
        ));
        client
            .shell("ip addr add 192.0.2.2/24 dev eth0; ip link set eth0 up; ip route add default via 192.0.2.1")
            .unwrap();
        pod.shell("ip addr add 10.65.0.2/32 dev eth0; ip link set eth0 up; ip route add 169.254.1.1 dev eth0; ip route add default via 169.254.1.1").unwrap();
        let listen = |port: u16| TcpListener::bind(("0.0.0.0", port)).unwrap();
        let listeners = pod.run(|| vec![listen(8080), listen(8081), listen(8082)]).unwrap();
        Self { client, _pod: (pod, listeners) }
    }

    fn reaches(&self, port: u16) -> bool {
        let address = SocketAddr::from(([10, 65, 0, 2], port));
        self.client.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(700)).is_ok()).unwrap()
    }
}

/// Replaces programs with scripts that refuse input with this text, until the file `refuse` is
/// removed.
fn refuse(node: &mut Node, folder: &Path, programs: &[&str], text: &str) {
    for program in programs {
        let found = node.shell(&format!("command -v {program}"));
        let script = format!(
            "#!/bin/sh
[ -t 0 ] || input=$(cat; echo .)
if [ -e {folder}/refuse ] && printf '%s' \"$input\" | grep -q -e '{text}'; then
    echo 'Error in line 1: refused' >&2; exit 1
fi
printf '%s' \"${{input%.}}\" | {real} \"$@\"
",
            folder = folder.display(),
            real = found.trim(),
        );
        fs::write(folder.join(program), script).unwrap();
        fs::set_permissions(folder.join(program), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(folder.join("refuse"), "").unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    node.set("PATH", &format!("{}:{path}", folder.display()));
}

tortie_lab::kernel_test! {
    fn a_rule_that_the_kernel_refuses_is_left_out_until_it_accepts_it() {
        for backend in ["nft", "legacy"] {
            let folder = tempfile::TempDir::new().unwrap();
            let mut node = Node::new(backend, CLUSTER);
            let network = Network::new(&node);
            refuse(&mut node, folder.path(), &[&format!("iptables-{backend}-restore")], "destination-ports 8081 ");
            node.spawn();
            node.until_readiness("503", |answer| answer.contains("two-ports") && answer.contains("refused"));
            assert!(network.reaches(8080), "{backend}: the other rule is in force\n{}", node.kernel_state());
            assert!(!network.reaches(8081) && !network.reaches(8082), "{backend}: nothing else is");
            fs::remove_file(folder.path().join("refuse")).unwrap();
            node.until_within(BOUND, "200", |answer| !answer.contains("two-ports"));
            assert!(network.reaches(8081), "{backend}\n{}", node.kernel_state());
        }
    }

    fn an_allow_with_a_refused_set_does_not_close_its_pods() {
        let folder = tempfile::TempDir::new().unwrap();
        let mut node = Node::new("nft", CLUSTER);
        let network = Network::new(&node);
        node.write("friends.yaml", FROM_FRIENDS);
        refuse(&mut node, folder.path(), &["ipset"], "create cali40s:");
        node.spawn();
        node.until_readiness("503", |answer| answer.contains("from-friends") && answer.contains("left out"));
        assert!(network.reaches(8080) && network.reaches(8081) && network.reaches(8082), "{}", node.kernel_state());
        let restores = node.metric("felix_iptables_restore_errors");
        assert_eq!(restores, 0.0, "no chain refers to the set");
        fs::remove_file(folder.path().join("refuse")).unwrap();
        node.until_within(BOUND, "200", |answer| !answer.contains("from-friends"));
        assert!(node.kernel_state().contains("--match-set cali40s:"), "{}", node.kernel_state());
    }
}
