//! Metrics of the calculation.

use std::collections::BTreeMap;

use tortie_calc::Scans;
use tortie_datastore::Quantiles;
use tortie_telemetry::exposition::Exposition;

/// Measures of the calculation.
#[derive(Clone, Debug, Default)]
pub struct CalculationMetrics {
    /// Messages that came out of the calculation.
    pub output_events: u64,
    /// Time per update in the calculation.
    pub update_time: Quantiles,
    /// Endpoints, policies and selectors that concern this node.
    pub active_local: ActiveLocal,
    /// Numbers of objects in the cluster.
    pub cluster: ClusterCounts,
    /// Number of selector evaluations.
    pub selector_evaluations: u64,
    /// Searches for the endpoints that selectors of IP sets were evaluated with, by strategy.
    pub scans: Scans,
}

/// Numbers of objects that concern this node.
#[derive(Clone, Copy, Debug, Default)]
pub struct ActiveLocal {
    /// Endpoints.
    pub endpoints: u64,
    /// Policies.
    pub policies: u64,
    /// Selectors.
    pub selectors: u64,
}

/// Numbers of objects in the cluster.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterCounts {
    /// Nodes.
    pub hosts: u64,
    /// Workload endpoints.
    pub workload_endpoints: u64,
    /// Host endpoints.
    pub host_endpoints: u64,
    /// Policies.
    pub policies: u64,
    /// Profiles.
    pub profiles: u64,
    /// Tiers.
    pub tiers: u64,
}

impl CalculationMetrics {
    pub(super) fn expose(&self, e: &mut Exposition) {
        e.count(
            "felix_calc_graph_output_events",
            "Number of messages that the calculation emitted.",
            self.output_events,
        );
        let help = "Seconds that the calculation took for each update.";
        e.quantiles("felix_calc_graph_update_time_seconds", help, &self.update_time);
        let local = &self.active_local;
        e.level("felix_active_local_endpoints", "Number of active endpoints on this host.", local.endpoints);
        e.level("felix_active_local_policies", "Number of active policies on this host.", local.policies);
        e.level("felix_active_local_selectors", "Number of active selectors on this host.", local.selectors);
        let evaluations = self.selector_evaluations;
        e.count("felix_label_index_selector_evals", "Number of selector evaluations.", evaluations);
        let help = "Number of searches for candidate endpoints of a selector, by strategy.";
        e.counts("felix_label_index_strategy_evals", help, "strategy", &strategies(&self.scans));
        let endpoints = self.cluster.workload_endpoints + self.cluster.host_endpoints;
        e.level("felix_label_index_num_endpoints", "Number of endpoints that selectors can select.", endpoints);
        e.level("felix_label_index_num_active_selectors", "Number of active selectors.", local.selectors);
        let cluster = &self.cluster;
        e.level("felix_cluster_num_hosts", "Number of hosts in the cluster.", cluster.hosts);
        let help = "Number of workload endpoints in the cluster.";
        e.level("felix_cluster_num_workload_endpoints", help, cluster.workload_endpoints);
        e.level("felix_cluster_num_host_endpoints", "Number of host endpoints in the cluster.", cluster.host_endpoints);
        e.level("felix_cluster_num_policies", "Number of policies in the cluster.", cluster.policies);
        e.level("felix_cluster_num_profiles", "Number of profiles in the cluster.", cluster.profiles);
        e.level("felix_cluster_num_tiers", "Number of tiers in the cluster.", cluster.tiers);
    }
}

/// Searches of the label index by Felix's names of strategies
/// (`felix/labelindex/named_port_index.go`). Searches by labels that both endpoints and profiles
/// have are left out, because Felix never makes them.
fn strategies(scans: &Scans) -> BTreeMap<&'static str, u64> {
    BTreeMap::from([
        ("endpoint-full-scan", scans.all),
        ("endpoint-label-name", scans.own.name),
        ("endpoint-single-value", scans.own.value),
        ("endpoint-multi-value", scans.own.values),
        ("parent-label-name", scans.inherited.name),
        ("parent-single-value", scans.inherited.value),
        ("parent-multi-value", scans.inherited.values),
    ])
}
