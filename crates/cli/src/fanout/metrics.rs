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
pub fn example() -> String {
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
    e.count("typha_logs_dropped", "Number of messages that were not logged.", 0);
    e.count("typha_log_errors", "Number of error messages logged.", log_errors);
    e.count("typha_connections_accepted", "Total number of connections accepted over time.", stats.accepted);
    e.count("typha_connections_dropped", "Connections sent elsewhere for rebalancing.", stats.rebalanced);
    e.level("typha_connections_active", "Open client connections, handshakes included.", stats.active);
    per_syncer(&mut e, syncers);

    e.count("tortie_fanout_connections_refused", "Connections refused.", stats.refused);
    e.count(
        "tortie_fanout_handshakes_failed",
        "Connections that failed before they were of use.",
        stats.handshakes_failed,
    );
    e.count("tortie_fanout_connections_resumed", "Clients that went on where they were.", stats.resumed);
    e.count("tortie_fanout_connections_too_slow", "Clients cut off for being too slow.", stats.too_slow);
    e.count("tortie_fanout_connections_silent", "Clients cut off for being silent.", stats.silent);
    let bytes_sent = syncers.iter().map(|(_, stats)| stats.bytes_sent).sum();
    e.count("tortie_fanout_sent_bytes", "Bytes sent to clients, before TLS.", bytes_sent);
    e.count("tortie_fanout_updates_refused", "Updates that cannot be sent on.", cache.refused);
    e.level(
        "tortie_fanout_log_breadcrumbs",
        "Breadcrumbs kept for clients that come back.",
        cache.log_breadcrumbs as u64,
    );
    e.level(
        "tortie_fanout_upstream_problems",
        "Objects that are not used as they are.",
        upstream.problems.len() as u64,
    );
    let up = u64::from(upstream.unavailable.is_none() && !upstream.ended);
    e.level("tortie_fanout_upstream_up", "Whether the datastore can be read.", up);
    e.finish()
}

/// Writes the metrics that Typha has for each syncer. As in Typha, all exist from the start.
fn per_syncer(e: &mut Exposition, syncers: &[(&str, SyncerStats)]) {
    let mut level = |name: &str, help: &str, value: fn(&SyncerStats) -> u64| {
        with_samples(syncers, value, |samples| e.gauge(name, help, samples));
    };
    level("typha_connections_streaming", "Client connections that get updates.", |stats| stats.streaming);
    level("typha_breadcrumb_seq_number", "The newest breadcrumb: groups of changes so far.", |stats| stats.sequence);
    level("typha_cache_size", "Objects in the cache.", |stats| stats.entries as u64);
    level("typha_snapshot_raw_bytes", "Size of the last snapshot before compression.", |stats| {
        stats.snapshot_raw_bytes
    });
    level("typha_snapshot_compressed_bytes", "Size of the last snapshot.", |stats| stats.snapshot_bytes);

    let mut count = |name: &str, help: &str, value: fn(&SyncerStats) -> u64| {
        with_samples(syncers, value, |samples| e.counters(name, help, samples));
    };
    count("typha_connections_grace_used", "Connections that needed the time after their snapshot.", |stats| {
        stats.grace_used
    });
    count("typha_breadcrumb_non_block", "Breadcrumbs that were there when a client wanted the next one.", |stats| {
        stats.breadcrumbs_ready
    });
    count("typha_breadcrumb_block", "Breadcrumbs that a client had to wait for.", |stats| stats.breadcrumbs_awaited);
    count("typha_updates_total", "Updates received from the datastore.", |stats| stats.updates);
    count("typha_updates_skipped", "Updates that changed nothing.", |stats| stats.skipped);
    count("typha_snapshots_generated", "Snapshots written.", |stats| stats.snapshots_written);
    count("typha_snapshots_reused", "Snapshots given to a further client.", |stats| stats.snapshots_shared);

    let mut summary = |name: &str, help: &str, values: fn(&SyncerStats) -> &Quantiles| {
        let all: Vec<_> = syncers.iter().map(|(syncer, stats)| (*syncer, values(stats))).collect();
        e.quantiles_by(name, help, "syncer", &all);
    };
    summary("typha_breadcrumb_size", "Changes in each breadcrumb.", |stats| &stats.breadcrumb_sizes);
    summary("typha_client_snapshot_send_secs", "Time to send the snapshot to a client.", |stats| &stats.snapshot_send);
    summary("typha_client_latency_secs", "Age of changes when they have been sent.", |stats| &stats.latency);
    summary("typha_client_write_latency_secs", "Time of writes to clients.", |stats| &stats.write);
    summary(
        "typha_next_breadcrumb_latency_secs",
        "Time to get the next breadcrumb for a client that is behind.",
        |stats| &stats.next_breadcrumb,
    );
    summary("typha_ping_latency", "Time until a client answers.", |stats| &stats.round_trip);
    summary("typha_kvs_per_msg", "Objects in each message of changes.", |stats| &stats.objects);
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
