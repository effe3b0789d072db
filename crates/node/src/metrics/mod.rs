//! Prometheus metrics under Felix's names, plus the time from an event to its enforcement in the kernel.
//!
//! Felix's counters lack the `_total` that `OpenMetrics` libraries append, so the classic text format is written here.

mod flows;
mod nftables;
pub mod wireguard;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tortie_calc::Scans;
use tortie_datastore::Quantiles;
use tortie_linux::bpf::PolicyStats;
use tortie_linux::exec;
use tortie_model::IfaceName;

use crate::flows::FlowMetrics;
pub use nftables::NftablesCounts;
use tortie_telemetry::exposition::{Exposition, Histogram, answer, as_f64};
use tortie_telemetry::http::Response;

/// Everything that is measured. Plain data: the main loop writes, the listener reads.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// The node's name.
    pub host: String,
    /// 1 while waiting for the datastore, 2 during a resync, 3 in sync.
    pub resync_state: u8,
    /// How often a resync began.
    pub resyncs_started: u64,
    /// Updates that went into the calculation, by kind.
    pub updates_processed: BTreeMap<&'static str, u64>,
    /// Messages that came out of the calculation.
    pub output_events: u64,
    /// Time per update in the calculation.
    pub update_time: Quantiles,
    /// Endpoints, policies and selectors that concern this node.
    pub active_local: ActiveLocal,
    /// What there is in the cluster.
    pub cluster: ClusterCounts,
    /// How often a selector was evaluated.
    pub selector_evaluations: u64,
    /// How the endpoints were found that selectors of IP sets were evaluated with.
    pub scans: Scans,
    /// Messages to the dataplane, by kind.
    pub dataplane_messages: BTreeMap<&'static str, u64>,
    /// How many messages to the dataplane were taken at once.
    pub message_batches: Quantiles,
    /// How many states of interfaces were taken at once.
    pub interface_batches: Quantiles,
    /// How many lists of an interface's addresses were taken at once.
    pub address_batches: Quantiles,
    /// Applies that left something undone.
    pub apply_failures: u64,
    /// Time per apply.
    pub apply_time: Quantiles,
    /// Time from start to the end of the first apply.
    pub initial_resync: Option<Duration>,
    /// Time from the arrival of an event to the end of the apply that put it into the kernel.
    pub event_to_kernel: Histogram,
    /// The same of the last ten minutes, for quantiles.
    pub recent_event_to_kernel: Quantiles,
    /// The longest of those that reached the kernel together last.
    pub last_event_to_kernel: Option<Duration>,
    /// Time per turn of the main loop, by what the turn is named after.
    pub turns: BTreeMap<&'static str, Histogram>,
    /// Time per part of such a turn, by the part.
    pub turn_parts: BTreeMap<&'static str, Histogram>,
    /// iptables, by program and outcome.
    pub iptables: IptablesCounts,
    /// Rules, chains and lines of each table.
    pub tables: Vec<TableCounts>,
    /// Tables of nftables, by the word for their family: `4`, `6` or `arp`.
    pub nftables: BTreeMap<&'static str, NftablesCounts>,
    /// ipset.
    pub ipset: IpsetCounts,
    /// IP sets per family word (`inet`, `inet6`).
    pub ipsets: BTreeMap<&'static str, u64>,
    /// Routes per table.
    pub routes: BTreeMap<String, u64>,
    /// The interfaces that there are.
    pub interfaces: BTreeSet<IfaceName>,
    /// Time per list of all routes of a table.
    pub route_resyncs: Quantiles,
    /// How long each list of the routes of an interface took.
    pub route_partial_resyncs: Quantiles,
    /// Time per address whose connections were to be forgotten before it had a route again.
    pub conntrack_waits: Quantiles,
    /// Sysctls that somebody else changed, and that were set back.
    pub sysctls_repaired: u64,
    /// Problems in the input that are being worked around: resources that are invalid now.
    pub input_problems: u64,
    /// Objects that the kernel does not take.
    pub dataplane_problems: u64,
    /// Policy by eBPF programs, where these enforce it.
    pub bpf: Option<PolicyStats>,
    /// Objects whose changes are held back because they would cut those off who manage the host.
    pub held_changes: u64,
    /// Established connections that were cut because policy denies them now.
    pub connections_cut: u64,
    /// When connections were last compared with policy, since 1970.
    pub last_connection_check: Option<Duration>,
    /// Flows, if they are collected.
    pub flows: Option<FlowMetrics>,
    /// Error messages logged.
    pub log_errors: u64,
    /// How many log lines a file or syslog did not take.
    pub logs_dropped: u64,
    /// Time that it took to start each child process, in microseconds.
    pub process_starts: Quantiles,
}

