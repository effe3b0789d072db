//! The manifests: pods of the node, each selected by some policies, and the clients that these admit, elsewhere.

use std::fmt::Write as _;

use crate::Result;
use crate::node::Node;

/// The first of the ports that policies admit.
const FIRST_PORT: usize = 20_000;

/// The port that the last policy admits after so many edits; no other admits any of these.
pub(crate) fn port_of(policies: usize, edit: usize) -> usize {
    FIRST_PORT + policies.saturating_sub(1) + edit
}

pub(crate) fn write_cluster(node: &Node, pods: usize, policies: usize) -> Result<()> {
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: bench}\n".to_owned();
    for pod in 0..pods {
        write_pod(&mut text, &format!("server-{pod}"), &format!("app: a{pod}"), "n1", 65, pod)?;
    }
    node.write("pods.yaml", &text)?;
    text.clear();
    for client in 0..policies {
        write_pod(&mut text, &format!("client-{client}"), &format!("client: c{client}"), "elsewhere", 66, client)?;
    }
    node.write("clients.yaml", &text)?;
    for index in 0..policies {
        let (name, text) = policy(index, pods, FIRST_PORT + index);
        node.write(&name, &text)?;
    }
    Ok(())
}

/// The name of a policy's file, and its text.
pub(crate) fn policy(index: usize, pods: usize, port: usize) -> (String, String) {
    let pod = index % pods.max(1);
    let text = format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: p{index}, namespace: bench}}
spec:
  podSelector: {{matchLabels: {{app: a{pod}}}}}
  ingress: [{{from: [{{podSelector: {{matchLabels: {{client: c{index}}}}}}}], ports: [{{port: {port}}}]}}]
"
    );
    (format!("policy-{index}.yaml"), text)
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
