//! The learned state as bytes, for a file that outlives the process.
//!
//! Numbers are big-endian. The bytes are: the mark, the version (1 byte), the epoch (length in 2
//! bytes), the cluster domain (length in 1 byte; empty if there is none), the time in milliseconds
//! (8), the number of scopes (4), and the scopes; then the XXH3 hash (8) of everything before. A
//! scope has its kind (1: 0 for the host, 1 for an interface, whose name follows with its length in
//! 1 byte; 16 more if it has kept members), its owner (8), the time for which its members are kept
//! in milliseconds (4, only with the 16), the number of its names (4), and these. A name has its
//! text (length in 1 byte), the number of its addresses (4), and these. An address has its family
//! (1: 4 or 6, 16 more if it comes from inside of the cluster domain), its octets, and its
//! remaining lifetime in milliseconds (4).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tortie_net::{DomainName, InterfaceName};
use twox_hash::XxHash3_64;

use crate::types::{Millis, Scope};

const MARK: &[u8] = b"tortie-dns-cache\n";
const VERSION: u8 = 2;
/// The bit of a scope with kept members, and of an address from inside of the cluster domain.
const MARKED: u8 = 16;
const HASH: usize = 8;

/// The longest cache that is read: 2²⁰ addresses of IPv6, each with a name of 253 bytes.
pub(crate) const MAX_LEN: usize = 288 << 20;

/// The reason for which a cache is not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Another program wrote the bytes; the caller should not overwrite them.
    #[error("this is no cache of DNS answers")]
    Foreign,
    /// Another version wrote the bytes.
    #[error("the cache has version {0}; this program reads version 2")]
    Version(u8),
    /// The cache is longer than [`Learned::MAX_SAVED`](crate::Learned::MAX_SAVED).
    #[error("the cache has {0} bytes, too many")]
    TooLong(usize),
    /// The bytes are incomplete or altered.
    #[error("the cache is incomplete or altered")]
    Torn,
    /// The cache belongs to another time base or epoch.
    #[error("the cache belongs to another epoch")]
    Epoch,
    /// The hash is right, but the content is not.
    #[error("the content of the cache is malformed")]
    Malformed,
}

/// A cache under construction.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(epoch: &str, domain: Option<&DomainName>, now: Millis, scopes: usize) -> Self {
        let mut writer = Self([MARK, &[VERSION]].concat());
        let epoch = epoch_bytes(epoch);
        writer.0.extend(u16::try_from(epoch.len()).unwrap_or(u16::MAX).to_be_bytes());
        writer.0.extend(epoch);
        writer.text(domain.map_or("", DomainName::as_str));
        writer.0.extend(now.0.to_be_bytes());
        writer.count(scopes);
        writer
    }

    /// `kept` is the time for which members of the scope are kept, if it has some.
    pub(crate) fn scope(&mut self, scope: Scope, owner: u64, kept: Option<Duration>, names: usize) {
        let mark = if kept.is_some() { MARKED } else { 0 };
        match scope {
            Scope::Host => self.0.push(mark),
            Scope::Interface(name) => {
                self.0.push(1 | mark);
                self.text(name.as_str());
            }
        }
        self.0.extend(owner.to_be_bytes());
        if let Some(kept) = kept {
            self.duration(kept);
        }
        self.count(names);
    }

    pub(crate) fn name(&mut self, name: &DomainName, addresses: usize) {
        self.text(name.as_str());
        self.count(addresses);
    }

    pub(crate) fn address(&mut self, saved: &SavedAddress) {
        let mark = if saved.is_inside { MARKED } else { 0 };
        match saved.address {
            IpAddr::V4(v4) => {
                self.0.push(4 | mark);
                self.0.extend(v4.octets());
            }
            IpAddr::V6(v6) => {
                self.0.push(6 | mark);
                self.0.extend(v6.octets());
            }
        }
        self.duration(saved.remaining);
    }

    /// A longer time than 49 days is cut.
    fn duration(&mut self, duration: Duration) {
        self.0.extend(u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).to_be_bytes());
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let hash = XxHash3_64::oneshot(&self.0);
        self.0.extend(hash.to_be_bytes());
        self.0
    }

    /// Appends a text of at most 255 bytes; names of domains and interfaces are shorter.
    fn text(&mut self, text: &str) {
        self.0.extend(u8::try_from(text.len()));
        self.0.extend(text.as_bytes());
    }

    fn count(&mut self, count: usize) {
        self.0.extend(u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
    }
}

