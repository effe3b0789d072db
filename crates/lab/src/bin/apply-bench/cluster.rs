//! Manifests: pods of the node, each selected by some policies, and the allowed clients on other
//! nodes.

use std::fmt::Write as _;

use crate::Result;
use crate::node::Node;

/// The lowest port that a policy allows in its first rule; the ports of its other rules are below.
const FIRST_PORT: usize = 20_000;

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

    pub(crate) fn write(self, node: &Node) -> Result<()> {
        let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: bench}\n".to_owned();
        for pod in 0..self.pods {
            write_server(&mut text, pod)?;
        }
        node.write("pods.yaml", &text)?;
        text.clear();
        for client in 0..self.policies {
            write_pod(&mut text, &format!("client-{client}"), &format!("client: c{client}"), "elsewhere", 66, client)?;
        }
        node.write("clients.yaml", &text)?;
        for index in 0..self.policies {
            let (name, text) = self.policy(index, FIRST_PORT + index);
            node.write(&name, &text)?;
        }
        Ok(())
    }

    /// Returns the manifest of one more pod, like the existing ones.
    pub(crate) fn another_pod(self, number: usize) -> Result<String> {
        let mut text = String::new();
        write_server(&mut text, self.pods + number)?;
        Ok(text)
    }

    /// Returns the file name and the text of a policy.
    pub(crate) fn policy(self, index: usize, port: usize) -> (String, String) {
        let selected = match self.every_pod {
            true => String::new(),
            false => format!("matchLabels: {{app: a{}}}", index % self.pods.max(1)),
        };
        let mut text = format!(
            "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: p{index}, namespace: bench}}
spec:
  podSelector: {{{selected}}}
  ingress:
"
        );
        for port in std::iter::once(port).chain(1..self.rules) {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  - {{from: [{{podSelector: {{matchLabels: {{client: c{index}}}}}}}], ports: [{{port: {port}}}]}}"
            );
        }
        (format!("policy-{index}.yaml"), text)
    }
}

fn write_server(text: &mut String, pod: usize) -> Result<()> {
    write_pod(text, &format!("server-{pod}"), &format!("app: a{pod}"), "n1", 65, pod)
}

fn write_pod(text: &mut String, name: &str, label: &str, node: &str, net: u8, index: usize) -> Result<()> {
    let (high, low) = (index / 250, index % 250 + 1);
    writeln!(
        text,
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: bench, labels: {{{label}}}}}
spec: {{nodeName: {node}, containers: [{{name: c, image: i}}]}}
status: {{phase: Running, podIPs: [{{ip: 10.{net}.{high}.{low}}}, {{ip: 'fd00:{net}::{high}:{low}'}}]}}"
    )?;
    Ok(())
}
