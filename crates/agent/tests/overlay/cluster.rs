//! Three nodes with a server, a friend of it and a stranger on each, and the expected verdicts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_lab::cases::{ClusterPod, ContainerPort, LabelledNamespace};
use tortie_lab::overlay::{Encapsulation, OverlayCluster};
use tortie_lab::pods::{Flow, Pod, Port, Protocol, Timing, node_name};

const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) fn new(subnets: &[u8], encapsulation: Encapsulation) -> OverlayCluster {
    let mut cluster = OverlayCluster::new(env!("CARGO_BIN_EXE_tortie"), subnets, encapsulation).unwrap();
    cluster.cluster.namespaces.push(LabelledNamespace { name: "shop".to_owned(), labels: BTreeMap::new() });
    for node in 0..subnets.len() {
        let number = u8::try_from(node + 1).unwrap();
        for (app, last) in [("web", 2), ("friend", 3), ("stranger", 4)] {
            let port = ContainerPort { name: None, container_port: 80, protocol: Protocol::Tcp };
            cluster.cluster.pods.push(ClusterPod {
                namespace: "shop".to_owned(),
                name: format!("{app}{number}"),
                labels: BTreeMap::from([("app".to_owned(), app.to_owned())]),
                addresses: vec![
                    IpAddr::from([10, 66, number, last]),
                    Ipv6Addr::new(0xfd00, 0x66, number.into(), 0, 0, 0, 0, last.into()).into(),
                ],
                ports: if app == "web" { vec![port] } else { Vec::new() },
                node,
            });
        }
    }
    cluster.others.push(json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": "web", "namespace": "shop" },
        "spec": {
            "podSelector": { "matchLabels": { "app": "web" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "friend" } } }] }],
        },
    }));
    cluster.apply().unwrap();
    cluster
}

/// Returns a policy by which servers and one node may connect to each other, and servers and other
/// nodes may not.
pub(crate) fn web_for_node(number: usize) -> Value {
    let node = json!([{ "nodes": { "matchLabels": { "kubernetes.io/hostname": node_name(number) } } }]);
    let all = json!([{ "nodes": {} }]);
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "nodes" },
        "spec": {
            "tier": "Admin",
            "priority": 1,
            "subject": { "pods": { "podSelector": { "matchLabels": { "app": "web" } } } },
            "ingress": [{ "action": "Accept", "from": node }, { "action": "Deny", "from": all }],
            "egress": [{ "action": "Accept", "to": node }, { "action": "Deny", "to": all }],
        },
    })
}

/// Returns the nodes and pods of `testdata/calico-vxlan`, with agents that read it.
pub(crate) fn dumped(directory: &Path) -> OverlayCluster {
    let mut cluster = OverlayCluster::new(env!("CARGO_BIN_EXE_tortie"), &[0, 0, 0], Encapsulation::Always).unwrap();
    let mut pods = Vec::new();
    for number in 1..=3_u8 {
        let pod = |name: &str, net: u8, last: u8, ports: &[Port]| {
            let v6 = Ipv6Addr::new(0xfd00, 0x66, 0, net.into(), 0, 0, 0, last.into());
            let addresses = [IpAddr::from([10, 66, net, last]), v6.into()];
            Pod::new("shop", name, addresses, ports.iter().copied()).on(usize::from(number) - 1)
        };
        pods.push(pod(&format!("web{number}"), number, 66, &[Port::tcp(80)]));
        pods.push(pod(&format!("friend{number}"), number, 67, &[]));
        pods.push(pod(&format!("stranger{number}"), number, 68, &[]));
        if number == 3 {
            // An address from a block of the second node.
            pods.push(pod("friend4", 2, 90, &[]));
        }
    }
    cluster.lab.set_pods(&pods).unwrap();
    cluster.read_from(directory);
    cluster
}

/// Returns the flows to servers that policy allows, and those that it denies.
fn flows(cluster: &OverlayCluster) -> (Vec<Flow>, Vec<Flow>) {
    cluster.lab.flows().into_iter().partition(|flow| flow.from.to_string().starts_with("shop/friend"))
}

/// Waits until each friend reaches the server on each node. No other pod may reach it meanwhile.
#[track_caller]
pub(crate) fn until_connected(cluster: &mut OverlayCluster, when: &str) {
    let (allowed, denied) = flows(cluster);
    let flows = [allowed.clone(), denied.clone()].concat();
    until(cluster, when, |cluster| {
        let measured = cluster.lab.probe(&flows, &Timing::default()).unwrap();
        for flow in &denied {
            assert!(!measured.reached(flow), "{when}: {flow} is reached");
        }
        allowed.iter().all(|flow| measured.reached(flow))
    });
}

#[track_caller]
pub(crate) fn until(cluster: &mut OverlayCluster, condition: &str, mut done: impl FnMut(&OverlayCluster) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done(cluster) {
        cluster.check().unwrap();
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {condition}\n{}", cluster.describe());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Path of packets from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoutePath {
    Tunnel,
    Parent,
    /// Neither, or different paths in the two families.
    Other,
}

/// Returns the path of the routes from one node to the IPAM blocks of another.
pub(crate) fn route_path(cluster: &OverlayCluster, from: usize, to: usize) -> RoutePath {
    let number = to + 1;
    let lines = format!("ip route show 10.66.{number}.0/26; ip -6 route show fd00:66:{number}::/122");
    let routes = cluster.shell(from, &lines);
    let is_of = |v4: &str, v6: &str| routes.contains(&format!("dev {v4} ")) && routes.contains(&format!("dev {v6} "));
    match (is_of("vxlan.calico", "vxlan-v6.calico"), is_of("eth0", "eth0") && !routes.contains("vxlan")) {
        (true, false) => RoutePath::Tunnel,
        (false, true) => RoutePath::Parent,
        _ => RoutePath::Other,
    }
}
