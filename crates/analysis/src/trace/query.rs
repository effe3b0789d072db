//! Connections to evaluate.

use std::sync::Arc;

use tortie_evaluate::Packet;
use tortie_model::{DomainName, Hostname};

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
    /// Names by which the source knows the destination; `None` if nothing is known of them.
    pub names: Option<Arc<[DomainName]>>,
    /// Whether the destination's address is known. If not, only the family of the packet's
    /// destination counts.
    pub has_address: bool,
}

impl ConnectionQuery {
    /// Returns a connection without translation of its destination, by the enforced policies.
    #[must_use]
    pub fn new(from: Place, to: Place, packet: Packet) -> Self {
        Self { from, to, packet, translation: None, is_pending: false, names: None, has_address: true }
    }

    /// Returns the connection with a translation of its destination.
    #[must_use]
    pub fn translated(mut self, nat: DestinationNat) -> Self {
        self.translation = Some(nat);
        self
    }

    /// Returns the connection to a destination that the source knows by these names, and no other.
    #[must_use]
    pub fn named(mut self, names: Arc<[DomainName]>) -> Self {
        self.names = Some(names);
        self
    }

    /// Returns the connection to an unknown address.
    #[must_use]
    pub fn without_address(mut self) -> Self {
        self.has_address = false;
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
