//! Namespaces and pods of a case.

use std::{collections::BTreeMap, net::IpAddr};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::pods::{LabHost, Pod, Port, Protocol, node_name};

/// Labels of a Kubernetes object.
pub type Labels = BTreeMap<String, String>;

/// A namespace with its labels.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LabelledNamespace {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
}

/// A port of a container's specification.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    /// Name by which policies refer to it, if it has one.
    pub name: Option<String>,
    /// The number.
    pub container_port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

/// A pod with its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
    /// Its addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// Served ports, named or not.
    pub ports: Vec<ContainerPort>,
    /// Number of its node, from 0.
    pub node: usize,
}

impl ClusterPod {
    /// Returns its place in a laboratory.
    #[must_use]
    pub fn place(&self) -> LabHost {
        LabHost::pod(&self.namespace, &self.name)
    }

    fn object(&self) -> Value {
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|port| {
                let mut entry = json!({ "containerPort": port.container_port, "protocol": port.protocol });
                if let Some(name) = &port.name {
                    entry["name"] = json!(name);
                }
                entry
            })
            .collect();
        let addresses: Vec<Value> = self.addresses.iter().map(|address| json!({ "ip": address })).collect();
        let mut status = json!({ "phase": "Running" });
        if let Some(first) = self.addresses.first() {
            status["podIP"] = json!(first);
            status["podIPs"] = json!(addresses);
        }
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": self.name, "namespace": self.namespace, "labels": self.labels },
            "spec": {
                "nodeName": node_name(self.node),
                "serviceAccountName": "default",
                "containers": [{ "name": "server", "image": "server", "ports": ports }],
            },
            "status": status,
        })
    }
}

/// The present namespaces and pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cluster {
    /// All namespaces.
    pub namespaces: Vec<LabelledNamespace>,
    /// All pods.
    pub pods: Vec<ClusterPod>,
}

impl Cluster {
    /// Assigns each pod to one of this many nodes by the last byte of its first address. Pods with
    /// adjacent addresses are on different nodes.
    pub fn spread(&mut self, nodes: usize) {
        for pod in &mut self.pods {
            let last = match pod.addresses.first() {
                Some(IpAddr::V4(address)) => address.octets()[3],
                Some(IpAddr::V6(address)) => address.octets()[15],
                None => 0,
            };
            pod.node = usize::from(last) % nodes.max(1);
        }
    }

    /// Returns the pods for a laboratory.
    #[must_use]
    pub fn lab_pods(&self) -> Vec<Pod> {
        let port = |port: &ContainerPort| Port { protocol: port.protocol, number: port.container_port };
        self.pods
            .iter()
            .map(|pod| Pod {
                place: pod.place(),
                addresses: pod.addresses.clone(),
                ports: pod.ports.iter().map(port).collect(),
                node: pod.node,
            })
            .collect()
    }

    /// Returns namespaces, service accounts and pods as Kubernetes objects.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        let mut objects = Vec::new();
        for namespace in &self.namespaces {
            let name = &namespace.name;
            objects.push(json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": { "name": name, "labels": namespace.labels },
            }));
            objects.push(json!({
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": { "name": "default", "namespace": name },
            }));
        }
        objects.extend(self.pods.iter().map(ClusterPod::object));
        objects
    }
}
