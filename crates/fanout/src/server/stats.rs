//! What a server counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often something happened, and how much it came to together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// How often.
    pub count: u64,
    /// The sum; microseconds for times.
    pub sum: u64,
}

/// What a server has done so far, and what it is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections taken.
    pub accepted: u64,
    /// Connections that are open.
    pub active: u64,
    /// Connections whose clients get updates.
    pub streaming: u64,
    /// Connections refused, because there were too many or by the protocol.
    pub refused: u64,
    /// Connections that failed before their clients had said what they want.
    pub handshakes_failed: u64,
    /// Clients sent elsewhere, because there were more than this server's share.
    pub rebalanced: u64,
    /// Clients cut off for being too slow.
    pub too_slow: u64,
    /// Clients cut off for being silent.
    pub silent: u64,
    /// Clients that were too slow while that is forgiven.
    pub grace_used: u64,
    /// Clients that went on where they were.
    pub resumed: u64,
    /// Times until a snapshot was sent.
    pub snapshot_send: Total,
    /// Ages of changes when they had been sent.
    pub latency: Total,
    /// Times of writes.
    pub write: Total,
    /// Times until a client answered a heartbeat.
    pub round_trip: Total,
    /// Objects in writes.
    pub objects: Total,
    /// Bytes written, before TLS.
    pub bytes_sent: u64,
    /// Breadcrumbs that were there already when a client wanted the next one.
    pub breadcrumbs_ready: u64,
    /// Breadcrumbs that a client had to wait for.
    pub breadcrumbs_awaited: u64,
    /// Snapshots written.
    pub snapshots_written: u64,
    /// Snapshots given to a further client.
    pub snapshots_shared: u64,
    /// The size of the last snapshot uncompressed.
    pub snapshot_raw_bytes: u64,
    /// The size of the last snapshot.
    pub snapshot_bytes: u64,
}

/// A number that many tasks count up.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Sum {
    count: Counter,
    sum: Counter,
}

impl Sum {
    pub(crate) fn add(&self, amount: u64) {
        self.count.add(1);
        self.sum.add(amount);
    }

    pub(crate) fn time(&self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    fn total(&self) -> Total {
        Total { count: self.count.get(), sum: self.sum.get() }
    }
}

/// The live numbers behind [`ServerStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accepted: Counter,
    pub(crate) streaming: Counter,
    pub(crate) refused: Counter,
    pub(crate) handshakes_failed: Counter,
    pub(crate) rebalanced: Counter,
    pub(crate) too_slow: Counter,
    pub(crate) silent: Counter,
    pub(crate) grace_used: Counter,
    pub(crate) resumed: Counter,
    pub(crate) snapshot_send: Sum,
    pub(crate) latency: Sum,
    pub(crate) write: Sum,
    pub(crate) round_trip: Sum,
    pub(crate) objects: Sum,
    pub(crate) bytes_sent: Counter,
    pub(crate) breadcrumbs_ready: Counter,
    pub(crate) breadcrumbs_awaited: Counter,
    pub(crate) snapshot_raw_bytes: Counter,
    pub(crate) snapshot_bytes: Counter,
}

impl Counters {
    pub(crate) fn read(&self, active: u64, (snapshots_written, snapshots_shared): (u64, u64)) -> ServerStats {
        ServerStats {
            accepted: self.accepted.get(),
            active,
            streaming: self.streaming.get(),
            refused: self.refused.get(),
            handshakes_failed: self.handshakes_failed.get(),
            rebalanced: self.rebalanced.get(),
            too_slow: self.too_slow.get(),
            silent: self.silent.get(),
            grace_used: self.grace_used.get(),
            resumed: self.resumed.get(),
            snapshot_send: self.snapshot_send.total(),
            latency: self.latency.total(),
            write: self.write.total(),
            round_trip: self.round_trip.total(),
            objects: self.objects.total(),
            bytes_sent: self.bytes_sent.get(),
            breadcrumbs_ready: self.breadcrumbs_ready.get(),
            breadcrumbs_awaited: self.breadcrumbs_awaited.get(),
            snapshots_written,
            snapshots_shared,
            snapshot_raw_bytes: self.snapshot_raw_bytes.get(),
            snapshot_bytes: self.snapshot_bytes.get(),
        }
    }
}
