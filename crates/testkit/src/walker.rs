//! Evaluates chains of typed rules for a packet, as the kernel would.
//!
//! [`Tables`] holds chains and IP sets; [`Tables::walk`] evaluates them for a [`Skb`]. Rules that
//! `iptables-restore` or the kernel would refuse are errors, because the whole table fails with
//! such a rule. [`nft`] does the same with the text of an nftables table.

mod matching;
pub mod nft;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_iptables::{
    Action, Chain, ChainName, ConntrackState, DispatchBy, IpSetName, LogPrefix, MapKey, MapVerdict, NflogPrefix,
    RejectWith, Rule, Side,
};
use tortie_model::NamedProtocol;
use tortie_model::desired::Members;

use crate::packet::Packet;

/// A packet in the kernel, with its metadata for netfilter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skb {
    /// Contents of the packet.
    pub packet: Packet,
    /// Incoming interface; empty if this host sends the packet.
    pub in_interface: String,
    /// Outgoing interface; empty if this host receives the packet.
    pub out_interface: String,
    /// Packet mark.
    pub mark: u32,
    /// Conntrack states of the packet.
    pub conntrack: BTreeSet<ConntrackState>,
    /// Whether the reverse path filter would reject it.
    pub reverse_path_fails: bool,
    /// Addresses of this host.
    pub local_addresses: BTreeSet<IpAddr>,
    /// Whether it is within all rate limits.
    pub within_rates: bool,
    /// Number of open connections, for connection limits.
    pub open_connections: u32,
}

impl Skb {
    /// Returns the first packet of a connection, unmarked and within all rate limits.
    #[must_use]
    pub fn new(packet: Packet, in_interface: &str, out_interface: &str) -> Self {
        Self {
            packet,
            in_interface: in_interface.to_owned(),
            out_interface: out_interface.to_owned(),
            mark: 0,
            conntrack: BTreeSet::from([ConntrackState::New]),
            reverse_path_fails: false,
            local_addresses: BTreeSet::new(),
            within_rates: true,
            open_connections: 0,
        }
    }
}

/// Result of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketOutcome {
    /// Accepted in this table, by ACCEPT or an address translation.
    Accepted,
    /// Dropped.
    Dropped,
    /// Dropped with an answer to the sender.
    Rejected(RejectWith),
    /// Returned from the chain in which the walk began.
    Returned,
}

/// Result and side effects of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// The result.
    pub outcome: PacketOutcome,
    /// The mark at the end.
    pub mark: u32,
    /// Whether it was excluded from conntrack.
    pub untracked: bool,
    /// Prefixes of the log lines written.
    pub logs: Vec<LogPrefix>,
    /// Groups and prefixes of NFLOG copies.
    pub nflogs: Vec<(u16, NflogPrefix)>,
    /// Every rule whose matches it passed: chain, and position from 0.
    pub path: Vec<(ChainName, usize)>,
}

/// Error of a walk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WalkError {
    /// A rule jumps to a chain that does not exist.
    #[error("chain {0} does not exist")]
    NoChain(ChainName),
    /// A rule refers to an IP set that does not exist, or has members of another type.
    #[error("chain {chain}, rule {rule}: no IP set {set} of the type asked for")]
    NoSet {
        /// The chain.
        chain: ChainName,
        /// Position of the rule from 0.
        rule: usize,
        /// The set.
        set: IpSetName,
    },
    /// `iptables-restore` would refuse the rule, and with it the table.
    #[error("chain {chain}, rule {rule}: {reason}")]
    Refused {
        /// The chain.
        chain: ChainName,
        /// Position of the rule from 0.
        rule: usize,
        /// The reason.
        reason: &'static str,
    },
    /// Chains jump in a loop.
    #[error("chain {0} is reached through itself")]
    Loop(ChainName),
}

/// Chains of a table and the IP sets that they match.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    chains: BTreeMap<ChainName, Chain>,
    sets: BTreeMap<IpSetName, Members>,
    maps: BTreeMap<ChainName, BTreeMap<MapKey, MapVerdict>>,
}

/// Control flow at the end of a chain.
enum Flow {
    Return,
    End(PacketOutcome),
}

