//! The maps that hooks read: what they are numbered by, how large a value is and what stands where in it.
//!
//! All but [`MapKind::Log`] are arrays, and numbers in them are in the machine's order. A value that packets may meet is never written again: a change
//! writes blocks, groups, endpoints and a value of `roots` that nothing leads to, and at last [`MapKind::Current`], of which only
//! the lowest byte ever differs. So a packet meets everything as it was before the change, or everything as it is afterwards.

use crate::blocks::{Blocks, CELLS, Cell};
use crate::group_roots::{GroupRoots, Shortcuts};
use crate::instruction::MapId;

/// The maps of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "whoever makes them must know them all")]
pub enum MapKind {
    /// One value of 8 bytes: the number of the value of [`MapKind::Roots`] that is in force.
    Current,
    /// [`RootsRecord`], of which there are [`ROOTS`], by turns.
    Roots,
    /// Blocks by number, [`CELLS`] cells each.
    Blocks,
    /// The trees of a group as [`GroupRoots::to_bytes`] has them. 0 denies everything.
    Groups,
    /// [`EndpointRecord`]. 0 is no endpoint.
    Endpoints,
    /// [`CounterRecord`] by the number of a decision, for each CPU one.
    Counters,
    /// What a decision is known by, so that it keeps its number and what was counted when another process goes on. No program
    /// reads it. Zeros: the number was never given out.
    Decisions,
    /// [`ExactRecord`] by [`exact_bucket`]: IPv6 addresses that need not be followed through a tree.
    Exact,
    /// A ring of [`LOG_BYTES`] into which programs write [`LogRecord`](crate::LogRecord)s, if [`RootsRecord::logs`] says so.
    Log,
    /// One value of 8 bytes: how many found no room there.
    Lost,
}

/// The version of what is in maps: whoever writes maps of another one does not go on with these.
pub const VERSION: u32 = 5;

/// How many values [`MapKind::Blocks`] may have: the kernel's verifier lets programs go so far within a value.
pub const MAX_BLOCKS: u32 = 1 << 19;

/// How many values [`MapKind::Roots`] has.
pub const ROOTS: u32 = 4;

/// The bytes of [`MapKind::Log`]: of some 5,000 packets.
pub const LOG_BYTES: u32 = 1 << 18;

/// A cell that decides is the number of the decision, and in so many of the lowest bits what is decided.
pub const VERDICT_BITS: u32 = 2;
/// Drops the packet.
pub const DENY: u32 = 0;
/// Lets it through.
pub const ALLOW: u32 = 1;
/// Leaves the decision to what is asked next.
pub const UNDECIDED: u32 = 2;

/// Where the parts of a [`RootsRecord`] begin.
pub mod roots {
    /// The tree of interfaces.
    pub const INTERFACES: i16 = 0;
    /// The trees of IPv4 and IPv6 addresses.
    pub const ADDRESSES: [i16; 2] = [4, 8];
    /// The number of the endpoint of all interfaces.
    pub const ALL_INTERFACES: i16 = 12;
    /// The bits that follow.
    pub const FLAGS: i16 = 16;
    /// Everything is in force.
    pub const IN_FORCE: i32 = 1;
    /// No endpoint has untracked policy: nothing is asked about known connections of the host.
    pub const NO_UNTRACKED: i32 = 2;
    /// What is decided is logged.
    pub const LOG: i32 = 4;
    /// Where the tree of interfaces goes on behind two bytes that are 0.
    pub const NEAR_INTERFACES: i16 = 20;
    /// How many buckets there are in which IPv6 addresses are looked for first.
    pub const EXACT_BUCKETS: i16 = 24;
    /// By how many bits a hash of 64 is shifted to be the number of one; 0 if there are none.
    pub const EXACT_SHIFT: i16 = 28;
    /// The tree of IPv6 addresses that are not found there.
    pub const NETWORKS: i16 = 32;
    /// The bytes of it.
    pub const SIZE: usize = 64;
}

