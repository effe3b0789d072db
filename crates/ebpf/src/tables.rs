//! What `tortie-classes` has compiled, as trees of blocks.
//!
//! The address at each end of a packet leads to its class, a class to its row, protocol and port to a column. Rows and columns are
//! multiplied already, so that their sum is the number of the cell, which leads to the decision.

mod admission;
mod class_numbers;
mod decisions;
mod group;
mod keys;
mod shares;

use std::collections::BTreeMap;

use tortie_classes::evaluate::{DecidedBy, Missing, Packet, Payload, Verdict};
use tortie_classes::{Compiled, GroupId, Lines};
use tortie_model::{Cidr, Direction, Family};

use crate::blocks::{Assignment, Blocks, CELLS, Cell};
use crate::group_roots::{CLASSES, GroupRoots, NOWHERE};
use admission::{Claim, Holder, Update};
use class_numbers::{ClassNumbers, hints};
use decisions::Decisions;
use group::{Group, NumberedClasses};
use shares::Shares;

pub use decisions::DecisionId;
pub(crate) use decisions::DecisionIdentity;
pub(crate) use keys::AddressKey;
use keys::everything;

/// How many cells a table may have whose numbers are two bytes. Others have four.
const SMALL: usize = 1 << 16;

/// What follows the addresses of a packet, as trees know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The number of the protocol.
    pub protocol: u8,
    /// The destination port, or the ICMP type and code; `None` where the packet has neither.
    pub detail: Option<u16>,
    /// The source port.
    pub source_port: Option<u16>,
}

/// Why a group denies everything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Closed {
    /// Its policies refer to something that is not there.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// Its rules tell more kinds of packets apart than a table can hold, or than can be worked out in reasonable time.
    #[error("its rules make too many cells of addresses and ports: {0}")]
    TooManyCells(usize),
    /// Its trees take more blocks than the share of its namespace has left.
    #[error("its rules need {needed} blocks of eBPF maps, more than its namespace's share of {limit} has left")]
    NoBlocks {
        /// Blocks of its trees.
        needed: u64,
        /// Blocks that all namespaces share.
        limit: u32,
    },
    /// The trees of the networks that it may send from take more blocks than the share of its namespace has left.
    #[error(
        "its source networks need {needed} blocks of eBPF maps, more than its namespace's share of {limit} has left"
    )]
    NoBlocksForSources {
        /// Blocks of these trees.
        needed: u64,
        /// Blocks that all namespaces share.
        limit: u32,
    },
    /// The map of blocks has no room for its trees.
    #[error("the map of {0} blocks has no room for its rules")]
    MapFull(u32),
    /// There are more classes of addresses than trees can tell apart, and its rules are about some of those beyond.
    #[error("its rules tell addresses apart for which there is no room among {0} classes of addresses")]
    TooManyClasses(u32),
}

/// What tables may take. A group that takes more denies everything, alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "whoever sets limits must think of all")]
pub struct Limits {
    /// Blocks of all groups, which namespaces share. Each group counts as if it shared no block with others.
    pub blocks: u32,
    /// Blocks that the map has room for: those of groups and of addresses, and those that packets may still be at.
    pub places: u32,
    /// Cells of a group's table, those included by which lines are filled up to whole blocks; [`Limits::MAX_CELLS`] at most.
    pub cells: u32,
    /// Words of 64 clauses that may be looked at to work out a group's table.
    pub work: usize,
    /// Classes of addresses; from 8 to [`Limits::MAX_CLASSES`]. Those beyond have one number in common.
    pub classes: u32,
}

impl Limits {
    /// The number of a cell, and sums of rows and columns, have 31 bits.
    pub const MAX_CELLS: u32 = NOWHERE;
    /// The number of a class has three bytes, of which one bit is the family.
    pub const MAX_CLASSES: u32 = CLASSES;
}

impl Default for Limits {
    /// As much as there can be.
    fn default() -> Self {
        Self {
            blocks: u32::MAX,
            places: u32::MAX,
            cells: Self::MAX_CELLS,
            work: Lines::MAX_WORK,
            classes: Self::MAX_CLASSES,
        }
    }
}

