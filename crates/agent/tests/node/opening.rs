//! Routes, neighbour entries and settings that lead to workloads, on a real kernel.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;
use tortie_lab::pods::{LabHost, interface_name};

use super::agent::Node;

const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.2}, {ip: 'fd00:65::2'}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress]}
";

/// Returns a node with the interface of its pod, and with forwarding switched off; and the
/// interface's name.
fn node() -> (Node, String) {
    let mut node = Node::new("nft", CLUSTER);
    let pod = interface_name(&LabHost::pod("shop", "web")).unwrap();
    node.shell(&format!("ip link add {pod} type veth peer name peer; ip link set {pod} up; ip link set peer up"));
    node.shell("echo 0 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding");
    node.set("FELIX_ROUTEREFRESHINTERVAL", "1");
    (node, pod)
}

/// Writes a program that fails as long as a file exists next to it, and then runs the real one.
fn fails_while(folder: &Path, program: &str) {
    let real = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|folder| folder.join(program))
        .find(|path| path.exists())
        .unwrap();
    let (path, flag) = (folder.join(program), folder.join("fail"));
    let script = format!(
        "#!/bin/sh\nif [ -e {} ]; then echo 'No buffer space available' >&2; exit 4; fi\nexec {} \"$@\"\n",
        flag.display(),
        real.display(),
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(flag, "").unwrap();
}

/// Returns the IPv4 routes, neighbour entries and settings that lead to the pod.
fn ways(node: &Node, pod: &str) -> Vec<String> {
    let text = node.shell(&format!(
        "ip -4 route show 10.65.0.2; ip -4 neigh show nud permanent dev {pod}; cd /proc/sys/net/ipv4; \
         for f in ip_forward conf/{pod}/proxy_arp conf/{pod}/route_localnet; do grep -H 1 $f || true; done"
    ));
    text.lines().map(str::to_owned).collect()
}

tortie_lab::kernel_test! {
    fn nothing_leads_to_a_pod_before_its_policy_can_be_written() {
        for program in ["iptables-nft-restore", "iptables-nft-save"] {
            let (mut node, pod) = node();
            let folder = TempDir::new().unwrap();
            fails_while(folder.path(), program);
            let path = std::env::var("PATH").unwrap();
            node.set("PATH", &format!("{}:{path}", folder.path().display()));
            node.spawn();
            node.until("IPv6 is open", |_| !node.shell("ip -6 route show fd00:65::2").is_empty());
            node.until_readiness("503", |answer| answer.contains("IPv4 table"));
            assert_eq!(ways(&node, &pod), [] as [&str; 0], "{program}\n{}", node.log());

            fs::remove_file(folder.path().join("fail")).unwrap();
            // Any change makes the agent retry at once.
            node.write("other.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n");
            node.until_ready("");
            assert!(ways(&node, &pod).len() >= 4, "{program}: {:?}\n{}", ways(&node, &pod), node.log());
            node.stop(Signal::TERM);
        }
    }

    fn changed_sysctls_are_restored() {
        let (mut node, pod) = node();
        node.start();
        let good = ways(&node, &pod);
        assert!(good.len() >= 4, "{good:?}\n{}", node.log());
        node.shell("echo 0 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding");
        node.shell(&format!("cd /proc/sys/net/ipv4/conf/{pod}; echo 0 >proxy_arp; echo 0 >route_localnet"));
        assert_ne!(ways(&node, &pod), good);
        node.until("they are restored", |_| ways(&node, &pod) == good);
        assert_eq!(node.shell("cat /proc/sys/net/ipv6/conf/all/forwarding").trim(), "1");
        let repaired = node.log().lines().filter(|line| line.contains("net/ipv4/ip_forward")).count();
        assert_eq!(repaired, 1, "{}", node.log());
    }
}
