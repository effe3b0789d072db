//! Many networks in little space.

use std::fmt;
use std::sync::Arc;

use super::Cidr;

/// Length of the header: begin and end of the differing octets, whether prefix lengths or families
/// differ, and the first network.
const HEADER: usize = 3 + 17;
/// Padding after the networks, so that sixteen octets can be read at once from the beginning of any
/// network.
const PADDING: [u8; 16] = [0; 16];

/// Networks in the given order; clones share them. Octets that all have in common are stored once,
/// so that addresses of one IPv4 block take a byte or two each.
///
/// ```
/// use tortie_net::{Cidr, CidrList};
///
/// let nets: Vec<Cidr> = ["10.1.0.0/16", "10.2.0.0/24", "10.2.1.7/32"].map(|net| net.parse().unwrap()).into();
/// let list: CidrList = nets.iter().copied().collect();
/// assert_eq!(list.len(), 3);
/// assert!(list.iter().eq(nets));
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CidrList {
    /// Empty, or a header and the differing octets of each network. The header is determined by the
    /// networks, so that equal lists have equal bytes.
    bytes: Arc<[u8]>,
}

impl CidrList {
    /// Returns the number of networks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().len()
    }

    /// Reports whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the networks in order.
    #[must_use]
    pub fn iter(&self) -> CidrIter<'_> {
        let Some((&[begin, end, tags, ref first @ ..], differing)) = self.bytes.split_first_chunk::<HEADER>() else {
            return CidrIter::default();
        };
        let [octets @ .., tag] = *first;
        let layout = Layout { begin, end, tags: tags != 0 };
        let left = differing.len().saturating_sub(PADDING.len()).checked_div(layout.stride()).unwrap_or(1);
        CidrIter { first: Cidr { octets, tag }, mask: layout.mask(), layout, differing, left }
    }

    /// Returns the network at this index, counted from 0.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Cidr> {
        self.iter().nth(index)
    }

    /// Reports whether the list contains a network. The list must be sorted.
    #[must_use]
    pub fn sorted_contains(&self, net: Cidr) -> bool {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            match self.get(middle).map(|other| other.cmp(&net)) {
                Some(std::cmp::Ordering::Equal) => return true,
                Some(std::cmp::Ordering::Less) => from = middle + 1,
                Some(std::cmp::Ordering::Greater) | None => to = middle,
            }
        }
        false
    }
}

/// The differing parts of networks.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    /// First differing octet.
    begin: u8,
    /// End of the differing octets (exclusive); `begin` if none differs.
    end: u8,
    /// Whether prefix lengths or families differ.
    tags: bool,
}

impl Layout {
    fn of(nets: &[Cidr]) -> Self {
        let [first, rest @ ..] = nets else { return Self::default() };
        let differing = rest.iter().fold(0, |bits, net| bits | (net.bits() ^ first.bits()));
        let tags = rest.iter().any(|net| net.tag != first.tag);
        if differing != 0 {
            let [begin, end] = [differing.leading_zeros() / 8, 16 - differing.trailing_zeros() / 8];
            return Self { begin: u8::try_from(begin).unwrap_or(0), end: u8::try_from(end).unwrap_or(16), tags };
        }
        // Several equal networks: each needs at least a byte, because the length gives their
        // number.
        Self { begin: 0, end: 0, tags: tags || !rest.is_empty() }
    }

    /// Returns the number of differing octets.
    fn octets(self) -> usize {
        usize::from(self.end.saturating_sub(self.begin))
    }

    /// Bytes of each network.
    fn stride(self) -> usize {
        self.octets() + usize::from(self.tags)
    }

    /// Returns the mask of the differing octets.
    fn mask(self) -> u128 {
        let from = |octet: u8| u128::MAX.checked_shr(u32::from(octet) * 8).unwrap_or(0);
        from(self.begin) & !from(self.end)
    }
}

/// The networks of a [`CidrList`].
#[derive(Clone, Debug)]
pub struct CidrIter<'l> {
    first: Cidr,
    layout: Layout,
    /// The bits that may differ from the first.
    mask: u128,
    /// The bytes from the next network on, padding included.
    differing: &'l [u8],
    left: usize,
}

impl Default for CidrIter<'_> {
    /// Returns an empty iterator.
    fn default() -> Self {
        Self { left: 0, ..Self::once(Cidr { octets: [0; 16], tag: 0 }) }
    }
}

impl CidrIter<'_> {
    /// Returns an iterator over one network.
    #[must_use]
    pub fn once(net: Cidr) -> Self {
        Self { first: net, layout: Layout::default(), mask: 0, differing: &[], left: 1 }
    }
}

