//! Metrics of a fan-out server, by Typha's names if it has them (`typha/pkg/snapcache`,
//! `typha/pkg/syncserver`).

use tortie_datastore::Quantiles;
use tortie_fanout::cache::{CacheStats, Upstream};
use tortie_fanout::server::{Server, ServerStats, SyncerStats};
use tortie_resources::syncer::SyncerType;

use tortie_telemetry::exposition::{Exposition, as_f64};

#[must_use]
pub(super) fn expose(server: &Server, log_errors: u64) -> String {
    let syncers = SyncerType::ALL.map(|syncer| (syncer.as_str(), server.stats_of(syncer)));
    text(server.stats(), server.hub().stats(), &server.hub().upstream(), &syncers, log_errors)
}

/// Returns the metrics of an idle server.
#[must_use]
pub(crate) fn example() -> String {
    let syncers = SyncerType::ALL.map(|syncer| (syncer.as_str(), SyncerStats::default()));
    text(ServerStats::default(), CacheStats::default(), &Upstream::default(), &syncers, 0)
}

fn text(
    stats: ServerStats,
    cache: CacheStats,
    upstream: &Upstream,
    syncers: &[(&str, SyncerStats)],
    log_errors: u64,
) -> String {
    let mut e = Exposition::default();
    e.count("typha_logs_dropped", "Number of dropped log messages.", 0);
    e.count("typha_log_errors", "Number of error messages logged.", log_errors);
    e.count("typha_connections_accepted", "Total number of connections accepted over time.", stats.accepted);
    e.count("typha_connections_dropped", "Connections closed to rebalance clients over servers.", stats.rebalanced);
    e.level("typha_connections_active", "Open client connections, including those in handshake.", stats.active);
    per_syncer(&mut e, syncers);

    e.count(
        "tortie_fanout_connections_refused",
        "Connections rejected because of a limit or by the protocol.",
        stats.refused,
    );
    e.count("tortie_fanout_handshakes_failed", "Failed handshakes.", stats.handshakes_failed);
    e.count("tortie_fanout_connections_resumed", "Connections resumed without a new snapshot.", stats.resumed);
    e.count("tortie_fanout_connections_too_slow", "Clients disconnected because they read too slowly.", stats.too_slow);
    e.count("tortie_fanout_connections_silent", "Clients disconnected after missed heartbeats.", stats.silent);
    let bytes_sent = syncers.iter().map(|(_, stats)| stats.bytes_sent).sum();
    e.count("tortie_fanout_sent_bytes", "Bytes sent to clients, before TLS.", bytes_sent);
    e.count("tortie_fanout_updates_refused", "Updates that cannot be sent to clients.", cache.refused);
    e.level(
        "tortie_fanout_log_breadcrumbs",
        "Breadcrumbs kept for reconnecting clients.",
        cache.log_breadcrumbs as u64,
    );
    e.level("tortie_fanout_upstream_problems", "Invalid objects of the datastore.", upstream.problems.len() as u64);
    let up = u64::from(upstream.unavailable.is_none() && !upstream.ended);
    e.level("tortie_fanout_upstream_up", "1 if the datastore can be read, otherwise 0.", up);
    e.finish()
}

/// Writes the metrics that Typha has for each syncer. As in Typha, all exist from the start.
fn per_syncer(e: &mut Exposition, syncers: &[(&str, SyncerStats)]) {
    let mut level = |name: &str, help: &str, value: fn(&SyncerStats) -> u64| {
        with_samples(syncers, value, |samples| e.gauge(name, help, samples));
    };
    level("typha_connections_streaming", "Client connections that receive updates.", |stats| stats.streaming);
    level("typha_breadcrumb_seq_number", "Sequence number of the newest breadcrumb.", |stats| stats.sequence);
    level("typha_cache_size", "Objects in the cache.", |stats| stats.entries as u64);
    level("typha_snapshot_raw_bytes", "Bytes of the last snapshot before compression.", |stats| {
        stats.snapshot_raw_bytes
    });
    level("typha_snapshot_compressed_bytes", "Bytes of the last snapshot after compression.", |stats| {
        stats.snapshot_bytes
    });

    let mut count = |name: &str, help: &str, value: fn(&SyncerStats) -> u64| {
        with_samples(syncers, value, |samples| e.counters(name, help, samples));
    };
    count(
        "typha_connections_grace_used",
        "Connections whose client was too slow in the grace period after its snapshot.",
        |stats| stats.grace_used,
    );
    count(
        "typha_breadcrumb_non_block",
        "Breadcrumbs that were available when a client requested the next one.",
        |stats| stats.breadcrumbs_ready,
    );
    count("typha_breadcrumb_block", "Breadcrumbs that a client had to wait for.", |stats| stats.breadcrumbs_awaited);
    count("typha_updates_total", "Updates received from the datastore.", |stats| stats.updates);
    count("typha_updates_skipped", "Updates that changed nothing.", |stats| stats.skipped);
    count("typha_snapshots_generated", "Snapshots written.", |stats| stats.snapshots_written);
    count("typha_snapshots_reused", "Snapshots reused for another client.", |stats| stats.snapshots_shared);

    let mut summary = |name: &str, help: &str, values: fn(&SyncerStats) -> &Quantiles| {
        let all: Vec<_> = syncers.iter().map(|(syncer, stats)| (*syncer, values(stats))).collect();
        e.quantiles_by(name, help, "syncer", &all);
    };
    summary("typha_breadcrumb_size", "Number of changes in each breadcrumb.", |stats| &stats.breadcrumb_sizes);
    summary("typha_client_snapshot_send_secs", "Seconds to send a snapshot to a client.", |stats| &stats.snapshot_send);
    summary(
        "typha_client_latency_secs",
        "Seconds from the receipt of a change to the end of its transmission to a client.",
        |stats| &stats.latency,
    );
    summary("typha_client_write_latency_secs", "Seconds of each write to a client.", |stats| &stats.write);
    summary(
        "typha_next_breadcrumb_latency_secs",
        "Seconds to get the next breadcrumb for a lagging client.",
        |stats| &stats.next_breadcrumb,
    );
    summary("typha_ping_latency", "Seconds from a ping to the response of the client.", |stats| &stats.round_trip);
    summary("typha_kvs_per_msg", "Number of objects in each message of updates.", |stats| &stats.objects);
}

fn with_samples(
    syncers: &[(&str, SyncerStats)],
    value: fn(&SyncerStats) -> u64,
    expose: impl FnOnce(&[(&[(&str, &str)], f64)]),
) {
    let samples: Vec<_> = syncers.iter().map(|(syncer, stats)| ([("syncer", *syncer)], as_f64(value(stats)))).collect();
    let samples: Vec<(&[(&str, &str)], f64)> = samples.iter().map(|(labels, value)| (&labels[..], *value)).collect();
    expose(&samples);
}
