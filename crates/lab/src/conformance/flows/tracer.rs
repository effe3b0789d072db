//! Expected hits by `tortie_analysis::trace`.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use tortie_analysis::trace::{Connection, EnforcementPoint};
use tortie_calc::GraphConfig;
use tortie_evaluate::{Packet, RuleOutcome, RuleStep, Ruling, Settings, Step};
use tortie_model::{Direction, Protocol as ModelProtocol, RuleAction};

use super::{Attempt, Hit, Row};
use crate::{
    cases::{CaseDirectory, Cluster, ClusterPod},
    pods::{Family, Flow, LabHost, Protocol, Reachability},
};

/// The cluster of the agents, for `tortie_analysis::trace`.
#[derive(Debug)]
pub(in super::super) struct Tracer {
    directory: CaseDirectory,
    cluster: tortie_analysis::trace::Cluster,
    pods: Vec<ClusterPod>,
}

impl Tracer {
    pub(in super::super) fn new() -> Self {
        let cluster = tortie_analysis::trace::Cluster::new(GraphConfig::new("any".into()), Settings::default());
        Self { directory: CaseDirectory::new(1), cluster, pods: Vec::new() }
    }

    /// Applies the state that was passed to the agents.
    pub(in super::super) fn follow(&mut self, cluster: &Cluster, objects: &[Value]) {
        self.pods.clone_from(&cluster.pods);
        self.directory.follow_objects(objects).into_iter().for_each(|update| self.cluster.apply(update));
    }

    /// Returns the row of a measured flow; `None` if it was not measured, or if its pods do not
    /// exist.
    pub(in super::super) fn row(&mut self, flow: &Flow, measured: &Reachability) -> Option<Row> {
        let (from, to) = (self.pod(&flow.from)?, self.pod(&flow.to)?);
        let nodes = [from.node, to.node];
        let source = SocketAddr::new(address(from, flow.family)?, measured.source_port(flow)?);
        let target = SocketAddr::new(address(to, flow.family)?, flow.port.number);
        let protocol = match flow.port.protocol {
            Protocol::Tcp => ModelProtocol::TCP,
            Protocol::Udp => ModelProtocol::UDP,
            Protocol::Sctp => ModelProtocol::SCTP,
        };
        let ends = [source, target].map(|end| (end.ip(), end.port()));
        let packet = Packet::with_ports(protocol, ends[0], ends[1]).ok()?;
        let [from, to] = ends.map(|(address, _)| self.cluster.place_of(address));
        let connection = self.cluster.connection(&from, &to, &packet).ok()?;
        let attempt = Attempt { protocol: flow.port.protocol, source, target };
        let [egress, ingress] = [Direction::Egress, Direction::Ingress].map(|direction| hits(&connection, direction));
        Some(Row { flow: flow.clone(), attempt, reached: measured.reached(flow), nodes, egress, ingress })
    }

    fn pod(&self, place: &LabHost) -> Option<&ClusterPod> {
        self.pods.iter().find(|pod| pod.place() == *place)
    }
}

fn address(pod: &ClusterPod, family: Family) -> Option<IpAddr> {
    pod.addresses.iter().copied().find(|address| address.is_ipv4() == (family == Family::V4))
}

/// Returns the hits of workload policies in one direction, in order.
fn hits(connection: &Connection, direction: Direction) -> Vec<Hit> {
    let of_workload = connection.legs.iter().filter(|leg| matches!(leg.at, EnforcementPoint::Workload(_)));
    let steps = of_workload.filter(|leg| leg.direction == direction).flat_map(|leg| &leg.explanation.steps);
    steps.filter_map(hit).collect()
}

/// Returns the hit of a step, if it decided.
fn hit(step: &Step) -> Option<Hit> {
    let hit_of = |ruling: Ruling| {
        let verdict = match ruling {
            Ruling::Allow => "allow",
            Ruling::Deny => "deny",
            Ruling::Pass => "pass",
            Ruling::Silent => return None,
        };
        Some(Hit { verdict: verdict.to_owned(), ..Hit::default() })
    };
    match step {
        Step::Policy { tier, policy, staged: false, rules, ruling } => Some(Hit {
            tier: Some(tier.to_string()),
            policy: Some(policy.to_string()),
            rule: decided(rules),
            ..hit_of(*ruling)?
        }),
        Step::EndOfTier { tier, ruling } => Some(Hit { tier: Some(tier.to_string()), ..hit_of(*ruling)? }),
        Step::Profile { profile, rules, ruling } => {
            Some(Hit { profile: Some(profile.to_string()), rule: decided(rules), ..hit_of(*ruling)? })
        }
        Step::EndOfProfiles => hit_of(Ruling::Deny),
        _ => None,
    }
}

/// Returns the deciding rule: the last one that matched.
fn decided(rules: &[RuleStep]) -> Option<usize> {
    let decides = |rule: &&RuleStep| rule.outcome == RuleOutcome::Matched && rule.action != RuleAction::Log;
    rules.iter().rev().find(decides).map(|rule| rule.index)
}
