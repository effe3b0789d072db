//! The generation of the nftables ruleset: how many transactions the kernel has committed in a network namespace
//! (`NFT_MSG_GETGEN` in `linux/netfilter/nf_tables.h`).

use std::time::Duration;

use netlink_packet_core::{NLA_TYPE_MASK, NlasIterator};

use super::error::NetlinkError;
use super::socket::Socket;

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message type.
const SUBSYSTEM: u16 = 10 << 8;
const NFT_MSG_NEWGEN: u16 = SUBSYSTEM | 15;
const NFT_MSG_GETGEN: u16 = SUBSYSTEM | 16;
const NFTA_GEN_ID: u16 = 1;
/// `struct nfgenmsg`: family, version and resource, all unspecified.
const HEADER: [u8; 4] = [0; 4];

/// A connection to nftables.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
}

impl Nftables {
    /// Opens a connection; every answer must come within `timeout`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(timeout: Duration) -> Result<Self, NetlinkError> {
        Socket::open_netfilter(timeout).map(|socket| Self { socket })
    }

    /// The number of transactions committed so far, modulo 2^32.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn generation(&mut self) -> Result<u32, NetlinkError> {
        self.socket.ask(NFT_MSG_GETGEN, &HEADER, "generation of the nftables ruleset", parse)
    }
}

/// The generation, from a message that has one.
fn parse(kind: u16, payload: &[u8]) -> Result<Option<u32>, NetlinkError> {
    let malformed = || NetlinkError::Malformed { what: "generation of the nftables ruleset" };
    if kind != NFT_MSG_NEWGEN {
        return Ok(None);
    }
    let attributes = payload.get(HEADER.len()..).ok_or_else(malformed)?;
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute.map_err(|_| malformed())?;
        if attribute.kind() & NLA_TYPE_MASK == NFTA_GEN_ID {
            let bytes = attribute.value().try_into().map_err(|_| malformed())?;
            return Ok(Some(u32::from_be_bytes(bytes)));
        }
    }
    Err(malformed())
}

#[cfg(test)]
mod tests;
