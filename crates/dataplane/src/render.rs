//! What would be written on a clean node.

use tortie_iptables::Table;
use tortie_model::Family;

/// What a node without any of our rules and sets would be given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// What `ipset restore` would read.
    pub ip_sets: Vec<(Family, String)>,
    /// What `iptables-restore` or `ip6tables-restore` would read, a text for each table.
    pub tables: Vec<(Family, Table, String)>,
}
