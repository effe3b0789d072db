//! Two pods whose policy alternates, to see when an agent has taken in a new state.
//!
//! Without it a measurement could come too early and find, in every row that the step does not change, the state
//! before. The canary's policy is the last thing that a step changes; once it is in force, the rest should be.
//! Its namespace has a label of its own, and no namespaced policy of a case can select its pods.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde_json::{Value, json};

use crate::{
    cases::{Addressing, Cluster, ClusterPod, ContainerPort, LabelledNamespace, Verdict},
    lab::{Family, Flow, Place, Port, Protocol},
};

const NAMESPACE: &str = "canary";
const PORTS: [u16; 2] = [1, 2];

/// Opens one port and closes the other, the other way round at each turn.
#[derive(Debug, Default)]
pub(super) struct Canary {
    turn: usize,
}

impl Canary {
    /// Flies: from now on the other port must be open.
    pub(super) fn toggle(&mut self) {
        self.turn += 1;
    }

    /// Adds the canary's pods to a cluster.
    pub(super) fn join(cluster: &mut Cluster, addressing: Addressing) {
        let labels = BTreeMap::from([("canary".to_owned(), "canary".to_owned())]);
        cluster.namespaces.push(LabelledNamespace { name: NAMESPACE.to_owned(), labels: labels.clone() });
        let port = |container_port| ContainerPort { name: None, container_port, protocol: Protocol::Tcp };
        for (name, last) in [("client", 1), ("server", 2)] {
            let v4 = IpAddr::V4(Ipv4Addr::new(172, 30, 0, last));
            let v6 = IpAddr::V6(Ipv6Addr::new(0xfd00, 0xca, 0, 0, 0, 0, 0, last.into()));
            cluster.pods.push(ClusterPod {
                namespace: NAMESPACE.to_owned(),
                name: name.to_owned(),
                labels: labels.clone(),
                addresses: match addressing {
                    Addressing::V4 => vec![v4],
                    Addressing::V6 => vec![v6],
                    Addressing::Dual => vec![v4, v6],
                },
                ports: if name == "server" { PORTS.map(port).to_vec() } else { Vec::new() },
            });
        }
    }

    /// The policy of this turn.
    pub(super) fn policy(&self) -> Value {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": { "name": "canary", "namespace": NAMESPACE },
            "spec": {
                "podSelector": {},
                "policyTypes": ["Ingress"],
                "ingress": [{ "ports": [{ "protocol": "TCP", "port": self.open_port() }] }],
            },
        })
    }

    /// The flow that this turn opens.
    pub(super) fn open_flow(&self, addressing: Addressing) -> Flow {
        flow(self.open_port(), if addressing == Addressing::V4 { Family::V4 } else { Family::V6 })
    }

    /// What must become of the canary's flows in this turn.
    pub(super) fn expected(&self, addressing: Addressing) -> Vec<(Flow, Verdict)> {
        let families: &[Family] = match addressing {
            Addressing::V4 => &[Family::V4],
            Addressing::V6 => &[Family::V6],
            Addressing::Dual => &[Family::V4, Family::V6],
        };
        let verdict = |port| Verdict { ingress: port == self.open_port(), egress: true };
        families.iter().flat_map(|&family| PORTS.map(|port| (flow(port, family), verdict(port)))).collect()
    }

    fn open_port(&self) -> u16 {
        PORTS[self.turn % PORTS.len()]
    }
}

fn flow(port: u16, family: Family) -> Flow {
    Flow { family, port: Port::tcp(port), from: Place::pod(NAMESPACE, "client"), to: Place::pod(NAMESPACE, "server") }
}
