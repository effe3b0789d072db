//! Nftables tables, and the generation of the ruleset: the number of transactions that the kernel
//! has committed in a network namespace (`NFT_MSG_GETGEN` in `linux/netfilter/nf_tables.h`).

use std::time::Duration;

use netlink_packet_core::{NLA_TYPE_MASK, NlasIterator};
use rustix::io::Errno;
use tortie_iptables::{Action, Rule, Table as Layer};
use tortie_model::{Cause, Family, with_causes};
use tortie_nftables::wire::{Snapshot, SnapshotReader, encode};
use tortie_nftables::{
    BaseChain, ChainKind, Command, CommitError, Context, Features, FullNames, Hook, LayeredName, ProgramRule, TableId,
    Transaction, compile, rules,
};

use super::error::NetlinkError;
use super::nft_message;
use super::socket::Socket;

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message type.
const SUBSYSTEM: u16 = 10 << 8;
const NFT_MSG_NEWGEN: u16 = SUBSYSTEM | 15;
const NFT_MSG_GETGEN: u16 = SUBSYSTEM | 16;
const NFTA_GEN_ID: u16 = 1;
/// `struct nfgenmsg`: family, version and resource, all unspecified.
const HEADER: [u8; 4] = [0; 4];

/// Netlink connection that reads nftables tables and rules.
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

    /// Returns the contents of a table; `None` if it is missing.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&mut self, table: TableId) -> Result<Option<Snapshot>, NetlinkError> {
        self.read_by(|| SnapshotReader::new(table), "table of nftables")
    }

    /// Returns only the rules of a table, with their counters; `None` if there are none.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read_rules(&mut self, table: TableId) -> Result<Option<Snapshot>, NetlinkError> {
        self.read_by(|| SnapshotReader::of_rules(table), "rules of nftables")
    }

    fn read_by(
        &mut self,
        reader: impl Fn() -> SnapshotReader,
        subject: &'static str,
    ) -> Result<Option<Snapshot>, NetlinkError> {
        const ATTEMPTS: usize = 4;
        let mut attempt = 1;
        loop {
            match self.read_once(reader(), subject) {
                Err(error) if error.is_worth_another_dump() && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    /// Reports whether a table has chains.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn has_chains(&mut self, table: TableId) -> Result<bool, NetlinkError> {
        let mut reader = SnapshotReader::new(table);
        let Some(chains) = reader.next_request() else { return Ok(false) };
        let subject = "chains of nftables";
        let listed = self.socket.visit_raw(chains.kind, &chains.payload, subject, |kind, payload| {
            reader.on_message(kind, payload).map_err(|_| NetlinkError::Malformed { subject })
        });
        listed.map(|()| reader.finish().is_some())
    }

    fn read_once(
        &mut self,
        mut reader: SnapshotReader,
        subject: &'static str,
    ) -> Result<Option<Snapshot>, NetlinkError> {
        while let Some(request) = reader.next_request() {
            let listed = self.socket.visit_raw(request.kind, &request.payload, subject, |kind, payload| {
                reader.on_message(kind, payload).map_err(|_| NetlinkError::Malformed { subject })
            });
            match listed {
                // There are no objects of this kind.
                Err(error) if error.errno() == Some(Errno::NOENT) => {}
                listed => listed?,
            }
        }
        Ok(reader.finish())
    }

    /// Commits a transaction.
    ///
    /// # Errors
    /// The changes that the kernel refuses, or that the outcome is unknown.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        let messages = encode(transaction);
        let outcome = self.socket.transaction_with_outcomes(&messages, "change of nftables");
        let refused = outcome.map_err(|error| CommitError::Failed(Cause::new(error)))?;
        if refused.is_empty() {
            return Ok(());
        }
        let answer = |(at, error): (usize, NetlinkError)| {
            let command = messages.get(at).map_or(transaction.commands.len(), |message| message.command);
            (command, error.errno().map_or(0, Errno::raw_os_error), with_causes(&error))
        };
        Err(CommitError::answered(refused.into_iter().map(answer)))
    }

    /// Removes a table with its contents; reports whether it existed. The rules are removed first.
    /// Otherwise, rules that still evaluate a packet would look it up in maps whose elements are
    /// gone, and treat it as one from an unknown interface.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn delete(&mut self, table: TableId) -> Result<bool, NetlinkError> {
        // One message each, regardless of the table's size.
        let deletion = encode(&Transaction { table, commands: vec![Command::DeleteTable] });
        // Messages identify a table and the rules of a table in the same way.
        let flush = deletion.iter().map(|message| (nft_message::NFT_MSG_DELRULE, 0, message.payload.clone()));
        // If the rules cannot be removed first, the table is deleted with them.
        let _ = self.socket.transaction(&flush.collect::<Vec<_>>(), "removal of rules of nftables");
        let outcome = self.socket.transaction_with_outcomes(&deletion, "removal of a table of nftables");
        match outcome.map(|refused| refused.into_iter().next()) {
            Ok(None) => Ok(true),
            // Without nftables there is no such table.
            Ok(Some((_, error))) | Err(error) if error.is_absent_in_nftables() => Ok(false),
            Ok(Some((_, error))) | Err(error) => Err(error),
        }
    }

    /// Reports whether the kernel supports flow tables. Leaves nothing behind.
    pub fn has_flow_tables(&mut self) -> bool {
        let probe = TableId::of(Family::V4, "calico-flowtable-probe");
        self.takes(probe, Command::AddFlowTable { devices: Vec::new() })
    }

    /// Reports whether the kernel supports tables for ARP packets. Leaves nothing behind, and
    /// writes nothing where Calico's table is in place.
    pub fn has_arp_tables(&mut self) -> bool {
        if self.has_chains(TableId::CALICO_ARP).is_ok_and(|has| has) {
            return true;
        }
        let probe = TableId { name: "calico-arp-probe", ..TableId::CALICO_ARP };
        let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Output, priority: 0 };
        self.takes(probe, Command::AddChain { chain: LayeredName::from_kernel("filter-OUTPUT"), base: Some(base) })
    }

    /// Reports whether rules can hold packets by the kernel's own expression (`NFT_QUEUE`). Changes
    /// nothing, not even the number of transactions: the last change is one that the kernel
    /// refuses.
    pub fn has_queue(&mut self) -> bool {
        let messages = encode(&queue_probe());
        let outcome = self.socket.transaction_with_outcomes(&messages, "probe of nftables");
        let refused = outcome.unwrap_or_else(|error| {
            tracing::debug!(error = %with_causes(&error), "nftables cannot be probed for queues");
            Vec::new()
        });
        is_last_alone(refused.iter().map(|(at, _)| *at), messages.len())
    }

    /// Reports whether the kernel accepts a change, in a table that is removed by the end of the
    /// transaction.
    fn takes(&mut self, table: TableId, command: Command) -> bool {
        let commands = vec![Command::AddTable, command, Command::DeleteTable];
        let refusal = self.commit(&Transaction { table, commands }).err();
        if let Some(refusal) = &refusal {
            tracing::debug!(%table, %refusal, "the kernel does not support a feature of nftables");
        }
        refusal.is_none()
    }

    /// Returns the number of transactions committed so far, modulo 2^32.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn generation(&mut self) -> Result<u32, NetlinkError> {
        self.socket.query(NFT_MSG_GETGEN, &HEADER, "generation of the nftables ruleset", parse)
    }
}

