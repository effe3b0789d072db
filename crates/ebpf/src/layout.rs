//! Maps that the hook programs read: their keys, value sizes, and the fields of their values.
//!
//! All maps except [`MapKind::Log`] and [`MapKind::Learned`] are arrays. Numbers in them have
//! native byte order. A value that packets may read is never rewritten. A change first writes
//! blocks, groups, endpoints and a value of `roots` that nothing refers to yet. Last it writes
//! [`MapKind::Current`], of which only the lowest byte ever differs. So a packet sees the state
//! before the change or the state after it.

mod learned;

use crate::blocks::{Blocks, CELLS, Cell};
use crate::group_roots::{GroupRoots, Shortcuts};
use crate::instruction::MapId;

pub use learned::{LearnedKey, LearnedRecord, set_number};

/// The maps of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "creators of the maps must handle every kind")]
pub enum MapKind {
    /// One value of 8 bytes: the index of the value of [`MapKind::Roots`] that is in force.
    Current,
    /// [`RootsRecord`]s, [`ROOTS`] of them, used in turn.
    Roots,
    /// Blocks by number, [`CELLS`] cells each.
    Blocks,
    /// The tries of a group as [`GroupRoots::to_bytes`] writes them. Group 0 denies everything.
    Groups,
    /// [`EndpointRecord`]s. Number 0 is no endpoint.
    Endpoints,
    /// [`CounterRecord`]s by the number of a decision, one for each CPU.
    Counters,
    /// Identity of each decision, by which it keeps its number and counters in the next process.
    /// Programs do not read it. Zeros: the number was never assigned.
    Decisions,
    /// [`ExactRecord`]s by [`exact_bucket`]: IPv6 addresses that need no walk through a trie.
    Exact,
    /// Ring buffer of [`LOG_BYTES`] into which programs write [`LogRecord`](crate::LogRecord)s, if
    /// [`RootsRecord::logs`] is set.
    Log,
    /// One value of 8 bytes: the number of records that found no room in the ring buffer.
    Lost,
    /// Hash table of [`LEARNED_ENTRIES`] at most: [`LearnedRecord`]s by [`LearnedKey`]. Unlike all
    /// others its values are rewritten, each as a whole. They hold a class for each value of
    /// [`MapKind::Roots`], so that a packet finds the class that belongs to the roots that it uses.
    Learned,
}

/// Version of the map contents. A process does not take over maps of another version.
pub const VERSION: u32 = 6;

/// Maximum number of values of [`MapKind::Blocks`]: the kernel's verifier limits offsets within a
/// value to this size.
pub const MAX_BLOCKS: u32 = 1 << 19;

/// Number of values of [`MapKind::Roots`].
pub const ROOTS: u32 = 4;

/// Size of [`MapKind::Log`] in bytes, enough for some 5,000 packets.
pub const LOG_BYTES: u32 = 1 << 18;

/// Number of entries for which [`MapKind::Learned`] has room: some 200 bytes of kernel memory for
/// each entry in use, and 1 MiB for the table.
pub const LEARNED_ENTRIES: u32 = 1 << 16;

/// [`EndpointRecord::domains`] of host endpoints. No interface has this index.
pub const HOST_LEARNER: u32 = 1 << 30;

/// Number of low bits of a decision's cell that hold the verdict; the others hold the number of the
/// decision.
pub const VERDICT_BITS: u32 = 2;
/// Verdict: drop the packet.
pub const DENY: u32 = 0;
/// Verdict: accept the packet.
pub const ALLOW: u32 = 1;
/// Verdict: leave the decision to the next group that is evaluated.
pub const UNDECIDED: u32 = 2;