/// Where the parts of an [`EndpointRecord`] begin.
pub mod endpoint {
    /// What it is.
    pub const KIND: i16 = 0;
    /// Which groups are asked.
    pub const ASKED: i16 = 4;
    /// The numbers of eight groups.
    pub const GROUPS: i16 = 8;
    /// The trees of IPv4 and IPv6 addresses that a workload may send from.
    pub const SOURCES: [i16; 2] = [40, 44];
    /// The bytes of it.
    pub const SIZE: usize = 64;
}

const GROUP_SIZE: usize = 64;
/// The bytes of what a decision is known by.
pub(crate) const DECISION_SIZE: usize = 16;

impl MapKind {
    /// All of them, in the order in which a change must write them.
    pub const ALL: [Self; 10] = [
        Self::Exact,
        Self::Blocks,
        Self::Groups,
        Self::Endpoints,
        Self::Counters,
        Self::Decisions,
        Self::Log,
        Self::Lost,
        Self::Roots,
        Self::Current,
    ];

    /// What programs know it by.
    #[must_use]
    pub const fn id(self) -> MapId {
        MapId(self as u32)
    }

    /// A name that is none but letters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Roots => "roots",
            Self::Blocks => "blocks",
            Self::Groups => "groups",
            Self::Endpoints => "endpoints",
            Self::Counters => "counters",
            Self::Decisions => "decisions",
            Self::Exact => "exact",
            Self::Log => "log",
            Self::Lost => "lost",
        }
    }

    /// The bytes of a value; 0 for the ring, which has none.
    #[must_use]
    pub const fn value_size(self) -> usize {
        match self {
            Self::Log => 0,
            Self::Current | Self::Lost => 8,
            Self::Roots => roots::SIZE,
            Self::Blocks => CELLS * 4,
            Self::Groups => GROUP_SIZE,
            Self::Endpoints => endpoint::SIZE,
            Self::Counters => CounterRecord::SIZE,
            Self::Decisions => DECISION_SIZE,
            Self::Exact => ExactRecord::SIZE,
        }
    }

    /// Whether all values must be in one value of the kernel's map, one behind the other, so that programs reach all of them from the
    /// first.
    #[must_use]
    pub const fn is_joined(self) -> bool {
        matches!(self, Self::Blocks | Self::Groups | Self::Endpoints | Self::Roots | Self::Exact | Self::Lost)
    }

    /// Whether it is no array but a ring, which nobody but programs writes.
    #[must_use]
    pub const fn is_ring(self) -> bool {
        matches!(self, Self::Log)
    }

    /// Whether each CPU has values of its own.
    #[must_use]
    pub const fn is_per_cpu(self) -> bool {
        matches!(self, Self::Counters)
    }
}

/// Where everything begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "it is the layout of a map")]
pub struct RootsRecord {
    /// The tree from the index of an interface, four bytes in the order of the network, to the number of an endpoint.
    pub interfaces: Cell,
    /// Where that goes on for indexes below 65,536, with their last two bytes.
    pub near_interfaces: Cell,
    /// The trees from an IPv4 and an IPv6 address to its class.
    pub addresses: [Cell; 2],
    /// The same for IPv6 without single addresses, which is right only for those that have no class of their own.
    pub networks: Cell,
    /// The number of the endpoint of all interfaces that are not workloads' and have none of their own; 0: there is none.
    pub all_interfaces: u32,
    /// How many values of [`MapKind::Exact`] count, a power of two; 0: IPv6 addresses are looked for in trees alone.
    pub exact_buckets: u32,
    /// Whether what is here is in force. If it is not, policy is not known, and what it could deny is dropped: see [`hooks`](crate::hooks).
    pub is_in_force: bool,
    /// Whether programs write into [`MapKind::Log`] what is decided about packets that begin a connection, or belong to none.
    pub logs: bool,
}

impl RootsRecord {
    /// As it stands in the map.
    ///
    /// ```
    /// use tortie_ebpf::Cell;
    /// use tortie_ebpf::layout::RootsRecord;
    ///
    /// let record = RootsRecord { interfaces: Cell::value(7), is_in_force: true, ..RootsRecord::default() };
    /// let bytes = record.to_bytes();
    /// assert_eq!(bytes[..4], Cell::value(7).bits().to_ne_bytes());
    /// assert_eq!(bytes[16..20], 1_u32.to_ne_bytes());
    /// ```
    #[must_use]
    pub fn to_bytes(&self) -> [u8; roots::SIZE] {
        self.bytes_with(0)
    }