/// Returns a transaction with a rule that holds packets, whose last command removes a table that is
/// gone.
fn queue_probe() -> Transaction {
    let table = TableId::of(Family::V4, "calico-queue-probe");
    let chain = LayeredName::from_kernel("filter-probe");
    let names = FullNames::default();
    let context = Context { family: Family::V4, layer: Layer::Filter, names: &names, features: Features::ALL };
    let rule = [Rule::new(Action::Queue(0))];
    let program = |(shown, rule)| Some(ProgramRule { shown, expressions: compile(rule, &context).ok()? });
    let rules = rules("probe", &rule, context).zip(&rule).filter_map(program);
    let rules = rules.map(|rule| Command::AddRule { chain: chain.clone(), rule: rule.into() });
    let mut commands = vec![Command::AddTable, Command::AddChain { chain: chain.clone(), base: None }];
    commands.extend(rules);
    commands.extend([Command::DeleteTable, Command::DeleteTable]);
    Transaction { table, commands }
}

/// Reports whether the last of so many messages, and no other, is refused.
fn is_last_alone(refused: impl Iterator<Item = usize>, messages: usize) -> bool {
    refused.eq([messages.saturating_sub(1)])
}

/// Decodes the generation.
fn parse(kind: u16, payload: &[u8]) -> Result<Option<u32>, NetlinkError> {
    let malformed = || NetlinkError::Malformed { subject: "generation of the nftables ruleset" };
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