/// All tables, and the addresses that lead to them.
#[derive(Debug)]
pub struct Tables {
    blocks: Blocks,
    limits: Limits,
    addresses: [Cell; 2],
    /// That for IPv6 without single addresses.
    networks: Cell,
    class_numbers: ClassNumbers,
    address_count: usize,
    /// The trees of addresses that were there already, until the first update.
    adopted: Option<[Cell; 2]>,
    groups: BTreeMap<GroupId, Result<Group, Closed>>,
    /// Of groups that are open or wait for blocks.
    claims: BTreeMap<GroupId, Claim>,
    shares: Shares<Holder>,
    decisions: Decisions,
    /// With fewer blocks in use than this a group may find room that did not before; 0 if all have.
    full_at: usize,
    /// IPv6 networks whose addresses may have another class since this was last asked, with the classes of single addresses in them.
    changed_hosts: Vec<(Cidr, BTreeMap<[u8; 16], u32>)>,
    /// The flush that they show.
    flush_number: u64,
}

impl Tables {
    /// Everything that has been compiled.
    #[must_use]
    pub fn new(compiled: &Compiled<'_>) -> Self {
        let mut tables = Self::with_limits(Limits::default());
        tables.update(compiled);
        tables
    }

    /// Of nothing yet. Groups that need more blocks than their namespace's share of this deny everything.
    #[must_use]
    pub fn with_max_blocks(max_blocks: u32) -> Self {
        Self::with_limits(Limits { blocks: max_blocks, ..Limits::default() })
    }

    /// Of nothing yet, with limits for each group and for all together.
    #[must_use]
    pub fn with_limits(limits: Limits) -> Self {
        let Limits { blocks, places, cells, work, classes } = limits;
        let limits = Limits {
            blocks,
            places,
            cells: cells.min(Limits::MAX_CELLS),
            work,
            classes: classes.clamp(8, Limits::MAX_CLASSES),
        };
        Self {
            blocks: Blocks::new(),
            limits,
            addresses: [Cell::value(NOWHERE); 2],
            networks: Cell::value(NOWHERE),
            class_numbers: ClassNumbers::new(limits.classes),
            address_count: 0,
            adopted: None,
            groups: BTreeMap::new(),
            claims: BTreeMap::new(),
            shares: Shares::new(limits.blocks.into()),
            decisions: Decisions::new(),
            full_at: 0,
            changed_hosts: Vec::new(),
            flush_number: 0,
        }
    }

    /// Follows what has been compiled; the cost is that of the change since the last time, if `compiled` is of the next flush of
    /// the same [`Classes`](tortie_classes::Classes), and that of everything otherwise. Gives the groups whose trees begin
    /// elsewhere now, and those that are gone, in order.
    ///
    /// What is not in use any more keeps its numbers until [`Tables::reclaim`].
    pub fn update(&mut self, compiled: &Compiled<'_>) -> Vec<GroupId> {
        let follows = self.flush_number > 0 && compiled.flush_number() == self.flush_number + 1;
        self.flush_number = compiled.flush_number();
        let hints = match self.adopted {
            Some([v4, v6]) => {
                hints(compiled, |family, key| self.blocks.get(if family == Family::V4 { v4 } else { v6 }, key))
            }
            None => BTreeMap::new(),
        };
        self.class_numbers.assign(compiled.class_extent(), &hints);
        self.address_count = compiled.prefix_count();
        self.update_addresses(compiled, follows);
        let mut changed: Vec<GroupId> = if follows {
            compiled.changed_groups().to_vec()
        } else {
            self.groups.keys().copied().chain(compiled.groups()).collect()
        };
        if self.has_room_again() {
            let waiting = self.closed().filter(|(_, why)| matches!(why, Closed::MapFull(_)));
            let waiting: Vec<GroupId> = waiting.map(|(group, _)| group).collect();
            changed.extend(waiting);
            self.full_at = 0;
        }
        changed.sort_unstable();
        changed.dedup();
        let mut update = Update::default();
        for group in changed {
            self.replace(group, compiled, &mut update);
        }
        if follows {
            self.update_rows(compiled, &mut update);
        }
        self.align(compiled, &mut update);
        update.before.retain(|group, before| self.group(*group) != *before);
        update.before.into_keys().collect()
    }

