//! Notifications of changes to nftables tables (`NFNLGRP_NFTABLES` in
//! `linux/netfilter/nfnetlink.h`).

use std::time::Duration;

use netlink_packet_core::{NLA_TYPE_MASK, NlasIterator};
use tortie_nftables::TableId;

use super::error::NetlinkError;
use super::nft_message::{NFT_MSG_DELSETELEM, NFT_MSG_NEWSETELEM, SUBSYSTEM};
use super::socket::Socket;
use super::wire;

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;
/// Message at the end of each transaction.
const NFT_MSG_NEWGEN: u16 = SUBSYSTEM | 15;
/// `NFPROTO_ARP`.
const ARP: u8 = 3;
/// `struct nfgenmsg`.
const HEADER_LEN: usize = 4;
/// `struct nlattr`.
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// Attribute of the table, in messages about tables, chains, rules, sets and elements alike.
const TABLE: u16 = 1;
/// Attribute of the set, in messages about elements.
const SET: u16 = 2;
/// Beginnings of the names of domain sets, whose members another thread keeps.
const DOMAIN_SETS: [&[u8]; 2] = [b"cali40d-", b"cali60d-"];

/// Socket that receives nftables transactions, and counts those that change one of some tables.
/// Changes of the members of domain sets do not count.
#[derive(Debug)]
pub struct RulesetSubscription {
    socket: Socket,
    transactions: Transactions,
}

impl RulesetSubscription {
    /// Subscribes; earlier changes are not reported.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(tables: &[TableId], timeout: Duration) -> Result<Self, NetlinkError> {
        let mut socket = Socket::open_netfilter(timeout)?;
        socket.subscribe(GROUP)?;
        Ok(Self { socket, transactions: Transactions { tables: tables.to_vec(), is_touched: false, count: 0 } })
    }

    /// Waits for notifications, up to the timeout given to [`open`](Self::open). Returns the number
    /// of transactions that have changed the tables since this was opened; `None` if it has not
    /// changed.
    ///
    /// # Errors
    /// [`NetlinkError::Overflow`] if notifications were lost. After any error the number is
    /// meaningless.
    pub fn receive(&mut self) -> Result<Option<u64>, NetlinkError> {
        let before = self.transactions.count;
        let datagram = match self.socket.receive("changes of nftables") {
            Err(NetlinkError::Timeout { .. }) => return Ok(None),
            datagram => datagram?,
        };
        for frame in wire::frames(datagram) {
            let frame = frame?;
            self.transactions.on_message(frame.kind, frame.payload);
        }
        Ok(Some(self.transactions.count).filter(|count| *count != before))
    }
}

#[derive(Debug)]
struct Transactions {
    tables: Vec<TableId>,
    /// Whether the transaction that is being received changes one of the tables.
    is_touched: bool,
    count: u64,
}

impl Transactions {
    fn on_message(&mut self, kind: u16, payload: &[u8]) {
        if kind == NFT_MSG_NEWGEN {
            self.count += u64::from(std::mem::take(&mut self.is_touched));
        } else if kind & 0xff00 == SUBSYSTEM && !self.is_touched {
            self.is_touched = self.is_about_ours(payload) && !is_about_learned_members(kind, payload);
        }
    }

    fn is_about_ours(&self, payload: &[u8]) -> bool {
        let (Some(&family), Some(name)) = (payload.first(), name_in(payload, TABLE)) else { return false };
        let number = |ours: &TableId| if ours.is_arp { ARP } else { wire::family_number(ours.family) };
        self.tables.iter().any(|ours| ours.name.as_bytes() == name && number(ours) == family)
    }
}

/// Reports whether a message is about members of a domain set.
fn is_about_learned_members(kind: u16, payload: &[u8]) -> bool {
    matches!(kind, NFT_MSG_NEWSETELEM | NFT_MSG_DELSETELEM)
        && name_in(payload, SET).is_some_and(|set| DOMAIN_SETS.iter().any(|prefix| set.starts_with(prefix)))
}

/// Returns the name in an attribute of a message.
fn name_in(payload: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut attributes = NlasIterator::new(payload.get(HEADER_LEN..)?).map_while(Result::ok);
    let attribute = attributes.find(|it| it.kind() & NLA_TYPE_MASK == wanted)?;
    let length = usize::from(attribute.length());
    attribute.into_inner().get(ATTRIBUTE_HEADER_LEN..length)?.split(|byte| *byte == 0).next()
}

#[cfg(test)]
mod tests;
