//! Metrics of the main loop and of the dataplane.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tortie_datastore::Quantiles;
use tortie_linux::bpf::PolicyStats;
use tortie_telemetry::exposition::{Exposition, Histogram};

/// Measures of the dataplane.
#[derive(Clone, Debug, Default)]
pub struct DataplaneMetrics {
    /// Messages to the dataplane, by kind.
    pub messages: BTreeMap<&'static str, u64>,
    /// Number of messages to the dataplane in each batch.
    pub message_batches: Quantiles,
    /// Number of interface states in each batch.
    pub interface_batches: Quantiles,
    /// Number of interface address lists in each batch.
    pub address_batches: Quantiles,
    /// Incomplete applies.
    pub apply_failures: u64,
    /// Time per apply.
    pub apply_time: Quantiles,
    /// Time from start to the end of the first apply.
    pub initial_resync: Option<Duration>,
    /// Objects that the kernel refuses.
    pub problems: u64,
    /// Policy by eBPF programs, where these enforce it.
    pub bpf: Option<PolicyStats>,
}

impl DataplaneMetrics {
    pub(super) fn expose(&self, e: &mut Exposition) {
        e.counts("felix_int_dataplane_messages", "Number of messages to the dataplane.", "type", &self.messages);
        let help = "Number of messages to the dataplane in each batch.";
        e.quantiles("felix_int_dataplane_msg_batch_size", help, &self.message_batches);
        let help = "Number of interface states in each batch.";
        e.quantiles("felix_int_dataplane_iface_msg_batch_size", help, &self.interface_batches);
        let help = "Number of interface address lists in each batch.";
        e.quantiles("felix_int_dataplane_addr_msg_batch_size", help, &self.address_batches);
        e.count("felix_int_dataplane_failures", "Number of incomplete applies.", self.apply_failures);
        e.quantiles("felix_int_dataplane_apply_time_seconds", "Seconds of each apply.", &self.apply_time);
        if let Some(initial) = self.initial_resync {
            let name = "felix_int_dataplane_initial_resync_time_seconds";
            e.gauge(name, "Seconds from start to the end of the first apply.", &[(&[], initial.as_secs_f64())]);
        }
    }
}

/// Measures of the main loop.
#[derive(Clone, Debug, Default)]
pub struct LoopMetrics {
    /// Time from the arrival of an event to the end of the apply that put it into the kernel.
    pub event_to_kernel: Histogram,
    /// The same of the last ten minutes, for quantiles.
    pub recent_event_to_kernel: Quantiles,
    /// The longest of those that reached the kernel together last.
    pub last_event_to_kernel: Option<Duration>,
    /// Time per turn of the main loop, by the cause of the turn.
    pub turns: BTreeMap<&'static str, Histogram>,
    /// Time per part of such a turn, by the part.
    pub turn_parts: BTreeMap<&'static str, Histogram>,
}

impl LoopMetrics {
    /// Records the time in which these changes reached the kernel.
    pub fn observe_event(&mut self, took: Duration, changes: u64, now: Instant) {
        self.event_to_kernel.observe_many(took, changes);
        self.recent_event_to_kernel.observe_many(took, changes, now);
    }

    pub(super) fn expose(&self, e: &mut Exposition) {
        let help = "Seconds from an event to the end of the apply that wrote it to the kernel.";
        e.histogram("tortie_event_to_kernel_seconds", help, &self.event_to_kernel);
        let help = "Seconds of each main loop iteration, by cause.";
        e.histograms("tortie_turn_seconds", help, "turn", &self.turns);
        let help = "Seconds of each part of a main loop iteration.";
        e.histograms("tortie_turn_part_seconds", help, "part", &self.turn_parts);
    }
}

pub(super) fn expose_bpf(bpf: &PolicyStats, e: &mut Exposition) {
    let PolicyStats { blocks, max_blocks, addresses, generation, map_writes, built, repairs } = *bpf;
    e.level("tortie_bpf_blocks", "Number of blocks of 1,024 bytes that eBPF policy tables use.", blocks);
    e.level("tortie_bpf_blocks_limit", "Maximum number of blocks that eBPF policy tables can use.", max_blocks);
    e.level("tortie_bpf_addresses", "Number of address ranges that eBPF policy tables distinguish.", addresses);
    e.level("tortie_bpf_generation", "Current generation of eBPF maps and programs; 0 if there is none.", generation);
    e.count(
        "tortie_bpf_generations_built",
        "Number of generations of eBPF maps and programs built and attached.",
        built,
    );
    e.count("tortie_bpf_map_writes", "Number of values written to eBPF maps.", map_writes);
    e.count(
        "tortie_bpf_repairs",
        "Number of eBPF maps, programs and pins repaired after another process changed them.",
        repairs,
    );
}