/// Byte offsets of the fields of a [`RootsRecord`].
pub mod roots {
    /// Interface trie.
    pub const INTERFACES: i16 = 0;
    /// IPv4 and IPv6 address tries.
    pub const ADDRESSES: [i16; 2] = [4, 8];
    /// Number of the endpoint of all interfaces.
    pub const ALL_INTERFACES: i16 = 12;
    /// Flags: the bits that follow.
    pub const FLAGS: i16 = 16;
    /// Flag: everything is in force.
    pub const IN_FORCE: i32 = 1;
    /// Flag: no endpoint has untracked policy, so known connections of the host are not evaluated.
    pub const NO_UNTRACKED: i32 = 2;
    /// Flag: decisions are logged.
    pub const LOG: i32 = 4;
    /// Number of bits below the index of the record, two bits of the same field.
    pub const SLOT_SHIFT: i32 = 8;
    /// Cell of the interface trie behind two zero bytes.
    pub const NEAR_INTERFACES: i16 = 20;
    /// Number of buckets in which IPv6 addresses are looked up first.
    pub const EXACT_BUCKETS: i16 = 24;
    /// Number of bits by which a 64-bit hash is shifted to give the number of a bucket; 0 without
    /// buckets.
    pub const EXACT_SHIFT: i16 = 28;
    /// Trie of IPv6 networks, for addresses that are not in a bucket.
    pub const NETWORKS: i16 = 32;
    /// Size of the record.
    pub const SIZE: usize = 64;
}

/// Byte offsets of the fields of an [`EndpointRecord`].
pub mod endpoint {
    /// Kind of the endpoint.
    pub const KIND: i16 = 0;
    /// Bit set of the groups to evaluate.
    pub const EVALUATED: i16 = 4;
    /// Numbers of eight groups.
    pub const GROUPS: i16 = 8;
    /// Tries of the IPv4 and IPv6 addresses that a workload may send from.
    pub const SOURCES: [i16; 2] = [40, 44];
    /// Number of the endpoint in keys of [`MapKind::Learned`](super::MapKind::Learned); 0: it is
    /// not looked up there.
    pub const DOMAINS: i16 = 48;
    /// Size of the record.
    pub const SIZE: usize = 64;
}

const GROUP_SIZE: usize = 64;
/// Size of a decision's identity in bytes.
pub(crate) const DECISION_SIZE: usize = 16;

impl MapKind {
    /// All maps, in the order in which a change must write them.
    pub const ALL: [Self; 11] = [
        Self::Learned,
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

    /// Returns the id by which programs refer to the map.
    #[must_use]
    pub const fn id(self) -> MapId {
        MapId(self as u32)
    }

    /// Returns the name of the map, which consists of letters only.
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
            Self::Learned => "learned",
        }
    }

    /// Returns the size of a value in bytes; 0 for the ring buffer, which has no values.
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
            Self::Learned => LearnedRecord::SIZE,
        }
    }

    /// Reports whether all values must be in one value of the kernel's map, one behind the other,
    /// so that programs reach each of them by an offset from the first.
    #[must_use]
    pub const fn is_joined(self) -> bool {
        matches!(self, Self::Blocks | Self::Groups | Self::Endpoints | Self::Roots | Self::Exact | Self::Lost)
    }

    /// Reports whether the map is a ring buffer, which only programs write, instead of an array.
    #[must_use]
    pub const fn is_ring(self) -> bool {
        matches!(self, Self::Log)
    }

    /// Reports whether the map is a hash table instead of an array.
    #[must_use]
    pub const fn is_hash(self) -> bool {
        matches!(self, Self::Learned)
    }

    /// Reports whether each CPU has separate values.
    #[must_use]
    pub const fn is_per_cpu(self) -> bool {
        matches!(self, Self::Counters)
    }
}

/// Roots of all tries that are not specific to a group or endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "it is the layout of a map")]
pub struct RootsRecord {
    /// Trie from the index of an interface, four bytes in network byte order, to the number of an
    /// endpoint.
    pub interfaces: Cell,
    /// Cell of that trie for indexes below 65,536, with their last two bytes left as the key.
    pub near_interfaces: Cell,
    /// Tries from IPv4 and IPv6 addresses to classes.
    pub addresses: [Cell; 2],
    /// The IPv6 trie without single addresses; correct only for addresses that have no specific
    /// class.
    pub networks: Cell,
    /// Number of the endpoint of all interfaces that are not workload interfaces and have no
    /// specific endpoint; 0 for none.
    pub all_interfaces: u32,
    /// Number of values of [`MapKind::Exact`] in use, a power of two; 0: IPv6 addresses are looked
    /// up in tries only.
    pub exact_buckets: u32,
    /// Whether the record is in force. If not, policy is unknown, and packets that it could deny
    /// are dropped: see [`hooks`](crate::hooks).
    pub is_in_force: bool,
    /// Whether programs write a record to [`MapKind::Log`] for each packet that begins a
    /// connection, or belongs to none.
    pub logs: bool,
}

