//! Verdict maps, which only nftables has: what is asked of a packet, and what becomes of it by the answer.

use std::net::IpAddr;

use tortie_net::{InterfaceName, PortProtocol};

use crate::mark::MarkBits;
use crate::matches::Side;
use crate::name::ChainName;

/// How chains of nftables are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(clippy::exhaustive_enums, reason = "whoever writes rules must know all of them")]
pub enum Layout {
    /// As Felix does it: what iptables would be given, but for the dispatch of workloads.
    #[default]
    Felix,
    /// So that a packet meets few rules.
    Fast,
}

/// What of a packet is looked up in a verdict map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "whoever evaluates rules must know all of them")]
pub enum DispatchBy {
    /// The interface that it came in by.
    InInterface,
    /// The interface that it leaves by.
    OutInterface,
    /// These bits of its mark.
    Mark(MarkBits),
    /// Its protocol together with its destination port.
    DestinationPort,
    /// One of its addresses.
    Address(Side),
}

impl DispatchBy {
    /// What the keys of such a map are.
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

/// What the keys of a verdict map are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "whoever makes maps must know all of them")]
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
#[allow(clippy::exhaustive_enums, reason = "whoever makes maps must know all of them")]
pub enum MapKey {
    /// An interface.
    Interface(InterfaceName),
    /// A mark, without the bits that are not asked for.
    Mark(u32),
    /// A protocol and a port.
    Port(PortProtocol, u16),
    /// An address.
    Address(IpAddr),
}

impl MapKey {
    /// The kind of maps that have such keys.
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

/// What becomes of a packet whose key is in a verdict map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "whoever evaluates rules must know all of them")]
pub enum MapVerdict {
    /// Goes through another chain, then on with the next rule.
    Jump(ChainName),
    /// Goes through another chain, then on where the caller of this chain would.
    Goto(ChainName),
    /// Is through this table.
    Accept,
}

impl MapVerdict {
    /// The chain that it leads to.
    #[must_use]
    pub const fn target(self) -> Option<ChainName> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            Self::Accept => None,
        }
    }
}
