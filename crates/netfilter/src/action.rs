//! Actions of rules (`felix/generictables/actions.go`).

use std::net::IpAddr;
use std::sync::Arc;

use tortie_net::Family;

use crate::map::DispatchBy;
use crate::mark::{MarkBits, MaskedMark};
use crate::name::ChainName;
use crate::values::{PacketRate, PortRange};

/// Action on a packet that passes all matches of a rule.
///
/// Deliberately exhaustive: code that evaluates rules must handle every action.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Evaluate another chain, then continue with the next rule.
    Jump(ChainName),
    /// Evaluate another chain, then continue where the caller of *this* chain would.
    Goto(ChainName),
    /// Continue in the calling chain.
    Return,
    /// Accept the packet in this table.
    Accept,
    /// Drop the packet silently.
    Drop,
    /// Drop the packet and notify the sender.
    Reject(RejectWith),
    /// Clear mark bits.
    ClearMark(MarkBits),
    /// Set mark bits.
    SetMark(MarkBits),
    /// Give some mark bits a value.
    SetMaskedMark(MaskedMark),
    /// Keep the packet's connection out of connection tracking.
    NoTrack,
    /// Write a line to the kernel log.
    Log(LogPrefix),
    /// Copy the beginning of the packet to a netlink group.
    Nflog {
        /// The group.
        group: u16,
        /// Prefix that the listener receives with the packet.
        prefix: NflogPrefix,
    },
    /// Translate the destination of the connection.
    Dnat {
        /// The new address.
        addr: IpAddr,
        /// The new port, if it changes.
        port: Option<u16>,
    },
    /// Translate the source of the connection.
    Snat {
        /// The new address.
        addr: IpAddr,
        /// Range of the new source port; any port if `None`.
        ports: Option<PortRange>,
    },
    /// Translate the source of the connection to the address of the outgoing interface.
    Masquerade {
        /// Range of the new source port; any port if `None`.
        ports: Option<PortRange>,
    },
    /// Set the six DSCP bits of the IP header.
    SetDscp(u8),
    /// Give some bits of the connection's mark a value.
    SetConnectionMark(MaskedMark),
    /// Set mark bits while a token bucket of this rule has tokens.
    MarkWithinRate {
        /// The bucket.
        limit: PacketRate,
        /// The bits.
        mark: MarkBits,
    },
    /// Drop packets while a token bucket of this rule has no tokens. nftables only.
    DropAboveRate(PacketRate),
    /// Reject new TCP connections (with a reset) while more than this many are open.
    RejectConnectionsAbove(u32),
    /// Looks up a verdict map and applies the verdict; without an entry, the next rule follows.
    /// nftables only.
    Dispatch {
        /// Key of the lookup.
        by: DispatchBy,
        /// The map.
        map: ChainName,
    },
    /// These actions in order; only the last may jump or decide. nftables only.
    Several(Arc<[Action]>),
    /// Inserts the rules of another chain in place of this one, which has no matches. A return from
    /// them is a return from this chain. nftables only.
    Include(ChainName),
    /// Offload the connection to the flow table. nftables only.
    OffloadFlow,
    /// Hold the packet until the program that listens to this queue decides. Without a listener,
    /// the next rule follows.
    Queue(u16),
}

/// Reply to the sender of a rejected packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum RejectWith {
    /// The kernel's default: ICMP port unreachable.
    #[default]
    PortUnreachable,
    /// A TCP reset.
    TcpReset,
    /// ICMP of this family: communication administratively prohibited.
    AdminProhibited(Family),
}

macro_rules! prefix_text {
    ($name:ident, $safe:expr) => {
        impl $name {
            /// Keeps `text`; characters that would break the line become `_`.
            #[must_use]
            pub fn new(text: &str) -> Self {
                let safe: fn(char) -> bool = $safe;
                if text.chars().all(safe) {
                    return Self(text.into());
                }
                let safe: String = text.chars().map(|c| if safe(c) { c } else { '_' }).collect();
                Self(safe.into())
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    };
}

/// The beginning of a kernel log line; `: ` is added to it.  The kernel keeps 29 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LogPrefix(Arc<str>);
prefix_text!(LogPrefix, |c| !c.is_control() && !matches!(c, '"' | '\\'));

/// Prefix that an NFLOG listener receives with the packet. The kernel keeps 63 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NflogPrefix(Arc<str>);
prefix_text!(NflogPrefix, |c| !c.is_control() && !c.is_whitespace() && !matches!(c, '"' | '\'' | '\\'));

impl Action {
    /// The chain that the action jumps or goes to.
    #[must_use]
    pub fn target(&self) -> Option<ChainName> {
        match self.last() {
            Self::Jump(chain) | Self::Goto(chain) => Some(*chain),
            _ => None,
        }
    }

    /// Returns the action with `last` in place of its last part.
    pub(crate) fn with_last(self, last: Self) -> Self {
        match &self {
            Self::Several(actions) => match actions.split_last() {
                Some((end, before)) => {
                    Self::Several(before.iter().cloned().chain([end.clone().with_last(last)]).collect())
                }
                None => last,
            },
            _ => last,
        }
    }

    /// Returns the last part of the action.
    #[must_use]
    pub fn last(&self) -> &Self {
        match self {
            Self::Several(actions) => actions.last().map_or(self, Self::last),
            _ => self,
        }
    }
}