impl Tables {
    /// Returns tables without chains and sets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a chain.
    pub fn add_chain(&mut self, chain: Chain) {
        self.chains.insert(chain.name, chain);
    }

    /// Adds or replaces an IP set.
    pub fn add_set(&mut self, name: IpSetName, members: Members) {
        self.sets.insert(name, members);
    }

    /// Adds an element to a verdict map.
    pub fn add_to_map(&mut self, map: ChainName, key: MapKey, verdict: MapVerdict) {
        self.maps.entry(map).or_default().insert(key, verdict);
    }

    /// Returns the chains, by name.
    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.chains.values()
    }

    /// Returns the elements of verdict maps, by name and key.
    pub fn maps(&self) -> impl Iterator<Item = (ChainName, MapKey, MapVerdict)> {
        let of_map = |(name, members): (&ChainName, &BTreeMap<MapKey, MapVerdict>)| {
            let name = *name;
            members.iter().map(move |(key, verdict)| (name, *key, *verdict)).collect::<Vec<_>>()
        };
        self.maps.iter().flat_map(of_map)
    }

    /// Evaluates a chain for a packet.
    ///
    /// # Errors
    /// If a chain or set is missing, or the kernel would refuse a rule on the way.
    pub fn walk(&self, start: ChainName, skb: &Skb) -> Result<Walk, WalkError> {
        let mut walker = Walker {
            tables: self,
            skb: skb.clone(),
            walk: Walk {
                outcome: PacketOutcome::Returned,
                mark: skb.mark,
                untracked: false,
                logs: Vec::new(),
                nflogs: Vec::new(),
                path: Vec::new(),
            },
            above: Vec::new(),
        };
        if let Flow::End(outcome) = walker.chain(start)? {
            walker.walk.outcome = outcome;
        }
        walker.walk.mark = walker.skb.mark;
        Ok(walker.walk)
    }
}

struct Walker<'a> {
    tables: &'a Tables,
    skb: Skb,
    walk: Walk,
    /// Chains being evaluated, outermost first.
    above: Vec<ChainName>,
}

