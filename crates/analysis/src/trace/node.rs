//! A node at one end of a connection.

use std::net::IpAddr;

use tortie_calc::{Graph, GraphConfig, ReadyFlag};
use tortie_evaluate::{Evaluator, Explanation, Layer, NamedPacket, Names, Packet, Settings, UpdateError};
use tortie_model::{Direction, Hostname, SyncStatus, Update, WorkloadEndpointId};

use crate::trace::connection::{EnforcementPoint, Leg};
use crate::trace::error::TraceError;
use crate::trace::host::{HostStage, Link, Traffic};

/// Current desired state of a node.
#[derive(Debug)]
pub(crate) struct NodeView {
    host: Hostname,
    graph: Graph,
    evaluator: Evaluator,
}

/// A packet at a node before and after the node translates its destination, and the policies that
/// evaluate it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketQuery<'a> {
    pub(crate) entering: Packet,
    pub(crate) packet: Packet,
    /// The node's addresses on tunnels.
    pub(crate) tunnels: &'a [IpAddr],
    /// Whether staged policies count as enforced.
    pub(crate) is_pending: bool,
    /// Names by which the source knows the destination.
    pub(crate) names: Names<'a>,
    /// Whether the destination's address is known.
    pub(crate) has_address: bool,
}

impl<'a> PacketQuery<'a> {
    /// Adds to a packet the known properties of its destination.
    fn named<'p>(&self, packet: &'p Packet) -> NamedPacket<'p>
    where
        'a: 'p,
    {
        let named = NamedPacket::new(packet, self.names);
        if self.has_address { named } else { named.without_address() }
    }

    /// Returns the packet that a layer evaluates.
    fn at(&self, layer: Layer) -> &Packet {
        match layer {
            Layer::Untracked | Layer::PreDnat => &self.entering,
            Layer::Normal | Layer::Forward => &self.packet,
        }
    }
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

    /// Evaluates a workload's policies.
    pub(crate) fn workload_leg(
        &self,
        id: WorkloadEndpointId,
        direction: Direction,
        query: PacketQuery<'_>,
    ) -> Result<Leg, TraceError> {
        let (evaluator, packet) = (&self.evaluator, query.packet);
        let explanation = match query.is_pending {
            false => evaluator.explain_workload(&id, direction, query.named(&packet)),
            true => evaluator.explain_pending_workload(&id, direction, query.named(&packet)),
        }?;
        Ok(self.leg(EnforcementPoint::Workload(id), direction, packet, explanation))
    }

    /// Evaluates a workload's policies for a packet to this node.
    pub(crate) fn workload_to_host_leg(
        &self,
        id: WorkloadEndpointId,
        query: PacketQuery<'_>,
    ) -> Result<Leg, TraceError> {
        let (evaluator, packet) = (&self.evaluator, query.packet);
        let explanation = match query.is_pending {
            false => evaluator.explain_workload_to_host(&id, query.named(&packet)),
            true => evaluator.explain_pending_workload_to_host(&id, query.named(&packet)),
        }?;
        Ok(self.leg(EnforcementPoint::WorkloadToHost(id), Direction::Egress, packet, explanation))
    }

    /// Evaluates the host endpoints for a packet that enters or leaves the node by a link.
    pub(crate) fn host_legs(
        &self,
        traffic: Traffic,
        link: Link,
        direction: Direction,
        query: PacketQuery<'_>,
        legs: &mut Vec<Leg>,
    ) -> Result<(), TraceError> {
        for stages in traffic.stages(&self.evaluator, link, direction, query.tunnels) {
            for stage in stages {
                let (evaluator, HostStage { endpoint, layer }, packet) =
                    (&self.evaluator, &stage, query.at(stage.layer));
                let named = query.named(packet);
                let explanation = match query.is_pending {
                    false => evaluator.explain_host(endpoint, *layer, direction, named),
                    true => evaluator.explain_pending_host(endpoint, *layer, direction, named),
                }?;
                let ends = stage.ends(&explanation.answer);
                let at = EnforcementPoint::Host(endpoint.clone(), *layer);
                legs.push(self.leg(at, direction, *packet, explanation));
                if ends {
                    break;
                }
            }
        }
        Ok(())
    }

    fn leg(&self, at: EnforcementPoint, direction: Direction, packet: Packet, explanation: Explanation) -> Leg {
        Leg { node: self.host.clone(), at, direction, packet, explanation }
    }
}
