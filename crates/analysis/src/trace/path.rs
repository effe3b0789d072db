//! The way of a connection's first packet through the nodes.

use tortie_evaluate::{Missing, Names};
use tortie_model::{Direction, Hostname, WorkloadEndpointKey};

use crate::trace::cluster::Cluster;
use crate::trace::connection::{Connection, Place};
use crate::trace::error::TraceError;
use crate::trace::host::{Link, Traffic};
use crate::trace::node::PacketQuery;
use crate::trace::query::ConnectionQuery;

/// Origin of a packet at a node.
#[derive(Clone, Copy)]
enum Entry<'a> {
    Node,
    Workload(&'a WorkloadEndpointKey),
    Link(Link),
}

/// Destination of a packet at a node.
#[derive(Clone, Copy)]
enum Exit<'a> {
    Node,
    Workload(&'a WorkloadEndpointKey),
    Link(Link),
}

impl Cluster {
    /// Evaluates the first packet of a connection at all nodes and endpoints on its way.
    ///
    /// # Errors
    /// If neither place is in the cluster, or one of them does not exist in it.
    pub fn evaluate(&mut self, query: &ConnectionQuery) -> Result<Connection, TraceError> {
        let ConnectionQuery { from, to, packet, translation, is_pending, names, has_address } = query;
        let (is_pending, has_address) = (*is_pending, *has_address);
        let names = names.as_deref().map_or(Names::Unknown, Names::Known);
        let mut connection = Connection { source: Some(packet.source()), ..Connection::default() };
        for place in [from, to] {
            if let Place::Workload(key) = place {
                self.workload(key).ok_or_else(|| Missing::Workload(key.id()))?;
            }
        }
        match (from, to) {
            (Place::Outside, Place::Outside) => return Err(TraceError::BothOutside),
            // Such packets do not leave the workload.
            (Place::Workload(from), Place::Workload(to)) if from == to && translation.is_none() => {
                return Ok(connection);
            }
            _ => {}
        }
        let translating = translation.as_ref().and_then(|nat| nat.node.clone().or_else(|| from.node()));
        let mut hops: Vec<Hostname> = from.node().into_iter().chain(translating.clone()).chain(to.node()).collect();
        hops.dedup();
        let mut sent = translation.as_ref().map_or(*packet, |nat| nat.entering);
        let mut entry = match from {
            Place::Workload(key) => Entry::Workload(key),
            Place::Node(_) => Entry::Node,
            Place::Outside => Entry::Link(self.link_from_outside(hops.first(), &sent)),
        };
        let mut following = hops.iter().skip(1);
        for node in &hops {
            let next = following.next();
            let translates = translating.as_ref() == Some(node);
            let mut leaving = if translates { packet.with_source(sent.source())? } else { sent };
            let exit = match to {
                Place::Workload(key) if next.is_none() => Exit::Workload(key),
                Place::Node(_) if next.is_none() => Exit::Node,
                _ => Exit::Link(self.link(node, next, &leaving, from)),
            };
            if let (Entry::Node, Exit::Link(link), false) = (entry, exit, translates) {
                sent = self.with_source_by_route(node, link, sent)?;
                leaving = sent;
            }
            let tunnels = self.tunnel_addresses(node);
            let at = PacketQuery { entering: sent, packet: leaving, tunnels: &tunnels, is_pending, names, has_address };
            self.pass(node, (entry, exit), at, &mut connection)?;
            if let (Exit::Link(link), Some(next)) = (exit, next) {
                let replaces = translates && translation.as_ref().is_some_and(|nat| nat.replaces_source);
                sent = self.after_source_nat(node, link, leaving, replaces)?;
                entry = Entry::Link(self.link_into(next, link, &sent));
            }
        }
        Ok(connection)
    }

    /// Evaluates the endpoints of a node that a packet passes between its origin and its
    /// destination there.
    fn pass(
        &mut self,
        node: &Hostname,
        (entry, exit): (Entry<'_>, Exit<'_>),
        query: PacketQuery<'_>,
        connection: &mut Connection,
    ) -> Result<(), TraceError> {
        use Direction::{Egress, Ingress};

        let incoming = match entry {
            Entry::Node => return self.pass_from_node(node, exit, query, connection),
            Entry::Workload(_) => Link::Workload,
            Entry::Link(link) => link,
        };
        let view = self.node(node)?;
        let legs = &mut connection.legs;
        let traffic = match (entry, exit) {
            (Entry::Workload(_), Exit::Node) => Traffic::WorkloadToHost,
            (_, Exit::Node) => Traffic::Own,
            _ => Traffic::Forwarded,
        };
        view.host_legs(traffic, incoming, Ingress, query, legs)?;
        match (entry, exit) {
            (Entry::Workload(key), Exit::Node) => legs.push(view.workload_to_host_leg(key.id(), query)?),
            (Entry::Workload(key), _) => legs.push(view.workload_leg(key.id(), Egress, query)?),
            _ => {}
        }
        let outgoing = match exit {
            Exit::Node => return Ok(()),
            Exit::Workload(key) => {
                legs.push(view.workload_leg(key.id(), Ingress, query)?);
                Link::Workload
            }
            Exit::Link(link) => link,
        };
        view.host_legs(Traffic::Forwarded, outgoing, Egress, query, legs)
    }

    /// Evaluates the endpoints of a node for a packet that the node itself sends.
    fn pass_from_node(
        &mut self,
        node: &Hostname,
        exit: Exit<'_>,
        query: PacketQuery<'_>,
        connection: &mut Connection,
    ) -> Result<(), TraceError> {
        let link = match exit {
            // No policy applies.
            Exit::Workload(_) => return Ok(()),
            Exit::Node => Link::Loopback,
            Exit::Link(link) => link,
        };
        let view = self.node(node)?;
        let legs = &mut connection.legs;
        view.host_legs(Traffic::Own, link, Direction::Egress, query, legs)?;
        if matches!(exit, Exit::Node) {
            // Loopback receives the packet after its translation.
            let query = PacketQuery { entering: query.packet, ..query };
            view.host_legs(Traffic::Own, link, Direction::Ingress, query, legs)?;
        }
        Ok(())
    }
}
