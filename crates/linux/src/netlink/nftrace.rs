//! Tracing of packets through all rules of a network namespace (`nft_trace.c` of the kernel).
//!
//! An nftables table marks the packets as early as possible. Nftables rules, including rules by
//! iptables-nft, are then reported here. Those by iptables-legacy see the same mark, and log the
//! packet (see [`Nflog`](super::Nflog)). Chains after all others report that a packet was accepted.
//!
//! The table belongs to the socket that created it: the kernel removes it when the socket is
//! closed, however the process ends.

mod filter;
mod message;
mod rules;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use tortie_model::Family;

use super::error::NetlinkError;
use super::nft_message::{NFT_MSG_GETRULE, SUBSYSTEM};
use super::socket::Socket;
use super::waiting::{DATAGRAMS, Read, read_waiting};
use super::wire::family_number;

pub use filter::{Filter, Transport};
pub use message::{Event, NFPROTO_INET, TraceMessage, TraceVerdict};
pub use rules::Chain;

const NFT_MSG_TRACE: u16 = SUBSYSTEM | 17;
const NFNLGRP_NFTRACE: u32 = 9;
/// Timeout for answers of the kernel.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why packets cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The kernel is older than Linux 5.12, or has no nftables.
    #[error("this kernel cannot trace packets: it takes nftables of Linux 5.12 or later")]
    Unsupported,
    /// Any other error.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// Trace of the packets that some filters match, until this is dropped.
#[derive(Debug)]
pub struct Nftrace {
    /// Socket that owns the table.
    _owner: Socket,
    listener: Socket,
    table: String,
    family: Family,
}

impl Nftrace {
    /// Begins to trace packets of a family that any of the filters matches, by a table of this
    /// name.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(family: Family, table: &str, filters: &[Filter]) -> Result<Self, TraceError> {
        let mut listener = Socket::open_netfilter(TIMEOUT)?;
        listener.subscribe(NFNLGRP_NFTRACE)?;
        let mut owner = Socket::open_netfilter(TIMEOUT)?;
        let made = owner.transaction(&rules::table(family, table, filters), "table that traces packets");
        made.map_err(|error| match error.errno() {
            Some(Errno::OPNOTSUPP | Errno::INVAL) => TraceError::Unsupported,
            _ => error.into(),
        })?;
        Ok(Self { _owner: owner, listener, table: table.to_owned(), family })
    }

    /// Returns the name of its table.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Passes the waiting messages to `each`, up to a limit. Does not wait for any.
    ///
    /// # Errors
    /// If the socket cannot be read any more.
    pub fn read(&mut self, mut each: impl FnMut(TraceMessage)) -> Result<Read, NetlinkError> {
        let family = family_number(self.family);
        read_waiting(&mut self.listener, "traced packets", DATAGRAMS, |frame| {
            if frame.kind != NFT_MSG_TRACE {
                return Ok(false);
            }
            let message = TraceMessage::parse(frame.payload)?;
            // Tables for both families trace the packets of either.
            let is_ours = message.family == family || message.family == NFPROTO_INET;
            if is_ours {
                each(message);
            }
            Ok(is_ours)
        })
    }
}

impl AsFd for Nftrace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Handles of all rules of a family, in the order of each chain.
pub type Handles = BTreeMap<Chain, Vec<u64>>;

/// Lists the nftables rules for packets of a family.
///
/// # Errors
/// If they cannot be listed.
pub fn handles(family: Family) -> Result<Handles, NetlinkError> {
    let mut socket = Socket::open_netfilter(TIMEOUT)?;
    let mut handles = Handles::new();
    for family in [family_number(family), NFPROTO_INET] {
        let rules = socket.dump_raw(NFT_MSG_GETRULE, &[family, 0, 0, 0], "rules of nftables", rules::parse)?;
        for (chain, handle) in rules {
            handles.entry(chain).or_default().push(handle);
        }
    }
    Ok(handles)
}

#[cfg(test)]
mod tests;