/// What concerns this node.
#[derive(Clone, Copy, Debug, Default)]
pub struct ActiveLocal {
    /// Endpoints.
    pub endpoints: u64,
    /// Policies.
    pub policies: u64,
    /// Selectors.
    pub selectors: u64,
}

/// What there is in the cluster.
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

/// Runs of the iptables programs.
#[derive(Clone, Copy, Debug, Default)]
pub struct IptablesCounts {
    /// `iptables-save`.
    pub save_calls: u64,
    /// `iptables-save` that failed.
    pub save_errors: u64,
    /// `iptables-restore`.
    pub restore_calls: u64,
    /// `iptables-restore` that failed.
    pub restore_errors: u64,
}

/// One table.
#[derive(Clone, Debug, Default)]
pub struct TableCounts {
    /// `4` or `6`.
    pub ip_version: u8,
    /// `filter`, `nat`, …
    pub table: &'static str,
    /// Chains programmed.
    pub chains: u64,
    /// Rules programmed.
    pub rules: u64,
    /// Lines written so far.
    pub lines_executed: u64,
}

/// Runs of ipset.
#[derive(Clone, Copy, Debug, Default)]
pub struct IpsetCounts {
    /// Runs.
    pub calls: u64,
    /// Runs that failed.
    pub errors: u64,
    /// Lines written so far.
    pub lines_executed: u64,
}

impl Metrics {
    /// Some changes have reached the kernel so long after they arrived.
    pub fn observe_event(&mut self, took: Duration, changes: u64, now: Instant) {
        self.event_to_kernel.observe_many(took, changes);
        self.recent_event_to_kernel.observe_many(took, changes, now);
    }

