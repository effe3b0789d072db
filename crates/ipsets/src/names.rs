//! What sets are called in the kernel.

use tortie_net::{Family, IpSetName};

/// The word that `ipset create … family` takes.
pub(crate) const fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "inet",
        Family::V6 => "inet6",
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

/// The name of the `counter`th set that is filled aside and then swapped in.
#[expect(clippy::expect_used, reason = "a prefix of 6 bytes and 20 digits are shorter than a name may be")]
pub(crate) fn temporary_name(family: Family, counter: u64) -> IpSetName {
    let prefix = temporary_prefix(family);
    IpSetName::new(&format!("{prefix}{counter}")).expect("a prefix and a number are a name")
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
