//! Contents of the eBPF maps, and their interpretation by the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use tortie_ebpf::layout::{ExactRecord, LearnedKey, LearnedRecord, MapKind, endpoint, exact_bucket, roots};
use tortie_ebpf::{CELLS, Transport};
use tortie_evaluate::Packet;
use tortie_model::Direction;

/// Map values, which are zero before they are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maps(BTreeMap<(MapKind, u32), Vec<u8>>);

/// Map and index of a value.
pub(crate) type Entry = (MapKind, u32);

impl Maps {
    pub(crate) fn write(&mut self, map: MapKind, index: u32, value: &[u8]) {
        assert_eq!(value.len(), map.value_size(), "{map:?}");
        self.0.insert((map, index), value.to_vec());
    }

    pub(crate) fn get(&self, entry: Entry) -> Option<&[u8]> {
        self.0.get(&entry).map(Vec::as_slice)
    }

    fn number(&self, map: MapKind, index: u32, offset: i16) -> u32 {
        let offset = usize::try_from(offset).unwrap();
        let bytes = self.get((map, index)).map(|value| value[offset..offset + 4].try_into().unwrap());
        u32::from_ne_bytes(bytes.unwrap_or_default())
    }

    /// Returns the value of a key in a trie.
    pub(crate) fn tree(&self, root: u32, key: &[u8]) -> u32 {
        let mut cell = root;
        for byte in key {
            let Some(block) = block_of(cell) else { break };
            assert!(self.0.contains_key(&(MapKind::Blocks, block)), "block {block} is not there");
            cell = self.number(MapKind::Blocks, block, i16::from(*byte) * 4);
        }
        assert_eq!(block_of(cell), None, "the tree leads on behind the end of the key");
        value_of(cell)
    }

    /// Returns the slot of the roots in force; `None` if none are.
    fn in_force(&self) -> Option<u32> {
        let slot = self.number(MapKind::Current, 0, 0);
        (self.number(MapKind::Roots, slot, roots::FLAGS) & roots::IN_FORCE.unsigned_abs() != 0).then_some(slot)
    }

    /// Returns the endpoint of an interface; 0 if it has none.
    pub(crate) fn endpoint_at(&self, interface: u32) -> u32 {
        let Some(slot) = self.in_force() else { return 0 };
        self.tree(self.number(MapKind::Roots, slot, roots::INTERFACES), &interface.to_be_bytes())
    }

    pub(crate) fn endpoint_of_all(&self) -> u32 {
        self.in_force().map_or(0, |slot| self.number(MapKind::Roots, slot, roots::ALL_INTERFACES))
    }

    pub(crate) fn kind(&self, endpoint: u32) -> u32 {
        self.number(MapKind::Endpoints, endpoint, endpoint::KIND)
    }

    /// Returns the decision of an endpoint's group for a packet, as the value of a cell; `None` if
    /// the group is not used.
    pub(crate) fn ask(&self, endpoint: u32, place: u32, direction: Direction, packet: &Packet) -> Option<u32> {
        let slot = self.in_force()?;
        if self.number(MapKind::Endpoints, endpoint, endpoint::EVALUATED) >> place & 1 == 0 {
            return None;
        }
        let place = i16::try_from(place).unwrap();
        let group = self.number(MapKind::Endpoints, endpoint, endpoint::GROUPS + 4 * place);
        Some(self.group(self.group_roots(group), |address| self.class_at(slot, address), direction, packet))
    }

    /// Returns the decision of a workload's egress group for a packet, as the value of a cell, with
    /// the classes of learned addresses; `None` without a workload.
    pub(crate) fn ask_learned(
        &self,
        endpoint: u32,
        packet: &Packet,
        entry: impl Fn(LearnedKey) -> Option<LearnedRecord>,
    ) -> Option<u32> {
        let slot = self.in_force().filter(|_| endpoint != 0)?;
        let number = self.number(MapKind::Endpoints, endpoint, endpoint::DOMAINS);
        let learned = |address: IpAddr| {
            let key = LearnedKey { endpoint: number, address };
            let record = entry(key).filter(|_| number != 0 && address == packet.destination())?;
            let class = record.classes[usize::try_from(slot).unwrap()];
            (class & LearnedRecord::OPEN != 0).then_some(class & !LearnedRecord::OPEN)
        };
        let class_of = |address| learned(address).unwrap_or_else(|| self.class_at(slot, address));
        let group = self.number(MapKind::Endpoints, endpoint, endpoint::GROUPS + 4);
        Some(self.group(self.group_roots(group), class_of, Direction::Egress, packet))
    }