    /// The same where no endpoint that it leads to has untracked policy, which spares known connections some readings.
    #[must_use]
    pub fn to_bytes_without_untracked(&self) -> [u8; roots::SIZE] {
        self.bytes_with(roots::NO_UNTRACKED.unsigned_abs())
    }

    fn bytes_with(&self, flags: u32) -> [u8; roots::SIZE] {
        let Self { interfaces, near_interfaces, addresses, networks, all_interfaces, exact_buckets, is_in_force, logs } =
            *self;
        let [v4, v6] = addresses.map(Cell::bits);
        let set = |flag: i32, is_set| if is_set { flag.unsigned_abs() } else { 0 };
        let flags = set(roots::IN_FORCE, is_in_force) | set(roots::LOG, logs) | flags;
        let [interfaces, near, networks] = [interfaces, near_interfaces, networks].map(Cell::bits);
        let shift = exact_shift(exact_buckets);
        numbers([interfaces, v4, v6, all_interfaces, flags, near, exact_buckets, shift, networks])
    }

    /// With another tree of interfaces, which is in these blocks.
    #[must_use]
    pub fn with_interfaces(self, interfaces: Cell, blocks: &Blocks) -> Self {
        Self { interfaces, near_interfaces: blocks.cell_at(interfaces, &[0, 0]), ..self }
    }

    /// What stands in a map, and whether an endpoint that it leads to has untracked policy; `None` if it cannot be one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<(Self, bool)> {
        let [interfaces, v4, v6, all_interfaces, flags, near_interfaces, exact_buckets, _, networks] = parts(bytes);
        let record = Self {
            interfaces: Cell::from_bits(interfaces),
            near_interfaces: Cell::from_bits(near_interfaces),
            addresses: [Cell::from_bits(v4), Cell::from_bits(v6)],
            networks: Cell::from_bits(networks),
            all_interfaces,
            exact_buckets,
            is_in_force: flags & roots::IN_FORCE.unsigned_abs() != 0,
            logs: flags & roots::LOG.unsigned_abs() != 0,
        };
        let has_untracked = flags & roots::NO_UNTRACKED.unsigned_abs() == 0;
        let written = if has_untracked { record.to_bytes() } else { record.to_bytes_without_untracked() };
        let has_buckets = exact_buckets == 0 || exact_buckets.is_power_of_two();
        (has_buckets && written == bytes).then_some((record, has_untracked))
    }
}

/// What an interface is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "it is the layout of a map")]
pub enum EndpointKind {
    /// Nobody's: what comes from there or goes there is dropped.
    #[default]
    None,
    /// A workload's.
    Workload,
    /// A host endpoint's.
    Host,
}

/// What is in force at an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "it is the layout of a map")]
pub struct EndpointRecord {
    /// Whose it is.
    pub kind: EndpointKind,
    /// Bit `i` is set if group `i` has something to say; the others are not asked.
    pub asked: u32,
    /// The numbers of groups: of a workload those of ingress and egress, of a host endpoint those of normal, forwarded, untracked
    /// and pre-DNAT policy, for each ingress and then egress.
    pub groups: [u32; 8],
    /// The trees from an IPv4 and an IPv6 address to 1 if a workload may send from it.
    pub sources: [Cell; 2],
}

impl EndpointRecord {
    /// The place of a workload's group of ingress.
    pub const WORKLOAD_INGRESS: usize = 0;
    /// The place of a workload's group of egress.
    pub const WORKLOAD_EGRESS: usize = 1;

