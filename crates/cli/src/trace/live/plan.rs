use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use tortie_analysis::trace::Place;
use tortie_linux::probe::Probe;
use tortie_model::{Hostname, NetworkSetName};

use super::super::expansion::{Expansion, Group, Member};
use super::super::question::{Question, QuestionArgs, Transport};
use super::super::view::{View, ViewError};
use super::flow::TracedFlow;

/// Maximum number of a Service's backends whose packets are traced.
const MOST_BACKENDS: usize = 100;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) flow: TracedFlow,
    pub(super) method: TraceMethod,
    pub(super) notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TraceMethod {
    /// A probe, from a pod with this interface on the node.
    FromPod { interface: Option<String> },
    /// A probe, from the node itself.
    FromNode,
    /// Another process. `request` asks the user to start it; it is printed after the flow.
    Watch { request: String },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum PlanError {
    #[error(transparent)]
    View(#[from] ViewError),
    #[error("network set {0} is no single address; pass one of its addresses")]
    ManyAddresses(NetworkSetName),
    #[error(
        "neither end is on this node, {node}, but on {others}: run this there, or give the name of this node with --node"
    )]
    Elsewhere {
        node: Hostname,
        /// The nodes of the ends.
        others: String,
    },
}

impl Plan {
    pub(super) fn new(
        watch: bool,
        options: &QuestionArgs,
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
        let command = |more: &str| format!("tortie trace --live{more} --datastore {datastore} {}", options.flags());
        let port = match question.transport {
            Transport::Ports { source, .. } => source,
            Transport::Icmp { .. } | Transport::Other { .. } => super::source_port(),
        };
        let probe = TracedFlow::new(question.transport, source, destination, Some(port), backends.clone());
        let is_possible = Probe::is_possible(probe.protocol, probe.fields);
        if is_source && !watch && is_possible {
            if !elsewhere.is_empty() {
                let nodes = elsewhere.join(", ");
                notes.push(format!(
                    "the other end is on {nodes}: to trace the packets there as well, run this there first, then this \
                     command again: {}",
                    command(" --watch")
                ));
            }
            let method = match &from {
                Place::Workload(key) => {
                    let interface = view.workload(key).and_then(|workload| workload.iface);
                    TraceMethod::FromPod { interface: interface.map(|name| name.to_string()) }
                }
                Place::Node(_) | Place::Outside => TraceMethod::FromNode,
            };
            return Ok(Self { flow: probe, method, notes });
        }
        let request = match node_of(&from) {
            _ if is_source && !watch => "; probes of this protocol cannot be sent, start the flow now".to_owned(),
            Some(other) if !is_source => format!("; to send a probe, run this on {other} now: {}", command("")),
            _ => "; start the flow now".to_owned(),
        };
        let flow = TracedFlow::new(question.transport, source, destination, options.source_port, backends);
        Ok(Self { flow, method: TraceMethod::Watch { request }, notes })
    }
}

fn destination(
    question: &Question,
    view: &View,
    notes: &mut Vec<String>,
) -> Result<(IpAddr, Vec<SocketAddr>), PlanError> {
    let (service, backends) = match view.expand(question)? {
        Expansion::Connection => {
            let (_, address) = view.find("to", &question.to, question.family).map_err(ViewError::from)?;
            return Ok((address, Vec::new()));
        }
        Expansion::Group(Group::NetworkSet(set) | Group::Pairs { set, .. }, _) => {
            return Err(PlanError::ManyAddresses(set));
        }
        Expansion::Group(Group::Service { service, .. }, backends) => (service, backends),
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
