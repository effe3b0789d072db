//! Counts for metrics (`felix/calc/stats_collector.go`).

use tortie_labelindex::Scans;

/// Counts of the graph's objects; the values of Felix's `felix_cluster_num_*` and
/// `felix_active_local_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphStats {
    /// Hosts that a node or a valid endpoint names.
    pub hosts: usize,
    /// Valid host endpoints of all nodes.
    pub host_endpoints: usize,
    /// Valid workload endpoints of all nodes.
    pub workload_endpoints: usize,
    /// Tiers.
    pub tiers: usize,
    /// Valid policies.
    pub policies: usize,
    /// Profiles with valid rules.
    pub profiles: usize,
    /// Valid endpoints of this node.
    pub local_endpoints: usize,
    /// Policies that are enforced on this node.
    pub active_policies: usize,
    /// IP sets that this node's policies and profiles use.
    pub ip_sets: usize,
    /// Number of selector evaluations since the start.
    pub evaluations: u64,
    /// Number of searches, by kind, for the endpoints and network sets that an IP set's selector
    /// may match.
    pub scans: Scans,
    /// Groups of items that no IP set's selector distinguishes.
    pub groups: usize,
}
