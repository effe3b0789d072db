//! What `tortie-classes` has compiled, as trees of blocks.
//!
//! The address at each end of a packet leads to its class, a class to its row, protocol and port to a column. Rows and columns are
//! multiplied already, so that their sum is the number of the cell, which leads to the decision.

use std::collections::BTreeMap;

use ahash::AHashMap;
use tortie_classes::evaluate::{DecidedBy, Verdict};
use tortie_classes::{Compiled, GroupId, L4Detail, TableView};
use tortie_model::{Cidr, Direction, Family};

use crate::blocks::{Assignment, Blocks, Cell};
use crate::layout::{ALLOW, DENY, UNDECIDED, VERDICT_BITS};

/// Neither a row, nor a column, nor the number of a cell: what is not known is denied.
const NOWHERE: u32 = MAX_CELLS;
/// How many cells a table may have.
const MAX_CELLS: u32 = 1 << 16;
/// The bytes of a class.
pub(crate) const CLASS_BYTES: u8 = 3;
const CLASSES: u32 = 1 << 24;
/// ICMP for IPv4 and for IPv6, whose types and codes are where others have ports.
const ICMP: [u8; 2] = [1, 58];

/// A decision by number. 0 denies what is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DecisionId(u32);

impl DecisionId {
    /// As a cell says it, with the verdict in the lowest bits.
    #[must_use]
    pub const fn from_cell(value: u32) -> Self {
        Self(value >> VERDICT_BITS)
    }

    /// The value of a cell, with [`DENY`], [`ALLOW`] or [`UNDECIDED`] in the lowest bits.
    #[must_use]
    pub const fn to_cell(self, verdict: Verdict) -> u32 {
        let verdict = match verdict {
            Verdict::Deny => DENY,
            Verdict::Allow => ALLOW,
            Verdict::Undecided => UNDECIDED,
        };
        self.0 << VERDICT_BITS | verdict
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Where the trees of a group begin, in the order in which a program reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRoots {
    /// From the class of the group's own end to its row.
    pub own: Cell,
    /// From the class of the peer to its row.
    pub peer: Cell,
    /// From the protocol and a destination port, or an ICMP type and code, to the column: three bytes.
    pub details: Cell,
    /// From the protocol alone, of packets that have neither: one byte.
    pub protocols: Cell,
    /// From the source port to the column: two bytes.
    pub source_ports: Cell,
    /// The column of packets without a source port.
    pub no_source_port: Cell,
    /// From the number of a cell to the decision: two bytes.
    pub cells: Cell,
}

impl GroupRoots {
    /// Denies everything.
    pub const CLOSED: Self = Self {
        own: Cell::value(NOWHERE),
        peer: Cell::value(NOWHERE),
        details: Cell::value(NOWHERE),
        protocols: Cell::value(NOWHERE),
        source_ports: Cell::value(NOWHERE),
        no_source_port: Cell::value(NOWHERE),
        cells: Cell::value(0),
    };

    /// All of them, as they stand in a map.
    #[must_use]
    pub const fn cells(&self) -> [Cell; 7] {
        let Self { own, peer, details, protocols, source_ports, no_source_port, cells } = *self;
        [own, peer, details, protocols, source_ports, no_source_port, cells]
    }
}

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

/// All tables, and the addresses that lead to them.
#[derive(Debug)]
pub struct Tables {
    blocks: Blocks,
    addresses: [Cell; 2],
    groups: BTreeMap<GroupId, GroupRoots>,
    decisions: Vec<(Verdict, Option<DecidedBy>)>,
    too_large: Vec<GroupId>,
}

/// Decisions are numbered as they come; a cell for each.
#[derive(Debug, Default)]
struct Numbers<'a>(AHashMap<(Verdict, &'a DecidedBy), u32>);

