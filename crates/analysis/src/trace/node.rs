//! A node at one end of a connection.

use tortie_calc::{Graph, GraphConfig, ReadyFlag};
use tortie_evaluate::{Evaluator, Layer, Packet, Settings, UpdateError};
use tortie_model::{Direction, Hostname, SyncStatus, Update};

use crate::trace::connection::{At, Leg};
use crate::trace::host::Traffic;

/// Current desired state of a node.
#[derive(Debug)]
pub(crate) struct NodeView {
    host: Hostname,
    graph: Graph,
    evaluator: Evaluator,
}

/// A packet, and the policies that evaluate it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) packet: &'a Packet,
    /// Whether staged policies count as enforced.
    pub(crate) is_pending: bool,
}

impl NodeView {
    pub(crate) fn new(host: Hostname, config: &GraphConfig, settings: Settings) -> Self {
        let mut graph =
            Graph::new(&GraphConfig { hostname: host.clone(), ready_flag: ReadyFlag::Ignored, ..config.clone() });
        graph.on_status(SyncStatus::InSync);
        Self { host, graph, evaluator: Evaluator::new(settings) }
    }

    pub(crate) fn on_update(&mut self, update: Update) {
        self.graph.on_update(update);
    }

    pub(crate) fn flush(&mut self) -> Result<(), UpdateError> {
        let mut desired = Vec::new();
        self.graph.flush(&mut desired);
        desired.iter().try_for_each(|update| self.evaluator.apply(update))
    }

    pub(crate) fn leg(&self, at: At, direction: Direction, asked: Asked<'_>) -> Result<Leg, crate::trace::TraceError> {
        let (evaluator, packet) = (&self.evaluator, asked.packet);
        let explanation = match (&at, asked.is_pending) {
            (At::Workload(id), false) => evaluator.explain_workload(id, direction, packet),
            (At::Workload(id), true) => evaluator.explain_pending_workload(id, direction, packet),
            (At::WorkloadToHost(id), false) => evaluator.explain_workload_to_host(id, packet),
            (At::WorkloadToHost(id), true) => evaluator.explain_pending_workload_to_host(id, packet),
            (At::Host(name, layer), false) => evaluator.explain_host(name, *layer, direction, packet),
            (At::Host(name, layer), true) => evaluator.explain_pending_host(name, *layer, direction, packet),
        }?;
        Ok(Leg { node: self.host.clone(), at, direction, explanation })
    }

    /// Evaluates the host endpoints for a packet that enters or leaves the node.
    pub(crate) fn host_legs(
        &self,
        traffic: Traffic,
        direction: Direction,
        asked: Asked<'_>,
        legs: &mut Vec<Leg>,
    ) -> Result<(), crate::trace::TraceError> {
        self.all_host_legs(traffic, direction, [asked, asked], legs)
    }

    /// Evaluates the host endpoints for a packet that reaches the node as `entering`, before DNAT
    /// on the node.
    pub(crate) fn host_legs_in(
        &self,
        traffic: Traffic,
        entering: Asked<'_>,
        asked: Asked<'_>,
        legs: &mut Vec<Leg>,
    ) -> Result<(), crate::trace::TraceError> {
        self.all_host_legs(traffic, Direction::Ingress, [entering, asked], legs)
    }

    fn all_host_legs(
        &self,
        traffic: Traffic,
        direction: Direction,
        [entering, asked]: [Asked<'_>; 2],
        legs: &mut Vec<Leg>,
    ) -> Result<(), crate::trace::TraceError> {
        let own = match direction {
            Direction::Ingress => entering.packet.destination(),
            Direction::Egress => asked.packet.source(),
        };
        for name in traffic.host_endpoints(&self.evaluator, own) {
            for layer in traffic.layers(direction) {
                let asked = if matches!(layer, Layer::Untracked | Layer::PreDnat) { entering } else { asked };
                let leg = self.leg(At::Host(name.clone(), *layer), direction, asked)?;
                let ends = traffic.ends(*layer, leg.verdict());
                legs.push(leg);
                if ends {
                    break;
                }
            }
        }
        Ok(())
    }
}
