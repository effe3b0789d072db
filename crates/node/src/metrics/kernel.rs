//! Metrics of the objects in the kernel, and of the external commands that program them.

use std::collections::{BTreeMap, BTreeSet};

use tortie_datastore::Quantiles;
use tortie_model::InterfaceName;
use tortie_telemetry::exposition::{Exposition, as_f64};

use super::nftables::{self, NftablesCounts};

/// Measures of the kernel's state and of the external commands that change it.
#[derive(Clone, Debug, Default)]
pub struct KernelMetrics {
    /// iptables, by program and outcome.
    pub iptables: IptablesCounts,
    /// Rules, chains and lines of each table.
    pub tables: Vec<TableCounts>,
    /// Counts of nftables tables, by the word for their family: `4`, `6` or `arp`.
    pub nftables: BTreeMap<&'static str, NftablesCounts>,
    /// ipset.
    pub ipset: IpsetCounts,
    /// IP sets per family word (`inet`, `inet6`).
    pub ipsets: BTreeMap<&'static str, u64>,
    /// Routes per table.
    pub routes: BTreeMap<String, u64>,
    /// Existing interfaces.
    pub interfaces: BTreeSet<InterfaceName>,
    /// Time per list of all routes of a table.
    pub route_resyncs: Quantiles,
    /// Time per list of the routes of an interface.
    pub route_partial_resyncs: Quantiles,
    /// Time of each deletion of conntrack entries, of all addresses of an apply together.
    pub conntrack_waits: Quantiles,
    /// Number of sysctls that another process changed and the agent restored.
    pub sysctls_repaired: u64,
}

/// Reads and writes of iptables.
#[derive(Clone, Copy, Debug, Default)]
pub struct IptablesCounts {
    /// Reads, by `iptables-save` or from the kernel.
    pub save_calls: u64,
    /// Reads that failed.
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

impl KernelMetrics {
    pub(super) fn expose(&self, processes: &Quantiles, e: &mut Exposition) {
        self.expose_iptables(e);
        nftables::expose(&self.nftables, e);
        let name = "felix_exec_time_micros";
        e.quantiles(name, "Microseconds to start each child process.", processes);
        self.expose_sets(e);
        self.expose_routes(e);
    }

    fn expose_iptables(&self, e: &mut Exposition) {
        e.count(
            "felix_iptables_save_calls",
            "Number of reads of tables, by iptables-save or from the kernel.",
            self.iptables.save_calls,
        );
        e.count("felix_iptables_save_errors", "Number of failed reads of tables.", self.iptables.save_errors);
        e.count("felix_iptables_restore_calls", "Number of runs of iptables-restore.", self.iptables.restore_calls);
        e.count(
            "felix_iptables_restore_errors",
            "Number of failed runs of iptables-restore.",
            self.iptables.restore_errors,
        );
        let per_table = |value: fn(&TableCounts) -> u64| {
            self.tables.iter().map(move |t| (t.ip_version.to_string(), t.table, value(t))).collect::<Vec<_>>()
        };
        e.per_table("felix_iptables_chains", "Number of active iptables chains.", "gauge", &per_table(|t| t.chains));
        e.per_table("felix_iptables_rules", "Number of active iptables rules.", "gauge", &per_table(|t| t.rules));
        let help = "Number of lines written to iptables-restore.";
        e.per_table("felix_iptables_lines_executed", help, "counter", &per_table(|t| t.lines_executed));
    }

    fn expose_sets(&self, e: &mut Exposition) {
        e.count("felix_ipset_calls", "Number of runs of ipset.", self.ipset.calls);
        e.count("felix_ipset_errors", "Number of failed runs of ipset.", self.ipset.errors);
        e.count("felix_ipset_lines_executed", "Number of lines written to ipset.", self.ipset.lines_executed);
        let families: Vec<_> = self.ipsets.iter().map(|(family, n)| ([("ip_version", *family)], *n)).collect();
        let samples: Vec<(&[(&str, &str)], f64)> = families.iter().map(|(l, n)| (&l[..], as_f64(*n))).collect();
        e.gauge("felix_ipsets_calico", "Number of active IP sets.", &samples);
        e.level("felix_ipsets_total", "Number of active IP sets of both families.", self.ipsets.values().sum());
    }

    fn expose_routes(&self, e: &mut Exposition) {
        let tables: Vec<_> = self.routes.iter().map(|(table, n)| ([("table", table.as_str())], *n)).collect();
        let samples: Vec<(&[(&str, &str)], f64)> = tables.iter().map(|(l, n)| (&l[..], as_f64(*n))).collect();
        e.gauge("felix_route_table_num_routes", "Number of routes programmed.", &samples);
        let interfaces = as_f64(self.interfaces.len() as u64);
        let samples: Vec<(&[(&str, &str)], f64)> = tables.iter().map(|(l, _)| (&l[..], interfaces)).collect();
        e.gauge("felix_route_table_num_ifaces", "Number of existing interfaces.", &samples);
        let help = "Seconds to list all routes of a table.";
        e.quantiles("felix_route_table_resync_seconds", help, &self.route_resyncs);
        let help = "Seconds to list the routes of an interface.";
        e.quantiles("felix_route_table_partial_resync_seconds", help, &self.route_partial_resyncs);
        let help = "Seconds that routes waited for the deletion of conntrack entries.";
        e.quantiles("felix_route_table_conntrack_wait_seconds", help, &self.conntrack_waits);
        let help = "Number of sysctls restored after another process changed them.";
        e.count("tortie_sysctls_repaired", help, self.sysctls_repaired);
    }
}
