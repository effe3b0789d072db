//! Compiled policy of `tortie-classes` as tries of blocks.
//!
//! The address at each end of a packet leads to its class, the class to its row, and protocol and
//! port to a column. The numbers of rows and columns are multiplied in advance, so that their sum
//! is the number of the cell, which leads to the decision.

mod admission;
mod class_numbers;
mod decisions;
mod group;
mod keys;
mod shares;

use std::collections::BTreeMap;

use tortie_classes::evaluate::{DecidedBy, Missing, Packet, Payload, Verdict};
use tortie_classes::{ClassId, Compiled, GroupId, LearnedId, Lines};
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

/// Maximum number of cells of a table whose cell numbers have two bytes. In larger tables they have
/// four.
const SMALL: usize = 1 << 16;

/// Transport properties of a packet, as keys of tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The number of the protocol.
    pub protocol: u8,
    /// The destination port, or the ICMP type and code; `None` where the packet has neither.
    pub detail: Option<u16>,
    /// The source port.
    pub source_port: Option<u16>,
}

/// Reason why a group denies everything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Closed {
    /// Its policies refer to an object that does not exist.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// Its rules distinguish more kinds of packets than a table can hold, or than can be computed
    /// in reasonable time.
    #[error("its rules make too many cells of addresses and ports: {0}")]
    TooManyCells(usize),
    /// Its tries take more blocks than the share of its namespace has left.
    #[error("its rules need {needed} blocks of eBPF maps, more than its namespace's share of {limit} has left")]
    NoBlocks {
        /// Blocks of its tries.
        needed: u64,
        /// Blocks that all namespaces share.
        limit: u32,
    },
    /// The tries of the networks that the workload may send from take more blocks than the share of
    /// its namespace has left.
    #[error(
        "its source networks need {needed} blocks of eBPF maps, more than its namespace's share of {limit} has left"
    )]
    NoBlocksForSources {
        /// Blocks of these tries.
        needed: u64,
        /// Blocks that all namespaces share.
        limit: u32,
    },
    /// The map of blocks has no room for its tries.
    #[error("the map of {0} blocks has no room for its rules")]
    MapFull(u32),
    /// More address classes exist than tries can distinguish, and its rules depend on some of those
    /// beyond the limit.
    #[error("its rules distinguish addresses beyond the limit of {0} address classes")]
    TooManyClasses(u32),
}

/// Limits of tables. A group that exceeds them denies everything; the other groups are not
/// affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "callers must set every limit")]
pub struct Limits {
    /// Blocks of all groups, which namespaces share. Each group counts as if it shared no block
    /// with others.
    pub blocks: u32,
    /// Blocks that the map has room for: those of groups and of addresses, and those that packets
    /// may still use.
    pub places: u32,
    /// Cells of a group's table, including those that pad lines to whole blocks;
    /// [`Limits::MAX_CELLS`] at most.
    pub cells: u32,
    /// Words of 64 clauses that may be read to compute a group's table.
    pub work: usize,
    /// Address classes; from 8 to [`Limits::MAX_CLASSES`]. Those beyond share one number.
    pub classes: u32,
}

impl Limits {
    /// Cell numbers, and sums of rows and columns, have 31 bits.
    pub const MAX_CELLS: u32 = NOWHERE;
    /// A class number has three bytes, of which one bit is the family.
    pub const MAX_CLASSES: u32 = CLASSES;
}

impl Default for Limits {
    /// Returns the maximum of each limit.
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

/// Tables of all groups, and the address tries.
#[derive(Debug)]
pub struct Tables {
    blocks: Blocks,
    limits: Limits,
    addresses: [Cell; 2],
    /// The IPv6 address trie without single addresses.
    networks: Cell,
    class_numbers: ClassNumbers,
    address_count: usize,
    /// Adopted address tries, until the first update.
    adopted: Option<[Cell; 2]>,
    /// Adopted class numbers of learned addresses, until the first update.
    adopted_learned: Vec<(LearnedId, u32)>,
    groups: BTreeMap<GroupId, Result<Group, Closed>>,
    /// Charges of groups that are open or wait for blocks.
    claims: BTreeMap<GroupId, Claim>,
    shares: Shares<Holder>,
    decisions: Decisions,
    /// With fewer blocks in use than this, a group that was refused may find room; 0 if none was
    /// refused.
    full_at: usize,
    /// IPv6 networks whose addresses may have another class since the last call of
    /// `take_changed_hosts`, with the classes of single addresses in them.
    changed_hosts: Vec<(Cidr, BTreeMap<[u8; 16], u32>)>,
    /// Number of the flush that the tables reflect.
    flush_number: u64,
}

impl Tables {
    /// Returns the tables of everything that has been compiled.
    #[must_use]
    pub fn new(compiled: &Compiled<'_>) -> Self {
        let mut tables = Self::with_limits(Limits::default());
        tables.update(compiled);
        tables
    }