    fn update_addresses(&mut self, compiled: &Compiled<'_>, follows: bool) {
        let everything = everything();
        let changed = if follows { compiled.changed_networks() } else { &everything };
        for net in changed.iter().filter(|net| net.family() == Family::V6) {
            let hosts = compiled.prefixes_within(*net).filter(|(net, _)| is_single(*net));
            let hosts =
                hosts.map(|(net, class)| (net.bits().to_be_bytes(), self.class_numbers.value(class, Family::V6)));
            self.changed_hosts.push((*net, hosts.collect()));
        }
        let numbers = &self.class_numbers;
        for (family, root) in Family::ALL.into_iter().zip(&mut self.addresses) {
            let nets = changed.iter().filter(|net| net.family() == family).flat_map(|net| {
                let around = (*net, compiled.class_of_network(*net));
                std::iter::once(around).chain(compiled.prefixes_within(*net))
            });
            assign(&mut self.blocks, root, nets.map(|(net, class)| (net, numbers.value(class, family))));
        }
        let nets = changed.iter().filter(|net| net.family() == Family::V6).flat_map(|net| {
            // A single address has what is around it.
            let around = if is_single(*net) { Cidr::new(net.address(), net.prefix_len() - 1) } else { Some(*net) };
            let around = around.map(|around| (*net, compiled.class_of_network(around)));
            around.into_iter().chain(compiled.prefixes_within(*net).filter(|(inside, _)| !is_single(*inside)))
        });
        let nets = nets.map(|(net, class)| (net, numbers.value(class, Family::V6)));
        assign(&mut self.blocks, &mut self.networks, nets);
    }

    /// Makes the trees of a group again, unless they take more blocks than its namespace has left.
    fn replace(&mut self, id: GroupId, compiled: &Compiled<'_>, update: &mut Update) {
        self.note(id, update);
        let before_blocks = self.blocks.in_use();
        let limits = self.limits;
        let new = compiled.direction_of(id).zip(compiled.table(id)).map(|(direction, table)| {
            let table = table?;
            let of = NumberedClasses { compiled, numbers: &self.class_numbers };
            Group::new(of, (direction, &table, &limits), &mut self.blocks, &mut self.decisions)
        });
        let charge = new.as_ref().and_then(|new| new.as_ref().ok()).map(|new| (new.fixed, new.charge(&self.blocks)));
        let holder = self.claim(id, compiled, charge);
        self.settle(update);
        let new = new.map(|new| {
            let trees = new?;
            let why = if holder.is_some_and(|holder| self.shares.is_refused(&holder)) {
                let needed = charge.map_or(0, |(_, charge)| charge);
                Closed::NoBlocks { needed, limit: limits.blocks }
            } else if self.blocks.in_use() > before_blocks.max(limits.places as usize) {
                // One that takes no more blocks than there were has room.
                self.full_at = self.full_at.max(before_blocks);
                Closed::MapFull(limits.places)
            } else {
                return Ok(trees);
            };
            trees.release(&mut self.blocks, &mut self.decisions);
            Err(why)
        });
        update.undecided.remove(&id);
        if matches!(new, Some(Ok(_))) {
            update.made.insert(id);
        }
        let before = match new {
            Some(new) => self.groups.insert(id, new),
            None => self.groups.remove(&id),
        };
        if let Some(Ok(before)) = before {
            before.release(&mut self.blocks, &mut self.decisions);
        }
    }

    /// Gives classes the rows that they have now, in tables that are the same otherwise.
    #[expect(clippy::expect_used, reason = "a claim is refused, and kept, before a group has no blocks")]
    fn update_rows(&mut self, compiled: &Compiled<'_>, update: &mut Update) {
        for (id, classes) in compiled.changed_rows() {
            let is_beyond = classes.iter().any(|class| self.class_numbers.is_beyond(*class));
            let must_replace = match self.groups.get(&id) {
                Some(Ok(_) | Err(Closed::NoBlocks { .. })) => is_beyond,
                Some(Err(Closed::TooManyClasses(_))) => true,
                _ => continue,
            };
            let Some(Ok(table)) = compiled.table(id).filter(|_| !must_replace) else {
                self.replace(id, compiled, update);
                continue;
            };
            let of = NumberedClasses { compiled, numbers: &self.class_numbers };
            self.note(id, update);
            let charge = if let Some(Ok(group)) = self.groups.get_mut(&id) {
                group.change_rows(&classes, of, &table, &mut self.blocks);
                (group.fixed, group.charge(&self.blocks))
            } else {
                let fixed = self.claims.get(&id).expect("a group that waits for blocks has a claim").fixed;
                (fixed, fixed + Group::charge_of_rows(of, &table, &mut self.blocks))
            };
            self.claim(id, compiled, Some(charge));
        }
    }