    /// As it stands in the map.
    ///
    /// ```
    /// use tortie_ebpf::layout::{EndpointKind, EndpointRecord};
    ///
    /// assert_eq!(EndpointRecord::default().to_bytes(), [0; 64]);
    /// let host = EndpointRecord { kind: EndpointKind::Host, ..EndpointRecord::default() };
    /// assert_eq!(host.to_bytes()[..4], 2_u32.to_ne_bytes());
    /// ```
    #[must_use]
    pub fn to_bytes(&self) -> [u8; endpoint::SIZE] {
        let Self { kind, asked, groups: [a, b, c, d, e, f, g, h], sources } = *self;
        // Nowhere to send from is where zeros lead: an endpoint that is nobody's is zeros alone.
        let [v4, v6] = sources.map(|source| if source == Cell::default() { 0 } else { source.bits() });
        numbers([kind as u32, asked, a, b, c, d, e, f, g, h, v4, v6])
    }

    /// What stands in a map; `None` if it cannot be one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [kind, asked, a, b, c, d, e, f, g, h, v4, v6] = parts(bytes);
        let kinds = [EndpointKind::None, EndpointKind::Workload, EndpointKind::Host];
        let kind = kinds.into_iter().find(|known| *known as u32 == kind)?;
        let sources = [v4, v6].map(|bits| if bits == 0 { Cell::default() } else { Cell::from_bits(bits) });
        let record = Self { kind, asked, groups: [a, b, c, d, e, f, g, h], sources };
        (record.to_bytes() == bytes).then_some(record)
    }
}

impl GroupRoots {
    /// As it stands in the map.
    ///
    /// ```
    /// let denied = tortie_ebpf::Cell::value(0);
    /// assert_eq!(tortie_ebpf::GroupRoots::CLOSED.to_bytes()[24..28], denied.bits().to_ne_bytes());
    /// ```
    #[must_use]
    pub fn to_bytes(&self) -> [u8; GROUP_SIZE] {
        let [own, peer, details, protocols, source_ports, no_source_port, cells, is_large] = self.cells();
        let [a, b, c, d, e, f, g, h] = self.shortcuts.cells();
        let all =
            [own, peer, details, protocols, source_ports, no_source_port, cells, is_large, a, b, c, d, e, f, g, h];
        numbers(all.map(Cell::bits))
    }

    /// What stands in a map; `None` if it cannot be one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [own, peer, details, protocols, source_ports, no_source_port, cells, is_large, shortcuts @ ..]: [Cell; 16] =
            parts(bytes).map(Cell::from_bits);
        let is_large = is_large == Cell::value(1);
        let shortcuts = Shortcuts::from_cells(shortcuts);
        let record = Self { own, peer, details, protocols, source_ports, no_source_port, cells, is_large, shortcuts };
        (record.to_bytes() == bytes).then_some(record)
    }
}

/// What a decision has been taken about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "it is the layout of a map")]
pub struct CounterRecord {
    /// Packets that began a connection, or belong to none.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
}

impl CounterRecord {
    /// The bytes of one.
    pub const SIZE: usize = 16;

    /// The sum of what each CPU has counted: their values one behind the other.
    ///
    /// ```
    /// use tortie_ebpf::layout::CounterRecord;
    ///
    /// let cpus = [1_u64, 60, 2, 3000].map(u64::to_ne_bytes).concat();
    /// assert_eq!(CounterRecord::sum(&cpus), CounterRecord { packets: 3, bytes: 3060 });
    /// ```
    #[must_use]
    pub fn sum(values: &[u8]) -> Self {
        let (values, _) = values.as_chunks::<8>();
        let (records, _) = values.as_chunks::<2>();
        records.iter().fold(Self::default(), |sum, [packets, bytes]| Self {
            packets: sum.packets.wrapping_add(u64::from_ne_bytes(*packets)),
            bytes: sum.bytes.wrapping_add(u64::from_ne_bytes(*bytes)),
        })
    }
}

/// IPv6 addresses with their classes, which the tree of addresses gives them as well.
///
/// An entry is written while it is closed, and opened and closed by its one bit, so that a packet that finds it open finds all of
/// it. One that finds it closed follows the tree of addresses. One that finds none follows [`RootsRecord::networks`] if all addresses
/// that belong here stand here; what nobody has written says so of none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExactRecord {
    addresses: [[u8; 16]; Self::WAYS],
    /// With [`Self::OPEN`].
    classes: [u32; Self::WAYS],
    /// Whether all addresses that belong here and have a class of their own have an entry.
    pub(crate) is_complete: bool,
}

