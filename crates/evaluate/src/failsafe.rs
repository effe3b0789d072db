//! Ports that policy never closes.

use tortie_model::{Cidr, Protocol};

use crate::packet::Packet;

/// Port that policy never closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FailsafePort {
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// The peers' network; `None` means any peer.
    pub net: Option<Cidr>,
}

impl FailsafePort {
    /// Reports whether a packet to the host (`inbound`) or from it is for this port.
    pub(crate) fn is_for(&self, inbound: bool, packet: &Packet) -> bool {
        let peer = if inbound { packet.source() } else { packet.destination() };
        self.accepts(packet.destination_port(), peer, packet)
    }

    /// Reports whether a packet is the answer to one for this port: from the host if `inbound` is
    /// not set.
    pub(crate) fn is_answered_by(&self, inbound: bool, packet: &Packet) -> bool {
        let peer = if inbound { packet.source() } else { packet.destination() };
        self.accepts(packet.source_port(), peer, packet)
    }

    fn accepts(&self, port: Option<u16>, peer: std::net::IpAddr, packet: &Packet) -> bool {
        self.protocol.number() == packet.protocol()
            && port == Some(self.port)
            && self.net.is_none_or(|net| net.contains(peer))
    }
}
