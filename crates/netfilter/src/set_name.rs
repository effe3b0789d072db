//! Names in the kernel of the sets that rules refer to.

use std::fmt;

use tortie_net::{Family, InvalidName, IpSetId, IpSetName};

/// The beginning of a main set's name. The `0` is a format version: it has to be raised when
/// the *type* of a set changes, since only sets of one type can be swapped.
const fn main_prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "cali40",
        Family::V6 => "cali60",
    }
}

/// The name under which rules refer to the set `id`: `cali40` or `cali60`, then the id, cut at 31
/// bytes.
///
/// ```
/// use tortie_netfilter::{Family, IpSetId, ip_set_name};
/// let name = ip_set_name(Family::V4, &IpSetId::new("s:AMAB7BNa5u3MmIiwZrblkWtHt0jdW3Fh9pFWhA"))?;
/// assert_eq!(name.as_str(), "cali40s:AMAB7BNa5u3MmIiwZrblkWt");
/// # Ok::<(), tortie_netfilter::InvalidName>(())
/// ```
///
/// # Errors
/// [`InvalidName`] if the id is empty or has characters that a rule or a restore file cannot hold.
pub fn ip_set_name(family: Family, id: &IpSetId) -> Result<IpSetName, InvalidName> {
    let text = id.as_str();
    let invalid = || InvalidName { kind: "IP set", name: text.to_owned(), max: IpSetName::MAX_LEN };
    let is_plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'#' | b'\\');
    if text.is_empty() || !text.bytes().all(is_plain) {
        return Err(invalid());
    }
    let prefix = main_prefix(family);
    let cut = text.len().min(IpSetName::MAX_LEN - prefix.len());
    IpSetName::new(&[prefix, text.split_at(cut).0].concat()).map_err(|_| invalid())
}

/// A group of learning interfaces, numbered from 0.
///
/// A set of type `hash:net,iface` takes at most [`Shard::MAX_INTERFACES`] interfaces for one
/// address. So each group has its own set. In nftables all interfaces are in group 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard(pub u16);

impl Shard {
    /// The kernel's limit of interfaces for one address of a set.
    pub const MAX_INTERFACES: usize = 64;
}

/// One of the kernel's sets for a set of domain patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DomainSetPart {
    /// Addresses with the interface of the workload that learned them.
    Interfaces(Shard),
    /// Addresses that the host learned.
    Host,
}

impl fmt::Display for DomainSetPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interfaces(Shard(number)) => write!(f, ".{number}"),
            Self::Host => f.write_str(".h"),
        }
    }
}

/// The kernel's name of a part of the domain set `id`: `cali40` or `cali60`, the id, cut so that
/// all fits in 31 bytes, then `.h` for the host or `.` and the number of the shard.
///
/// ```
/// use tortie_netfilter::{DomainSetPart, Family, IpSetId, Shard, domain_set_name};
/// let id = IpSetId::new("d:AMAB7BNa5u3MmIiwZrblkWtHt0jdW3Fh9pFWhA");
/// let name = |part| domain_set_name(Family::V4, &id, part);
/// assert_eq!(name(DomainSetPart::Interfaces(Shard(0)))?.as_str(), "cali40d:AMAB7BNa5u3MmIiwZ.0");
/// assert_eq!(name(DomainSetPart::Host)?.as_str(), "cali40d:AMAB7BNa5u3MmIiwZ.h");
/// # Ok::<(), tortie_netfilter::InvalidName>(())
/// ```
///
/// # Errors
/// [`InvalidName`] if the id has characters that a rule or a restore file cannot hold.
pub fn domain_set_name(family: Family, id: &IpSetId, part: DomainSetPart) -> Result<IpSetName, InvalidName> {
    ip_set_name(family, &domain_set_part_id(id, part))
}

/// The id of a part of the domain set `id`, of which [`ip_set_name`] makes [`domain_set_name`].
///
/// A suffix leaves the same part of the id whatever its length, so that a name is that of one set
/// and one part.
#[must_use]
pub fn domain_set_part_id(id: &IpSetId, part: DomainSetPart) -> IpSetId {
    /// Room of an id in a name, without the longest suffix: a point and five digits.
    const ROOM: usize = IpSetName::MAX_LEN - main_prefix(Family::V4).len() - 6;
    let text = id.as_str();
    // An id that is no name is refused later.
    let cut = (0..=text.len().min(ROOM)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    IpSetId::new(format!("{}{part}", text.split_at(cut).0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_domain_sets_fit_and_differ() {
        let id = IpSetId::new("d:AMAB7BNa5u3MmIiwZrblkWtHt0jdW3Fh9pFWhA");
        let parts = [0, 1, 9, 99, u16::MAX].map(|number| DomainSetPart::Interfaces(Shard(number)));
        let mut names: Vec<_> = (parts.into_iter().chain([DomainSetPart::Host]))
            .flat_map(|part| [Family::V4, Family::V6].map(|family| domain_set_name(family, &id, part).unwrap()))
            .collect();
        assert!(names.iter().all(|name| name.as_str().len() <= IpSetName::MAX_LEN));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(!names.contains(&ip_set_name(Family::V4, &id).unwrap()));
        for bad in ["d:a b", "d:\"", "d:ä"] {
            domain_set_name(Family::V4, &IpSetId::new(bad), DomainSetPart::Host).unwrap_err();
        }
    }
}