    /// Returns empty tables. Groups that need more blocks than their namespace's share of
    /// `max_blocks` deny everything.
    #[must_use]
    pub fn with_max_blocks(max_blocks: u32) -> Self {
        Self::with_limits(Limits { blocks: max_blocks, ..Limits::default() })
    }

    /// Returns empty tables with limits for each group and for all together.
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
            adopted_learned: Vec::new(),
            groups: BTreeMap::new(),
            claims: BTreeMap::new(),
            shares: Shares::new(limits.blocks.into()),
            decisions: Decisions::new(),
            full_at: 0,
            changed_hosts: Vec::new(),
            flush_number: 0,
        }
    }

    /// Updates the tables to `compiled`. If it is the next flush of the same
    /// [`Classes`](tortie_classes::Classes), the cost is that of the change since the last update,
    /// else that of everything. Returns the groups whose roots changed, and those that were
    /// removed, in order.
    ///
    /// Numbers that are no longer in use stay assigned until [`Tables::reclaim`].
    pub fn update(&mut self, compiled: &Compiled<'_>) -> Vec<GroupId> {
        let follows = self.flush_number > 0 && compiled.flush_number() == self.flush_number + 1;
        self.flush_number = compiled.flush_number();
        let hints = match self.adopted {
            Some([v4, v6]) => {
                let learned = std::mem::take(&mut self.adopted_learned);
                let learned = learned.into_iter().filter_map(|(id, value)| Some((compiled.learned_class(id)?, value)));
                let number_at = |family, key: &[u8]| self.blocks.get(if family == Family::V4 { v4 } else { v6 }, key);
                hints(compiled, learned, number_at)
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
            // A changed single address gets the class of the network around it.
            let around = if is_single(*net) { Cidr::new(net.address(), net.prefix_len() - 1) } else { Some(*net) };
            let around = around.map(|around| (*net, compiled.class_of_network(around)));
            around.into_iter().chain(compiled.prefixes_within(*net).filter(|(inside, _)| !is_single(*inside)))
        });
        let nets = nets.map(|(net, class)| (net, numbers.value(class, Family::V6)));
        assign(&mut self.blocks, &mut self.networks, nets);
    }

    /// Rebuilds the tries of a group, unless they take more blocks than its namespace has left.
    fn replace(&mut self, id: GroupId, compiled: &Compiled<'_>, update: &mut Update) {
        self.note(id, update);
        let before_blocks = self.blocks.in_use();
        let limits = self.limits;
        let new = compiled.direction_of(id).zip(compiled.table(id)).map(|(direction, table)| {
            let table = table?;
            let of = NumberedClasses { compiled, numbers: &self.class_numbers };
            let before = self.groups.get(&id).and_then(|before| before.as_ref().ok());
            Group::new(of, (direction, &table, &limits), before, &mut self.blocks, &mut self.decisions)
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
                // A group that takes no more blocks than were in use before has room.
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

    /// Gives classes their new rows, in tables that are unchanged otherwise.
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

    /// Adopts the contents of maps that filter packets. Equal blocks and decisions keep their
    /// numbers.
    pub(crate) fn adopt(&mut self, adopted: Adopted) {
        let Adopted { blocks, addresses, decisions, decision_extent } = adopted;
        self.blocks.adopt(blocks);
        self.decisions.adopt(&decisions, decision_extent);
        self.adopted = Some(addresses);
    }

    /// Takes the adopted class numbers of learned addresses.
    pub(crate) fn adopt_learned(&mut self, numbers: Vec<(LearnedId, u32)>) {
        self.adopted_learned = numbers;
    }

    /// Returns the number of a class as of the last update, as it is in tries; `None` if it has no
    /// number of its own.
    pub(crate) fn class_value(&self, class: ClassId, family: Family) -> Option<u32> {
        self.class_numbers.own_value(class, family)
    }

    /// Reports whether a group is open and has rules by domain name.
    pub(crate) fn learns(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(|group| group.as_ref().is_ok_and(|group| group.learns))
    }

    /// Releases adopted objects that are not in use. Returns whether any were adopted.
    pub(crate) fn release_adopted(&mut self) -> bool {
        if self.adopted.take().is_none() {
            return false;
        }
        self.blocks.release_adopted();
        self.decisions.release_adopted();
        true
    }

    /// Makes the numbers of unused blocks and decisions available again. The caller ensures that no
    /// packet uses objects that were not in use at the last call or since.
    pub fn reclaim(&mut self) {
        self.blocks.reclaim();
        self.decisions.reclaim();
    }

    /// Reports whether a group that was closed for lack of room may find some now.
    pub(crate) fn has_room_again(&self) -> bool {
        self.blocks.in_use() < self.full_at
    }

    /// Returns the blocks. New ones must be written before roots that lead to them.
    pub fn blocks(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    /// Reports whether no objects are left. Call it after [`Tables::reclaim`].
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

    /// Returns the number of assigned block numbers.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.in_use()
    }

    /// Returns the number of blocks that namespaces share.
    #[must_use]
    pub fn max_blocks(&self) -> u32 {
        self.limits.blocks
    }

    /// Returns the number of networks that rules distinguish.
    #[must_use]
    pub fn address_count(&self) -> usize {
        self.address_count
    }

    /// Returns the trie from an address of a family to its class.
    #[must_use]
    pub fn addresses(&self, family: Family) -> Cell {
        let [v4, v6] = self.addresses;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Returns the trie from an IPv6 address to the class that it has without a specific one.
    #[must_use]
    pub fn networks(&self) -> Cell {
        self.networks
    }

    /// Returns the tries of a group.
    #[must_use]
    pub fn group(&self, group: GroupId) -> Option<GroupRoots> {
        self.groups.get(&group).map(roots)
    }

    /// Returns the groups that deny everything, with the reason, in order.
    pub fn closed(&self) -> impl Iterator<Item = (GroupId, &Closed)> {
        self.groups.iter().filter_map(|(id, group)| Some((*id, group.as_ref().err()?)))
    }

    /// Returns the verdict of a decision and its origin; denial without an origin for an unknown
    /// decision.
    #[must_use]
    pub fn decided(&self, decision: DecisionId) -> (Verdict, Option<&DecidedBy>) {
        self.decisions.get(decision).map_or((Verdict::Deny, None), |(_, verdict, by)| (verdict, Some(by)))
    }

    /// Reports whether a decision is about packets to endpoints (ingress) or from them (egress);
    /// `None` for an unknown decision. Rules of both directions are counted from 0, and have
    /// separate counters.
    #[must_use]
    pub fn decided_direction(&self, decision: DecisionId) -> Option<Direction> {
        self.decisions.get(decision).map(|(direction, ..)| direction)
    }

    /// Returns the number of decisions.
    #[must_use]
    pub fn decision_count(&self) -> usize {
        self.decisions.len()
    }

    /// Returns the upper bound, exclusive, of decision numbers.
    #[must_use]
    pub fn decision_extent(&self) -> usize {
        self.decisions.extent()
    }

    /// Returns the decisions since the last call whose numbers stood for others before: the
    /// counters under these numbers are not theirs.
    pub fn take_reused_decisions(&mut self) -> Vec<DecisionId> {
        self.decisions.take_reused()
    }

    /// Returns the IPv6 networks whose addresses may have another class since the last call, with
    /// the single addresses in them that have a specific class.
    pub(crate) fn take_changed_hosts(&mut self) -> Vec<(Cidr, BTreeMap<[u8; 16], u32>)> {
        std::mem::take(&mut self.changed_hosts)
    }

    /// Returns the decisions that got their number since the last call.
    pub(crate) fn take_named_decisions(&mut self) -> Vec<DecisionId> {
        self.decisions.take_named()
    }

    /// Returns the decisions that have a number.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = DecisionId> + '_ {
        self.decisions.in_use()
    }

    /// Returns the identity of a decision, by which the next process recognizes it.
    pub(crate) fn identity(&self, decision: DecisionId) -> Option<DecisionIdentity> {
        self.decisions.identity(decision)
    }

    /// Returns a group's decision about a packet, computed like the program does.
    #[must_use]
    pub fn decide(&self, group: GroupId, direction: Direction, packet: &Packet) -> DecisionId {
        let Some(roots) = self.group(group) else { return DecisionId::default() };
        let cell = roots.decide(&self.blocks, self.addresses(packet.family()), direction, packet);
        DecisionId::from_cell(cell)
    }
}

/// Contents of maps that filter packets.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub(crate) blocks: BTreeMap<u32, Box<[Cell; CELLS]>>,
    /// IPv4 and IPv6 address tries.
    pub(crate) addresses: [Cell; 2],
    /// Decisions that cells refer to.
    pub(crate) decisions: Vec<(DecisionId, DecisionIdentity)>,
    /// Upper bound, exclusive, of all numbers that were ever assigned.
    pub(crate) decision_extent: u32,
}

/// Assigns values to the addresses of networks in an address trie.
fn assign(blocks: &mut Blocks, root: &mut Cell, nets: impl Iterator<Item = (Cidr, u32)>) {
    let nets: Vec<(AddressKey, u8, u32)> =
        nets.map(|(net, value)| (AddressKey::new(net), net.prefix_len(), value)).collect();
    let assigned = nets.iter().map(|(key, bits, value)| Assignment { key: key.bytes(), bits: *bits, value: *value });
    let new = blocks.assign(*root, &assigned.collect::<Vec<_>>());
    blocks.release(std::mem::replace(root, new));
}

/// Reports whether a network is a single IPv6 address.
fn is_single(net: Cidr) -> bool {
    net.family() == Family::V6 && net.prefix_len() == 128
}

fn roots(group: &Result<Group, Closed>) -> GroupRoots {
    group.as_ref().map_or(GroupRoots::CLOSED, |group| group.roots)
}

impl GroupRoots {
    /// Returns the decision of these tries about a packet, as the value of a cell. `addresses` is
    /// the address trie of the packet's family.
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
    /// Returns the transport properties of a packet.
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
