//! Connections as the kernel tracks them.

use std::net::IpAddr;

/// Identification of a direction of a connection after the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flow {
    /// Ports.
    Ports {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// Id of an ICMP request.
    Icmp {
        /// The id.
        id: u16,
        /// The type.
        icmp_type: u8,
        /// The code.
        code: u8,
    },
    /// Nothing.
    Other,
}

/// One direction of a connection. Both addresses are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The number of the protocol.
    pub protocol: u8,
    /// Ports, or their equivalent.
    pub flow: Flow,
}

/// Connection as the kernel tracks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// Packets of the initiator as it sends them, before any translation.
    pub original: Tuple,
    /// Replies as they come back, before any translation.
    pub reply: Tuple,
    /// Distinguishes it from a later connection with the same tuples.
    pub id: u32,
    /// Zone; 0 if none is set.
    pub zone: u16,
}

/// Counters of a connection, for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Traffic {
    /// Packets of the initiator.
    pub original: Count,
    /// Replies.
    pub reply: Count,
}

/// Packets, and their bytes including the IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Count {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}
