//! Roots of a group's tries, which the layout of maps, the tables and the programs share.

use tortie_model::{Family, Protocol};

use crate::blocks::{Blocks, Cell};

/// Number that is no row, column or cell. A sum that contains it is no cell number either. Its
/// packets are denied.
pub(crate) const NOWHERE: u32 = i32::MAX.unsigned_abs();
/// Maximum number of address classes of a family.
pub(crate) const CLASSES: u32 = 1 << 23;

/// Returns the bit of a class that marks its family: the highest of three bytes.
pub(crate) const fn family_bit(family: Family) -> u32 {
    match family {
        Family::V4 => 0,
        Family::V6 => CLASSES,
    }
}

/// Roots of a group's tries, in the order in which a program reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupRoots {
    /// From the class of the group's own end to its row.
    pub own: Cell,
    /// From the class of the peer to its row.
    pub peer: Cell,
    /// From the protocol and a destination port, or an ICMP type and code, to the column: three
    /// bytes.
    pub details: Cell,
    /// From the protocol alone, of packets that have neither: one byte.
    pub protocols: Cell,
    /// From the source port to the column: two bytes.
    pub source_ports: Cell,
    /// The column of packets without a source port.
    pub no_source_port: Cell,
    /// From the number of a cell to the decision: two bytes, or four.
    pub cells: Cell,
    /// Whether cell numbers have four bytes.
    pub is_large: bool,
    /// Cells behind frequent key prefixes, as computed by [`GroupRoots::with_shortcuts`].
    pub shortcuts: Shortcuts,
}

/// Cells of a group's tries behind key prefixes that most keys have, so that a program can skip the
/// prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shortcuts {
    /// From the last two bytes of an IPv4 and an IPv6 class with a number below 65,536 to the row
    /// of the group's own end.
    pub own: [Cell; 2],
    /// The same for the peer.
    pub peer: [Cell; 2],
    /// From the port of TCP and of UDP, two bytes, to the column.
    pub ports: [Cell; 2],
    /// From the last three bytes of a cell number to the decision, if numbers have four bytes and
    /// this one is below 2²⁴. If the group decides the same about all packets, that decision.
    pub cells: Cell,
    /// A bit for each end and family in which all addresses have one row, which is the shortcut
    /// itself. 1 and 2 stand for the own end with IPv4 and IPv6, 4 and 8 for the peer. 16: the
    /// group decides the same about all packets.
    pub alike: Cell,
}

impl Shortcuts {
    /// The bit of groups that decide the same about all packets.
    pub(crate) const ALL_ALIKE: u32 = 16;

    /// Returns all shortcuts in the order of the map, where they follow [`GroupRoots::cells`].
    pub(crate) const fn cells(&self) -> [Cell; 8] {
        let Self { own: [own_v4, own_v6], peer: [peer_v4, peer_v6], ports: [tcp, udp], cells, alike } = *self;
        [own_v4, own_v6, peer_v4, peer_v6, tcp, udp, cells, alike]
    }

    pub(crate) const fn from_cells([own_v4, own_v6, peer_v4, peer_v6, tcp, udp, cells, alike]: [Cell; 8]) -> Self {
        Self { own: [own_v4, own_v6], peer: [peer_v4, peer_v6], ports: [tcp, udp], cells, alike }
    }

    /// Returns the bit of an end (the group's own or the peer) and a family.
    pub(crate) const fn alike_bit(is_own: bool, family: Family) -> u32 {
        match (is_own, family) {
            (true, Family::V4) => 1,
            (true, Family::V6) => 2,
            (false, Family::V4) => 4,
            (false, Family::V6) => 8,
        }
    }
}

impl GroupRoots {
    /// Tries that deny everything.
    pub const CLOSED: Self = Self {
        own: Cell::value(NOWHERE),
        peer: Cell::value(NOWHERE),
        details: Cell::value(NOWHERE),
        protocols: Cell::value(NOWHERE),
        source_ports: Cell::value(NOWHERE),
        no_source_port: Cell::value(NOWHERE),
        cells: Cell::value(0),
        is_large: false,
        shortcuts: Shortcuts {
            own: [Cell::value(NOWHERE); 2],
            peer: [Cell::value(NOWHERE); 2],
            ports: [Cell::value(NOWHERE); 2],
            cells: Cell::value(0),
            alike: Cell::value(15),
        },
    };

