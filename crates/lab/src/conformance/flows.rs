//! Holds the flows that agents tell against the measured verdicts of packets, and against the rules that `tortie_analysis::trace` names.
//!
//! What must be told of a row, by whom:
//!
//! - A pod that talks to itself does so behind its interface: nobody tells a flow.
//! - Both ends on one node: its agent tells one flow with the packet's fate, all that decided at the source, and all
//!   that decided at the destination. Where the source is not let out, nothing decided at the destination.
//! - Ends on two nodes: the agent of the source tells what decided there, and allowed means let out. The agent of the
//!   destination tells what decided there and the packet's fate; nothing, if the packet was not let out.
//!
//! Every end has something that decides: a rule, the end of a tier, or a profile; each pod has that of its namespace. There
//! are no rows from or to a node itself, or from outside, and no host endpoints; their part of a flow must be empty.

mod tracer;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::Deserialize;

use crate::pods::{Flow, Protocol};
pub(super) use tracer::Tracer;

/// A rule, or an end of rules, that said what becomes of a packet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Hit {
    /// `allow`, `deny` or `pass`.
    pub verdict: String,
    /// The tier.
    pub tier: Option<String>,
    /// The policy.
    pub policy: Option<String>,
    /// The profile.
    pub profile: Option<String>,
    /// The rule, from 0.
    pub rule: Option<usize>,
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.verdict)?;
        let owner = [("tier", &self.tier), ("policy", &self.policy), ("profile", &self.profile)];
        for (what, name) in owner.into_iter().filter_map(|(what, name)| Some((what, name.as_ref()?))) {
            write!(f, " {what} {name}")?;
        }
        self.rule.map_or(Ok(()), |rule| write!(f, " rule {rule}"))
    }
}

/// An end of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ToldEnd {
    /// `namespace/pod`, where it is one.
    #[serde(default)]
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: Option<u16>,
}

/// A flow as an agent tells it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ToldFlow {
    /// `started` at first.
    pub stage: String,
    /// `allow` or `deny`.
    pub verdict: String,
    /// Where it comes from.
    pub source: ToldEnd,
    /// Where it goes.
    pub destination: ToldEnd,
    /// `TCP` and so on.
    pub protocol: String,
    /// What decided at the source.
    pub egress: Vec<Hit>,
    /// What decided at the destination.
    pub ingress: Vec<Hit>,
    /// What decided at host endpoints.
    #[serde(default)]
    pub host: Vec<Hit>,
}

/// What tells one attempt from all others: protocol, source and destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attempt {
    pub(super) protocol: Protocol,
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
}

/// A row that was measured, and what is asked of the agents about it.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) flow: Flow,
    pub(super) attempt: Attempt,
    /// Whether the packet came through.
    pub(super) reached: bool,
    /// The numbers of the source's and of the destination's node.
    pub(super) nodes: [usize; 2],
    /// What decides at the source.
    pub(super) egress: Vec<Hit>,
    /// What decides at the destination.
    pub(super) ingress: Vec<Hit>,
}

/// Why a flow is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowFault {
    /// No such flow was told.
    Missing,
    /// A flow was told that cannot be.
    Unexpected,
    /// Something of it is told differently.
    Differs {
        /// What.
        what: &'static str,
        /// What is expected.
        expected: String,
        /// What is told.
        told: String,
    },
}

/// A flow that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowMismatch {
    /// The row.
    pub flow: Flow,
    /// The number of the node whose agent tells it, from 0.
    pub node: usize,
    /// What is wrong.
    pub fault: FlowFault,
}

impl fmt::Display for FlowMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, flow on node {}: ", self.flow, self.node + 1)?;
        match &self.fault {
            FlowFault::Missing => f.write_str("not told"),
            FlowFault::Unexpected => f.write_str("told, although no packet can have been there"),
            FlowFault::Differs { what, expected, told } => write!(f, "{what}: expected {expected}, told {told}"),
        }
    }
}

/// The flows that began of late, by node and attempt.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<(usize, Attempt), ToldFlow>);

impl Told {
    pub(super) fn add(&mut self, node: usize, flow: ToldFlow) {
        let port = |end: &ToldEnd| Some(SocketAddr::new(end.address, end.port?));
        let (Ok(protocol), Some(source), Some(target)) =
            (flow.protocol.parse(), port(&flow.source), port(&flow.destination))
        else {
            return;
        };
        // One that is decided about otherwise ends, and starts again.
        if flow.stage == "started" {
            self.0.insert((node, Attempt { protocol, source, target }), flow);
        }
    }
}

/// What the agent of a node must tell of a row.
struct Expected<'a> {
    allowed: bool,
    egress: &'a [Hit],
    ingress: &'a [Hit],
}

impl Row {
    /// For each node at an end what its agent must tell; `None` if nothing.
    fn expected(&self) -> Vec<(usize, Option<Expected<'_>>)> {
        let [from, to] = self.nodes;
        if self.flow.from == self.flow.to {
            return vec![(from, None)];
        }
        let let_out = self.egress.last().is_none_or(|hit| hit.verdict != "deny");
        let (egress, ingress) = (&self.egress[..], &self.ingress[..]);
        if from == to {
            let ingress = if let_out { ingress } else { &[] };
            return vec![(from, Some(Expected { allowed: self.reached, egress, ingress }))];
        }
        let at_target = Expected { allowed: self.reached, egress: &[], ingress };
        vec![(from, Some(Expected { allowed: let_out, egress, ingress: &[] })), (to, let_out.then_some(at_target))]
    }

    /// How many flows must be told.
    pub(super) fn flows(&self) -> usize {
        self.expected().iter().filter(|(_, expected)| expected.is_some()).count()
    }

    /// What is wrong with what was told.
    pub(super) fn mismatches(&self, told: &Told) -> Vec<FlowMismatch> {
        let mismatch = |(node, expected): (usize, Option<Expected<'_>>)| {
            let fault = match (expected, told.0.get(&(node, self.attempt))) {
                (None, None) => None,
                (None, Some(_)) => Some(FlowFault::Unexpected),
                (Some(_), None) => Some(FlowFault::Missing),
                (Some(expected), Some(told)) => self.difference(&expected, told),
            };
            fault.map(|fault| FlowMismatch { flow: self.flow.clone(), node, fault })
        };
        self.expected().into_iter().filter_map(mismatch).collect()
    }

    fn difference(&self, expected: &Expected<'_>, told: &ToldFlow) -> Option<FlowFault> {
        let verdict = if expected.allowed { "allow" } else { "deny" };
        let aspects = [
            ("verdict", verdict.to_owned(), told.verdict.clone()),
            ("source", self.flow.from.to_string(), told.source.name.clone()),
            ("destination", self.flow.to.to_string(), told.destination.name.clone()),
            ("egress", text(expected.egress), text(&told.egress)),
            ("ingress", text(expected.ingress), text(&told.ingress)),
            ("host endpoints", text(&[]), text(&told.host)),
        ];
        let wrong = aspects.into_iter().find(|(_, expected, told)| expected != told);
        wrong.map(|(what, expected, told)| FlowFault::Differs { what, expected, told })
    }
}

fn text(hits: &[Hit]) -> String {
    if hits.is_empty() {
        return "nothing".to_owned();
    }
    hits.iter().map(Hit::to_string).collect::<Vec<_>>().join(", then ")
}

#[cfg(test)]
mod tests;
