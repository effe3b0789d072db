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
    let has_legacy_tables = |family| {
        let tables = fs::read_to_string(match family {
            Family::V4 => "/proc/net/ip_tables_names",
            Family::V6 => "/proc/net/ip6_tables_names",
        });
        // The file exists once the module is loaded.
        tables.is_ok_and(|tables| !tables.trim().is_empty())
    };
    LeftInIptables {
        chains: families
            .iter()
            .any(|family| has_legacy_tables(*family) || has_iptables_chains(*family, timeout).unwrap_or(true)),
        sets: has_ip_sets(timeout).unwrap_or(true),
    }
}