impl Tables {
    /// Everything that has been compiled.
    #[must_use]
    pub fn new(compiled: &Compiled<'_>) -> Self {
        let mut tables = Self {
            blocks: Blocks::new(),
            addresses: [Cell::value(NOWHERE); 2],
            groups: BTreeMap::new(),
            decisions: vec![(Verdict::Deny, None)],
            too_large: Vec::new(),
        };
        tables.add_addresses(compiled);
        let mut numbers = Numbers::default();
        for group in compiled.groups() {
            let roots = match compiled.table(group) {
                Some(Ok(table)) => tables.add_group(group, compiled, &table, &mut numbers),
                // What its policies refer to is not there.
                _ => GroupRoots::CLOSED,
            };
            tables.groups.insert(group, roots);
        }
        tables
    }

    fn add_addresses(&mut self, compiled: &Compiled<'_>) {
        for (family, root) in Family::ALL.into_iter().zip(&mut self.addresses) {
            let of_family = compiled.prefixes().filter(|(net, _)| net.family() == family);
            let keys: Vec<(Vec<u8>, u8, u32)> =
                of_family.map(|(net, class)| (bytes(net), net.prefix_len(), class.number())).collect();
            let rest = compiled.rest(family).number();
            let nets = keys.iter().map(|(key, bits, class)| (&key[..], *bits, *class));
            let all = std::iter::once((&[][..], 0, rest)).chain(nets);
            let all: Vec<Assignment<'_>> = all
                .map(|(key, bits, class)| Assignment {
                    key,
                    bits,
                    value: if class < CLASSES { class } else { NOWHERE },
                })
                .collect();
            *root = self.blocks.assign(Cell::value(NOWHERE), &all);
        }
    }

