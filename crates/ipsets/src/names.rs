//! What sets are called in the kernel.

use tortie_net::{Family, InvalidName, IpSetId, IpSetName};

/// The word that `ipset create … family` takes.
pub(crate) const fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "inet",
        Family::V6 => "inet6",
    }
}

/// What a main set's name starts with. The `0` is a format version: it has to be raised when
/// the *type* of a set changes, since only sets of one type can be swapped.
const fn main_prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "cali40",
        Family::V6 => "cali60",
    }
}

/// What names of temporary sets start with; sorts before all of them.
pub(crate) const fn temporary_prefix(family: Family) -> IpSetName {
    match family {
        Family::V4 => const { IpSetName::from_static("cali4t") },
        Family::V6 => const { IpSetName::from_static("cali6t") },
    }
}

/// What names of ours start with, historic ones included (`felix/ipsets/ipset_defs.go`).
const fn owned_prefixes(family: Family) -> &'static [&'static str] {
    match family {
        Family::V4 => &["cali4", "felix-4", "felix-masq-ipam-pools", "felix-all-ipam-pools"],
        Family::V6 => &["cali6", "felix-6"],
    }
}

/// The name under which rules refer to the set `id`: `cali40` or `cali60`, then the id, cut at 31 bytes.
///
/// ```
/// use tortie_ipsets::{Family, IpSetId, ip_set_name};
/// let name = ip_set_name(Family::V4, &IpSetId::new("s:AMAB7BNa5u3MmIiwZrblkWtHt0jdW3Fh9pFWhA"))?;
/// assert_eq!(name.as_str(), "cali40s:AMAB7BNa5u3MmIiwZrblkWt");
/// # Ok::<(), tortie_ipsets::InvalidName>(())
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
    IpSetName::new(&[prefix, text.get(..cut).unwrap_or_default()].concat()).map_err(|_| invalid())
}

/// The name of the `counter`th set that is filled aside and then swapped in.
pub(crate) fn temporary_name(family: Family, counter: u64) -> IpSetName {
    let prefix = temporary_prefix(family);
    // A number has at most 20 digits, so that the name is always legal.
    IpSetName::new(&format!("{prefix}{counter}")).unwrap_or(prefix)
}

/// Whether this is the name of a temporary set of that family.
pub(crate) fn is_temporary(name: &IpSetName, family: Family) -> bool {
    name.as_str().starts_with(temporary_prefix(family).as_str())
}

/// Whether a set of this name belongs to Calico in that family; all others are never touched.
#[must_use]
pub fn is_owned(name: &IpSetName, family: Family) -> bool {
    owned_prefixes(family).iter().any(|prefix| name.as_str().starts_with(prefix))
}
