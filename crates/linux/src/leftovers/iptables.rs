//! Search for chains and IP sets of Tortie or Felix, without running iptables.

use std::fs;
use std::time::Duration;

use tortie_model::Family;

use crate::netlink::former::{has_ip_sets, has_iptables_chains};

/// Objects that may be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftInIptables {
    /// Calico's chains, or tables of the legacy implementation, which only its programs can read.
    pub chains: bool,
    /// Calico's IP sets.
    pub sets: bool,
}

/// Searches for such objects. If they cannot be listed, they are assumed to exist.
#[must_use]
pub fn left_in_iptables(families: &[Family], timeout: Duration) -> LeftInIptables {
    LeftInIptables {
        chains: families
            .iter()
            .any(|family| !legacy_tables(*family).is_empty() || has_iptables_chains(*family, timeout).unwrap_or(true)),
        sets: has_ip_sets(timeout).unwrap_or(true),
    }
}

/// Returns the tables of the legacy implementation that exist in this network namespace, one per
/// line; empty if there are none.
pub(crate) fn legacy_tables(family: Family) -> String {
    // The file exists once the module is loaded. `self` would be the main thread, which may be in
    // another network namespace.
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(path).unwrap_or_default()
}