    fn add_group<'a>(
        &mut self,
        group: GroupId,
        compiled: &Compiled<'_>,
        table: &TableView<'a>,
        numbers: &mut Numbers<'a>,
    ) -> GroupRoots {
        let Ok(count) = u32::try_from(table.cell_count()) else { return self.close(group) };
        if count > MAX_CELLS {
            return self.close(group);
        }
        let number = |count: usize| u32::try_from(count).unwrap_or(NOWHERE);
        let (own, peer): (Vec<_>, Vec<_>) = (table.own_rows().collect(), table.peer_rows().collect());
        let (l4, source_ports) = (table.l4_columns(), table.source_port_columns());
        // A cell's number is that of its row of this end, of the peer, of its source port and of its column, in this order.
        let (port_stride, peer_stride, own_stride) =
            (number(l4), number(l4 * source_ports), number(l4 * source_ports * peer.len()));

        let mut cells = Vec::with_capacity(table.cell_count());
        for own in &own {
            for peer in &peer {
                for source_port in 0..source_ports {
                    cells.extend((0..l4).map(|l4| match table.cell(*own, *peer, l4, source_port) {
                        Some((verdict, by)) => self.decision(verdict, by, numbers),
                        None => 0,
                    }));
                }
            }
        }
        let keys = (0..count).map(|cell| u16::try_from(cell).unwrap_or(u16::MAX).to_be_bytes());
        let keys: Vec<[u8; 2]> = keys.collect();
        let assigned = keys.iter().zip(&cells).map(|(key, value)| Assignment { key, bits: 16, value: *value });
        let cells = self.blocks.assign(Cell::value(0), &assigned.collect::<Vec<_>>());

        let places = |rows: &[tortie_classes::Row], stride: u32| -> AHashMap<tortie_classes::Row, u32> {
            rows.iter().copied().zip((0..).map(|place: u32| place * stride)).collect()
        };
        let (own, peer) = (places(&own, own_stride), places(&peer, peer_stride));
        let own = self.rows(compiled, |class| own.get(&table.own_row(class)?).copied());
        let peer = self.rows(compiled, |class| peer.get(&table.peer_row(class)?).copied());
        let (details, protocols) = self.l4(compiled, table);
        let ports = compiled.source_port_classes().map(|(port, class)| {
            let column = number(table.source_port_column(class)).saturating_mul(port_stride);
            (port.map_or(0, |port| 1 + u32::from(port)), column)
        });
        let ports: Vec<(u32, u32)> = ports.collect();
        let mut ranges = Ranges::default();
        let mut no_source_port = NOWHERE;
        for (start, end, column) in stretches(&ports, 1 + (1 << 16)) {
            if start == 0 {
                no_source_port = column;
            }
            // Ports begin behind the place of packets without one.
            ranges.add(&[], start.max(1) - 1, end - 1, column);
        }
        let source_ports = ranges.assign(&mut self.blocks);
        GroupRoots { own, peer, details, protocols, source_ports, no_source_port: Cell::value(no_source_port), cells }
    }

    /// A group with too many cells.
    fn close(&mut self, group: GroupId) -> GroupRoots {
        self.too_large.push(group);
        GroupRoots::CLOSED
    }

    fn decision<'a>(&mut self, verdict: Verdict, by: &'a DecidedBy, numbers: &mut Numbers<'a>) -> u32 {
        let decisions = &mut self.decisions;
        *numbers.0.entry((verdict, by)).or_insert_with(|| {
            decisions.push((verdict, Some(by.clone())));
            DecisionId(u32::try_from(decisions.len() - 1).unwrap_or(0)).to_cell(verdict)
        })
    }

    /// From classes to rows.
    fn rows(&mut self, compiled: &Compiled<'_>, row: impl Fn(tortie_classes::ClassId) -> Option<u32>) -> Cell {
        let rows: Vec<([u8; 4], u32)> = compiled
            .classes()
            .filter(|class| class.number() < CLASSES)
            .map(|class| (class.number().to_be_bytes(), row(class).unwrap_or(NOWHERE)))
            .collect();
        let assigned = rows.iter().map(|([_, key @ ..], value)| Assignment { key, bits: 24, value: *value });
        let first = rows.first().map_or(NOWHERE, |(_, value)| *value);
        // Most groups do not tell most classes apart: where all are alike there is nothing to be followed.
        if rows.iter().all(|(_, value)| *value == first) {
            return Cell::value(first);
        }
        self.blocks.assign(Cell::value(NOWHERE), &assigned.collect::<Vec<_>>())
    }

    /// From protocols with ports or ICMP messages to columns, and from protocols alone.
    fn l4(&mut self, compiled: &Compiled<'_>, table: &TableView<'_>) -> (Cell, Cell) {
        let starts: Vec<(u32, u32)> = compiled
            .l4_classes()
            .map(|(protocol, detail, class)| {
                let column = u32::try_from(table.l4_column(class)).unwrap_or(NOWHERE);
                (point(protocol, detail), column)
            })
            .collect();
        let (mut details, mut protocols) = (Ranges::default(), Ranges::default());
        for (start, end, column) in stretches(&starts, PROTOCOL << 8) {
            for protocol in start / PROTOCOL..end.div_ceil(PROTOCOL) {
                let (from, to) = (start.max(protocol * PROTOCOL), end.min((protocol + 1) * PROTOCOL));
                let (from, to) = (from - protocol * PROTOCOL, to - protocol * PROTOCOL);
                let Ok(protocol) = u8::try_from(protocol) else { continue };
                if from == 0 {
                    protocols.0.push((vec![protocol], 8, column));
                }
                let first = if ICMP.contains(&protocol) { FIRST_ICMP } else { FIRST_PORT };
                let within = |point: u32| point.clamp(first, first + (1 << 16)) - first;
                details.add(&[protocol], within(from), within(to), column);
            }
        }
        (details.assign(&mut self.blocks), protocols.assign(&mut self.blocks))
    }

    /// The blocks, of which new ones must be written before roots that lead to them.
    pub fn blocks(&mut self) -> &mut Blocks {
        &mut self.blocks
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

    /// The trees of a group.
    #[must_use]
    pub fn group(&self, group: GroupId) -> Option<GroupRoots> {
        self.groups.get(&group).copied()
    }

    /// Groups with more than 65,536 cells, which deny everything.
    #[must_use]
    pub fn too_large(&self) -> &[GroupId] {
        &self.too_large
    }

    /// What is decided, and by what; `None` for what is denied because it is not known.
    #[must_use]
    pub fn decided(&self, decision: DecisionId) -> (Verdict, Option<&DecidedBy>) {
        let found = self.decisions.get(decision.0 as usize);
        found.map_or((Verdict::Deny, None), |(verdict, by)| (*verdict, by.as_ref()))
    }

    /// What a group decides about a packet: what a program does, in Rust.
    #[must_use]
    pub fn decide(
        &self,
        group: GroupId,
        direction: Direction,
        packet: &tortie_classes::evaluate::Packet,
    ) -> DecisionId {
        let Some(roots) = self.groups.get(&group) else { return DecisionId::default() };
        let (own, peer) = match direction {
            Direction::Ingress => (packet.destination(), packet.source()),
            Direction::Egress => (packet.source(), packet.destination()),
        };
        let row = |root: Cell, address| {
            let class = self.blocks.get(self.addresses(packet.family()), &bytes(Cidr::host(address)));
            let [_, key @ ..] = class.to_be_bytes();
            self.blocks.get(root, &key)
        };
        let Transport { protocol, detail, source_port } = Transport::of(packet);
        let l4 = match detail.map(u16::to_be_bytes) {
            Some([high, low]) => self.blocks.get(roots.details, &[protocol, high, low]),
            None => self.blocks.get(roots.protocols, &[protocol]),
        };
        let source_port = match source_port {
            Some(port) => self.blocks.get(roots.source_ports, &port.to_be_bytes()),
            None => roots.no_source_port.bits(),
        };
        let number = row(roots.own, own) + row(roots.peer, peer) + l4 + source_port;
        let cell = u16::try_from(number).map(|number| self.blocks.get(roots.cells, &number.to_be_bytes()));
        DecisionId::from_cell(cell.unwrap_or(0))
    }
}

