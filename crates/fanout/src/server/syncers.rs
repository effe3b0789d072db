//! Syncers other than Felix's, each read while it has clients.

use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tortie_datastore::Watching;
use tortie_resources::syncer::SyncerType;

use crate::cache::{Cache, CacheLimits, Hub, Instance};
use crate::counters::{SyncerCounters, SyncerStats};
use crate::typha::{BoxError, Hubs};

/// Function that begins to read a syncer other than Felix's, or returns the reason why it cannot.
type Open = Box<dyn Fn(SyncerType) -> Result<Watching, BoxError> + Send + Sync>;

/// Sources of the syncers other than Felix's.
///
/// Each syncer has a separate source and cache, which Felix's clients do not see. They begin with
/// its first client and end some time after its last one, so that an unused syncer costs nothing.
pub struct SyncerSources {
    syncers: Vec<SyncerType>,
    open: Open,
}

impl SyncerSources {
    /// Serves Felix's syncer alone.
    #[must_use]
    pub fn none() -> Self {
        Self { syncers: Vec::new(), open: Box::new(|_| Err("it is not served".into())) }
    }

    /// Serves all syncers. `open` begins to read one. If it fails, the reason is logged and the
    /// clients of that syncer are disconnected.
    #[must_use]
    pub fn all(
        open: impl Fn(SyncerType) -> Result<Watching, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        let syncers = SyncerType::ALL.into_iter().filter(|syncer| *syncer != SyncerType::Felix).collect();
        Self { syncers, open: Box::new(open) }
    }
}

impl fmt::Debug for SyncerSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncerSources").field("syncers", &self.syncers).finish_non_exhaustive()
    }
}

/// The hubs of all syncers.
pub(crate) struct Syncers {
    felix: Hub,
    sources: SyncerSources,
    limits: CacheLimits,
    pace: Duration,
    slots: Mutex<[Slot; SyncerType::ALL.len()]>,
    /// Counters of the syncers other than Felix's, kept while they are not read.
    counters: [Arc<SyncerCounters>; SyncerType::ALL.len()],
}

/// State of one syncer.
#[derive(Default)]
struct Slot {
    clients: usize,
    reading: Option<Reading>,
    /// Time at which its last client left.
    idle: Option<Instant>,
}

/// Reading of a syncer; ends when dropped.
struct Reading {
    hub: Hub,
    stop: Arc<AtomicBool>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl Syncers {
    pub(super) fn new(felix: Hub, sources: SyncerSources, limits: CacheLimits, pace: Duration) -> Self {
        Self { felix, sources, limits, pace, slots: Mutex::default(), counters: Default::default() }
    }

    /// Returns the syncers that clients may ask for.
    pub(super) fn served(&self) -> Vec<SyncerType> {
        [SyncerType::Felix].into_iter().chain(self.sources.syncers.iter().copied()).collect()
    }

    /// Returns the number of syncers that have clients or had some a short time ago, including
    /// Felix's.
    pub(super) fn in_use(&self) -> usize {
        1 + self.lock().iter().filter(|slot| slot.reading.is_some()).count()
    }

    /// Returns the hub of a syncer that is read.
    pub(super) fn hub(&self, syncer: SyncerType) -> Option<Hub> {
        if syncer == SyncerType::Felix {
            return Some(self.felix.clone());
        }
        let slots = self.lock();
        slots.get(syncer as usize)?.reading.as_ref().map(|reading| reading.hub.clone())
    }

    /// Returns the statistics of a syncer.
    pub(super) fn stats(&self, syncer: SyncerType) -> SyncerStats {
        let hub = self.hub(syncer);
        let stats = hub.as_ref().map(Hub::stats);
        match (syncer, self.counters.get(syncer as usize)) {
            (SyncerType::Felix, _) => self.felix.counters().read(stats),
            (_, Some(counters)) => counters.read(stats),
            (_, None) => SyncerStats::default(),
        }
    }

    /// Ends the syncers that have had no client for `linger`.
    pub(super) fn tidy(&self, linger: Duration) {
        for (slot, syncer) in self.lock().iter_mut().zip(SyncerType::ALL) {
            if slot.idle.is_some_and(|since| since.elapsed() >= linger) {
                (slot.reading, slot.idle) = (None, None);
                tracing::info!(%syncer, "this syncer has no more clients; it is not read any longer");
            }
        }
    }

    /// Ends all syncers.
    pub(super) fn end(&self) {
        for slot in self.lock().iter_mut() {
            slot.reading = None;
        }
    }

    fn read(&self, syncer: SyncerType) -> Result<Reading, BoxError> {
        let upstream = (self.sources.open)(syncer)?;
        let instance = Instance(RandomState::new().hash_one(std::process::id()));
        let counters = self.counters.get(syncer as usize).cloned().unwrap_or_default();
        let hub = Hub::counted(Cache::new(instance, self.limits, Instant::now()), counters);
        let stop = Arc::new(AtomicBool::new(false));
        let reading = Reading { hub: hub.clone(), stop: Arc::clone(&stop) };
        let pace = self.pace;
        let fill = move || {
            let Watching { events, resend: _ } = upstream;
            hub.fill(&events, pace, || !stop.load(Ordering::Acquire));
        };
        thread::Builder::new().name(syncer.as_str().into()).spawn(fill)?;
        tracing::info!(%syncer, "a client asks for this syncer; it is read");
        Ok(reading)
    }

    fn lock(&self) -> MutexGuard<'_, [Slot; SyncerType::ALL.len()]> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hub in use by a client.
pub(crate) struct Lease {
    hub: Hub,
    /// Syncer that loses a client when the lease ends; `None` for Felix's.
    of: Option<(Arc<Syncers>, SyncerType)>,
}

impl AsRef<Hub> for Lease {
    fn as_ref(&self) -> &Hub {
        &self.hub
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((syncers, syncer)) = self.of.take() else { return };
        if let Some(slot) = syncers.lock().get_mut(syncer as usize) {
            slot.clients = slot.clients.saturating_sub(1);
            if slot.clients == 0 {
                slot.idle = Some(Instant::now());
            }
        }
    }
}

impl Hubs for Arc<Syncers> {
    type Lease = Lease;

    fn lease(&self, syncer: SyncerType) -> Result<Lease, BoxError> {
        if syncer == SyncerType::Felix {
            return Ok(Lease { hub: self.felix.clone(), of: None });
        }
        let mut slots = self.lock();
        let slot = slots.get_mut(syncer as usize).ok_or("it is not served")?;
        let hub = match &slot.reading {
            // A source does not normally end by itself. If it has, the syncer is read again.
            Some(reading) if !reading.hub.upstream().ended => reading.hub.clone(),
            _ => slot.reading.insert(self.read(syncer)?).hub.clone(),
        };
        slot.clients += 1;
        slot.idle = None;
        Ok(Lease { hub, of: Some((Arc::clone(self), syncer)) })
    }
}