impl ExactRecord {
    /// How many addresses there are.
    pub const WAYS: usize = 3;
    /// The bit of a class whose address counts.
    pub const OPEN: u32 = 1 << 31;
    /// Where classes begin.
    pub const CLASSES: i16 = 48;
    /// Where it says, by the number 1, that all addresses that belong here and have a class of their own have an entry.
    pub const COMPLETE: i16 = 60;
    /// The bytes of it: as many as processors fetch at once.
    pub const SIZE: usize = 64;

    /// Of the first entries, each an address, its class, and whether it counts.
    pub(crate) fn new(entries: impl Iterator<Item = ([u8; 16], u32, bool)>, is_complete: bool) -> Self {
        let mut record = Self { is_complete, ..Self::default() };
        let places = record.addresses.iter_mut().zip(&mut record.classes);
        for ((to, of), (address, class, is_open)) in places.zip(entries) {
            *to = address;
            *of = class | if is_open { Self::OPEN } else { 0 };
        }
        record
    }

    /// Each entry: an address, its class, and whether it counts.
    pub(crate) fn entries(&self) -> impl Iterator<Item = ([u8; 16], u32, bool)> + '_ {
        let entries = self.addresses.iter().zip(self.classes);
        entries.map(|(address, class)| (*address, class & !Self::OPEN, class & Self::OPEN != 0))
    }

    /// As it stands in the map.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let classes = self.classes.map(u32::to_ne_bytes);
        let is_complete = u32::from(self.is_complete).to_ne_bytes();
        let parts = self.addresses.as_flattened().iter().chain(classes.as_flattened()).chain(&is_complete);
        bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// What stands in a map; `None` if it has another size.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (addresses, rest) = bytes.split_at_checked(Self::CLASSES.unsigned_abs().into())?;
        let addresses = addresses.as_chunks::<16>().0.try_into().ok()?;
        let (classes, complete) = rest.as_chunks::<4>().0.split_at_checked(Self::WAYS)?;
        let classes: [[u8; 4]; Self::WAYS] = classes.try_into().ok()?;
        let is_complete = complete.iter().any(|bytes| *bytes != [0; 4]);
        let record = Self { addresses, classes: classes.map(u32::from_ne_bytes), is_complete };
        (record.to_bytes() == bytes).then_some(record)
    }
}

/// What the two halves of an address are multiplied with, as the machine reads them: odd, and bits of the golden ratio and of the
/// square root of 2.
pub(crate) const EXACT_FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909];

/// By how many bits a hash of 64 is shifted to be the number of one of so many buckets, a power of two; 0 if there are none, and what is not
/// shifted is no number of any.
const fn exact_shift(buckets: u32) -> u32 {
    if buckets <= 1 { 0 } else { 64 - buckets.trailing_zeros() }
}

/// The bucket of an address, of so many, a power of two.
#[must_use]
#[expect(clippy::expect_used, reason = "a power of two has at most 31 zeros, so that the shift leaves 31 bits")]
pub fn exact_bucket(address: &[u8; 16], buckets: u32) -> u32 {
    let (halves, _) = address.as_chunks::<8>();
    // The highest bits of a product are those that all bits have a part in.
    let products =
        halves.iter().zip(EXACT_FACTORS).map(|(half, factor)| u64::from_ne_bytes(*half).wrapping_mul(factor));
    let hash = products.fold(0, u64::wrapping_add);
    if buckets <= 1 { 0 } else { u32::try_from(hash >> exact_shift(buckets)).expect("a bucket has 31 bits") }
}

/// The first numbers of a value; zeros where it is shorter.
fn parts<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut numbers = [0; N];
    for (to, number) in numbers.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *to = u32::from_ne_bytes(*number);
    }
    numbers
}