/// Returns the part of an epoch that counts.
fn epoch_bytes(epoch: &str) -> &[u8] {
    epoch.as_bytes().get(..usize::from(u16::MAX)).unwrap_or(epoch.as_bytes())
}

/// The content of a cache.
pub(crate) struct Saved {
    /// The cluster domain, if there was one.
    pub(crate) domain: Option<DomainName>,
    pub(crate) at: Millis,
    pub(crate) scopes: Vec<SavedScope>,
}

/// A scope in a cache.
pub(crate) struct SavedScope {
    pub(crate) scope: Scope,
    pub(crate) owner: u64,
    /// The remaining time of kept members, if the scope had some.
    pub(crate) kept: Option<Duration>,
    /// Names with addresses, the least recently answered first.
    pub(crate) names: Vec<(DomainName, Vec<SavedAddress>)>,
}

/// An address in a cache.
pub(crate) struct SavedAddress {
    pub(crate) address: IpAddr,
    /// The remaining lifetime.
    pub(crate) remaining: Duration,
    pub(crate) is_inside: bool,
}

/// Reads a cache. Its memory is proportional to the number of bytes, whatever counts these contain.
pub(crate) fn decode(bytes: &[u8], epoch: &str) -> Result<Saved, RestoreError> {
    let start = bytes.get(..MARK.len()).unwrap_or(bytes);
    if !MARK.starts_with(start) {
        return Err(RestoreError::Foreign);
    }
    if bytes.len() > MAX_LEN {
        return Err(RestoreError::TooLong(bytes.len()));
    }
    let (version, rest) = bytes.get(MARK.len()..).and_then(<[u8]>::split_first).ok_or(RestoreError::Torn)?;
    if *version != VERSION {
        return Err(RestoreError::Version(*version));
    }
    let (content, hash) = rest.split_last_chunk::<HASH>().ok_or(RestoreError::Torn)?;
    let hashed = bytes.get(..bytes.len() - HASH).ok_or(RestoreError::Torn)?;
    if XxHash3_64::oneshot(hashed) != u64::from_be_bytes(*hash) {
        return Err(RestoreError::Torn);
    }
    let mut reader = Reader(content);
    let saved_epoch = reader.epoch().ok_or(RestoreError::Malformed)?;
    if saved_epoch != epoch_bytes(epoch) {
        return Err(RestoreError::Epoch);
    }
    reader.saved().filter(|_| reader.0.is_empty()).ok_or(RestoreError::Malformed)
}

/// The bytes that are not read yet.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn bytes(&mut self, length: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'b str> {
        let [length] = self.array()?;
        str::from_utf8(self.bytes(length.into())?).ok()
    }

    fn epoch(&mut self) -> Option<&'b [u8]> {
        let length = u16::from_be_bytes(self.array()?);
        self.bytes(length.into())
    }

    /// Reads so many items as a number before them says.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = u32::from_be_bytes(self.array()?);
        (0..count).map(|_| item(self)).collect()
    }

    fn saved(&mut self) -> Option<Saved> {
        let domain = match self.text()? {
            "" => None,
            text => Some(text.parse().ok()?),
        };
        Some(Saved { domain, at: Millis(u64::from_be_bytes(self.array()?)), scopes: self.list(Self::scope)? })
    }

    fn scope(&mut self) -> Option<SavedScope> {
        let [kind] = self.array()?;
        let scope = match kind & !MARKED {
            0 => Scope::Host,
            1 => Scope::Interface(InterfaceName::new(self.text()?).ok()?),
            _ => return None,
        };
        let owner = u64::from_be_bytes(self.array()?);
        let kept = if kind & MARKED == 0 { None } else { Some(self.duration()?) };
        Some(SavedScope { scope, owner, kept, names: self.list(Self::name)? })
    }

    fn name(&mut self) -> Option<(DomainName, Vec<SavedAddress>)> {
        Some((self.text()?.parse().ok()?, self.list(Self::address)?))
    }

    fn address(&mut self) -> Option<SavedAddress> {
        let [family] = self.array()?;
        let address = match family & !MARKED {
            4 => Ipv4Addr::from(self.array()?).into(),
            6 => Ipv6Addr::from(self.array::<16>()?).to_canonical(),
            _ => return None,
        };
        Some(SavedAddress { address, remaining: self.duration()?, is_inside: family & MARKED != 0 })
    }

    fn duration(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(u32::from_be_bytes(self.array()?).into()))
    }
}