impl Iterator for CidrIter<'_> {
    type Item = Cidr;

    #[inline]
    fn next(&mut self) -> Option<Cidr> {
        self.left = self.left.checked_sub(1)?;
        // A single network has no differing octets.
        let Some(octets) = self.differing.first_chunk() else { return Some(self.first) };
        let differing = u128::from_be_bytes(*octets) >> (u32::from(self.layout.begin) * 8);
        let bits = self.first.bits() & !self.mask | differing & self.mask;
        let tag = if self.layout.tags { self.differing.get(self.layout.octets()).copied() } else { None };
        self.differing = self.differing.get(self.layout.stride()..).unwrap_or_default();
        Some(Cidr { octets: bits.to_be_bytes(), tag: tag.unwrap_or(self.first.tag) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }

    fn nth(&mut self, n: usize) -> Option<Cidr> {
        let skipped = n.min(self.left);
        self.differing = self.differing.get(skipped * self.layout.stride()..).unwrap_or_default();
        self.left -= skipped;
        self.next()
    }
}

impl ExactSizeIterator for CidrIter<'_> {}

impl std::iter::FusedIterator for CidrIter<'_> {}

impl From<&[Cidr]> for CidrList {
    fn from(nets: &[Cidr]) -> Self {
        let Some(first) = nets.first() else { return Self::default() };
        let layout = Layout::of(nets);
        let mut bytes = Vec::with_capacity(HEADER + layout.stride() * nets.len() + PADDING.len());
        bytes.extend([layout.begin, layout.end, u8::from(layout.tags)]);
        bytes.extend(first.octets);
        bytes.push(first.tag);
        if layout.stride() > 0 {
            for net in nets {
                let octets = usize::from(layout.begin)..usize::from(layout.end);
                bytes.extend_from_slice(net.octets.get(octets).unwrap_or_default());
                bytes.extend(layout.tags.then_some(net.tag));
            }
            bytes.extend(PADDING);
        }
        Self { bytes: bytes.into() }
    }
}

impl From<Vec<Cidr>> for CidrList {
    fn from(nets: Vec<Cidr>) -> Self {
        nets.as_slice().into()
    }
}

impl<const N: usize> From<[Cidr; N]> for CidrList {
    fn from(nets: [Cidr; N]) -> Self {
        nets.as_slice().into()
    }
}

impl FromIterator<Cidr> for CidrList {
    fn from_iter<I: IntoIterator<Item = Cidr>>(nets: I) -> Self {
        Vec::from_iter(nets).into()
    }
}

impl<'l> IntoIterator for &'l CidrList {
    type Item = Cidr;
    type IntoIter = CidrIter<'l>;

    fn into_iter(self) -> CidrIter<'l> {
        self.iter()
    }
}

impl fmt::Debug for CidrList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for CidrList {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for CidrList {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Cidr>::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cidr() -> impl Strategy<Value = Cidr> {
        let v4 = (any::<[u8; 4]>(), 0..=32_u8).prop_map(|(octets, length)| Cidr::new(octets.into(), length).unwrap());
        let near =
            (any::<u8>(), 24..=32_u8).prop_map(|(last, length)| Cidr::new([10, 0, last, 0].into(), length).unwrap());
        let v6 = (any::<[u8; 16]>(), 0..=128_u8).prop_map(|(octets, length)| Cidr::new(octets.into(), length).unwrap());
        let middle = any::<u8>().prop_map(|octet| Cidr::host([0x2001, 0, 0, u16::from(octet), 0, 0, 0, 1].into()));
        prop_oneof![v4, near.clone(), near, v6, middle.clone(), middle]
    }

    fn cidrs() -> impl Strategy<Value = Vec<Cidr>> {
        prop_oneof![
            prop::collection::vec(cidr(), 0..6),
            (cidr(), 0..5_usize).prop_map(|(net, times)| vec![net; times]),
            prop::collection::vec(
                any::<u16>().prop_map(|low| Cidr::host([10, 9, low.to_be_bytes()[0], 7].into())),
                0..9
            ),
        ]
    }

    proptest! {
        #[test]
        fn a_list_holds_its_networks(nets in cidrs(), other in cidrs(), sought in cidr()) {
            let list = CidrList::from(nets.as_slice());
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), nets.as_slice());
            prop_assert_eq!((list.len(), list.is_empty()), (nets.len(), nets.is_empty()));
            for index in 0..nets.len() + 2 {
                prop_assert_eq!(list.get(index), nets.get(index).copied());
            }
            prop_assert_eq!(list == CidrList::from(other.as_slice()), nets == other);
            let mut sorted = nets.clone();
            sorted.sort_unstable();
            let list = CidrList::from(sorted);
            for net in nets.iter().chain([&sought]) {
                prop_assert_eq!(list.sorted_contains(*net), nets.contains(net));
            }
        }
    }

    #[test]
    fn the_common_prefix_is_stored_once() {
        let list: CidrList = (0..200).map(|last| Cidr::host([10, 0, 0, last].into())).collect();
        assert_eq!(list.bytes.len(), HEADER + 200 + PADDING.len());
        assert_eq!(CidrIter::once("10.0.0.1/32".parse().unwrap()).len(), 1);
    }
}
