//! Connections to evaluate.

use tortie_evaluate::Packet;
use tortie_model::Hostname;

use crate::trace::connection::Place;

/// A connection to evaluate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionQuery {
    /// The source.
    pub from: Place,
    /// The destination.
    pub to: Place,
    /// The first packet, after the translation of its destination. Source addresses are translated
    /// on the way.
    pub packet: Packet,
    /// Translation of the destination; `None` if there is none, or if its place is unknown.
    pub translation: Option<DestinationNat>,
    /// Whether all staged policies count as enforced.
    pub is_pending: bool,
}

impl ConnectionQuery {
    /// Returns a connection without translation of its destination, by the enforced policies.
    #[must_use]
    pub fn new(from: Place, to: Place, packet: Packet) -> Self {
        Self { from, to, packet, translation: None, is_pending: false }
    }

    /// Returns the connection with a translation of its destination.
    #[must_use]
    pub fn translated(mut self, nat: DestinationNat) -> Self {
        self.translation = Some(nat);
        self
    }

    /// Returns the connection by the enforced policies, or with all staged policies in force.
    #[must_use]
    pub fn pending(mut self, is_pending: bool) -> Self {
        self.is_pending = is_pending;
        self
    }
}

/// Translation of the destination of a connection: of a Service, a node port or a floating address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "callers write all fields")]
pub struct DestinationNat {
    /// The first packet before the translation.
    pub entering: Packet,
    /// The node that translates it; `None` for the node of the source.
    pub node: Option<Hostname>,
    /// Whether that node also replaces the source address of packets to other nodes, as kube-proxy
    /// does for node ports.
    pub replaces_source: bool,
}
