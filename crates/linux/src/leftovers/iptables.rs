//! What this program or Felix left in iptables, found without its programs.

use std::fs;
use std::time::Duration;

use tortie_model::Family;

use crate::netlink::former::{has_ip_sets, has_iptables_chains};

/// What may be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftInIptables {
    /// Chains of Calico's, or tables of the legacy implementation, which only its programs can read.
    pub chains: bool,
    /// IP sets of Calico's.
    pub sets: bool,
}

/// Looks for what is left. What cannot be read may be there.
#[must_use]
pub fn left_in_iptables(families: &[Family], timeout: Duration) -> LeftInIptables {
    let has_legacy_tables = |family| {
        let tables = fs::read_to_string(match family {
            Family::V4 => "/proc/net/ip_tables_names",
            Family::V6 => "/proc/net/ip6_tables_names",
        });
        // The file is there once the kernel has the module.
        tables.is_ok_and(|tables| !tables.trim().is_empty())
    };
    LeftInIptables {
        chains: families
            .iter()
            .any(|family| has_legacy_tables(*family) || has_iptables_chains(*family, timeout).unwrap_or(true)),
        sets: has_ip_sets(timeout).unwrap_or(true),
    }
}