impl RootsRecord {
    /// Returns the record in the format of the map, for index 0.
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
        self.to_bytes_at(0, true)
    }

    /// Returns the record for a state in which no endpoint has untracked policy, for index 0.
    #[must_use]
    pub fn to_bytes_without_untracked(&self) -> [u8; roots::SIZE] {
        self.to_bytes_at(0, false)
    }

    /// Returns the record for an index below [`ROOTS`]. Unless an endpoint has untracked policy,
    /// known connections need fewer reads.
    #[must_use]
    pub fn to_bytes_at(&self, slot: u32, has_untracked: bool) -> [u8; roots::SIZE] {
        let flags = if has_untracked { 0 } else { roots::NO_UNTRACKED.unsigned_abs() };
        self.bytes_with(flags | slot << roots::SLOT_SHIFT)
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

    /// Returns the record with another interface trie, whose blocks are in `blocks`.
    #[must_use]
    pub fn with_interfaces(self, interfaces: Cell, blocks: &Blocks) -> Self {
        Self { interfaces, near_interfaces: blocks.cell_at(interfaces, &[0, 0]), ..self }
    }

    /// Reads a record of the map at an index, and whether an endpoint that it leads to has
    /// untracked policy; `None` for an invalid record.
    pub(crate) fn from_bytes(bytes: &[u8], slot: u32) -> Option<(Self, bool)> {
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
        let written = record.to_bytes_at(slot, has_untracked);
        let has_buckets = exact_buckets == 0 || exact_buckets.is_power_of_two();
        (has_buckets && written == bytes).then_some((record, has_untracked))
    }
}

/// Kind of the endpoint of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "it is the layout of a map")]
pub enum EndpointKind {
    /// No endpoint: packets from and to the interface are dropped.
    #[default]
    None,
    /// Workload endpoint.
    Workload,
    /// Host endpoint.
    Host,
}

/// Policy in force at an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "it is the layout of a map")]
pub struct EndpointRecord {
    /// Kind of the endpoint.
    pub kind: EndpointKind,
    /// Bit `i` is set if group `i` may decide; the others are not evaluated.
    pub evaluated: u32,
    /// Numbers of groups. A workload has those of ingress and egress. A host endpoint has those of
    /// normal, forwarded, untracked and pre-DNAT policy, each for ingress and then egress.
    pub groups: [u32; 8],
    /// Tries from IPv4 and IPv6 addresses to 1 for addresses that a workload may send from.
    pub sources: [Cell; 2],
    /// [`LearnedKey::endpoint`] of addresses that the endpoint learns, if its normal egress policy
    /// has rules by domain name; else 0.
    pub domains: u32,
}

impl EndpointRecord {
    /// Index of a workload's ingress group.
    pub const WORKLOAD_INGRESS: usize = 0;
    /// Index of a workload's egress group.
    pub const WORKLOAD_EGRESS: usize = 1;

    /// Returns the record in the format of the map.
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
        let Self { kind, evaluated, groups: [a, b, c, d, e, f, g, h], sources, domains } = *self;
        // A trie without any address becomes zeros, which lead to block 0 and so to no address.
        // Then the record of no endpoint is all zeros.
        let [v4, v6] = sources.map(|source| if source == Cell::default() { 0 } else { source.bits() });
        numbers([kind as u32, evaluated, a, b, c, d, e, f, g, h, v4, v6, domains])
    }

    /// Reads a record of the map; `None` for an invalid one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [kind, evaluated, a, b, c, d, e, f, g, h, v4, v6, domains] = parts(bytes);
        let kinds = [EndpointKind::None, EndpointKind::Workload, EndpointKind::Host];
        let kind = kinds.into_iter().find(|known| *known as u32 == kind)?;
        let sources = [v4, v6].map(|bits| if bits == 0 { Cell::default() } else { Cell::from_bits(bits) });
        let record = Self { kind, evaluated, groups: [a, b, c, d, e, f, g, h], sources, domains };
        (record.to_bytes() == bytes).then_some(record)
    }
}

