//! Entries of [`MapKind::Learned`](super::MapKind::Learned).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};
use tortie_model::IpSetId;

use super::{ROOTS, numbers, parts};

/// Key of an entry: an endpoint and an address that it learned from DNS answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_structs, reason = "it is the layout of a map")]
pub struct LearnedKey {
    /// Number of the endpoint, [`EndpointRecord::domains`](super::EndpointRecord::domains).
    pub endpoint: u32,
    /// The address.
    pub address: IpAddr,
}

impl LearnedKey {
    /// Size of the key in bytes: the endpoint and the number of the family, each in four bytes of
    /// native order, and the address in network order, behind which an IPv4 one has zeros.
    pub const SIZE: usize = 24;
    /// Byte offset of the address.
    pub(crate) const ADDRESS: i16 = 8;

    /// Returns the key in the format of the map.
    ///
    /// ```
    /// use tortie_ebpf::layout::LearnedKey;
    ///
    /// let key = LearnedKey { endpoint: 7, address: "10.0.0.1".parse()? };
    /// assert_eq!(key.to_bytes()[..4], 7_u32.to_ne_bytes());
    /// assert_eq!(key.to_bytes()[8..16], [10, 0, 0, 1, 0, 0, 0, 0]);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let family: u32 = if self.address.is_ipv4() { 4 } else { 6 };
        let mut bytes: [u8; Self::SIZE] = numbers([self.endpoint, family]);
        let (v4, v6);
        let octets: &[u8] = match self.address {
            IpAddr::V4(address) => {
                v4 = address.octets();
                &v4
            }
            IpAddr::V6(address) => {
                v6 = address.octets();
                &v6
            }
        };
        bytes.iter_mut().skip(Self::ADDRESS.unsigned_abs().into()).zip(octets).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Reads a key of the map; `None` for an invalid one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [endpoint, family] = parts(bytes);
        let (_, address) = bytes.split_at_checked(Self::ADDRESS.unsigned_abs().into())?;
        let address: IpAddr = match family {
            4 => Ipv4Addr::from(*address.first_chunk::<4>()?).into(),
            6 => Ipv6Addr::from(*address.first_chunk::<16>()?).into(),
            _ => return None,
        };
        let key = Self { endpoint, address };
        (key.to_bytes() == bytes).then_some(key)
    }
}

/// Value of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "it is the layout of a map")]
pub struct LearnedRecord {
    /// Class of the address for the endpoint, for each value of
    /// [`MapKind::Roots`](super::MapKind::Roots), with [`Self::OPEN`]. 0: packets have the class
    /// that the address has for everyone.
    pub classes: [u32; ROOTS as usize],
    /// [`set_number`] of the sets of domains that have the address, in order, then zeros. The next
    /// process recognizes them. Programs do not read them.
    pub sets: [u64; Self::SETS],
}

impl LearnedRecord {
    /// Size of the record in bytes.
    pub const SIZE: usize = 64;
    /// Bit of a class that is in force.
    pub const OPEN: u32 = 1 << 31;
    /// Number of sets that a record holds; further ones count, but the next process does not know
    /// them.
    pub const SETS: usize = 6;

    /// Returns the record in the format of the map.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes: [u8; Self::SIZE] = numbers(self.classes);
        let (chunks, _) = bytes.as_chunks_mut::<8>();
        chunks.iter_mut().skip(ROOTS as usize / 2).zip(self.sets).for_each(|(to, set)| *to = set.to_ne_bytes());
        bytes
    }

    /// Reads a record of the map; `None` for an invalid one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut sets = [0; Self::SETS];
        let chunks = bytes.as_chunks::<8>().0.iter().skip(ROOTS as usize / 2);
        sets.iter_mut().zip(chunks).for_each(|(set, bytes)| *set = u64::from_ne_bytes(*bytes));
        let record = Self { classes: parts(bytes), sets };
        (record.to_bytes() == bytes).then_some(record)
    }
}

/// Returns the number by which a record names a set: the first bytes of its digest, never 0.
#[must_use]
pub fn set_number(id: &IpSetId) -> u64 {
    let digest = Sha256::digest(id.as_str().as_bytes());
    let first = digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    first.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_were_written() {
        for address in ["192.0.2.1", "0.0.0.0", "2001:db8::1", "::ffff:192.0.2.1", "::"] {
            let key = LearnedKey { endpoint: 1 << 30, address: address.parse().unwrap() };
            assert_eq!(LearnedKey::from_bytes(&key.to_bytes()), Some(key));
        }
        let v4 = LearnedKey { endpoint: 3, address: "32.1.13.184".parse().unwrap() }.to_bytes();
        let v6 = LearnedKey { endpoint: 3, address: "2001:db8::".parse().unwrap() }.to_bytes();
        assert_eq!((&v4[8..], v4 == v6), (&v6[8..], false), "the family distinguishes them");
        let mut behind = v4;
        behind[23] = 1;
        assert_eq!((LearnedKey::from_bytes(&behind), LearnedKey::from_bytes(&v4[1..])), (None, None));
        assert_eq!(LearnedKey::from_bytes(&[0; LearnedKey::SIZE]), None, "no family");

        let sets = [1, 2, 3, 4, 5, u64::MAX];
        let record = LearnedRecord { classes: [1, 0, LearnedRecord::OPEN, 4], sets };
        assert_eq!(LearnedRecord::from_bytes(&record.to_bytes()), Some(record));
        assert_eq!((LearnedRecord::from_bytes(&[]), LearnedRecord::from_bytes(&[0; 65])), (None, None));
        assert_eq!(record.to_bytes()[8..12], LearnedRecord::OPEN.to_ne_bytes());
        assert_ne!(set_number(&"d:a".into()), set_number(&"d:b".into()));
    }
}
