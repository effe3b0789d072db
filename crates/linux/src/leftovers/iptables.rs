//! Search for chains and IP sets of Tortie or Felix, without running iptables.

use std::time::Duration;

use tortie_model::Family;

use crate::iptables_legacy;
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
        chains: families.iter().any(|family| {
            !iptables_legacy::tables(*family).is_empty() || has_iptables_chains(*family, timeout).unwrap_or(true)
        }),
        sets: has_ip_sets(timeout).unwrap_or(true),
    }
}
