//! Networks, packed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::Family;

/// A network in CIDR notation, packed into 17 bytes without padding. Host bits are kept as given;
/// see [`Cidr::masked`].
///
/// IPv4 addresses occupy the first four bytes. Ordered by family, address, then prefix length.
///
/// ```
/// use tortie_net::Cidr;
/// let net: Cidr = "10.1.2.3/16".parse().unwrap();
/// assert_eq!(net.masked().to_string(), "10.1.0.0/16");
/// assert_eq!("fd00::1".parse::<Cidr>().unwrap().to_string(), "fd00::1/128");
/// assert_eq!(std::mem::size_of::<Cidr>(), 17);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    octets: [u8; 16],
    /// The prefix length; `V6_OFFSET` is added for IPv6.
    tag: u8,
}

mod list;

pub use list::{CidrIter, CidrList};

const V6_OFFSET: u8 = 64;

impl Cidr {
    /// Returns a network of `prefix_len` bits; `None` if that exceeds the address length of the
    /// family.
    #[must_use]
    pub fn new(address: IpAddr, prefix_len: u8) -> Option<Self> {
        let (octets, family) = match address {
            IpAddr::V4(v4) => {
                let mut octets = [0; 16];
                octets[..4].copy_from_slice(&v4.octets());
                (octets, Family::V4)
            }
            IpAddr::V6(v6) => (v6.octets(), Family::V6),
        };
        if prefix_len > family.max_prefix_len() {
            return None;
        }
        let tag = match family {
            Family::V4 => prefix_len,
            Family::V6 => V6_OFFSET + prefix_len,
        };
        Some(Self { octets, tag })
    }

    /// Returns a single address as a /32 or /128.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        let (octets, tag) = match address {
            IpAddr::V4(v4) => {
                let mut octets = [0; 16];
                octets[..4].copy_from_slice(&v4.octets());
                (octets, 32)
            }
            IpAddr::V6(v6) => (v6.octets(), V6_OFFSET + 128),
        };
        Self { octets, tag }
    }

    /// Returns the family of the address.
    #[must_use]
    pub fn family(self) -> Family {
        if self.tag < V6_OFFSET { Family::V4 } else { Family::V6 }
    }

    /// Returns the prefix length in bits.
    #[must_use]
    pub fn prefix_len(self) -> u8 {
        if self.tag < V6_OFFSET { self.tag } else { self.tag - V6_OFFSET }
    }

    /// Returns the address part, host bits included.
    #[must_use]
    pub fn address(self) -> IpAddr {
        match self.family() {
            Family::V4 => Ipv4Addr::new(self.octets[0], self.octets[1], self.octets[2], self.octets[3]).into(),
            Family::V6 => Ipv6Addr::from(self.octets).into(),
        }
    }

    /// Returns the address as bits, left-aligned: in both families the first bit of the address is
    /// the highest of the number.
    #[must_use]
    pub fn bits(self) -> u128 {
        u128::from_be_bytes(self.octets)
    }

    /// Reports whether this is a single address.
    #[must_use]
    pub fn is_host(self) -> bool {
        self.prefix_len() == self.family().max_prefix_len()
    }

    /// Returns the same network with all host bits cleared.
    #[must_use]
    pub fn masked(self) -> Self {
        let keep = u32::from(self.prefix_len());
        let mask = u128::MAX.checked_shl(128 - keep).unwrap_or(0);
        Self { octets: (self.bits() & mask).to_be_bytes(), tag: self.tag }
    }

    /// Returns the address alone, as a /32 or /128.
    #[must_use]
    pub fn to_host(self) -> Self {
        Self::host(self.address())
    }

    /// Returns the last address of the network, as a /32 or /128.
    #[must_use]
    pub fn last_host(self) -> Self {
        let keep = u32::from(self.prefix_len());
        let hosts = u128::MAX.checked_shr(keep).unwrap_or(0);
        let (width, tag) = match self.family() {
            Family::V4 => (u128::MAX << 96, 32),
            Family::V6 => (u128::MAX, V6_OFFSET + 128),
        };
        Self { octets: (self.bits() | (hosts & width)).to_be_bytes(), tag }
    }

    /// Reports whether `address` is in this network; never across families.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let other = Self::host(address);
        let keep = u32::from(self.prefix_len());
        let mask = u128::MAX.checked_shl(128 - keep).unwrap_or(0);
        self.family() == other.family() && (self.bits() ^ other.bits()) & mask == 0
    }

    /// Returns the two halves of a zero-length prefix, which kernel IP sets cannot hold; any other
    /// network is returned alone (`felix/labelindex/named_port_index.go`).
    pub fn split_default_route(self) -> impl Iterator<Item = Self> {
        let halves = if self.prefix_len() == 0 {
            let low = Self { octets: [0; 16], tag: self.tag + 1 };
            let mut high = low;
            high.octets[0] = 0x80;
            [Some(low), Some(high)]
        } else {
            [Some(self), None]
        };
        halves.into_iter().flatten()
    }
}

