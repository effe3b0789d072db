//! The form of a case in a file, and its expansion.

use std::{collections::BTreeMap, net::IpAddr};

use serde::Deserialize;
use serde_json::Value;

use super::{Cluster, ClusterPod, ContainerPort, LabelledNamespace, Labels, Verdict};
use crate::pods::{Family, Flow, Place, Port, Protocol};

#[derive(Deserialize)]
pub(super) struct Case {
    file: String,
    name: String,
    tags: Vec<String>,
    cluster: CompactCluster,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    #[serde(default)]
    actions: Vec<String>,
    cluster: Option<CompactCluster>,
    policies: Vec<Value>,
    pods: Vec<String>,
    matrix: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    contested: Vec<(String, String, Protocol, u16)>,
}

#[derive(Deserialize)]
struct CompactCluster {
    namespaces: Vec<LabelledNamespace>,
    pods: Vec<CompactPod>,
}

#[derive(Deserialize)]
struct CompactPod {
    namespace: String,
    name: String,
    labels: Labels,
    ip: IpAddr,
    ports: Vec<ContainerPort>,
}

impl Case {
    pub(super) fn expand(self) -> Result<super::Case, String> {
        let common = self.cluster.expand();
        let steps = self.steps.into_iter().map(|step| step.expand(&common)).collect::<Result<_, _>>()?;
        Ok(super::Case { file: self.file, name: self.name, tags: self.tags, steps })
    }
}

impl Step {
    fn expand(self, common: &Cluster) -> Result<super::Step, String> {
        let cluster = self.cluster.map_or_else(|| common.clone(), CompactCluster::expand);
        let place = |text: &String| -> Result<Place, String> {
            let place: Place = text.parse().map_err(|error| format!("{error}"))?;
            let known = cluster.pods.iter().any(|pod| pod.place() == place);
            known.then_some(place).ok_or_else(|| format!("no pod {text} in the cluster"))
        };
        let flow =
            |from: &Place, to: &Place, port| Flow { family: Family::V4, port, from: from.clone(), to: to.clone() };
        let pods = self.pods.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let mut expected = Vec::new();
        for (key, rows) in &self.matrix {
            let port = parse_port(key)?;
            if rows.len() != pods.len() || rows.iter().any(|row| row.chars().count() != pods.len()) {
                return Err(format!("the matrix of {key} is not {0} by {0}", pods.len()));
            }
            for (from, row) in pods.iter().zip(rows) {
                for (to, sign) in pods.iter().zip(row.chars()) {
                    if let Some(verdict) = parse_verdict(sign)? {
                        expected.push((flow(from, to, port), verdict));
                    }
                }
            }
        }
        let contested = self
            .contested
            .iter()
            .map(|(from, to, protocol, number)| {
                Ok(flow(&place(from)?, &place(to)?, Port { protocol: *protocol, number: *number }))
            })
            .collect::<Result<_, String>>()?;
        Ok(super::Step { actions: self.actions, cluster, policies: self.policies, expected, contested })
    }
}

impl CompactCluster {
    fn expand(self) -> Cluster {
        let pods = self.pods.into_iter().map(|pod| ClusterPod {
            namespace: pod.namespace,
            name: pod.name,
            labels: pod.labels,
            addresses: vec![pod.ip],
            ports: pod.ports,
            node: 0,
        });
        Cluster { namespaces: self.namespaces, pods: pods.collect() }
    }
}

fn parse_port(text: &str) -> Result<Port, String> {
    let (protocol, number) = text.split_once('/').ok_or_else(|| format!("{text:?} is not PROTOCOL/PORT"))?;
    Ok(Port {
        protocol: protocol.parse().map_err(|error| format!("{text:?}: {error}"))?,
        number: number.parse().map_err(|error| format!("{text:?}: {error}"))?,
    })
}

/// `None` for what is not tested.
fn parse_verdict(sign: char) -> Result<Option<Verdict>, String> {
    match sign {
        '.' => Ok(Some(Verdict { ingress: true, egress: true })),
        'I' => Ok(Some(Verdict { ingress: false, egress: true })),
        'E' => Ok(Some(Verdict { ingress: true, egress: false })),
        'B' => Ok(Some(Verdict { ingress: false, egress: false })),
        '-' | ' ' => Ok(None),
        other => Err(format!("{other:?} in a matrix")),
    }
}