impl Walker<'_> {
    fn chain(&mut self, name: ChainName) -> Result<Flow, WalkError> {
        if self.above.contains(&name) {
            return Err(WalkError::Loop(name));
        }
        let tables = self.tables;
        let chain = tables.chains.get(&name).ok_or(WalkError::NoChain(name))?;
        self.above.push(name);
        let flow = self.rules(chain);
        self.above.pop();
        flow
    }

    fn rules(&mut self, chain: &Chain) -> Result<Flow, WalkError> {
        for (position, rule) in chain.rules.iter().enumerate() {
            matching::check(rule, self.skb.packet.is_ipv4()).map_err(|reason| WalkError::Refused {
                chain: chain.name,
                rule: position,
                reason,
            })?;
            if !self.passes(chain.name, position, rule)? {
                continue;
            }
            self.walk.path.push((chain.name, position));
            let Some(action) = &rule.action else { continue };
            let refused = |reason| WalkError::Refused { chain: chain.name, rule: position, reason };
            if let Some(flow) = self.action(action, &refused)? {
                return Ok(flow);
            }
        }
        Ok(Flow::Return)
    }

    /// Returns the effect of an action; `None` if the next rule follows.
    fn action(
        &mut self,
        action: &Action,
        refused: &impl Fn(&'static str) -> WalkError,
    ) -> Result<Option<Flow>, WalkError> {
        match action {
            Action::Jump(target) => self.jump(*target),
            Action::Goto(target) => self.chain(*target).map(Some),
            Action::Dispatch { by, map } => match self.dispatched(*by, *map) {
                Some(MapVerdict::Jump(target)) => self.jump(target),
                Some(MapVerdict::Goto(target)) => self.chain(target).map(Some),
                Some(MapVerdict::Accept) => Ok(Some(Flow::End(PacketOutcome::Accepted))),
                None => Ok(None),
            },
            Action::Several(actions) => {
                for action in actions.iter() {
                    if let Some(flow) = self.action(action, refused)? {
                        return Ok(Some(flow));
                    }
                }
                Ok(None)
            }
            Action::Include(_) => Err(refused("rules of another chain that are not in their place yet")),
            Action::Return => Ok(Some(Flow::Return)),
            other => Ok(self.act(other).map(Flow::End)),
        }
    }

    fn jump(&mut self, target: ChainName) -> Result<Option<Flow>, WalkError> {
        Ok(match self.chain(target)? {
            Flow::Return => None,
            end @ Flow::End(_) => Some(end),
        })
    }

    /// Returns the verdict of a map for the packet.
    fn dispatched(&self, by: DispatchBy, map: ChainName) -> Option<MapVerdict> {
        let members = self.tables.maps.get(&map)?;
        let of_interface = |name: &str| {
            let is_it = |key: &MapKey| matches!(key, MapKey::Interface(member) if member.as_str() == name);
            members.iter().find(|(key, _)| is_it(key)).map(|(_, verdict)| *verdict)
        };
        let packet = &self.skb.packet;
        match by {
            DispatchBy::InInterface => of_interface(&self.skb.in_interface),
            DispatchBy::OutInterface => of_interface(&self.skb.out_interface),
            DispatchBy::Mark(bits) => members.get(&MapKey::Mark(self.skb.mark & bits.get())).copied(),
            DispatchBy::DestinationPort => {
                let is_it = |key: &MapKey| match key {
                    MapKey::Port(protocol, port) => {
                        NamedProtocol::from(*protocol).number() == packet.protocol
                            && Some(*port) == packet.destination_port()
                    }
                    _ => false,
                };
                members.iter().find(|(key, _)| is_it(key)).map(|(_, verdict)| *verdict)
            }
            DispatchBy::Address(Side::Source) => members.get(&MapKey::Address(packet.source)).copied(),
            DispatchBy::Address(Side::Destination) => members.get(&MapKey::Address(packet.destination)).copied(),
        }
    }

    fn passes(&self, chain: ChainName, position: usize, rule: &Rule) -> Result<bool, WalkError> {
        for question in rule.matches.iter() {
            match matching::answer(question, &self.skb, &self.tables.sets) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(set) => return Err(WalkError::NoSet { chain, rule: position, set }),
            }
        }
        Ok(true)
    }

    /// Executes an action other than jump, goto and return. Returns the result if the action ends
    /// the walk.
    fn act(&mut self, action: &Action) -> Option<PacketOutcome> {
        match action {
            Action::Accept | Action::Dnat { .. } | Action::Snat { .. } | Action::Masquerade { .. } => {
                return Some(PacketOutcome::Accepted);
            }
            Action::Drop => return Some(PacketOutcome::Dropped),
            Action::Reject(with) => return Some(PacketOutcome::Rejected(*with)),
            Action::RejectConnectionsAbove(limit) => {
                let opens = self.skb.packet.protocol == 6 && self.skb.conntrack.contains(&ConntrackState::New);
                if opens && self.skb.open_connections > *limit {
                    return Some(PacketOutcome::Rejected(RejectWith::TcpReset));
                }
            }
            Action::ClearMark(bits) => self.skb.mark &= !bits.get(),
            Action::SetMark(bits) => self.skb.mark |= bits.get(),
            Action::SetMaskedMark(mark) => {
                self.skb.mark = self.skb.mark & !mark.mask().get() | mark.value();
            }
            Action::MarkWithinRate { mark, .. } => {
                if self.skb.within_rates {
                    self.skb.mark |= mark.get();
                }
            }
            Action::DropAboveRate(_) => {
                if !self.skb.within_rates {
                    return Some(PacketOutcome::Dropped);
                }
            }
            Action::NoTrack => self.walk.untracked = true,
            Action::Log(prefix) => self.walk.logs.push(prefix.clone()),
            Action::Nflog { group, prefix } => self.walk.nflogs.push((*group, prefix.clone())),
            // These do not affect the result here. The caller handles control flow.
            Action::SetDscp(_)
            | Action::SetConnectionMark(_)
            | Action::OffloadFlow
            // No program listens.
            | Action::Queue(_)
            | Action::Jump(_)
            | Action::Goto(_)
            | Action::Dispatch { .. }
            | Action::Several(_)
            | Action::Include(_)
            | Action::Return => {}
        }
        None
    }
}

#[cfg(test)]
mod tests;
