//! What a server of the fan-out counts, under Typha's names where it counts the same (`typha/pkg/snapcache`,
//! `typha/pkg/syncserver`).

use tortie_fanout::server::{Server, Total};

use super::{Exposition, Summary, as_f64};

/// The figures in Prometheus' text format.
#[must_use]
pub fn expose(server: &Server) -> String {
    let (stats, cache, upstream) = (server.stats(), server.hub().stats(), server.hub().upstream());
    let mut e = Exposition::default();
    e.count("typha_connections_accepted", "Total number of connections accepted over time.", stats.accepted);
    e.count("typha_connections_dropped", "Connections sent elsewhere for rebalancing.", stats.rebalanced);
    e.level("typha_connections_active", "Open client connections, handshakes included.", stats.active);
    // These Typha tells by whom they serve; here that is always Felix.
    e.label_all(&[("syncer", "felix")]);
    e.level("typha_connections_streaming", "Client connections that get updates.", stats.streaming);
    e.count("typha_connections_grace_used", "Connections that needed the time after their snapshot.", stats.grace_used);
    e.level("typha_breadcrumb_seq_number", "The newest breadcrumb: groups of changes so far.", cache.sequence);
    e.count(
        "typha_breadcrumb_non_block",
        "Breadcrumbs that were there when a client wanted the next one.",
        stats.breadcrumbs_ready,
    );
    e.count("typha_breadcrumb_block", "Breadcrumbs that a client had to wait for.", stats.breadcrumbs_awaited);
    let sizes = Summary { count: cache.sequence, sum: cache.deltas };
    e.summary("typha_breadcrumb_size", "Changes in each breadcrumb.", &sizes);
    e.count("typha_updates_total", "Updates received from the datastore.", cache.updates);
    e.count("typha_updates_skipped", "Updates that changed nothing.", cache.skipped);
    e.level("typha_cache_size", "Objects in the cache.", cache.entries as u64);
    e.count("typha_snapshots_generated", "Snapshots written.", stats.snapshots_written);
    e.count("typha_snapshots_reused", "Snapshots given to a further client.", stats.snapshots_shared);
    e.level("typha_snapshot_raw_bytes", "Size of the last snapshot before compression.", stats.snapshot_raw_bytes);
    e.level("typha_snapshot_compressed_bytes", "Size of the last snapshot.", stats.snapshot_bytes);
    times(&mut e, "typha_client_snapshot_send_secs", "Time to send the snapshot to a client.", stats.snapshot_send);
    times(&mut e, "typha_client_latency_secs", "Age of changes when they have been sent.", stats.latency);
    times(&mut e, "typha_client_write_latency_secs", "Time of writes to clients.", stats.write);
    times(&mut e, "typha_ping_latency", "Time until a client answers.", stats.round_trip);
    let Total { count, sum } = stats.objects;
    e.summary("typha_kvs_per_msg", "Objects in each write.", &Summary { count, sum });
    e.label_all(&[]);

    e.count("tortie_fanout_connections_refused", "Connections refused.", stats.refused);
    e.count(
        "tortie_fanout_handshakes_failed",
        "Connections that failed before they were of use.",
        stats.handshakes_failed,
    );
    e.count("tortie_fanout_connections_resumed", "Clients that went on where they were.", stats.resumed);
    e.count("tortie_fanout_connections_too_slow", "Clients cut off for being too slow.", stats.too_slow);
    e.count("tortie_fanout_connections_silent", "Clients cut off for being silent.", stats.silent);
    e.count("tortie_fanout_sent_bytes", "Bytes sent to clients, before TLS.", stats.bytes_sent);
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

fn times(e: &mut Exposition, name: &str, help: &str, total: Total) {
    e.seconds(name, help, total.count, as_f64(total.sum) / 1e6);
}
