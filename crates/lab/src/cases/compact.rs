//! File format of cases, and its expansion.

use std::{collections::BTreeMap, net::IpAddr, num::ParseIntError};

use serde::Deserialize;
use serde_json::Value;

use super::{Cluster, ClusterPod, ContainerPort, FlowVerdict, LabelledNamespace, Labels};
use crate::pods::{Family, Flow, LabHost, NotAPod, NotAProtocol, Port, Protocol};

/// Error in the content of a case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContentError {
    /// An end of a flow is not a valid pod name.
    #[error(transparent)]
    Place(#[from] NotAPod),
    /// An end of a flow is not in the cluster.
    #[error("no pod {0} in the cluster")]
    NoPod(String),
    /// The matrix of a port does not have a row and a column for each pod.
    #[error("the matrix of {port} is not {pods} by {pods}")]
    Size {
        /// The port as written.
        port: String,
        /// The number of pods.
        pods: usize,
    },
    /// A port is not of the form `PROTOCOL/PORT`.
    #[error("{0:?} is not PROTOCOL/PORT")]
    Port(String),
    /// The protocol of a port is unknown.
    #[error("{port:?}: {source}")]
    Protocol {
        /// The port as written.
        port: String,
        /// The reason.
        source: NotAProtocol,
    },
    /// The number of a port is invalid.
    #[error("{port:?}: {source}")]
    Number {
        /// The port as written.
        port: String,
        /// The reason.
        source: ParseIntError,
    },
    /// A matrix contains an unknown character.
    #[error("{0:?} in a matrix")]
    Sign(char),
}

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
    pub(super) fn expand(self) -> Result<super::Case, ContentError> {
        let common = self.cluster.expand();
        let steps = self.steps.into_iter().map(|step| step.expand(&common)).collect::<Result<_, _>>()?;
        Ok(super::Case { file: self.file, name: self.name, tags: self.tags, steps })
    }
}

impl Step {
    fn expand(self, common: &Cluster) -> Result<super::Step, ContentError> {
        let cluster = self.cluster.map_or_else(|| common.clone(), CompactCluster::expand);
        let place = |text: &String| -> Result<LabHost, ContentError> {
            let place: LabHost = text.parse()?;
            let exists = cluster.pods.iter().any(|pod| pod.place() == place);
            exists.then_some(place).ok_or_else(|| ContentError::NoPod(text.clone()))
        };
        let flow =
            |from: &LabHost, to: &LabHost, port| Flow { family: Family::V4, port, from: from.clone(), to: to.clone() };
        let pods = self.pods.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let mut expected = Vec::new();
        for (key, rows) in &self.matrix {
            let port = parse_port(key)?;
            if rows.len() != pods.len() || rows.iter().any(|row| row.chars().count() != pods.len()) {
                return Err(ContentError::Size { port: key.clone(), pods: pods.len() });
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
            .collect::<Result<_, ContentError>>()?;
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

fn parse_port(text: &str) -> Result<Port, ContentError> {
    let (protocol, number) = text.split_once('/').ok_or_else(|| ContentError::Port(text.to_owned()))?;
    let port = text.to_owned();
    match (protocol.parse(), number.parse()) {
        (Ok(protocol), Ok(number)) => Ok(Port { protocol, number }),
        (Err(source), _) => Err(ContentError::Protocol { port, source }),
        (_, Err(source)) => Err(ContentError::Number { port, source }),
    }
}

/// Parses a character of a matrix; `None` for an untested flow.
fn parse_verdict(sign: char) -> Result<Option<FlowVerdict>, ContentError> {
    match sign {
        '.' => Ok(Some(FlowVerdict { ingress: true, egress: true })),
        'I' => Ok(Some(FlowVerdict { ingress: false, egress: true })),
        'E' => Ok(Some(FlowVerdict { ingress: true, egress: false })),
        'B' => Ok(Some(FlowVerdict { ingress: false, egress: false })),
        '-' | ' ' => Ok(None),
        other => Err(ContentError::Sign(other)),
    }
}
