//! Pods whose policy alternates, one server on each node and one client, to detect when each agent
//! has applied a new state.
//!
//! Without the canary, a measurement could come too early and find the previous state in every row
//! that the step does not change. The canary's policy is the last change of a step; once it is in
//! force, the rest should be. Its namespace has a dedicated label, and no namespaced policy of a
//! case can select its pods. Cluster-wide policies can. Above them is a guard policy that passes
//! the canary's traffic to the canary's policy, which leaves no decision to the policies below.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde_json::{Value, json};

use crate::{
    cases::{Addressing, Cluster, ClusterPod, ContainerPort, FlowVerdict, LabelledNamespace},
    pods::{Family, Flow, LabHost, Port, Protocol},
};

const NAMESPACE: &str = "canary";
const PORTS: [u16; 2] = [1, 2];

/// Kinds whose policies can select the canary before its own policy does.
const GUARDS: [Guard; 2] = [
    Guard { api_version: "policy.networking.k8s.io/v1alpha1", kind: "AdminNetworkPolicy", tier: None },
    Guard { api_version: "policy.networking.k8s.io/v1alpha2", kind: "ClusterNetworkPolicy", tier: Some("Admin") },
];

struct Guard {
    api_version: &'static str,
    kind: &'static str,
    tier: Option<&'static str>,
}

impl Guard {
    /// Returns the guard, with the highest priority, which no case uses.
    fn policy(&self) -> Value {
        let pass = |peer: &str| json!([{ "action": "Pass", peer: [{ "namespaces": {} }] }]);
        let mut policy = json!({
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": { "name": "canary" },
            "spec": {
                "priority": 0,
                "subject": { "namespaces": { "matchLabels": { NAMESPACE: NAMESPACE } } },
                "ingress": pass("from"),
                "egress": pass("to"),
            },
        });
        if let Some(tier) = self.tier {
            policy["spec"]["tier"] = tier.into();
        }
        policy
    }
}

/// Opens one port and closes the other, and exchanges them at each turn.
#[derive(Debug)]
pub(super) struct Canary {
    turn: usize,
    /// Number of nodes.
    nodes: usize,
    addressing: Addressing,
}

impl Canary {
    pub(super) fn new(nodes: usize, addressing: Addressing) -> Self {
        Self { turn: 0, nodes, addressing }
    }

    /// Begins a turn: from now on the other port must be open.
    pub(super) fn toggle(&mut self) {
        self.turn += 1;
    }

    /// Adds the canary's pods to a cluster.
    pub(super) fn join(&self, cluster: &mut Cluster) {
        let labels = BTreeMap::from([(NAMESPACE.to_owned(), NAMESPACE.to_owned())]);
        cluster.namespaces.push(LabelledNamespace { name: NAMESPACE.to_owned(), labels: labels.clone() });
        let port = |container_port| ContainerPort { name: None, container_port, protocol: Protocol::Tcp };
        let servers = (0..self.nodes).zip(2..).map(|(node, last)| (server(node), node, last, &PORTS[..]));
        for (name, node, last, ports) in std::iter::once(("client".to_owned(), 0, 1, &[][..])).chain(servers) {
            let v4 = IpAddr::V4(Ipv4Addr::new(172, 30, 0, last));
            let v6 = IpAddr::V6(Ipv6Addr::new(0xfd00, 0xca, 0, 0, 0, 0, 0, last.into()));
            cluster.pods.push(ClusterPod {
                namespace: NAMESPACE.to_owned(),
                name,
                labels: labels.clone(),
                addresses: match self.addressing {
                    Addressing::V4 => vec![v4],
                    Addressing::V6 => vec![v6],
                    Addressing::Dual => vec![v4, v6],
                },
                ports: ports.iter().copied().map(port).collect(),
                node,
            });
        }
    }

    /// Returns the canary's policies for a step: guards against the step's policies, and last the
    /// policy of this turn.
    pub(super) fn policies(&self, of_step: &[Value]) -> Vec<Value> {
        let guards = GUARDS.iter().filter(|guard| of_step.iter().any(|policy| policy["kind"] == guard.kind));
        guards.map(Guard::policy).chain([self.policy()]).collect()
    }

    fn policy(&self) -> Value {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": { "name": "canary", "namespace": NAMESPACE },
            "spec": {
                "podSelector": {},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "ports": [{ "protocol": "TCP", "port": self.open_port() }] }],
                "egress": [{}],
            },
        })
    }

    /// Returns the flows that this turn opens, one to each node.
    pub(super) fn open_flows(&self) -> Vec<Flow> {
        let family = if self.addressing == Addressing::V4 { Family::V4 } else { Family::V6 };
        (0..self.nodes).map(|node| flow(node, self.open_port(), family)).collect()
    }

    /// Returns the expected verdicts of the canary's flows in this turn.
    pub(super) fn expected(&self) -> Vec<(Flow, FlowVerdict)> {
        let families: &[Family] = match self.addressing {
            Addressing::V4 => &[Family::V4],
            Addressing::V6 => &[Family::V6],
            Addressing::Dual => &[Family::V4, Family::V6],
        };
        let verdict = |port| FlowVerdict { ingress: port == self.open_port(), egress: true };
        let of_family =
            |family| (0..self.nodes).flat_map(move |node| PORTS.map(|port| (flow(node, port, family), verdict(port))));
        families.iter().copied().flat_map(of_family).collect()
    }

    fn open_port(&self) -> u16 {
        PORTS[self.turn % PORTS.len()]
    }
}

/// Returns the name of the server on the node of this number.
fn server(node: usize) -> String {
    if node == 0 { "server".to_owned() } else { format!("server{}", node + 1) }
}

fn flow(node: usize, port: u16, family: Family) -> Flow {
    let [from, to] = [LabHost::pod(NAMESPACE, "client"), LabHost::pod(NAMESPACE, &server(node))];
    Flow { family, port: Port::tcp(port), from, to }
}