    /// Takes over what is in maps that packets are judged by. What turns out to be the same keeps its numbers.
    pub(crate) fn adopt(&mut self, adopted: Adopted) {
        let Adopted { blocks, addresses, decisions, decision_extent } = adopted;
        self.blocks.adopt(blocks);
        self.decisions.adopt(&decisions, decision_extent);
        self.adopted = Some(addresses);
    }

    /// Lets those go of what was taken over that turned out not to be in use. Says whether any of it was taken over.
    pub(crate) fn release_adopted(&mut self) -> bool {
        if self.adopted.take().is_none() {
            return false;
        }
        self.blocks.release_adopted();
        self.decisions.release_adopted();
        true
    }

    /// No packet is at anything any more that was not in use when this was last called or since then: numbers of blocks and
    /// decisions may be given out again.
    pub fn reclaim(&mut self) {
        self.blocks.reclaim();
        self.decisions.reclaim();
    }

    /// Whether a group that was closed for want of room may find some now, if it is tried.
    pub(crate) fn has_room_again(&self) -> bool {
        self.blocks.in_use() < self.full_at
    }

    /// The blocks, of which new ones must be written before roots that lead to them.
    pub fn blocks(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    /// Whether nothing is left of what was. Ask after [`Tables::reclaim`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
            && self.claims.is_empty()
            && self.shares.is_empty()
            && self.decisions.len() == 0
            && self.blocks.in_use() == 0
    }

    pub(crate) fn all_blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// How many blocks have a number.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.in_use()
    }

    /// Blocks that namespaces share.
    #[must_use]
    pub fn max_blocks(&self) -> u32 {
        self.limits.blocks
    }

    /// How many networks rules tell apart.
    #[must_use]
    pub fn address_count(&self) -> usize {
        self.address_count
    }

    /// From an address of a family to its class.
    #[must_use]
    pub fn addresses(&self, family: Family) -> Cell {
        let [v4, v6] = self.addresses;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// From an IPv6 address to the class that it has unless it has one of its own.
    #[must_use]
    pub fn networks(&self) -> Cell {
        self.networks
    }

    /// The trees of a group.
    #[must_use]
    pub fn group(&self, group: GroupId) -> Option<GroupRoots> {
        self.groups.get(&group).map(roots)
    }

    /// Groups that deny everything, and why, in order.
    pub fn closed(&self) -> impl Iterator<Item = (GroupId, &Closed)> {
        self.groups.iter().filter_map(|(id, group)| Some((*id, group.as_ref().err()?)))
    }

    /// What is decided, and by what; `None` for what is denied because it is not known.
    #[must_use]
    pub fn decided(&self, decision: DecisionId) -> (Verdict, Option<&DecidedBy>) {
        self.decisions.get(decision).map_or((Verdict::Deny, None), |(_, verdict, by)| (verdict, Some(by)))
    }

    /// Whether a decision is about packets to endpoints (ingress) or from them (egress); `None` for what is denied because it is
    /// not known. Rules of both directions are counted from 0, and have counters of their own.
    #[must_use]
    pub fn decided_direction(&self, decision: DecisionId) -> Option<Direction> {
        self.decisions.get(decision).map(|(direction, ..)| direction)
    }

    /// How many decisions have a number.
    #[must_use]
    pub fn decision_count(&self) -> usize {
        self.decisions.len()
    }

    /// Numbers of decisions are below.
    #[must_use]
    pub fn decision_extent(&self) -> usize {
        self.decisions.extent()
    }

    /// Decisions, since this was last asked, whose numbers stood for others before: what was counted under them is not theirs.
    pub fn take_reused_decisions(&mut self) -> Vec<DecisionId> {
        self.decisions.take_reused()
    }

    /// IPv6 networks, since this was last asked, whose addresses may have another class, with the single addresses in them that
    /// have a class of their own.
    pub(crate) fn take_changed_hosts(&mut self) -> Vec<(Cidr, BTreeMap<[u8; 16], u32>)> {
        std::mem::take(&mut self.changed_hosts)
    }

    /// Decisions, since this was last asked, that have a number which did not stand for them.
    pub(crate) fn take_named_decisions(&mut self) -> Vec<DecisionId> {
        self.decisions.take_named()
    }

    /// The decisions that have a number.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = DecisionId> + '_ {
        self.decisions.in_use()
    }

    /// What a decision is known by from one process to the next.
    pub(crate) fn identity(&self, decision: DecisionId) -> Option<DecisionIdentity> {
        self.decisions.identity(decision)
    }

    /// What a group decides about a packet: what a program does, in Rust.
    #[must_use]
    pub fn decide(&self, group: GroupId, direction: Direction, packet: &Packet) -> DecisionId {
        let Some(roots) = self.group(group) else { return DecisionId::default() };
        let cell = roots.decide(&self.blocks, self.addresses(packet.family()), direction, packet);
        DecisionId::from_cell(cell)
    }
}

