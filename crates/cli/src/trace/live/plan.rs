//! Sender of the traced packets, and steps for other nodes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use tortie_analysis::trace::Place;
use tortie_model::{Hostname, NetworkSetName};

use super::super::meant::{Group, Meant, Member};
use super::super::question::{Question, QuestionArgs, Transport};
use super::super::view::{View, ViewError};
use super::flow::TracedFlow;
use super::probe::Probe;

/// Maximum number of a Service's backends whose packets are traced.
const MOST_BACKENDS: usize = 100;

/// Plan of a trace.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) flow: TracedFlow,
    pub(super) how: How,
    /// Notes to print with the answer.
    pub(super) notes: Vec<String>,
}

/// Sender of the packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// A probe, from a pod with this interface on the node.
    FromPod { interface: Option<String> },
    /// A probe, from the node itself.
    FromNode,
    /// Another process. `request` asks the user to start it; it is printed after the flow.
    Watch { request: String },
}

/// The reason why a flow cannot be traced on this node.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlanError {
    /// The flow is unknown.
    #[error(transparent)]
    View(#[from] ViewError),
    /// There are many flows.
    #[error("network set {0} has many addresses")]
    ManyAddresses(NetworkSetName),
    /// The flow does not pass this node.
    #[error(
        "neither end is on this node, {node}, but on {others}: run this there, or give the name of this node with --node"
    )]
    Elsewhere {
        /// This node.
        node: Hostname,
        /// The nodes of the ends.
        others: String,
    },
}

impl Plan {
    /// # Errors
    /// If nothing of the flow is to be seen on this node, with the nodes to ask.
    pub(super) fn new(
        watch: bool,
        words: &QuestionArgs,
        datastore: &str,
        question: &Question,
        view: &View,
        node: &Hostname,
    ) -> Result<Self, PlanError> {
        let (from, source) = view.find("from", &question.from, question.family).map_err(ViewError::from)?;
        let mut notes = Vec::new();
        let (destination, backends) = destination(question, view, &mut notes)?;
        let ends: Vec<Place> = match &*backends {
            [] => vec![view.place(destination)],
            backends => backends.iter().map(|end| view.place(end.ip())).collect(),
        };
        let nodes: BTreeSet<&str> = ends.iter().filter_map(node_of).collect();
        let elsewhere: Vec<&str> = nodes.iter().copied().filter(|of| *of != node.as_str()).collect();
        let is_source = node_of(&from) == Some(node.as_str());
        if !is_source && !nodes.contains(node.as_str()) {
            let all: BTreeSet<&str> = nodes.iter().copied().chain(node_of(&from)).collect();
            let others = all.into_iter().collect::<Vec<_>>().join(", ");
            return Err(PlanError::Elsewhere { node: node.clone(), others });
        }
        let command = |more: &str| format!("tortie trace --live{more} --datastore {datastore} {}", words.words());
        let port = match question.transport {
            Transport::Ports { source, .. } => source,
            Transport::Icmp { .. } | Transport::Other { .. } => super::source_port(),
        };
        let probe = TracedFlow::new(question.transport, source, destination, Some(port), backends.clone());
        let is_possible = Probe::is_possible(probe.protocol, probe.behind);
        if is_source && !watch && is_possible {
            if !elsewhere.is_empty() {
                let nodes = elsewhere.join(", ");
                notes.push(format!(
                    "the other end is on {nodes}: to trace the packets there as well, run this there first, then this \
                     command again: {}",
                    command(" --watch")
                ));
            }
            let how = match &from {
                Place::Workload(key) => {
                    let interface = view.workload(key).and_then(|workload| workload.iface);
                    How::FromPod { interface: interface.map(|name| name.to_string()) }
                }
                Place::Node(_) | Place::Outside => How::FromNode,
            };
            return Ok(Self { flow: probe, how, notes });
        }
        let request = match node_of(&from) {
            _ if is_source && !watch => "; probes of this protocol cannot be sent, start the flow now".to_owned(),
            Some(other) if !is_source => format!("; to send a probe, run this on {other} now: {}", command("")),
            _ => "; start the flow now".to_owned(),
        };
        let flow = TracedFlow::new(question.transport, source, destination, words.source_port, backends);
        Ok(Self { flow, how: How::Watch { request }, notes })
    }
}

/// Returns the destination address of the flow, and the backends if it is that of a Service.
fn destination(
    question: &Question,
    view: &View,
    notes: &mut Vec<String>,
) -> Result<(IpAddr, Vec<SocketAddr>), PlanError> {
    let (service, backends) = match view.meant(question)? {
        Meant::Connection => {
            let (_, address) = view.find("to", &question.to, question.family).map_err(ViewError::from)?;
            return Ok((address, Vec::new()));
        }
        Meant::Group(Group::NetworkSet(set) | Group::Pairs { set, .. }, _) => {
            return Err(PlanError::ManyAddresses(set));
        }
        Meant::Group(Group::Service { service, .. }, backends) => (service, backends),
    };
    let end = |member: &Member| match member {
        Member::Backend(backend) => Some(SocketAddr::new(backend.address, backend.port)),
        Member::Network(_) | Member::Pair(..) => None,
    };
    let ends: Vec<SocketAddr> = backends.iter().filter_map(|(member, _)| end(member)).take(MOST_BACKENDS).collect();
    if backends.len() > ends.len() {
        let (some, all) = (ends.len(), backends.len());
        notes.push(format!("answers are traced of the first {some} of {all} backends only"));
    }
    let address = view.service_address(&question.to, &service, question.family).map_err(ViewError::from)?;
    Ok((address, ends))
}

fn node_of(place: &Place) -> Option<&str> {
    match place {
        Place::Workload(key) => Some(key.host()),
        Place::Node(host) => Some(host.as_str()),
        Place::Outside => None,
    }
}
