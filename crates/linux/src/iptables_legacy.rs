//! Tables of the legacy implementation of iptables.

use std::fs;

use tortie_model::Family;

/// Returns the tables of the legacy implementation that exist in this network namespace, one per
/// line; empty if there are none.
pub(crate) fn tables(family: Family) -> String {
    // The file exists once the module is loaded. `self` would be the main thread, which may be in
    // another network namespace.
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(path).unwrap_or_default()
}
