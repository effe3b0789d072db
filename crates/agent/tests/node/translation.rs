//! Address translation and limits beside eBPF programs, on a node where iptables cannot be run.

use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use tortie_lab::netns::Namespace;

use super::agent::Node;
use super::connections::{Open, connect, policy, serve, until};

const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  labels: {app: web}
  annotations: {cni.projectcalico.org/floatingIPs: '[\"192.0.2.7\"]'}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.2}]}
";
const PATIENCE: Duration = Duration::from_secs(1);

fn pool(masquerade: bool) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {{name: pods}}\nspec: {{cidr: 10.65.0.0/16, \
         natOutgoing: {masquerade}}}\n"
    )
}

/// Returns a machine outside of the cluster, which has a route to the floating address only.
fn outside(node: &Node) -> Namespace {
    let outside = Namespace::new().unwrap();
    node.shell(&format!(
        "ip link add eth0 type veth peer name eth0 netns {}; ip addr add 198.51.100.1/24 dev eth0; ip link set eth0 up",
        outside.path().display()
    ));
    let addresses =
        "ip addr add 198.51.100.9/24 dev eth0; ip link set eth0 up; ip route add 192.0.2.7 via 198.51.100.1";
    outside.shell(addresses).unwrap();
    outside
}

fn reaches(from: &Namespace, address: &str, port: u16) -> bool {
    let address: IpAddr = address.parse().unwrap();
    from.run(|| TcpStream::connect_timeout(&(address, port).into(), PATIENCE)).unwrap().is_ok()
}

tortie_lab::kernel_test! {
    fn nftables_translates_addresses_beside_ebpf_programs_where_iptables_cannot_be_run() {
        let mut node = Node::new("nft", CLUSTER);
        node.write("pool.yaml", &pool(true));
        // The floating address leads past the policy of the pod to no other port.
        node.write("policy.yaml", &policy(&[80], &[]).replace("from: [{podSelector: {matchLabels: {app: client}}}], ", ""));
        let programs = node.folder().join("programs");
        fs::create_dir(&programs).unwrap();
        node.set("PATH", &programs.display().to_string());
        node.set("FELIX_BPFENABLED", "true");
        node.set("FELIX_FLOATINGIPS", "Enabled");
        // No pool has the floating addresses.
        node.set("FELIX_ADDRESSCLAIMS", "Any");
        let (pod, outside) = (connect(&node, "web", 2), outside(&node));
        serve(&pod, &[80, 81], &[]);
        let server = outside.run(|| TcpListener::bind(("198.51.100.9", 443))).unwrap().unwrap();
        node.start();
        assert!(node.log().contains("\"dataplane\":\"eBPF programs, nftables, IPv4, IPv6\""), "{}", node.log());
        assert_eq!(node.metric("tortie_dataplane_problems"), 0.0, "{}", node.log());

        until("the floating address leads to the pod", &node, || reaches(&outside, "192.0.2.7", 80).then_some(()));
        assert!(!reaches(&outside, "192.0.2.7", 81), "policy denies it");
        until("the pod reaches a machine", &node, || reaches(&pod, "198.51.100.9", 443).then_some(()));
        let (_, source) = server.accept().unwrap();
        assert_eq!(source.ip().to_string(), "198.51.100.1", "masqueraded");

        let chains = || node.shell("nft list chains ip");
        assert!(chains().contains("chain nat-POSTROUTING") && !chains().contains("chain filter-FORWARD"), "{}", chains());
        assert!(!node.shell("nft list tables").contains("table ip6 calico"), "no feature needs one");
        assert!(!node.kernel_state().contains("cali"), "{}", node.kernel_state());

        let limit = "annotations: {qos.projectcalico.org/ingressMaxConnections: '1', ";
        node.write("cluster.yaml", &CLUSTER.replace("annotations: {", limit));
        let has_limit = || node.shell("nft list table ip calico").contains("ct count over 1");
        until("connections are limited", &node, || has_limit().then_some(()));
        let mut open = Open::tcp(&outside, "192.0.2.7", 80).unwrap();
        assert!(open.answers(PATIENCE) && !reaches(&outside, "192.0.2.7", 80), "{}", node.log());

        node.write("pool.yaml", &pool(false));
        node.write("cluster.yaml", &CLUSTER.replace("192.0.2.7", "2001:db8::7").replace("10.65.0.2}", "10.65.0.2}, {ip: 'fd00::2'}"));
        until("only the other family has a table", &node, || {
            let tables = node.shell("nft list tables");
            (!tables.contains("table ip calico\n") && tables.contains("table ip6 calico\n")).then_some(())
        });
        node.stop(Signal::TERM);
        node.cleanup();
        assert!(!node.shell("nft list tables").contains("calico"));
    }
}