    /// Returns the class of an address, as programs find it by some roots.
    fn class_at(&self, slot: u32, address: IpAddr) -> u32 {
        let [v4, _] = roots::ADDRESSES;
        let root = match address {
            IpAddr::V4(_) => v4,
            IpAddr::V6(address) => match self.exact(slot, address.octets()) {
                Ok(class) => return class,
                Err(tree) => tree,
            },
        };
        self.tree(self.number(MapKind::Roots, slot, root), &octets(address))
    }

    /// Returns the class of an address in the hash table, or else the trie that has it.
    fn exact(&self, slot: u32, address: [u8; 16]) -> Result<u32, i16> {
        let [_, full] = roots::ADDRESSES;
        let buckets = self.number(MapKind::Roots, slot, roots::EXACT_BUCKETS);
        if buckets == 0 {
            return Err(full);
        }
        let entry = (MapKind::Exact, exact_bucket(&address, buckets));
        let Some(record) = self.get(entry) else { return Err(full) };
        let own = entries(record).filter(|(found, class)| *found == address && *class != 0);
        let own: Vec<u32> = own.map(|(_, class)| class).collect();
        let is_complete = self.number(entry.0, entry.1, ExactRecord::COMPLETE) == 1;
        match own.iter().find(|class| **class & ExactRecord::OPEN != 0) {
            Some(class) => Ok(class & !ExactRecord::OPEN),
            None if own.is_empty() && is_complete => Err(roots::NETWORKS),
            None => Err(full),
        }
    }

    pub(crate) fn may_send_from(&self, endpoint: u32, address: IpAddr) -> bool {
        let sources = endpoint::SOURCES[usize::from(address.is_ipv6())];
        self.tree(self.number(MapKind::Endpoints, endpoint, sources), &octets(address)) == 1
    }

    fn group_roots(&self, group: u32) -> [u32; 8] {
        [0, 1, 2, 3, 4, 5, 6, 7].map(|place| self.number(MapKind::Groups, group, 4 * place))
    }

    /// Returns all entries that packets may use, with decisions as their counters.
    pub(crate) fn reached(&self) -> BTreeSet<Entry> {
        let mut reached = BTreeSet::new();
        let Some(slot) = self.in_force() else { return reached };
        reached.insert((MapKind::Roots, slot));
        let trees = roots::ADDRESSES.into_iter().chain([roots::NETWORKS]);
        let mut trees: Vec<u32> = trees.map(|offset| self.number(MapKind::Roots, slot, offset)).collect();
        let interfaces = self.number(MapKind::Roots, slot, roots::INTERFACES);
        trees.push(interfaces);
        let mut endpoints = self.values_of(interfaces);
        endpoints.insert(self.endpoint_of_all());
        for endpoint in endpoints {
            reached.insert((MapKind::Endpoints, endpoint));
            trees.extend(endpoint::SOURCES.map(|offset| self.number(MapKind::Endpoints, endpoint, offset)));
            for place in 0..8 {
                let group = self.number(MapKind::Endpoints, endpoint, endpoint::GROUPS + 4 * place);
                reached.insert((MapKind::Groups, group));
                let cells = self.group_roots(group);
                let decisions = self.values_of(cells[6]).into_iter();
                let numbers = decisions.map(|cell| tortie_ebpf::DecisionId::from_cell(cell).number());
                reached.extend(numbers.map(|number| (MapKind::Counters, number)));
                trees.extend(cells);
            }
        }
        reached.extend(self.blocks_of(trees).into_iter().map(|block| (MapKind::Blocks, block)));
        reached
    }

    /// Returns the IPv6 addresses, of these and of all in the hash table, whose class differs from
    /// that of the full address trie, by the roots in force or by others that packets may still
    /// use.
    pub(crate) fn wrong_classes(&self, held: &BTreeSet<Entry>, addresses: &BTreeSet<Ipv6Addr>) -> Vec<String> {
        let held = held.iter().filter(|(map, _)| *map == MapKind::Roots).map(|(_, slot)| *slot);
        let slots: BTreeSet<u32> = held.chain(self.in_force()).collect();
        let known = self.exact_entries().map(|(address, _)| Ipv6Addr::from(address));
        let addresses: BTreeSet<Ipv6Addr> = known.chain(addresses.iter().copied()).collect();
        let all = slots.into_iter().flat_map(|slot| addresses.iter().map(move |address| (slot, *address)));
        let wrong = all.filter(|(slot, address)| {
            let tree = self.number(MapKind::Roots, *slot, roots::ADDRESSES[1]);
            self.class_at(*slot, (*address).into()) != self.tree(tree, &address.octets())
        });
        wrong.map(|(slot, address)| format!("{address} at roots {slot}")).collect()
    }

