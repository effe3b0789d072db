//! Packets, with the properties that policies match.

use std::net::IpAddr;

use tortie_model::{Family, Protocol};

/// Payload of the IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Payload {
    /// A transport with ports.
    Ports {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// An ICMP message.
    Icmp {
        /// Its type.
        icmp_type: u8,
        /// Its code.
        code: u8,
    },
    /// Anything else.
    Other,
}

/// The first packet of a connection. Both addresses are of one family.
///
/// ```
/// use tortie_evaluate::Packet;
/// let (v4, v6) = ("10.0.0.1".parse()?, "fd00::1".parse()?);
/// assert!(Packet::tcp((v4, 40000), (v4, 80)).is_ok());
/// assert!(Packet::tcp((v4, 40000), (v6, 80)).is_err());
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload: Payload,
}

/// Error of a packet whose addresses belong to different families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{source_address} and {destination} belong to different address families")]
pub struct MixedFamilies {
    /// The source address.
    pub source_address: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
}

impl Packet {
    /// Returns a packet of the protocol with this number.
    ///
    /// # Errors
    /// If the addresses are not of one family.
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8, payload: Payload) -> Result<Self, MixedFamilies> {
        if source.is_ipv4() == destination.is_ipv4() {
            Ok(Self { source, destination, protocol, payload })
        } else {
            Err(MixedFamilies { source_address: source, destination })
        }
    }

    /// Returns a TCP packet.
    ///
    /// # Errors
    /// If the addresses are not of one family.
    pub fn tcp(source: (IpAddr, u16), destination: (IpAddr, u16)) -> Result<Self, MixedFamilies> {
        Self::with_ports(Protocol::TCP, source, destination)
    }

    /// Returns a UDP packet.
    ///
    /// # Errors
    /// If the addresses are not of one family.
    pub fn udp(source: (IpAddr, u16), destination: (IpAddr, u16)) -> Result<Self, MixedFamilies> {
        Self::with_ports(Protocol::UDP, source, destination)
    }

    /// Returns a packet of a protocol with ports.
    ///
    /// # Errors
    /// If the addresses are not of one family.
    pub fn with_ports(
        protocol: Protocol,
        source: (IpAddr, u16),
        destination: (IpAddr, u16),
    ) -> Result<Self, MixedFamilies> {
        let payload = Payload::Ports { source: source.1, destination: destination.1 };
        Self::new(source.0, destination.0, protocol.number(), payload)
    }

    /// Returns an ICMP message, which is `ICMPv6` between IPv6 addresses.
    ///
    /// # Errors
    /// If the addresses are not of one family.
    pub fn icmp(source: IpAddr, destination: IpAddr, icmp_type: u8, code: u8) -> Result<Self, MixedFamilies> {
        let protocol = if source.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
        Self::new(source, destination, protocol.number(), Payload::Icmp { icmp_type, code })
    }

    /// Returns the packet with another source address, as after source translation.
    ///
    /// # Errors
    /// If the address is of the other family.
    pub fn with_source(self, source: IpAddr) -> Result<Self, MixedFamilies> {
        Self::new(source, self.destination, self.protocol, self.payload)
    }

    /// Returns the family of both addresses.
    #[must_use]
    pub fn family(&self) -> Family {
        if self.source.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Returns the source address.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Returns the destination address.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.destination
    }

    /// Returns the protocol number.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> Payload {
        self.payload
    }

    /// Returns the source port, if there are ports.
    #[must_use]
    pub fn source_port(&self) -> Option<u16> {
        match self.payload {
            Payload::Ports { source, .. } => Some(source),
            Payload::Icmp { .. } | Payload::Other => None,
        }
    }

    /// Returns the destination port, if there are ports.
    #[must_use]
    pub fn destination_port(&self) -> Option<u16> {
        match self.payload {
            Payload::Ports { destination, .. } => Some(destination),
            Payload::Icmp { .. } | Payload::Other => None,
        }
    }
}
