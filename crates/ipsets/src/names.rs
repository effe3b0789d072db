//! Names of sets in the kernel.

use tortie_net::{Family, IpSetName};

/// Returns the argument of `ipset create … family`.
pub(crate) const fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "inet",
        Family::V6 => "inet6",
    }
}

/// Returns the prefix of the names of temporary sets; it sorts before all of them.
pub(crate) const fn temporary_prefix(family: Family) -> IpSetName {
    match family {
        Family::V4 => const { IpSetName::from_static("cali4t") },
        Family::V6 => const { IpSetName::from_static("cali6t") },
    }
}

/// Returns the prefixes of our names, historic ones included (`felix/ipsets/ipset_defs.go`).
const fn owned_prefixes(family: Family) -> &'static [&'static str] {
    match family {
        Family::V4 => &["cali4", "felix-4", "felix-masq-ipam-pools", "felix-all-ipam-pools"],
        Family::V6 => &["cali6", "felix-6"],
    }
}

/// Returns the name of the temporary set number `counter`, which is filled and then swapped in.
#[expect(clippy::expect_used, reason = "a prefix of 6 bytes and 20 digits are shorter than a name may be")]
pub(crate) fn temporary_name(family: Family, counter: u64) -> IpSetName {
    let prefix = temporary_prefix(family);
    IpSetName::new(&format!("{prefix}{counter}")).expect("a prefix and a number are a name")
}

/// Reports whether this is the name of a temporary set of that family.
pub(crate) fn is_temporary(name: &IpSetName, family: Family) -> bool {
    name.as_str().starts_with(temporary_prefix(family).as_str())
}

/// Reports whether a set of this name belongs to Calico in that family; other sets are never
/// changed.
#[must_use]
pub fn is_owned(name: &IpSetName, family: Family) -> bool {
    owned_prefixes(family).iter().any(|prefix| name.as_str().starts_with(prefix))
}