/// What is in maps that packets are judged by.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub(crate) blocks: BTreeMap<u32, Box<[Cell; CELLS]>>,
    /// The trees of IPv4 and IPv6 addresses.
    pub(crate) addresses: [Cell; 2],
    /// Decisions that cells lead to.
    pub(crate) decisions: Vec<(DecisionId, DecisionIdentity)>,
    /// Numbers that were given out at any time are below.
    pub(crate) decision_extent: u32,
}

/// Gives the addresses of networks values, in a tree of addresses.
fn assign(blocks: &mut Blocks, root: &mut Cell, nets: impl Iterator<Item = (Cidr, u32)>) {
    let nets: Vec<(AddressKey, u8, u32)> =
        nets.map(|(net, value)| (AddressKey::new(net), net.prefix_len(), value)).collect();
    let assigned = nets.iter().map(|(key, bits, value)| Assignment { key: key.bytes(), bits: *bits, value: *value });
    let new = blocks.assign(*root, &assigned.collect::<Vec<_>>());
    blocks.release(std::mem::replace(root, new));
}

/// Whether it is one IPv6 address.
fn is_single(net: Cidr) -> bool {
    net.family() == Family::V6 && net.prefix_len() == 128
}

fn roots(group: &Result<Group, Closed>) -> GroupRoots {
    group.as_ref().map_or(GroupRoots::CLOSED, |group| group.roots)
}

impl GroupRoots {
    /// What these trees decide about a packet, with the tree of addresses of its family: the value of a cell.
    #[must_use]
    pub fn decide(&self, blocks: &Blocks, addresses: Cell, direction: Direction, packet: &Packet) -> u32 {
        let (own, peer) = match direction {
            Direction::Ingress => (packet.destination(), packet.source()),
            Direction::Egress => (packet.source(), packet.destination()),
        };
        let row = |root: Cell, address| {
            let class = blocks.get(addresses, AddressKey::new(Cidr::host(address)).bytes());
            let [_, key @ ..] = class.to_be_bytes();
            blocks.get(root, &key)
        };
        let Transport { protocol, detail, source_port } = Transport::of(packet);
        let l4 = match detail.map(u16::to_be_bytes) {
            Some([high, low]) => blocks.get(self.details, &[protocol, high, low]),
            None => blocks.get(self.protocols, &[protocol]),
        };
        let source_port = match source_port {
            Some(port) => blocks.get(self.source_ports, &port.to_be_bytes()),
            None => self.no_source_port.as_value(),
        };
        let parts = [row(self.own, own), row(self.peer, peer), l4, source_port];
        let number: u64 = parts.into_iter().map(u64::from).sum();
        let [.., four, three, two, one] = number.to_be_bytes();
        match self.is_large {
            true if number < u64::from(NOWHERE) => blocks.get(self.cells, &[four, three, two, one]),
            false if number < SMALL as u64 => blocks.get(self.cells, &[two, one]),
            _ => 0,
        }
    }
}

impl Transport {
    /// What trees know of a packet.
    #[must_use]
    pub fn of(packet: &Packet) -> Self {
        let (detail, source_port) = match packet.payload() {
            Payload::Ports { source, destination } => (Some(destination), Some(source)),
            Payload::Icmp { icmp_type, code } => (Some(u16::from_be_bytes([icmp_type, code])), None),
            Payload::Other => (None, None),
        };
        Self { protocol: packet.protocol(), detail, source_port }
    }
}