    /// The metrics in Prometheus' text format.
    #[must_use]
    pub fn expose(&self) -> String {
        let mut e = Exposition::default();
        e.gauge("felix_host", "Felix hostname (reported as a label).", &[(&[("host", &self.host)], 1.0)]);
        e.gauge("felix_resync_state", "Current datastore state.", &[(&[], f64::from(self.resync_state))]);
        e.count("felix_resyncs_started", "Number of times the datastore was resynchronised.", self.resyncs_started);
        e.counts(
            "felix_calc_graph_updates_processed",
            "Number of datastore updates processed.",
            "type",
            &self.updates_processed,
        );
        e.count("felix_calc_graph_output_events", "Number of messages emitted by the calculation.", self.output_events);
        e.quantiles(
            "felix_calc_graph_update_time_seconds",
            "Seconds to update the calculation for each update.",
            &self.update_time,
        );
        let local = &self.active_local;
        e.level("felix_active_local_endpoints", "Number of active endpoints on this host.", local.endpoints);
        e.level("felix_active_local_policies", "Number of active policies on this host.", local.policies);
        e.level("felix_active_local_selectors", "Number of active selectors on this host.", local.selectors);
        let evaluations = self.selector_evaluations;
        e.count("felix_label_index_selector_evals", "Number of selector evaluations.", evaluations);
        e.counts(
            "felix_label_index_strategy_evals",
            "Number of searches for the endpoints that a selector may pick, by how they were found.",
            "strategy",
            &strategies(&self.scans),
        );
        let endpoints = self.cluster.workload_endpoints + self.cluster.host_endpoints;
        e.level("felix_label_index_num_endpoints", "Number of endpoints that selectors may pick.", endpoints);
        e.level("felix_label_index_num_active_selectors", "Number of selectors in use.", local.selectors);
        let cluster = &self.cluster;
        e.level("felix_cluster_num_hosts", "Number of hosts in the cluster.", cluster.hosts);
        e.level(
            "felix_cluster_num_workload_endpoints",
            "Number of workload endpoints in the cluster.",
            cluster.workload_endpoints,
        );
        e.level("felix_cluster_num_host_endpoints", "Number of host endpoints in the cluster.", cluster.host_endpoints);
        e.level("felix_cluster_num_policies", "Number of policies in the cluster.", cluster.policies);
        e.level("felix_cluster_num_profiles", "Number of profiles in the cluster.", cluster.profiles);
        e.level("felix_cluster_num_tiers", "Number of tiers in the cluster.", cluster.tiers);
        e.counts(
            "felix_int_dataplane_messages",
            "Number of messages to the dataplane.",
            "type",
            &self.dataplane_messages,
        );
        for (name, help, batches) in [
            (
                "felix_int_dataplane_msg_batch_size",
                "Number of messages to the dataplane in each batch.",
                &self.message_batches,
            ),
            (
                "felix_int_dataplane_iface_msg_batch_size",
                "Number of interface states in each batch.",
                &self.interface_batches,
            ),
            (
                "felix_int_dataplane_addr_msg_batch_size",
                "Number of interface address lists in each batch.",
                &self.address_batches,
            ),
        ] {
            e.quantiles(name, help, batches);
        }
        e.count("felix_int_dataplane_failures", "Number of applies that left something undone.", self.apply_failures);
        e.quantiles("felix_int_dataplane_apply_time_seconds", "Seconds that each apply took.", &self.apply_time);
        if let Some(initial) = self.initial_resync {
            let name = "felix_int_dataplane_initial_resync_time_seconds";
            e.gauge(name, "Seconds from start to the end of the first apply.", &[(&[], initial.as_secs_f64())]);
        }
        e.histogram(
            "tortie_event_to_kernel_seconds",
            "Seconds from an event to its enforcement in the kernel.",
            &self.event_to_kernel,
        );
        let help = "Seconds that each turn of the main loop took, by what caused it.";
        e.histograms("tortie_turn_seconds", help, "turn", &self.turns);
        let help = "Seconds that each part of each turn of the main loop took.";
        e.histograms("tortie_turn_part_seconds", help, "part", &self.turn_parts);
        self.expose_kernel(&mut e);
        e.level(
            "tortie_input_problems",
            "Number of problems in the input that are being worked around.",
            self.input_problems,
        );
        e.level(
            "tortie_dataplane_problems",
            "Number of objects that the kernel does not take.",
            self.dataplane_problems,
        );
        e.level(
            "tortie_held_changes",
            "Number of objects whose changes wait to be confirmed, as they would cut the connection of who manages the host.",
            self.held_changes,
        );
        e.count(
            "tortie_connections_cut",
            "Number of established connections cut because a change of policy denies them.",
            self.connections_cut,
        );
        if let Some(at) = self.last_connection_check {
            e.level(
                "tortie_connections_check_timestamp_seconds",
                "When established connections were last compared with policy.",
                at.as_secs(),
            );
        }
        if let Some(bpf) = &self.bpf {
            expose_bpf(bpf, &mut e);
        }
        if let Some(flows) = &self.flows {
            flows::expose(flows, &mut e);
        }
        e.count("felix_logs_dropped", "Number of messages that were not logged.", self.logs_dropped);
        e.count("felix_log_errors", "Number of error messages logged.", self.log_errors);
        e.finish()
    }

