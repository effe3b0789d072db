//! A packet with the fields that policies and rules match.

use std::{fmt, net::IpAddr};

/// Payload of the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Transport header with ports.
    Ports {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// ICMP message.
    Icmp {
        /// ICMP type.
        kind: u8,
        /// ICMP code.
        code: u8,
    },
    /// Anything else.
    Opaque,
}

/// A packet. Source and destination are of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Payload of the IP header.
    pub payload: Payload,
}

impl Packet {
    /// Returns a packet of a protocol with ports: TCP is 6, UDP 17, SCTP 132.
    #[must_use]
    pub fn with_ports(protocol: u8, source: (IpAddr, u16), destination: (IpAddr, u16)) -> Self {
        Self {
            source: source.0,
            destination: destination.0,
            protocol,
            payload: Payload::Ports { source: source.1, destination: destination.1 },
        }
    }

    /// Returns an ICMP or `ICMPv6` message, according to the family of the addresses.
    #[must_use]
    pub fn icmp(source: IpAddr, destination: IpAddr, kind: u8, code: u8) -> Self {
        let protocol = if source.is_ipv4() { 1 } else { 58 };
        Self { source, destination, protocol, payload: Payload::Icmp { kind, code } }
    }

    /// Reports whether it is IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.source.is_ipv4()
    }

    /// Returns the source port, if there are ports.
    #[must_use]
    pub fn source_port(&self) -> Option<u16> {
        match self.payload {
            Payload::Ports { source, .. } => Some(source),
            Payload::Icmp { .. } | Payload::Opaque => None,
        }
    }

    /// Returns the destination port, if there are ports.
    #[must_use]
    pub fn destination_port(&self) -> Option<u16> {
        match self.payload {
            Payload::Ports { destination, .. } => Some(destination),
            Payload::Icmp { .. } | Payload::Opaque => None,
        }
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protocol {} {} -> {}", self.protocol, self.source, self.destination)?;
        match self.payload {
            Payload::Ports { source, destination } => write!(f, " ports {source} -> {destination}"),
            Payload::Icmp { kind, code } => write!(f, " type {kind} code {code}"),
            Payload::Opaque => Ok(()),
        }
    }
}

/// Reports whether `address` is in the network of `length` bits around `net`; false across
/// families.
pub(crate) fn in_network(address: IpAddr, net: IpAddr, length: u8) -> bool {
    // Independent of the code under test, so that no mistake is shared.
    let differing = match (address, net) {
        (IpAddr::V4(address), IpAddr::V4(net)) => (u32::from(address) ^ u32::from(net)).leading_zeros(),
        (IpAddr::V6(address), IpAddr::V6(net)) => (u128::from(address) ^ u128::from(net)).leading_zeros(),
        _ => return false,
    };
    differing >= u32::from(length)
}
