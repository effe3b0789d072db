//! Objects: pods of the node, each selected by some policies, and the allowed clients on other
//! nodes.

use serde_json::{Value, json};
use tortie_lab::pods::{LabHost, interface_name};

/// The lowest port that a policy allows in its first rule; the ports of its other rules are below.
const FIRST_PORT: usize = 20_000;
/// Name of the node.
pub(crate) const NODE: &str = "n1";

/// Objects that are written and removed together: a name, and the objects.
pub(crate) type Objects = (String, Vec<Value>);

/// Size of the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(crate) pods: usize,
    pub(crate) policies: usize,
    pub(crate) rules: usize,
    pub(crate) every_pod: bool,
}

impl Cluster {
    /// Returns the port that the first rule of the last policy allows after this many edits. No
    /// other policy allows it.
    pub(crate) fn port_of(self, edit: usize) -> usize {
        FIRST_PORT + self.policies.saturating_sub(1) + edit
    }

    /// Returns all objects, the policies last.
    pub(crate) fn objects(self) -> Vec<Objects> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bench"}});
        let pods = (0..self.pods).map(|number| self.server(number));
        let clients = (0..self.policies)
            .map(|client| pod(&format!("client-{client}"), &json!({"client": format!("c{client}")}), "n2", 66, client));
        let mut objects = vec![
            ("pods".to_owned(), std::iter::once(namespace).chain(pods).collect()),
            ("clients".to_owned(), clients.collect()),
        ];
        objects.extend((0..self.policies).map(|index| self.policy(index, FIRST_PORT + index)));
        objects
    }

    /// Returns one more pod, selected by as many policies as the existing ones.
    pub(crate) fn another_pod(self, number: usize) -> Objects {
        (format!("pod-{number}"), vec![self.server(number)])
    }

    /// Returns a policy whose first rule allows this port.
    pub(crate) fn policy(self, index: usize, port: usize) -> Objects {
        let selector = match self.every_pod {
            true => json!({}),
            false => json!({"matchLabels": {"app": self.app(index)}}),
        };
        let client = json!([{"podSelector": {"matchLabels": {"client": format!("c{index}")}}}]);
        let rules: Vec<Value> = std::iter::once(port)
            .chain(1..self.rules)
            .map(|port| json!({"from": client, "ports": [{"port": port}]}))
            .collect();
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": format!("p{index}"), "namespace": "bench"},
            "spec": {"podSelector": selector, "ingress": rules},
        });
        (format!("policy-{index}"), vec![policy])
    }

    fn app(self, index: usize) -> String {
        format!("a{}", index % self.pods.max(1))
    }

    fn server(self, number: usize) -> Value {
        pod(&server_name(number), &json!({"app": self.app(number)}), NODE, 65, number)
    }
}

fn server_name(number: usize) -> String {
    format!("server-{number}")
}

/// Returns the interface name of a pod of the node.
pub(crate) fn interface_of(number: usize) -> String {
    interface_name(&LabHost::pod("bench", &server_name(number))).expect("pods have interfaces")
}

/// Returns the name of the file that Felix and the agent keep while a pod's policy is in force.
pub(crate) fn status_file(number: usize) -> String {
    format!("k8s bench%2F{} eth0", server_name(number))
}

fn pod(name: &str, labels: &Value, node: &str, net: u8, index: usize) -> Value {
    let (high, low) = (index / 250, index % 250 + 1);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "bench", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": format!("10.{net}.{high}.{low}")}, {"ip": format!("fd00:{net}::{high}:{low}")}],
        },
    })
}