/// Numbers one behind the other, and zeros behind them.
fn numbers<const N: usize, const SIZE: usize>(numbers: [u32; N]) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    for (to, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
        *to = number.to_ne_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[u8], offset: i16) -> u32 {
        let offset = usize::try_from(offset).unwrap();
        u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
    }

    #[test]
    fn roots_are_where_programs_read_them() {
        let record = RootsRecord {
            interfaces: Cell::value(1),
            near_interfaces: Cell::value(5),
            addresses: [Cell::value(2), Cell::value(3)],
            networks: Cell::value(6),
            all_interfaces: 4,
            exact_buckets: 8,
            is_in_force: true,
            logs: false,
        };
        let bytes = record.to_bytes();
        let value = |value| Cell::value(value).bits();
        assert_eq!(number(&bytes, roots::INTERFACES), value(1));
        assert_eq!(number(&bytes, roots::NEAR_INTERFACES), value(5));
        assert_eq!([roots::EXACT_BUCKETS, roots::EXACT_SHIFT].map(|offset| number(&bytes, offset)), [8, 61]);
        assert_eq!(number(&RootsRecord::default().to_bytes(), roots::EXACT_SHIFT), 0);
        assert_eq!(roots::ADDRESSES.map(|offset| number(&bytes, offset)), [2, 3].map(value));
        assert_eq!(number(&bytes, roots::NETWORKS), value(6));
        assert_eq!(number(&bytes, roots::ALL_INTERFACES), 4);
        assert_eq!(number(&bytes, roots::FLAGS), roots::IN_FORCE.unsigned_abs());
        let flags = number(&record.to_bytes_without_untracked(), roots::FLAGS);
        assert_eq!(flags, (roots::IN_FORCE | roots::NO_UNTRACKED).unsigned_abs());
        assert_eq!(record.to_bytes_without_untracked()[..16], bytes[..16]);
        assert_eq!(RootsRecord { is_in_force: false, ..record }.to_bytes()[16..20], [0; 4]);
        let logging = RootsRecord { logs: true, ..record };
        assert_eq!(number(&logging.to_bytes(), roots::FLAGS), (roots::IN_FORCE | roots::LOG).unsigned_abs());
        assert_eq!(RootsRecord::from_bytes(&logging.to_bytes()), Some((logging, true)));
        assert_eq!(RootsRecord::from_bytes(&bytes), Some((record, true)));
        assert_eq!(RootsRecord::from_bytes(&record.to_bytes_without_untracked()), Some((record, false)));
        assert_eq!((RootsRecord::from_bytes(&[0xee; 64]), RootsRecord::from_bytes(&bytes[1..])), (None, None));
    }

    #[test]
    fn endpoints_are_where_programs_read_them() {
        let record = EndpointRecord {
            kind: EndpointKind::Workload,
            asked: 0b11,
            groups: [10, 11, 12, 13, 14, 15, 16, 17],
            sources: [Cell::value(20), Cell::value(21)],
        };
        let bytes = record.to_bytes();
        assert_eq!(number(&bytes, endpoint::KIND), EndpointKind::Workload as u32);
        assert_eq!(number(&bytes, endpoint::ASKED), 0b11);
        for (place, group) in (0..).zip(record.groups) {
            assert_eq!(number(&bytes, endpoint::GROUPS + 4 * place), group);
        }
        assert_eq!(
            endpoint::SOURCES.map(|offset| number(&bytes, offset)),
            [20, 21].map(|value| Cell::value(value).bits())
        );
        assert_eq!(bytes[48..], [0; 16]);
        assert_eq!(EndpointRecord::from_bytes(&bytes), Some(record));
        assert_eq!((EndpointRecord::from_bytes(&[0xee; 64]), EndpointRecord::from_bytes(&[])), (None, None));
    }

    #[test]
    fn maps_have_ids_of_their_own_and_values_that_fit() {
        let ids: std::collections::BTreeSet<MapId> = MapKind::ALL.map(MapKind::id).into();
        assert_eq!(ids.len(), MapKind::ALL.len());
        let sizes = MapKind::ALL.map(MapKind::value_size);
        assert_eq!(sizes, [64, 1024, 64, 64, 16, 16, 0, 8, 64, 8]);
        assert!(sizes.iter().all(|size| size % 8 == 0), "per-CPU values are rounded up to 8");
        assert_eq!(GroupRoots::CLOSED.to_bytes()[28..32], Cell::value(0).bits().to_ne_bytes());
    }
}
