//! What a rule does with a packet that passes its matches, and the text of it.
//!
//! Like the texts of matches, these are inputs of rule hashes (`felix/iptables/actions.go`).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::features::Features;
use crate::mark::{MarkBits, MaskedMark};
use crate::name::ChainName;
use crate::values::PortRange;

/// What happens to the packet.
///
/// Deliberately exhaustive: whoever evaluates rules must know all of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Go through another chain, then go on with the next rule.
    Jump(ChainName),
    /// Go through another chain, then go on where the caller of *this* chain would.
    Goto(ChainName),
    /// Go on in the calling chain.
    Return,
    /// Let the packet through this table.
    Accept,
    /// Drop the packet silently.
    Drop,
    /// Drop the packet and tell the sender.
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
        /// What the listener sees beside the packet.
        prefix: NflogPrefix,
    },
    /// Send the connection to another destination.
    Dnat {
        /// The new address.
        addr: IpAddr,
        /// The new port, if it changes.
        port: Option<u16>,
    },
    /// Give the connection another source.
    Snat {
        /// The new address.
        addr: IpAddr,
        /// From which ports the new one is taken; any if `None`.
        ports: Option<PortRange>,
    },
    /// Give the connection the outgoing interface's address as source.
    Masquerade {
        /// From which ports the new one is taken; any if `None`.
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
    /// Refuse (TCP reset) new TCP connections while more than this many are open.
    RejectConnectionsAbove(u32),
}

/// What a rejected sender is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum RejectWith {
    /// The kernel's default: ICMP port unreachable.
    #[default]
    PortUnreachable,
    /// A TCP reset.
    TcpReset,
}

/// Packets per second, with a burst on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketRate {
    rate: u16,
    burst: u16,
}

impl PacketRate {
    /// The kernel's scale: neither rate nor burst can be larger.
    pub const MAX: u16 = 10_000;

    /// `rate` packets per second with a bucket of `burst` tokens; `None` unless both are from 1 to
    /// 10000.
    #[must_use]
    pub const fn new(rate: u16, burst: u16) -> Option<Self> {
        if rate == 0 || rate > Self::MAX || burst == 0 || burst > Self::MAX { None } else { Some(Self { rate, burst }) }
    }

    /// Packets per second.
    #[must_use]
    pub const fn rate(self) -> u16 {
        self.rate
    }

    /// The size of the bucket.
    #[must_use]
    pub const fn burst(self) -> u16 {
        self.burst
    }
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

/// What a netlink log listener sees beside the packet.  The kernel keeps 63 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NflogPrefix(Arc<str>);
prefix_text!(NflogPrefix, |c| !c.is_control() && !c.is_whitespace() && !matches!(c, '"' | '\'' | '\\'));

impl Action {
    /// The chain that the action jumps or goes to.
    #[must_use]
    pub const fn target(&self) -> Option<ChainName> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(*chain),
            _ => None,
        }
    }

    /// Appends the action's text for a system with these features.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn write(&self, features: &Features, out: &mut impl fmt::Write) -> fmt::Result {
        let randomly = |able: bool| if able { " --random-fully" } else { "" };
        match self {
            Self::Jump(chain) => write!(out, "--jump {chain}"),
            Self::Goto(chain) => write!(out, "--goto {chain}"),
            Self::Return => out.write_str("--jump RETURN"),
            Self::Accept => out.write_str("--jump ACCEPT"),
            Self::Drop => out.write_str("--jump DROP"),
            Self::Reject(RejectWith::PortUnreachable) => out.write_str("--jump REJECT"),
            Self::Reject(RejectWith::TcpReset) => out.write_str("--jump REJECT --reject-with tcp-reset"),
            Self::ClearMark(bits) => write!(out, "--jump MARK --set-mark 0/{bits}"),
            Self::SetMark(bits) => write!(out, "--jump MARK --set-mark {bits}/{bits}"),
            Self::SetMaskedMark(mark) => {
                write!(out, "--jump MARK --set-mark {:#x}/{}", mark.value(), mark.mask())
            }
            Self::NoTrack => out.write_str("--jump NOTRACK"),
            Self::Log(LogPrefix(prefix)) => {
                write!(out, "--jump LOG --log-prefix \"{prefix}: \" --log-level 5")
            }
            Self::Nflog { group, prefix: NflogPrefix(prefix) } => {
                let size = if features.nflog_size { "size" } else { "range" };
                write!(out, "--jump NFLOG --nflog-group {group} --nflog-prefix {prefix} --nflog-{size} 80")
            }
            Self::Dnat { addr, port: None } => {
                write!(out, "--jump DNAT --to-destination {addr}")
            }
            Self::Dnat { addr: IpAddr::V4(addr), port: Some(port) } => {
                write!(out, "--jump DNAT --to-destination {addr}:{port}")
            }
            Self::Dnat { addr: IpAddr::V6(addr), port: Some(port) } => {
                write!(out, "--jump DNAT --to-destination [{addr}]:{port}")
            }
            Self::Snat { addr, ports } => {
                let random = randomly(features.snat_random_fully);
                match (addr, ports) {
                    (addr, None) => write!(out, "--jump SNAT --to-source {addr}{random}"),
                    (IpAddr::V4(addr), Some(ports)) => {
                        let (first, last) = (ports.first(), ports.last());
                        write!(out, "--jump SNAT --to-source {addr}:{first}-{last}{random}")
                    }
                    (IpAddr::V6(addr), Some(ports)) => {
                        let (first, last) = (ports.first(), ports.last());
                        write!(out, "--jump SNAT --to-source [{addr}]:{first}-{last}{random}")
                    }
                }
            }
            Self::Masquerade { ports } => {
                out.write_str("--jump MASQUERADE")?;
                if let Some(ports) = ports {
                    write!(out, " --to-ports {}-{}", ports.first(), ports.last())?;
                }
                out.write_str(randomly(features.masquerade_random_fully))
            }
            Self::SetDscp(value) => write!(out, "--jump DSCP --set-dscp {value}"),
            Self::SetConnectionMark(mark) => {
                write!(out, "--jump CONNMARK --set-mark {:#x}/{}", mark.value(), mark.mask())
            }
            Self::MarkWithinRate { limit: PacketRate { rate, burst }, mark } => write!(
                out,
                "-m limit --limit {rate}/sec --limit-burst {burst} \
                 --jump MARK --set-mark {mark}/{mark}"
            ),
            Self::RejectConnectionsAbove(count) => write!(
                out,
                "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN \
                 -m connlimit --connlimit-above {count} --connlimit-mask 0 \
                 -j REJECT --reject-with tcp-reset"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