    fn exact_entries(&self) -> impl Iterator<Item = ([u8; 16], u32)> + '_ {
        self.0.iter().filter(|((map, _), _)| *map == MapKind::Exact).flat_map(|(_, value)| entries(value))
    }

    /// Returns the number of IPv6 addresses that are valid in the hash table.
    pub(crate) fn exact_count(&self) -> usize {
        self.exact_entries().filter(|(_, class)| class & ExactRecord::OPEN != 0).count()
    }

    /// Returns all values of a trie.
    fn values_of(&self, root: u32) -> BTreeSet<u32> {
        if block_of(root).is_none() {
            return [value_of(root)].into();
        }
        let places = 0..i16::try_from(CELLS).unwrap();
        let blocks = self.blocks_of([root]);
        let cells =
            blocks.iter().flat_map(|block| places.clone().map(|place| self.number(MapKind::Blocks, *block, place * 4)));
        cells.filter(|cell| block_of(*cell).is_none()).map(value_of).collect()
    }

    /// Returns the decision of tries for a packet whose addresses have these classes, as the value
    /// of a cell.
    pub(crate) fn group(
        &self,
        group: [u32; 8],
        class_of: impl Fn(IpAddr) -> u32,
        direction: Direction,
        packet: &Packet,
    ) -> u32 {
        let [own, peer, details, protocols, source_ports, no_source_port, cells, is_large] = group;
        let (own_end, peer_end) = match direction {
            Direction::Ingress => (packet.destination(), packet.source()),
            Direction::Egress => (packet.source(), packet.destination()),
        };
        let row = |root, address| {
            let class = class_of(address).to_be_bytes();
            self.tree(root, &class[1..])
        };
        let Transport { protocol, detail, source_port } = Transport::of(packet);
        let l4 = match detail.map(u16::to_be_bytes) {
            Some([high, low]) => self.tree(details, &[protocol, high, low]),
            None => self.tree(protocols, &[protocol]),
        };
        let source_port =
            source_port.map_or(value_of(no_source_port), |port| self.tree(source_ports, &port.to_be_bytes()));
        let parts = [row(own, own_end), row(peer, peer_end), l4, source_port];
        let cell: u64 = parts.into_iter().map(u64::from).sum();
        match value_of(is_large) {
            0 => u16::try_from(cell).map_or(0, |cell| self.tree(cells, &cell.to_be_bytes())),
            1 => i32::try_from(cell).map_or(0, |cell| self.tree(cells, &cell.to_be_bytes())),
            other => panic!("{other}"),
        }
    }

    /// Returns the blocks of tries.
    pub(crate) fn blocks_of(&self, roots: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        let mut cells: Vec<u32> = roots.into_iter().collect();
        while let Some(cell) = cells.pop() {
            let Some(block) = block_of(cell) else { continue };
            if found.insert(block) {
                let places = 0..i16::try_from(CELLS).unwrap();
                cells.extend(places.map(|place| self.number(MapKind::Blocks, block, place * 4)));
            }
        }
        found
    }
}

/// Returns the addresses of a bucket with their classes; a bit of the class marks an open address.
fn entries(record: &[u8]) -> impl Iterator<Item = ([u8; 16], u32)> + '_ {
    (0..ExactRecord::WAYS).map(|way| {
        let class = &record[usize::try_from(ExactRecord::CLASSES).unwrap() + 4 * way..][..4];
        (record[16 * way..][..16].try_into().unwrap(), u32::from_ne_bytes(class.try_into().unwrap()))
    })
}

/// Returns the block to which a cell points, by its offset in bytes. Values have the highest bit
/// set; zero means never written.
fn block_of(cell: u32) -> Option<u32> {
    (cell != 0 && cell >> 31 == 0).then(|| {
        let bytes = u32::try_from(4 * CELLS).unwrap();
        assert!(cell.is_multiple_of(bytes), "{cell:x} leads to no block");
        cell / bytes
    })
}

const fn value_of(cell: u32) -> u32 {
    cell & i32::MAX.unsigned_abs()
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
