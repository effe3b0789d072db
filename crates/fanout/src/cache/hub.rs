//! Cache shared between the thread that fills it and the clients that follow it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tortie_datastore::{Event, Events, InputProblem};

use super::{Breadcrumb, Cache, CacheStats, Instance, Snapshot, WireFormat};
use crate::counters::SyncerCounters;

/// Time for which further clients get an encoded snapshot. They then follow from the breadcrumb at
/// which it was taken.
const SHARE: Duration = Duration::from_secs(5);

/// Maximum number of queued events that are taken before pending changes are published.
const EVENTS: usize = 16;

/// Maximum wait for an event before `go_on` is called again.
const IDLE: Duration = Duration::from_millis(200);

/// Shared cache; clones refer to the same one.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

struct Shared {
    cache: Mutex<Cache>,
    upstream: watch::Sender<Arc<Upstream>>,
    newest: watch::Sender<u64>,
    written: [AsyncMutex<Option<Arc<WireSnapshot>>>; WireFormat::COUNT],
    counters: Arc<SyncerCounters>,
}

/// State of the source that fills the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// Reason why the source is unavailable; `None` if it is available.
    pub unavailable: Option<String>,
    /// Problems of its objects.
    pub problems: Vec<InputProblem>,
    /// Objects that cannot be sent to clients.
    pub refused: Vec<InputProblem>,
    /// Whether the source has ended, so that no more events follow.
    pub ended: bool,
}

/// Encoded snapshot.
#[derive(Debug)]
pub struct WireSnapshot {
    /// Encoded objects and the breadcrumb from which a client follows.
    pub base: Snapshot,
    /// The bytes, as pieces to be sent in sequence.
    pub pieces: Vec<Bytes>,
    /// Uncompressed size in bytes.
    pub raw_bytes: u64,
    made: Instant,
}

impl WireSnapshot {
    /// Creates a snapshot from its pieces; `raw_bytes` is its uncompressed size.
    #[must_use]
    pub fn new(base: Snapshot, pieces: Vec<Bytes>, raw_bytes: u64) -> Self {
        Self { base, pieces, raw_bytes, made: Instant::now() }
    }

    /// Returns its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// Subscription of a client to new breadcrumbs.
#[derive(Debug)]
pub struct Subscription {
    newest: watch::Receiver<u64>,
    counters: Arc<SyncerCounters>,
    /// Whether the next breadcrumb was missing when it was first requested.
    waits: bool,
}

impl Subscription {
    /// Waits for the breadcrumb after this one and returns it; `None` if the hub is gone.
    pub async fn next(&mut self, breadcrumb: &Breadcrumb) -> Option<Arc<Breadcrumb>> {
        loop {
            // Marked as seen before the check, so that a breadcrumb published in between ends the
            // wait.
            self.newest.borrow_and_update();
            if let Some(next) = self.ready(breadcrumb) {
                return Some(next);
            }
            self.waits = true;
            self.newest.changed().await.ok()?;
        }
    }

    /// Returns the breadcrumb after this one, if it exists.
    pub fn ready(&mut self, breadcrumb: &Breadcrumb) -> Option<Arc<Breadcrumb>> {
        let begin = Instant::now();
        let next = Arc::clone(breadcrumb.next()?);
        if std::mem::take(&mut self.waits) {
            self.counters.breadcrumbs_awaited.add(1);
        } else {
            self.counters.breadcrumbs_ready.add(1);
            self.counters.next_breadcrumb.since(begin);
        }
        Some(next)
    }
}

impl Hub {
    /// Shares a cache.
    #[must_use]
    pub fn new(cache: Cache) -> Self {
        Self::counted(cache, Arc::default())
    }

