//! Verdict maps (nftables only): lookup keys and verdicts.

use std::net::IpAddr;

use tortie_net::{InterfaceName, PortProtocol};

use crate::mark::MarkBits;
use crate::matches::Side;
use crate::name::ChainName;

/// Layout of nftables chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(clippy::exhaustive_enums, reason = "code that writes rules must handle every variant")]
pub enum Layout {
    /// The same chains as with iptables, except for the dispatch of workloads, as in Felix.
    #[default]
    Felix,
    /// Optimised for few rules per packet.
    Fast,
}

/// Part of a packet that is looked up in a verdict map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "code that evaluates rules must handle every variant")]
pub enum DispatchBy {
    /// The incoming interface.
    InInterface,
    /// The outgoing interface.
    OutInterface,
    /// These bits of the mark.
    Mark(MarkBits),
    /// The protocol and destination port.
    DestinationPort,
    /// The source or destination address.
    Address(Side),
}

impl DispatchBy {
    /// Returns the key type of such a map.
    #[must_use]
    pub const fn kind(self) -> MapKind {
        match self {
            Self::InInterface | Self::OutInterface => MapKind::Interface,
            Self::Mark(_) => MapKind::Mark,
            Self::DestinationPort => MapKind::Port,
            Self::Address(_) => MapKind::Address,
        }
    }
}

/// Key type of a verdict map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "code that makes maps must handle every variant")]
pub enum MapKind {
    /// Names of interfaces.
    Interface,
    /// Marks.
    Mark,
    /// Protocols with a port.
    Port,
    /// Addresses, of the family of the table.
    Address,
}

/// A key of a verdict map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "code that makes maps must handle every variant")]
pub enum MapKey {
    /// An interface.
    Interface(InterfaceName),
    /// A mark; bits outside the mask of the lookup are zero.
    Mark(u32),
    /// A protocol and a port.
    Port(PortProtocol, u16),
    /// An address.
    Address(IpAddr),
}

impl MapKey {
    /// Returns the key type of maps with such keys.
    #[must_use]
    pub const fn kind(self) -> MapKind {
        match self {
            Self::Interface(_) => MapKind::Interface,
            Self::Mark(_) => MapKind::Mark,
            Self::Port(..) => MapKind::Port,
            Self::Address(_) => MapKind::Address,
        }
    }
}

/// Verdict on a packet whose key is in a verdict map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "code that evaluates rules must handle every variant")]
pub enum MapVerdict {
    /// Evaluate another chain, then continue with the next rule.
    Jump(ChainName),
    /// Evaluate another chain, then continue where the caller of this chain would.
    Goto(ChainName),
    /// Accept the packet in this table.
    Accept,
}

impl MapVerdict {
    /// Returns the target chain.
    #[must_use]
    pub const fn target(self) -> Option<ChainName> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            Self::Accept => None,
        }
    }
}