    /// Returns the same tries with their shortcuts.
    #[must_use]
    pub fn with_shortcuts(self, blocks: &Blocks) -> Self {
        let rows = |root| {
            Family::ALL.map(|family| {
                let [_, first, ..] = family_bit(family).to_be_bytes();
                blocks.cell_at(root, &[first])
            })
        };
        // The highest bit of a class's first byte is the family.
        let is_alike = |root, family| {
            let [_, first, ..] = family_bit(family).to_be_bytes();
            let cell = blocks.cell_at(root, &[first]);
            cell.as_block().is_none() && (first..=first | 0x7f).all(|byte| blocks.cell_at(root, &[byte]) == cell)
        };
        let ends = [(true, self.own), (false, self.peer)];
        let ends = ends.into_iter().flat_map(|(is_own, root)| Family::ALL.map(|family| (is_own, root, family)));
        let alike = ends.filter(|(_, root, family)| is_alike(*root, *family));
        let alike = alike.fold(0, |bits, (is_own, _, family)| bits | Shortcuts::alike_bit(is_own, family));
        let only = self.find_only_decision(blocks);
        let alike = if only.is_some() { alike | Shortcuts::ALL_ALIKE } else { alike };
        let near = || blocks.cell_at(self.cells, if self.is_large { &[0] } else { &[] });
        let of = |protocol: Protocol| blocks.cell_at(self.details, &[protocol.number()]);
        let shortcuts = Shortcuts {
            own: rows(self.own),
            peer: rows(self.peer),
            ports: [of(Protocol::TCP), of(Protocol::UDP)],
            cells: only.map_or_else(near, Cell::value),
            alike: Cell::value(alike),
        };
        Self { shortcuts, ..self }
    }

    /// Returns the cell value of the decision about all packets, if the group reads nothing of a
    /// packet. That is so for an endpoint that no policy selects, and whose profiles allow
    /// everything.
    #[must_use]
    pub fn only_decision(&self) -> Option<u32> {
        let Shortcuts { cells, alike, .. } = self.shortcuts;
        (alike.as_value() & Shortcuts::ALL_ALIKE != 0).then_some(cells.as_value())
    }

    fn find_only_decision(&self, blocks: &Blocks) -> Option<u32> {
        let Self { own, peer, details, protocols, source_ports, no_source_port, cells, is_large, .. } = *self;
        let parts = [own, peer, details, source_ports];
        let is_one = parts.iter().all(|part| part.as_block().is_none());
        if is_large || !is_one || details != protocols || source_ports != no_source_port {
            return None;
        }
        let number: u64 = parts.iter().map(|part| u64::from(part.as_value())).sum();
        let number = u16::try_from(number).ok()?;
        Some(blocks.get(cells, &number.to_be_bytes()))
    }

    /// Returns all roots without shortcuts, in the order of the map. Cell numbers have four bytes
    /// if the last cell is 1.
    #[must_use]
    pub const fn cells(&self) -> [Cell; 8] {
        let Self { own, peer, details, protocols, source_ports, no_source_port, cells, is_large, .. } = *self;
        [own, peer, details, protocols, source_ports, no_source_port, cells, Cell::value(is_large as u32)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Assignment;

    #[test]
    fn ends_are_alike_where_all_classes_of_a_family_have_one_row() {
        let mut blocks = Blocks::new();
        let row = |value| Assignment { key: &[0x80], bits: 1, value };
        let of_families = blocks.assign(Cell::value(1), &[row(2)]);
        let last_of_v4 = Assignment { key: &[0x7f, 0xff, 0xff], bits: 24, value: 3 };
        let one_apart = blocks.assign(Cell::value(1), &[row(2), last_of_v4]);
        let alike = |own, peer| {
            let roots = GroupRoots { own, peer, ..GroupRoots::CLOSED }.with_shortcuts(&blocks);
            (roots.shortcuts.alike.as_value(), roots.shortcuts.own.map(Cell::as_value))
        };
        assert_eq!(alike(of_families, Cell::value(7)), (0b1111, [1, 2]));
        assert_eq!(alike(one_apart, of_families), (0b1110, [1, 2]));
        assert_eq!(alike(of_families, one_apart).0, 0b1011);
        assert_eq!(GroupRoots::CLOSED.with_shortcuts(&blocks), GroupRoots::CLOSED);
    }

    #[test]
    fn a_group_that_looks_at_nothing_decides_at_once() {
        let mut blocks = Blocks::new();
        let third = blocks.assign(Cell::value(0), &[Assignment { key: &[0, 3], bits: 16, value: 9 }]);
        let some_port = blocks.assign(Cell::value(1), &[Assignment { key: &[6, 0, 80], bits: 24, value: 0 }]);
        let all = GroupRoots {
            own: Cell::value(0),
            peer: Cell::value(2),
            details: Cell::value(1),
            protocols: Cell::value(1),
            source_ports: Cell::value(0),
            no_source_port: Cell::value(0),
            cells: third,
            ..GroupRoots::CLOSED
        };
        let only = |roots: GroupRoots| roots.with_shortcuts(&blocks).only_decision();
        assert_eq!(only(all), Some(9));
        assert_eq!(only(GroupRoots { peer: Cell::value(3), ..all }), Some(0), "there is no such cell");
        assert_eq!(only(GroupRoots { details: some_port, ..all }), None);
        assert_eq!(only(GroupRoots { protocols: Cell::value(0), ..all }), None);
        assert_eq!(only(GroupRoots { no_source_port: Cell::value(1), ..all }), None);
        assert_eq!(only(GroupRoots { own: Cell::value(NOWHERE), ..all }), None);
        assert_eq!(only(GroupRoots { is_large: true, ..all }), None);
    }
}
