//! Prometheus metrics under Felix's names, plus the time from an event to its enforcement in the
//! kernel.
//!
//! Felix's counters lack the `_total` that `OpenMetrics` libraries append, so the classic text
//! format is written here.

mod calculation;
mod dataplane;
mod dns;
mod flows;
mod kernel;
mod nftables;
pub mod wireguard;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tortie_datastore::Quantiles;
use tortie_linux::bpf::PolicyStats;
use tortie_linux::exec;

use crate::connections::SharedCutCounts;
use crate::flows::{FlowMetrics, SharedFlows};
pub use calculation::{ActiveLocal, CalculationMetrics, ClusterCounts};
pub use dataplane::{DataplaneMetrics, LoopMetrics};
pub use kernel::{IpsetCounts, IptablesCounts, KernelMetrics, TableCounts};
pub use nftables::NftablesCounts;
use tortie_learner::{DnsMetrics, SharedDnsMetrics};
use tortie_telemetry::exposition::{Exposition, answer};
use tortie_telemetry::http::Response;

/// Everything that is measured. Plain data that the main loop writes and the listener reads, and
/// counters that other threads own.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// The node's name.
    pub host: String,
    /// Updates from the datastore.
    pub datastore: DatastoreMetrics,
    /// The calculation.
    pub calculation: CalculationMetrics,
    /// The main loop.
    pub main_loop: LoopMetrics,
    /// The dataplane.
    pub dataplane: DataplaneMetrics,
    /// The objects in the kernel.
    pub kernel: KernelMetrics,
    /// Connections that were cut.
    pub connections: SharedCutCounts,
    /// Flows, if they are collected.
    pub flows: SharedFlows,
    /// DNS answers, once a domain set is in use.
    pub dns: SharedDnsMetrics,
    /// This process.
    pub process: ProcessMetrics,
}

/// Measures of updates from the datastore.
#[derive(Clone, Debug, Default)]
pub struct DatastoreMetrics {
    /// 1 while waiting for the datastore, 2 during a resync, 3 in sync.
    pub resync_state: u8,
    /// Number of resyncs that have begun.
    pub resyncs_started: u64,
    /// Updates that went into the calculation, by kind.
    pub updates_processed: BTreeMap<&'static str, u64>,
    /// Problems in the input that are being worked around: resources that are invalid now.
    pub input_problems: u64,
    /// Objects whose changes are held back because they would cut management connections of the
    /// host.
    pub held_changes: u64,
}

/// Measures of this process.
#[derive(Clone, Debug, Default)]
pub struct ProcessMetrics {
    /// Error messages logged.
    pub log_errors: u64,
    /// Number of log lines that a file or syslog did not take.
    pub logs_dropped: u64,
    /// Time that it took to start each child process, in microseconds.
    pub process_starts: Quantiles,
}

impl Metrics {
    /// Metrics of an agent with everything in use, each at its least value.
    #[must_use]
    pub fn example() -> Self {
        let metrics = Self::default();
        metrics.connections.lock().last_check = Some(Duration::ZERO);
        metrics.flows.set_totals(BTreeMap::new(), FlowMetrics::default());
        *metrics.dns.lock() = Some(DnsMetrics::default());
        let dataplane = DataplaneMetrics {
            initial_resync: Some(Duration::ZERO),
            bpf: Some(PolicyStats::default()),
            ..DataplaneMetrics::default()
        };
        Self { dataplane, ..metrics }
    }

    /// The metrics in Prometheus' text format.
    #[must_use]
    pub fn expose(&self) -> String {
        let mut e = Exposition::default();
        let DatastoreMetrics { resync_state, resyncs_started, updates_processed, .. } = &self.datastore;
        e.gauge("felix_host", "Name of the node, as a label.", &[(&[("host", &self.host)], 1.0)]);
        e.gauge(
            "felix_resync_state",
            "Datastore state: 1 waiting, 2 resync in progress, 3 in sync.",
            &[(&[], f64::from(*resync_state))],
        );
        e.count("felix_resyncs_started", "Number of started datastore resyncs.", *resyncs_started);
        let help = "Number of datastore updates processed.";
        e.counts("felix_calc_graph_updates_processed", help, "type", updates_processed);
        self.calculation.expose(&mut e);
        self.dataplane.expose(&mut e);
        self.main_loop.expose(&mut e);
        self.kernel.expose(&self.process.process_starts, &mut e);
        self.expose_problems(&mut e);
        self.expose_connections(&mut e);
        if let Some(bpf) = &self.dataplane.bpf {
            dataplane::expose_bpf(bpf, &mut e);
        }
        if let Some(flows) = &self.flows.metrics() {
            flows::expose(flows, &mut e);
        }
        if let Some(metrics) = &*self.dns.lock() {
            dns::expose(metrics, &mut e);
        }
        e.count("felix_logs_dropped", "Number of dropped log messages.", self.process.logs_dropped);
        e.count("felix_log_errors", "Number of error messages logged.", self.process.log_errors);
        e.finish()
    }

    fn expose_problems(&self, e: &mut Exposition) {
        let help = "Number of invalid objects and other problems of the input.";
        e.level("tortie_input_problems", help, self.datastore.input_problems);
        let help = "Number of objects that the kernel rejects.";
        e.level("tortie_dataplane_problems", help, self.dataplane.problems);
        let help =
            "Number of objects whose changes are held because they would cut management connections of the host.";
        e.level("tortie_held_changes", help, self.datastore.held_changes);
    }

    fn expose_connections(&self, e: &mut Exposition) {
        let counts = *self.connections.lock();
        let help = "Number of established connections cut because changed policy denies them.";
        e.count("tortie_connections_cut", help, counts.cut);
        if let Some(at) = counts.last_check {
            let help = "Unix time of the last check of established connections against policy.";
            e.level("tortie_connections_check_timestamp_seconds", help, at.as_secs());
        }
    }
}

static PROCESS_STARTS: Mutex<Quantiles> = Mutex::new(Quantiles::new());

/// Begins to measure the time that it takes to start external commands.
pub fn measure_process_starts() {
    exec::observe_starts(|took| {
        let mut starts = PROCESS_STARTS.lock().unwrap_or_else(PoisonError::into_inner);
        starts.observe_micros(took, Instant::now());
    });
}

/// Returns the microseconds that it took to start each external command of this process.
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
