//! Packet fields that rules match.

use std::net::IpAddr;

use tortie_iptables::{Family, Side};

use super::{Skb, state_word, status_word};
use crate::packet::Payload;

/// Value of a packet field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Address(IpAddr),
    Number(u32),
    Name(String),
}

impl Value {
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Number(number) => *number,
            Self::Address(_) | Self::Name(_) => 0,
        }
    }

    pub(super) fn mask(&mut self, mask: u32) {
        if let Self::Number(number) = self {
            *number &= mask;
        }
    }
}

/// Type of a packet field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Address,
    Number,
    Protocol,
    Interface,
    /// `local`, as a number.
    AddressType,
    State,
    Status,
}

/// A packet field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selector {
    Mark,
    Protocol,
    InInterface,
    OutInterface,
    /// Interface of the route to the source; 0 if the packet came in on another one.
    WayBack,
    AddressType(Side),
    State,
    Status,
    Address(Side),
    /// A port, of packets of one protocol or of any.
    Port(Side, Option<u8>),
    IcmpType(Family),
    /// First bytes of the transport header.
    FirstBytes,
}

/// `fib … type local`.
pub(super) const LOCAL: u32 = 2;
const OTHER: u32 = 1;

impl Selector {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Mark | Self::WayBack | Self::Port(..) | Self::IcmpType(_) | Self::FirstBytes => Kind::Number,
            Self::Protocol => Kind::Protocol,
            Self::InInterface | Self::OutInterface => Kind::Interface,
            Self::AddressType(_) => Kind::AddressType,
            Self::State => Kind::State,
            Self::Status => Kind::Status,
            Self::Address(_) => Kind::Address,
        }
    }

    /// Returns the packet's value of this field; `None` if it lacks the header.
    pub(super) fn read(self, skb: &Skb) -> Option<Value> {
        let packet = &skb.packet;
        let address = |side| match side {
            Side::Source => packet.source,
            Side::Destination => packet.destination,
        };
        Some(match self {
            Self::Mark => Value::Number(skb.mark),
            Self::Protocol => Value::Number(packet.protocol.into()),
            Self::InInterface => Value::Name(skb.in_interface.clone()),
            Self::OutInterface => Value::Name(skb.out_interface.clone()),
            Self::WayBack => Value::Number(u32::from(!skb.reverse_path_fails)),
            Self::AddressType(side) => {
                Value::Number(if skb.local_addresses.contains(&address(side)) { LOCAL } else { OTHER })
            }
            Self::State => Value::Number(state_word(skb)),
            Self::Status => Value::Number(status_word(skb)),
            Self::Address(side) => Value::Address(address(side)),
            Self::Port(side, protocol) => {
                if protocol.is_some_and(|protocol| protocol != packet.protocol) {
                    return None;
                }
                let port = match side {
                    Side::Source => packet.source_port(),
                    Side::Destination => packet.destination_port(),
                };
                // The bytes exist in any packet, whatever their meaning.
                Value::Number(port.map_or(0, u32::from))
            }
            Self::IcmpType(family) => match packet.payload {
                Payload::Icmp { kind, .. } if packet.is_ipv4() == (family == Family::V4) => Value::Number(kind.into()),
                _ => return None,
            },
            Self::FirstBytes => Value::Number(match packet.payload {
                Payload::Icmp { kind, code } => u16::from_be_bytes([kind, code]).into(),
                Payload::Ports { source, .. } => source.into(),
                Payload::Opaque => 0,
            }),
        })
    }
}
