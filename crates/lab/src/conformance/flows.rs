//! Comparison of the flows that agents report with the measured verdicts, and with the rules that
//! `tortie_analysis::trace` names.
//!
//! Expected flows of a row:
//!
//! - Packets of a pod to itself do not pass its interface, so there is no flow.
//! - Both ends on one node: its agent reports one flow with the packet's verdict, the hits at the
//!   source and the hits at the destination. If the source denies egress, there are no hits at the
//!   destination.
//! - Ends on two nodes: the agent of the source reports the hits there, with the verdict of egress.
//!   The agent of the destination reports the hits there, with the packet's verdict, unless the
//!   source denied egress.
//!
//! Every end has a hit: a rule, the end of a tier, or a profile, as each pod has the profile of its
//! namespace. There are no rows to or from a node or the outside, and no host endpoints; the hits
//! of host endpoints must be empty.

mod tracer;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::Deserialize;

use crate::pods::{Flow, Protocol};
pub(super) use tracer::Tracer;

/// A rule, or the end of a tier, that decided about a packet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Hit {
    /// `allow`, `deny` or `pass`.
    pub verdict: String,
    /// Name of the tier.
    pub tier: Option<String>,
    /// Name of the policy.
    pub policy: Option<String>,
    /// Name of the profile.
    pub profile: Option<String>,
    /// Index of the rule, from 0.
    pub rule: Option<usize>,
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.verdict)?;
        let owner = [("tier", &self.tier), ("policy", &self.policy), ("profile", &self.profile)];
        for (field, name) in owner.into_iter().filter_map(|(field, name)| Some((field, name.as_ref()?))) {
            write!(f, " {field} {name}")?;
        }
        self.rule.map_or(Ok(()), |rule| write!(f, " rule {rule}"))
    }
}

/// An end of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ReportedEnd {
    /// `namespace/pod` of a pod, else empty.
    #[serde(default)]
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: Option<u16>,
}

/// A flow as an agent reports it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ReportedFlow {
    /// `started` in the first report.
    pub stage: String,
    /// `allow` or `deny`.
    pub verdict: String,
    /// Source of the flow.
    pub source: ReportedEnd,
    /// Destination of the flow.
    pub destination: ReportedEnd,
    /// Name of the protocol, such as `TCP`.
    pub protocol: String,
    /// Hits at the source.
    pub egress: Vec<Hit>,
    /// Hits at the destination.
    pub ingress: Vec<Hit>,
    /// Hits at host endpoints.
    #[serde(default)]
    pub host: Vec<Hit>,
}

/// Identity of an attempt: protocol, source and destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attempt {
    pub(super) protocol: Protocol,
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
}

/// A measured row, with the expected hits.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) flow: Flow,
    pub(super) attempt: Attempt,
    /// Whether the packet arrived.
    pub(super) reached: bool,
    /// Numbers of the source's and the destination's node.
    pub(super) nodes: [usize; 2],
    /// Expected hits at the source.
    pub(super) egress: Vec<Hit>,
    /// Expected hits at the destination.
    pub(super) ingress: Vec<Hit>,
}

/// Difference between an expected and a reported flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowFault {
    /// An expected flow was not reported.
    Missing,
    /// A flow was reported that must not occur.
    Unexpected,
    /// A field of the flow differs.
    Differs {
        /// Name of the field.
        field: &'static str,
        /// Expected value.
        expected: String,
        /// Reported value.
        reported: String,
    },
}

/// A row whose flow differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowMismatch {
    /// The row.
    pub flow: Flow,
    /// Number of the node whose agent reports it, from 0.
    pub node: usize,
    /// The difference.
    pub fault: FlowFault,
}

impl fmt::Display for FlowMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, flow on node {}: ", self.flow, self.node + 1)?;
        match &self.fault {
            FlowFault::Missing => f.write_str("not reported"),
            FlowFault::Unexpected => f.write_str("reported, although no packet can have passed"),
            FlowFault::Differs { field, expected, reported } => {
                write!(f, "{field}: expected {expected}, reported {reported}")
            }
        }
    }
}

/// Recently started flows, by node and attempt.
#[derive(Debug, Default)]
pub(super) struct ReportedFlows(BTreeMap<(usize, Attempt), ReportedFlow>);

impl ReportedFlows {
    pub(super) fn add(&mut self, node: usize, flow: ReportedFlow) {
        let port = |end: &ReportedEnd| Some(SocketAddr::new(end.address, end.port?));
        let (Ok(protocol), Some(source), Some(target)) =
            (flow.protocol.parse(), port(&flow.source), port(&flow.destination))
        else {
            return;
        };
        // If the decision changes, a flow ends and another starts.
        if flow.stage == "started" {
            self.0.insert((node, Attempt { protocol, source, target }), flow);
        }
    }
}

/// Expected flow of a row from the agent of a node.
struct Expected<'a> {
    allowed: bool,
    egress: &'a [Hit],
    ingress: &'a [Hit],
}

impl Row {
    /// Returns the expected flow for each node at an end; `None` if the agent must not report one.
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

    /// Returns the number of expected flows.
    pub(super) fn flows(&self) -> usize {
        self.expected().iter().filter(|(_, expected)| expected.is_some()).count()
    }

    /// Returns the differences from the reported flows.
    pub(super) fn mismatches(&self, reported: &ReportedFlows) -> Vec<FlowMismatch> {
        let mismatch = |(node, expected): (usize, Option<Expected<'_>>)| {
            let fault = match (expected, reported.0.get(&(node, self.attempt))) {
                (None, None) => None,
                (None, Some(_)) => Some(FlowFault::Unexpected),
                (Some(_), None) => Some(FlowFault::Missing),
                (Some(expected), Some(reported)) => self.difference(&expected, reported),
            };
            fault.map(|fault| FlowMismatch { flow: self.flow.clone(), node, fault })
        };
        self.expected().into_iter().filter_map(mismatch).collect()
    }

    fn difference(&self, expected: &Expected<'_>, reported: &ReportedFlow) -> Option<FlowFault> {
        let verdict = if expected.allowed { "allow" } else { "deny" };
        let aspects = [
            ("verdict", verdict.to_owned(), reported.verdict.clone()),
            ("source", self.flow.from.to_string(), reported.source.name.clone()),
            ("destination", self.flow.to.to_string(), reported.destination.name.clone()),
            ("egress", text(expected.egress), text(&reported.egress)),
            ("ingress", text(expected.ingress), text(&reported.ingress)),
            ("host endpoints", text(&[]), text(&reported.host)),
        ];
        let wrong = aspects.into_iter().find(|(_, expected, reported)| expected != reported);
        wrong.map(|(field, expected, reported)| FlowFault::Differs { field, expected, reported })
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