impl PartialOrd for Cidr {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Cidr {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.family(), self.bits(), self.tag).cmp(&(other.family(), other.bits(), other.tag))
    }
}

impl fmt::Display for Cidr {
    /// Always with the prefix length, as IP set members are written: `10.0.0.1/32`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(), self.prefix_len())
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<IpAddr> for Cidr {
    fn from(address: IpAddr) -> Self {
        Self::host(address)
    }
}

/// Text that is neither an IP address nor a network in CIDR notation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is neither an IP address nor a network in CIDR notation{}", mapped_hint(text))]
pub struct CidrParseError {
    /// The offending text.
    pub text: String,
}

/// Returns the reason why a network with an IPv4-mapped address is none.
fn mapped_hint(text: &str) -> &'static str {
    let is_mapped = text
        .split_once('/')
        .is_some_and(|(address, _)| address.parse().is_ok_and(|address: Ipv6Addr| address.to_ipv4_mapped().is_some()));
    if is_mapped { ": an IPv4-mapped network has a prefix of 96 to 128 bits" } else { "" }
}

/// Reads an IP address as Go reads it: an IPv4-mapped one, such as `::ffff:10.0.0.1`, is IPv4.
///
/// ```
/// use tortie_net::parse_address;
/// assert_eq!(parse_address("::ffff:10.0.0.1"), parse_address("10.0.0.1"));
/// assert_eq!(parse_address("10.0.0.0/8"), None);
/// ```
#[must_use]
pub fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|address: IpAddr| address.to_canonical())
}

impl FromStr for Cidr {
    type Err = CidrParseError;

    /// Accepts `address` and `address/length`, length in plain decimal. An IPv4-mapped address or
    /// network is IPv4, as Go's `net.ParseIP` and `net.IPNet` have it; a shorter prefix than the 96
    /// bits of the mapping is an error.
    fn from_str(text: &str) -> Result<Self, CidrParseError> {
        let error = || CidrParseError { text: text.into() };
        match text.split_once('/') {
            None => parse_address(text).map(Self::host).ok_or_else(error),
            Some((address, length)) => {
                let plain = !length.is_empty() && length.len() <= 3 && length.bytes().all(|b| b.is_ascii_digit());
                let address: IpAddr = address.parse().map_err(|_| error())?;
                let length: u8 = if plain {
                    length.parse().map_err(|_| error())?
                } else {
                    return Err(error());
                };
                let mapped = address.is_ipv6() && address.to_canonical().is_ipv4();
                let length = if mapped { length.checked_sub(96).ok_or_else(error)? } else { length };
                Self::new(address.to_canonical(), length).ok_or_else(error)
            }
        }
    }
}

crate::serde_text!(Cidr, crate::de_text);

#[cfg(test)]
mod tests;
