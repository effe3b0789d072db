//! Three nodes, a server, a friend of it and a stranger on each, and what must become of their packets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use serde_json::json;
use tortie_testkit::cases::{ClusterPod, ContainerPort, LabelledNamespace};
use tortie_testkit::lab::{Flow, Protocol, Timing};
use tortie_testkit::overlay::{Encapsulation, OverlayCluster};

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
    cluster.tell().unwrap();
    cluster
}

/// Every flow to a server, and whether policy allows it.
fn flows(cluster: &OverlayCluster) -> (Vec<Flow>, Vec<Flow>) {
    cluster.lab.flows().into_iter().partition(|flow| flow.from.to_string().starts_with("shop/friend"))
}

/// Waits until each friend reaches the server on each node. Nobody else does, now and then.
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
pub(crate) fn until(cluster: &mut OverlayCluster, what: &str, mut done: impl FnMut(&OverlayCluster) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done(cluster) {
        cluster.check().unwrap();
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}\n{}", cluster.describe());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether routes from the first node to this one go through tunnels, in both families.
pub(crate) fn is_tunnelled(cluster: &OverlayCluster, to: usize) -> bool {
    let number = to + 1;
    let routes =
        cluster.shell(0, &format!("ip route show 10.66.{number}.0/26; ip -6 route show fd00:66:{number}::/122"));
    routes.contains("vxlan.calico") && routes.contains("vxlan-v6.calico")
}