impl GroupRoots {
    /// Returns the record in the format of the map.
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

    /// Reads a record of the map; `None` for an invalid one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [own, peer, details, protocols, source_ports, no_source_port, cells, is_large, shortcuts @ ..]: [Cell; 16] =
            parts(bytes).map(Cell::from_bits);
        let is_large = is_large == Cell::value(1);
        let shortcuts = Shortcuts::from_cells(shortcuts);
        let record = Self { own, peer, details, protocols, source_ports, no_source_port, cells, is_large, shortcuts };
        (record.to_bytes() == bytes).then_some(record)
    }
}

/// Counters of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "it is the layout of a map")]
pub struct CounterRecord {
    /// Packets that began a connection, or belong to none.
    pub packets: u64,
    /// Their bytes, counted from the IP header on.
    pub bytes: u64,
}

impl CounterRecord {
    /// Size of the record in bytes.
    pub const SIZE: usize = 16;

    /// Returns the sum over all CPUs, whose values are one behind the other.
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

/// Bucket of IPv6 addresses with their classes, which the address trie holds as well.
///
/// An entry is written while it is closed. One bit opens and closes it, so a packet that finds it
/// open finds it whole. A packet that finds it closed follows the address trie. A packet that finds
/// no entry follows [`RootsRecord::networks`] if the bucket is complete, else the address trie. An
/// unwritten bucket is not complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExactRecord {
    addresses: [[u8; 16]; Self::WAYS],
    /// Classes, with [`Self::OPEN`] for open entries.
    classes: [u32; Self::WAYS],
    /// Whether all addresses of the bucket that have a specific class have an entry.
    pub(crate) is_complete: bool,
}

impl ExactRecord {
    /// Number of entries.
    pub const WAYS: usize = 3;
    /// Bit of a class that marks the entry as open.
    pub const OPEN: u32 = 1 << 31;
    /// Byte offset of the classes.
    pub const CLASSES: i16 = 48;
    /// Byte offset of the number that is 1 if all addresses of the bucket that have a specific
    /// class have an entry.
    pub const COMPLETE: i16 = 60;
    /// Size of the record in bytes: a cache line.
    pub const SIZE: usize = 64;

    /// Returns a record of the first entries, each an address, its class, and whether it is open.
    pub(crate) fn new(entries: impl Iterator<Item = ([u8; 16], u32, bool)>, is_complete: bool) -> Self {
        let mut record = Self { is_complete, ..Self::default() };
        let places = record.addresses.iter_mut().zip(&mut record.classes);
        for ((to, of), (address, class, is_open)) in places.zip(entries) {
            *to = address;
            *of = class | if is_open { Self::OPEN } else { 0 };
        }
        record
    }

    /// Returns each entry: an address, its class, and whether it is open.
    pub(crate) fn entries(&self) -> impl Iterator<Item = ([u8; 16], u32, bool)> + '_ {
        let entries = self.addresses.iter().zip(self.classes);
        entries.map(|(address, class)| (*address, class & !Self::OPEN, class & Self::OPEN != 0))
    }

    /// Returns the record in the format of the map.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let classes = self.classes.map(u32::to_ne_bytes);
        let is_complete = u32::from(self.is_complete).to_ne_bytes();
        let parts = self.addresses.as_flattened().iter().chain(classes.as_flattened()).chain(&is_complete);
        bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Reads a record of the map; `None` if its size or content is invalid.
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

/// Factors of the two halves of an address, which are read in native byte order. They are odd, with
/// bits of the golden ratio and of the square root of 2.
pub(crate) const EXACT_FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909];

/// Returns the number of bits by which a 64-bit hash is shifted to give the number of a bucket.
/// `buckets` is a power of two. 0 for no or one bucket: an unshifted hash is no bucket number.
const fn exact_shift(buckets: u32) -> u32 {
    if buckets <= 1 { 0 } else { 64 - buckets.trailing_zeros() }
}