impl Transport {
    /// What trees know of a packet.
    #[must_use]
    pub fn of(packet: &tortie_classes::evaluate::Packet) -> Self {
        use tortie_classes::evaluate::Payload;
        let (detail, source_port) = match packet.payload() {
            Payload::Ports { source, destination } => (Some(destination), Some(source)),
            Payload::Icmp { icmp_type, code } => (Some(u16::from_be_bytes([icmp_type, code])), None),
            Payload::Other => (None, None),
        };
        Self { protocol: packet.protocol(), detail, source_port }
    }
}

/// The bytes of a network's address that a tree follows.
fn bytes(net: Cidr) -> Vec<u8> {
    match net.masked().address() {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Protocols and what follows them as numbers, in the order of [`Compiled::l4_classes`].
const PROTOCOL: u32 = 1 << 18;
const FIRST_ICMP: u32 = 1;
const FIRST_PORT: u32 = FIRST_ICMP + (1 << 16);

fn point(protocol: u8, detail: L4Detail) -> u32 {
    let detail = match detail {
        L4Detail::Other => 0,
        L4Detail::Icmp { icmp_type, code } => FIRST_ICMP + u32::from(u16::from_be_bytes([icmp_type, code])),
        L4Detail::Port(port) => FIRST_PORT + u32::from(port),
    };
    u32::from(protocol) * PROTOCOL + detail
}

/// Where each stretch of one value begins and ends, of the places where values begin.
fn stretches(starts: &[(u32, u32)], end: u32) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([end]);
    starts.iter().zip(ends).map(|((start, value), end)| (*start, end, *value))
}

/// Keys by prefixes, in order.
#[derive(Default)]
struct Ranges(Vec<(Vec<u8>, u8, u32)>);

impl Ranges {
    /// Those with these bytes first, and then a number from the first to before the last.
    fn add(&mut self, before: &[u8], mut first: u32, last: u32, value: u32) {
        let fixed = u8::try_from(before.len() * 8).unwrap_or(u8::MAX);
        while first < last {
            // The largest network that begins here and does not reach too far.
            let size = first.trailing_zeros().min((last - first).ilog2()).min(16);
            let number = u16::try_from(first).unwrap_or(u16::MAX).to_be_bytes();
            let bits = fixed + u8::try_from(16 - size).unwrap_or(16);
            self.0.push(([before, &number].concat(), bits, value));
            first += 1 << size;
        }
    }

    fn assign(&self, blocks: &mut Blocks) -> Cell {
        let all = self.0.iter().map(|(key, bits, value)| Assignment { key, bits: *bits, value: *value });
        blocks.assign(Cell::value(NOWHERE), &all.collect::<Vec<_>>())
    }
}
