//! Selection of the traced packets.

use std::net::IpAddr;

/// Selects the packets that have all the given values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The source address.
    pub source: IpAddr,
    /// The destination address, of the same family.
    pub destination: IpAddr,
    /// The number of the protocol.
    pub protocol: u8,
    /// Contents after the IP header.
    pub transport: Transport,
}

/// Contents after the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Ports.
    Ports {
        /// The source port.
        source: Option<u16>,
        /// The destination port.
        destination: Option<u16>,
    },
    /// An ICMP message.
    Icmp {
        /// The type.
        icmp_type: u8,
        /// The code.
        code: Option<u8>,
        /// The identifier of an echo.
        id: Option<u16>,
    },
    /// Anything.
    Any,
}

/// Header that contains a part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Network,
    Transport,
}

impl Filter {
    /// Returns the header, the offset and the value of each part that must be equal.
    pub(super) fn parts(&self) -> Vec<(Base, u32, Vec<u8>)> {
        let (source, destination) = match self.source {
            IpAddr::V4(_) => (12, 16),
            IpAddr::V6(_) => (8, 24),
        };
        let mut parts =
            vec![(Base::Network, source, octets(self.source)), (Base::Network, destination, octets(self.destination))];
        let mut transport = |offset, value: Option<Vec<u8>>| {
            parts.extend(value.map(|value| (Base::Transport, offset, value)));
        };
        let number = |value: Option<u16>| value.map(|value| value.to_be_bytes().to_vec());
        match self.transport {
            Transport::Ports { source, destination } => {
                transport(0, number(source));
                transport(2, number(destination));
            }
            Transport::Icmp { icmp_type, code, id } => {
                transport(0, Some(vec![icmp_type]));
                transport(1, code.map(|code| vec![code]));
                transport(4, number(id));
            }
            Transport::Any => {}
        }
        parts
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
