//! A cache between the thread that fills it and the clients that follow it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tortie_datastore::{Event, Events, InputProblem};

use super::{Breadcrumb, Cache, CacheStats, Instance, Snapshot, WireFormat};
use crate::counters::SyncerCounters;

/// For how long a snapshot that has been written is given to more clients, which then follow from where it was made.
const SHARE: Duration = Duration::from_secs(5);

/// How many events that have come meanwhile are taken before what waits is published.
const EVENTS: usize = 16;

/// How long nothing need happen before it is looked whether to go on.
const IDLE: Duration = Duration::from_millis(200);

/// A cache that is shared; clones are the same one.
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

/// How the source is that fills the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// Why it cannot be read now; `None` if it can.
    pub unavailable: Option<String>,
    /// What is wrong with its objects.
    pub problems: Vec<InputProblem>,
    /// What cannot be sent to clients.
    pub refused: Vec<InputProblem>,
    /// It has ended; nothing new will come.
    pub ended: bool,
}

/// A snapshot, written.
#[derive(Debug)]
pub struct WireSnapshot {
    /// What was written, and from where to follow.
    pub base: Snapshot,
    /// The bytes, in pieces to be sent one after the other.
    pub pieces: Vec<Bytes>,
    /// How many bytes it would have uncompressed.
    pub raw_bytes: u64,
    made: Instant,
}

impl WireSnapshot {
    /// A snapshot in pieces that is `raw_bytes` long without compression.
    #[must_use]
    pub fn new(base: Snapshot, pieces: Vec<Bytes>, raw_bytes: u64) -> Self {
        Self { base, pieces, raw_bytes, made: Instant::now() }
    }

    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// A client's view: tells when there is more.
#[derive(Debug)]
pub struct Subscription {
    newest: watch::Receiver<u64>,
    counters: Arc<SyncerCounters>,
    /// The next breadcrumb was not there when it was first asked for.
    waits: bool,
}

impl Subscription {
    /// The breadcrumb after this one; waits until there is one. `None` if the hub is gone.
    pub async fn next(&mut self, breadcrumb: &Breadcrumb) -> Option<Arc<Breadcrumb>> {
        loop {
            // Marked as seen before looking, so that what comes in between wakes us.
            self.newest.borrow_and_update();
            if let Some(next) = self.ready(breadcrumb) {
                return Some(next);
            }
            self.waits = true;
            self.newest.changed().await.ok()?;
        }
    }

    /// The breadcrumb after this one, if there is one.
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

    /// The same; what it does is counted there.
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

    /// Fills the cache with what a source tells until the source ends or `go_on` says no, which is asked several times a
    /// second. A change goes out at once; others that come within `pace` after it go out together.
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
                // To be woken for each change costs more than the change.
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

    /// Takes what a source tells; it is seen after [`Hub::publish`].
    pub fn take(&self, event: Event) {
        match event {
            Event::Problems(problems) => {
                for problem in &problems {
                    tracing::warn!(%problem, "an object of the datastore is not used as it is");
                }
                self.change_upstream(|upstream| upstream.problems = problems);
            }
            Event::Unavailable { why, .. } => {
                tracing::warn!(why, "the datastore cannot be read; what is known stays");
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

    /// Lays breadcrumbs for what has been taken, and wakes who waits for them.
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

    /// All objects as of the newest breadcrumb.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.lock().snapshot()
    }

    /// The newest breadcrumb.
    #[must_use]
    pub fn head(&self) -> Arc<Breadcrumb> {
        Arc::clone(self.lock().head())
    }

    /// Where to go on for a client that has got this far; `None` if it has to restart.
    #[must_use]
    pub fn resume(&self, instance: Instance, sequence: u64) -> Option<Arc<Breadcrumb>> {
        self.lock().resume(instance, sequence)
    }

    /// Which cache it is.
    #[must_use]
    pub fn instance(&self) -> Instance {
        self.lock().instance()
    }

    /// Wakes when there are new breadcrumbs.
    #[must_use]
    pub fn subscription(&self) -> Subscription {
        let counters = Arc::clone(&self.shared.counters);
        Subscription { newest: self.shared.newest.subscribe(), counters, waits: false }
    }

    /// The snapshot in this format. `write` writes it, on a thread that may take its time, unless one has been written
    /// some seconds ago: all who ask meanwhile get the same one.
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

    /// Where what is done for its clients is counted.
    pub(crate) fn counters(&self) -> &Arc<SyncerCounters> {
        &self.shared.counters
    }

    /// What the cache has done.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.lock().stats()
    }

    /// How the source is.
    #[must_use]
    pub fn upstream(&self) -> Arc<Upstream> {
        Arc::clone(&self.shared.upstream.borrow())
    }

    /// Wakes when the source fares otherwise.
    pub(crate) fn watch_upstream(&self) -> watch::Receiver<Arc<Upstream>> {
        self.shared.upstream.subscribe()
    }

    /// Lets go of written snapshots that are too old to be shared: each holds all breadcrumbs since.
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
