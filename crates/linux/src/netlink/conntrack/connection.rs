//! Connections as the kernel tracks them.

use std::net::IpAddr;

/// What a direction of a connection is told by behind the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flow {
    /// By ports.
    Ports {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// By the id of an ICMP request.
    Icmp {
        /// The id.
        id: u16,
        /// The type.
        icmp_type: u8,
        /// The code.
        code: u8,
    },
    /// By nothing.
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
    /// Ports, or what stands for them.
    pub flow: Flow,
}

/// A connection as the kernel tracks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// Its packets as whoever opened it sends them, before any translation.
    pub original: Tuple,
    /// The answers as they come back, before any translation.
    pub reply: Tuple,
    /// Tells it from a later one with the same tuples.
    pub id: u32,
    /// 0 where none is set.
    pub zone: u16,
}

/// What was counted of a connection, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Traffic {
    /// Of whoever opened it.
    pub original: Count,
    /// Of the answers.
    pub reply: Count,
}

/// Packets, and their bytes from the IP header on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Count {
    /// How many packets.
    pub packets: u64,
    /// How many bytes they had together.
    pub bytes: u64,
}