    /// Shares a cache and counts its work in `counters`.
    pub(crate) fn counted(cache: Cache, counters: Arc<SyncerCounters>) -> Self {
        let (newest, _) = watch::channel(cache.head().sequence);
        let shared = Shared {
            cache: Mutex::new(cache),
            upstream: watch::channel(Arc::default()).0,
            newest,
            written: Default::default(),
            counters,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Fills the cache with the events of a source until the source ends or `go_on` returns false.
    /// `go_on` is called several times a second. A change is published at once; further changes
    /// within `pace` are published together.
    pub fn fill(&self, events: &Events, pace: Duration, go_on: impl Fn() -> bool) {
        let mut published = None::<Instant>;
        let mut waiting = false;
        while go_on() {
            let now = Instant::now();
            let due = published.map_or(Duration::ZERO, |at| (at + pace).saturating_duration_since(now));
            if waiting && due.is_zero() {
                (0..EVENTS).map_while(|_| events.try_recv().ok()).for_each(|event| self.take(event));
                self.publish(now);
                published = Some(now);
                waiting = false;
            }
            let event = if waiting { events.try_recv().ok() } else { events.recv_timeout(IDLE) };
            match event {
                Some(event) => {
                    waiting = true;
                    self.take(event);
                }
                // Waking up for each change costs more than the change.
                None if waiting => std::thread::sleep(due.min(IDLE)),
                None => {
                    self.tidy(Instant::now());
                    if events.has_ended() {
                        tracing::error!("the source of the datastore has ended");
                        self.change_upstream(|upstream| upstream.ended = true);
                        return;
                    }
                }
            }
        }
    }

    /// Applies an event of a source. Clients see it after [`Hub::publish`].
    pub fn take(&self, event: Event) {
        match event {
            Event::Problems(problems) => {
                for problem in &problems {
                    tracing::warn!(%problem, "an object of the datastore is not used as it is");
                }
                self.change_upstream(|upstream| upstream.problems = problems);
            }
            Event::Unavailable { why, .. } => {
                tracing::warn!(why, "the datastore cannot be read; the known objects stay");
                self.change_upstream(|upstream| upstream.unavailable = Some(why));
            }
            Event::Available => {
                tracing::info!("the datastore can be read again");
                self.change_upstream(|upstream| upstream.unavailable = None);
            }
            event => {
                let refused = {
                    let mut cache = self.lock();
                    let before = cache.stats();
                    cache.apply(event, Instant::now());
                    let after = cache.stats();
                    self.shared.counters.updates.add(after.updates - before.updates);
                    self.shared.counters.skipped.add(after.skipped - before.skipped);
                    cache.changed_refused()
                };
                if let Some(refused) = refused {
                    self.change_upstream(|upstream| upstream.refused = refused);
                }
            }
        }
    }

    /// Publishes breadcrumbs for the applied events and wakes the subscriptions.
    pub fn publish(&self, now: Instant) {
        let sequence = {
            let mut cache = self.lock();
            let mut last = Arc::clone(cache.head());
            let published = cache.publish(now).then(|| cache.head().sequence);
            while let Some(next) = last.next().cloned() {
                self.shared.counters.breadcrumb_sizes.size(next.deltas.len());
                last = next;
            }
            published
        };
        if let Some(sequence) = sequence {
            self.shared.newest.send_replace(sequence);
        }
        self.tidy(now);
    }

    /// Returns all objects as of the newest breadcrumb.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.lock().snapshot()
    }

    /// Returns the newest breadcrumb.
    #[must_use]
    pub fn head(&self) -> Arc<Breadcrumb> {
        Arc::clone(self.lock().head())
    }

    /// Returns the breadcrumb from which a client resumes; `None` if the client has to restart.
    #[must_use]
    pub fn resume(&self, instance: Instance, sequence: u64) -> Option<Arc<Breadcrumb>> {
        self.lock().resume(instance, sequence)
    }

    /// Returns the identity of the cache.
    #[must_use]
    pub fn instance(&self) -> Instance {
        self.lock().instance()
    }

    /// Returns a new subscription to the breadcrumbs.
    #[must_use]
    pub fn subscription(&self) -> Subscription {
        let counters = Arc::clone(&self.shared.counters);
        Subscription { newest: self.shared.newest.subscribe(), counters, waits: false }
    }

    /// Returns the snapshot in this format. `write` encodes it on a blocking thread, unless a
    /// snapshot of the last seconds exists. Concurrent callers share one snapshot.
    pub async fn written(
        &self,
        format: WireFormat,
        write: impl FnOnce(Snapshot) -> WireSnapshot + Send + 'static,
    ) -> Option<Arc<WireSnapshot>> {
        let mut place = self.shared.written.get(format as usize)?.lock().await;
        let base = self.snapshot();
        let counters = &self.shared.counters;
        if let Some(written) = &*place
            && (written.made.elapsed() < SHARE || written.base.breadcrumb.sequence == base.breadcrumb.sequence)
            && written.base.breadcrumb.status == base.breadcrumb.status
        {
            counters.snapshots_shared.add(1);
            return Some(Arc::clone(written));
        }
        let written = Arc::new(tokio::task::spawn_blocking(move || write(base)).await.ok()?);
        counters.snapshots_written.add(1);
        counters.snapshot_raw_bytes.set(written.raw_bytes);
        counters.snapshot_bytes.set(written.bytes());
        *place = Some(Arc::clone(&written));
        Some(written)
    }

    /// Returns the counters of the syncer.
    pub(crate) fn counters(&self) -> &Arc<SyncerCounters> {
        &self.shared.counters
    }

    /// Returns the counters of the cache.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.lock().stats()
    }

    /// Returns the state of the source.
    #[must_use]
    pub fn upstream(&self) -> Arc<Upstream> {
        Arc::clone(&self.shared.upstream.borrow())
    }

    /// Returns a receiver for changes of the source's state.
    pub(crate) fn watch_upstream(&self) -> watch::Receiver<Arc<Upstream>> {
        self.shared.upstream.subscribe()
    }

    /// Drops encoded snapshots that are too old to be shared, because each keeps all later
    /// breadcrumbs alive.
    fn tidy(&self, now: Instant) {
        for place in &self.shared.written {
            if let Ok(mut place) = place.try_lock()
                && place.as_ref().is_some_and(|written| now.saturating_duration_since(written.made) >= SHARE)
            {
                *place = None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_upstream(&self, change: impl FnOnce(&mut Upstream)) {
        self.shared.upstream.send_modify(|upstream| change(Arc::make_mut(upstream)));
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("stats", &self.stats()).finish()
    }
}