    fn expose_kernel(&self, e: &mut Exposition) {
        e.count("felix_iptables_save_calls", "Number of iptables-save calls.", self.iptables.save_calls);
        e.count("felix_iptables_save_errors", "Number of iptables-save errors.", self.iptables.save_errors);
        e.count("felix_iptables_restore_calls", "Number of iptables-restore calls.", self.iptables.restore_calls);
        e.count("felix_iptables_restore_errors", "Number of iptables-restore errors.", self.iptables.restore_errors);
        let per_table = |value: fn(&TableCounts) -> u64| {
            self.tables.iter().map(move |t| (t.ip_version.to_string(), t.table, value(t))).collect::<Vec<_>>()
        };
        e.per_table("felix_iptables_chains", "Number of active iptables chains.", "gauge", &per_table(|t| t.chains));
        e.per_table("felix_iptables_rules", "Number of active iptables rules.", "gauge", &per_table(|t| t.rules));
        e.per_table(
            "felix_iptables_lines_executed",
            "Number of iptables lines executed.",
            "counter",
            &per_table(|t| t.lines_executed),
        );
        nftables::expose(&self.nftables, e);
        let name = "felix_exec_time_micros";
        e.quantiles(name, "Microseconds that it took to start child processes.", &self.process_starts);
        e.count("felix_ipset_calls", "Number of ipset calls.", self.ipset.calls);
        e.count("felix_ipset_errors", "Number of ipset errors.", self.ipset.errors);
        e.count("felix_ipset_lines_executed", "Number of ipset lines executed.", self.ipset.lines_executed);
        let families: Vec<_> = self.ipsets.iter().map(|(family, n)| ([("ip_version", *family)], *n)).collect();
        let samples: Vec<(&[(&str, &str)], f64)> = families.iter().map(|(l, n)| (&l[..], as_f64(*n))).collect();
        e.gauge("felix_ipsets_calico", "Number of active IP sets.", &samples);
        e.level("felix_ipsets_total", "Number of active IP sets of both families.", self.ipsets.values().sum());
        let tables: Vec<_> = self.routes.iter().map(|(table, n)| ([("table", table.as_str())], *n)).collect();
        let samples: Vec<(&[(&str, &str)], f64)> = tables.iter().map(|(l, n)| (&l[..], as_f64(*n))).collect();
        e.gauge("felix_route_table_num_routes", "Number of routes programmed.", &samples);
        let interfaces = as_f64(u64::try_from(self.interfaces.len()).unwrap_or(u64::MAX));
        let samples: Vec<(&[(&str, &str)], f64)> = tables.iter().map(|(l, _)| (&l[..], interfaces)).collect();
        e.gauge("felix_route_table_num_ifaces", "Number of interfaces that may have routes.", &samples);
        let help = "Seconds that each list of all routes of a table took.";
        e.quantiles("felix_route_table_resync_seconds", help, &self.route_resyncs);
        let help = "Seconds that each list of the routes of an interface took.";
        e.quantiles("felix_route_table_partial_resync_seconds", help, &self.route_partial_resyncs);
        let help = "Seconds that routes waited for connections to be forgotten.";
        e.quantiles("felix_route_table_conntrack_wait_seconds", help, &self.conntrack_waits);
        e.count(
            "tortie_sysctls_repaired",
            "Sysctls that were set back after somebody changed them.",
            self.sysctls_repaired,
        );
    }
}

fn expose_bpf(bpf: &PolicyStats, e: &mut Exposition) {
    let PolicyStats { blocks, max_blocks, addresses, generation, map_writes, built, repairs } = *bpf;
    e.level("tortie_bpf_blocks", "Number of blocks of 1,024 bytes that tables of eBPF programs take.", blocks);
    e.level("tortie_bpf_blocks_limit", "Number of blocks that tables of eBPF programs may take.", max_blocks);
    e.level("tortie_bpf_addresses", "Number of networks that tables of eBPF programs tell apart.", addresses);
    e.level("tortie_bpf_generation", "Number of the maps and programs in use; 0 if there are none.", generation);
    e.count("tortie_bpf_generations_built", "Number of times that maps and programs were made and attached.", built);
    e.count("tortie_bpf_map_writes", "Number of values of maps written.", map_writes);
    e.count("tortie_bpf_repairs", "Number of maps, programs and pins put right after somebody changed them.", repairs);
}

/// Searches of the label index by the original's names of strategies (`felix/labelindex/named_port_index.go`). Left out is
/// what it never does: searches by what both endpoints and profiles have.
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

static PROCESS_STARTS: Mutex<Quantiles> = Mutex::new(Quantiles::new());

/// Begins to measure how long it takes to start programs.
pub fn measure_process_starts() {
    exec::observe_starts(|took| {
        let mut starts = PROCESS_STARTS.lock().unwrap_or_else(PoisonError::into_inner);
        starts.observe_micros(took, Instant::now());
    });
}

/// The microseconds that it took to start each of the programs that this process has started.
#[must_use]
pub fn process_starts() -> Quantiles {
    PROCESS_STARTS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// [`Metrics`] that two threads share.
#[derive(Clone, Debug, Default)]
pub struct SharedMetrics(Arc<Mutex<Metrics>>);

impl SharedMetrics {
    /// Reads or writes them.
    pub fn lock(&self) -> MutexGuard<'_, Metrics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers `/metrics`.
    #[must_use]
    pub fn answer(&self, path: &str) -> Response {
        match path {
            "/metrics" => answer(self.lock().expose()),
            _ => Response::text(404, "ask for /metrics\n"),
        }
    }
}

#[cfg(test)]
mod tests;