/// Returns the bucket of an address among `buckets`, a power of two.
#[must_use]
#[expect(clippy::expect_used, reason = "a power of two has at most 31 zeros, so that the shift leaves 31 bits")]
pub fn exact_bucket(address: &[u8; 16], buckets: u32) -> u32 {
    let (halves, _) = address.as_chunks::<8>();
    // All bits of a factor affect the highest bits of the product.
    let products =
        halves.iter().zip(EXACT_FACTORS).map(|(half, factor)| u64::from_ne_bytes(*half).wrapping_mul(factor));
    let hash = products.fold(0, u64::wrapping_add);
    if buckets <= 1 { 0 } else { u32::try_from(hash >> exact_shift(buckets)).expect("a bucket has 31 bits") }
}

/// Returns the first numbers of a value; zeros where it is shorter.
fn parts<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut numbers = [0; N];
    for (to, number) in numbers.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *to = u32::from_ne_bytes(*number);
    }
    numbers
}

/// Returns the numbers one behind the other, padded with zeros.
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
        let without = record.to_bytes_at(3, false);
        assert_eq!(number(&without, roots::FLAGS), (roots::IN_FORCE | roots::NO_UNTRACKED | 0x300).unsigned_abs());
        assert_eq!(without[..16], bytes[..16]);
        assert_eq!(RootsRecord { is_in_force: false, ..record }.to_bytes()[16..20], [0; 4]);
        let logging = RootsRecord { logs: true, ..record };
        assert_eq!(number(&logging.to_bytes(), roots::FLAGS), (roots::IN_FORCE | roots::LOG).unsigned_abs());
        assert_eq!(RootsRecord::from_bytes(&logging.to_bytes(), 0), Some((logging, true)));
        assert_eq!(RootsRecord::from_bytes(&bytes, 0), Some((record, true)));
        assert_eq!(RootsRecord::from_bytes(&without, 3), Some((record, false)));
        assert_eq!(RootsRecord::from_bytes(&without, 1), None, "written for another index");
        assert_eq!((RootsRecord::from_bytes(&[0xee; 64], 0), RootsRecord::from_bytes(&bytes[1..], 0)), (None, None));
    }

    #[test]
    fn endpoints_are_where_programs_read_them() {
        let record = EndpointRecord {
            kind: EndpointKind::Workload,
            evaluated: 0b11,
            groups: [10, 11, 12, 13, 14, 15, 16, 17],
            sources: [Cell::value(20), Cell::value(21)],
            domains: 30,
        };
        let bytes = record.to_bytes();
        assert_eq!(number(&bytes, endpoint::KIND), EndpointKind::Workload as u32);
        assert_eq!(number(&bytes, endpoint::EVALUATED), 0b11);
        for (place, group) in (0..).zip(record.groups) {
            assert_eq!(number(&bytes, endpoint::GROUPS + 4 * place), group);
        }
        assert_eq!(
            endpoint::SOURCES.map(|offset| number(&bytes, offset)),
            [20, 21].map(|value| Cell::value(value).bits())
        );
        assert_eq!((number(&bytes, endpoint::DOMAINS), &bytes[52..]), (30, &[0; 12][..]));
        assert_eq!(EndpointRecord::from_bytes(&bytes), Some(record));
        assert_eq!((EndpointRecord::from_bytes(&[0xee; 64]), EndpointRecord::from_bytes(&[])), (None, None));
    }

    #[test]
    fn maps_have_ids_of_their_own_and_values_that_fit() {
        let ids: std::collections::BTreeSet<MapId> = MapKind::ALL.map(MapKind::id).into();
        assert_eq!(ids.len(), MapKind::ALL.len());
        let sizes = MapKind::ALL.map(MapKind::value_size);
        assert_eq!(sizes, [64, 64, 1024, 64, 64, 16, 16, 0, 8, 64, 8]);
        assert!(sizes.iter().all(|size| size % 8 == 0), "per-CPU values are rounded up to 8");
        assert_eq!(GroupRoots::CLOSED.to_bytes()[28..32], Cell::value(0).bits().to_ne_bytes());
    }
}
