//! A node at one end of a connection.

use std::net::IpAddr;

use tortie_calc::{Graph, GraphConfig};
use tortie_evaluate::{Evaluator, Layer, Packet, Settings, UpdateError, Verdict};
use tortie_model::{Direction, HostEndpointName, Hostname, SyncStatus, Update};

use crate::connection::{At, Leg};
use crate::index::host_endpoint_addresses;

/// What a node enforces, kept up to date.
#[derive(Debug)]
pub(crate) struct NodeView {
    host: Hostname,
    graph: Graph,
    evaluator: Evaluator,
}

/// What a packet is to the host endpoints of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// The node's own.
    Own,
    /// Forwarded to or from what is outside the cluster, or another node.
    Forwarded,
    /// Forwarded between workloads of different nodes.
    BetweenWorkloads,
}

impl NodeView {
    pub(crate) fn new(host: Hostname, config: &GraphConfig, settings: Settings) -> Self {
        let mut graph = Graph::new(&GraphConfig { hostname: host.clone(), ..config.clone() });
        // A datastore without the flag is ready.
        graph.on_update(Update::Ready(Some(true)));
        graph.on_status(SyncStatus::InSync);
        Self { host, graph, evaluator: Evaluator::new(settings) }
    }

    pub(crate) fn on_update(&mut self, update: Update) {
        self.graph.on_update(match update {
            Update::Ready(_) => Update::Ready(Some(true)),
            update => update,
        });
    }

    pub(crate) fn flush(&mut self) -> Result<(), UpdateError> {
        let mut desired = Vec::new();
        self.graph.flush(&mut desired);
        desired.iter().try_for_each(|update| self.evaluator.apply(update))
    }

    pub(crate) fn leg(&self, at: At, direction: Direction, packet: &Packet) -> Result<Leg, crate::TraceError> {
        let explanation = match &at {
            At::Workload(id) => self.evaluator.explain_workload(id, direction, packet),
            At::WorkloadToHost(id) => self.evaluator.explain_workload_to_host(id, packet),
            At::Host(name, layer) => self.evaluator.explain_host(name, *layer, direction, packet),
        }?;
        Ok(Leg { node: self.host.clone(), at, direction, explanation })
    }

    /// What host endpoints say about a packet that comes to the node, or leaves it.
    pub(crate) fn host_legs(
        &self,
        traffic: Traffic,
        direction: Direction,
        packet: &Packet,
        legs: &mut Vec<Leg>,
    ) -> Result<(), crate::TraceError> {
        let own = match direction {
            Direction::Ingress => packet.destination(),
            Direction::Egress => packet.source(),
        };
        for name in self.host_endpoints(traffic, own) {
            let last = if traffic == Traffic::Own { Layer::Normal } else { Layer::Forward };
            let layers: &[Layer] = match (direction, traffic) {
                (Direction::Ingress, _) => &[Layer::Untracked, Layer::PreDnat, last],
                (Direction::Egress, Traffic::Own) => &[Layer::Untracked, last],
                // Packets that are forwarded have been tracked before they leave.
                (Direction::Egress, _) => &[last],
            };
            for layer in layers {
                let leg = self.leg(At::Host(name.clone(), *layer), direction, packet)?;
                let verdict = leg.verdict();
                legs.push(leg);
                let ends = match layer {
                    // What is let through untracked meets no other policy of its host.
                    Layer::Untracked => verdict == Verdict::Deny || verdict == Verdict::Allow && last == Layer::Normal,
                    _ => verdict == Verdict::Deny,
                };
                if ends {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The host endpoints that may see the packet, in order of their names.
    fn host_endpoints(&self, traffic: Traffic, own: IpAddr) -> Vec<HostEndpointName> {
        let mut all: Vec<_> = self.evaluator.host_endpoints().collect();
        all.sort_by_key(|(name, _)| *name);
        let of_all_interfaces: Vec<_> = all
            .iter()
            .filter(|(_, state)| state.endpoint.iface.as_ref().is_some_and(|iface| iface.as_str() == "*"))
            .copied()
            .collect();
        let expecting: Vec<_> = all
            .iter()
            .filter(|(_, state)| host_endpoint_addresses(&state.endpoint).any(|address| address == own))
            .copied()
            .collect();
        let chosen = match traffic {
            Traffic::BetweenWorkloads => of_all_interfaces,
            Traffic::Own | Traffic::Forwarded if !expecting.is_empty() => expecting,
            Traffic::Own | Traffic::Forwarded if !of_all_interfaces.is_empty() => of_all_interfaces,
            Traffic::Own | Traffic::Forwarded => all,
        };
        chosen.into_iter().map(|(name, _)| name.clone()).collect()
    }
}
