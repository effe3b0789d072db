//! Counters of each syncer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tortie_datastore::Quantiles;

/// Statistics of a server for the clients of one syncer.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SyncerStats {
    /// Connections whose clients get updates.
    pub streaming: u64,
    /// Clients that were too slow during their grace period.
    pub grace_used: u64,
    /// Number of the newest breadcrumb; 0 if the syncer is not read.
    pub sequence: u64,
    /// Objects in the cache; 0 if the syncer is not read.
    pub entries: usize,
    /// Updates from the source.
    pub updates: u64,
    /// Updates that changed nothing.
    pub skipped: u64,
    /// Changes in each breadcrumb.
    pub breadcrumb_sizes: Quantiles,
    /// Breadcrumbs that already existed when a client requested the next one.
    pub breadcrumbs_ready: u64,
    /// Breadcrumbs that a client had to wait for.
    pub breadcrumbs_awaited: u64,
    /// Times to get the next breadcrumb for a client that lags.
    pub next_breadcrumb: Quantiles,
    /// Snapshots written.
    pub snapshots_written: u64,
    /// Snapshots given to a further client.
    pub snapshots_shared: u64,
    /// The size of the last snapshot uncompressed.
    pub snapshot_raw_bytes: u64,
    /// The size of the last snapshot.
    pub snapshot_bytes: u64,
    /// Times until a snapshot was sent.
    pub snapshot_send: Quantiles,
    /// Ages of changes when they had been sent.
    pub latency: Quantiles,
    /// Times of writes.
    pub write: Quantiles,
    /// Times until a client answered.
    pub round_trip: Quantiles,
    /// Objects in each message of changes.
    pub objects: Quantiles,
    /// Bytes written, before TLS.
    pub bytes_sent: u64,
}

/// Counter shared by many tasks.
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

/// Values observed by many tasks.
#[derive(Debug, Default)]
pub(crate) struct Observations(Mutex<Quantiles>);

impl Observations {
    fn within(window: Duration) -> Self {
        Self(Mutex::new(Quantiles::within(window)))
    }

    pub(crate) fn time(&self, time: Duration) {
        self.with(|values, now| values.observe(time, now));
    }

    /// Observes the time since `begin`.
    pub(crate) fn since(&self, begin: Instant) {
        self.with(|values, now| values.observe(now.saturating_duration_since(begin), now));
    }

    /// Observes a size; 0 is ignored.
    pub(crate) fn size(&self, size: usize) {
        self.with(|values, now| values.observe_size(size, now));
    }

    fn with(&self, observe: impl FnOnce(&mut Quantiles, Instant)) {
        let now = Instant::now();
        observe(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), now);
    }

    fn get(&self) -> Quantiles {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The live numbers behind [`SyncerStats`].
#[derive(Debug)]
pub(crate) struct SyncerCounters {
    pub(crate) streaming: Counter,
    pub(crate) grace_used: Counter,
    pub(crate) updates: Counter,
    pub(crate) skipped: Counter,
    pub(crate) breadcrumb_sizes: Observations,
    pub(crate) breadcrumbs_ready: Counter,
    pub(crate) breadcrumbs_awaited: Counter,
    pub(crate) next_breadcrumb: Observations,
    pub(crate) snapshots_written: Counter,
    pub(crate) snapshots_shared: Counter,
    pub(crate) snapshot_raw_bytes: Counter,
    pub(crate) snapshot_bytes: Counter,
    pub(crate) snapshot_send: Observations,
    pub(crate) latency: Observations,
    pub(crate) write: Observations,
    pub(crate) round_trip: Observations,
    pub(crate) objects: Observations,
    pub(crate) bytes_sent: Counter,
}

impl Default for SyncerCounters {
    fn default() -> Self {
        Self {
            streaming: Counter::default(),
            grace_used: Counter::default(),
            updates: Counter::default(),
            skipped: Counter::default(),
            breadcrumb_sizes: Observations::default(),
            breadcrumbs_ready: Counter::default(),
            breadcrumbs_awaited: Counter::default(),
            next_breadcrumb: Observations::default(),
            snapshots_written: Counter::default(),
            snapshots_shared: Counter::default(),
            snapshot_raw_bytes: Counter::default(),
            snapshot_bytes: Counter::default(),
            snapshot_send: Observations::default(),
            // As in Typha, so that a peak disappears soon.
            latency: Observations::within(Duration::from_secs(60)),
            write: Observations::default(),
            round_trip: Observations::default(),
            objects: Observations::default(),
            bytes_sent: Counter::default(),
        }
    }
}

/// Counts a client as streaming until dropped.
#[derive(Debug)]
pub(crate) struct Streaming(Arc<SyncerCounters>);

impl Streaming {
    pub(crate) fn begin(counters: &Arc<SyncerCounters>) -> Self {
        counters.streaming.add(1);
        Self(Arc::clone(counters))
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.streaming.sub(1);
    }
}

impl SyncerCounters {
    /// Returns the statistics. `cache` has the counters of the syncer's cache, if the syncer is
    /// read.
    pub(crate) fn read(&self, cache: Option<CacheStats>) -> SyncerStats {
        let cache = cache.unwrap_or_default();
        SyncerStats {
            streaming: self.streaming.get(),
            grace_used: self.grace_used.get(),
            sequence: cache.sequence,
            entries: cache.entries,
            updates: self.updates.get(),
            skipped: self.skipped.get(),
            breadcrumb_sizes: self.breadcrumb_sizes.get(),
            breadcrumbs_ready: self.breadcrumbs_ready.get(),
            breadcrumbs_awaited: self.breadcrumbs_awaited.get(),
            next_breadcrumb: self.next_breadcrumb.get(),
            snapshots_written: self.snapshots_written.get(),
            snapshots_shared: self.snapshots_shared.get(),
            snapshot_raw_bytes: self.snapshot_raw_bytes.get(),
            snapshot_bytes: self.snapshot_bytes.get(),
            snapshot_send: self.snapshot_send.get(),
            latency: self.latency.get(),
            write: self.write.get(),
            round_trip: self.round_trip.get(),
            objects: self.objects.get(),
            bytes_sent: self.bytes_sent.get(),
        }
    }
}

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Objects in the cache.
    pub entries: usize,
    /// Number of the newest breadcrumb.
    pub sequence: u64,
    /// Updates from the source.
    pub updates: u64,
    /// Updates that changed nothing.
    pub skipped: u64,
    /// Updates that were refused: too large, or without a path.
    pub refused: u64,
    /// Changes in all breadcrumbs.
    pub deltas: u64,
    /// Breadcrumbs kept for reconnecting clients.
    pub log_breadcrumbs: usize,
}
