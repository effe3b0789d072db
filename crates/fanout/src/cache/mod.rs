//! Current objects of the datastore and the trail of their changes (`typha/pkg/snapcache`).
//!
//! [`Cache`] does no I/O. It takes the events of a source and produces an ordered map of all
//! objects and a trail of [`Breadcrumb`]s with the changes. A client begins with the map as of some
//! breadcrumb and follows the trail from there. [`Hub`] shares a cache between the thread that
//! fills it and any number of clients.

mod breadcrumb;
mod entries;
mod entry;
mod format;
mod hub;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_datastore::{Event, Fallback, InputProblem};
use tortie_model::{Key, SyncStatus, Update};
use tortie_resources::{FieldProblem, Position, Severity, path};

pub use crate::counters::CacheStats;
pub use breadcrumb::{Breadcrumb, Change, Delta};
pub use entries::Entries;
pub use entry::{Audience, Entry, OwnPrefix, RemoteView};
pub use format::WireFormat;
pub use hub::{Hub, Subscription, Upstream, WireSnapshot};

/// Limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Maximum number of changes in a breadcrumb.
    pub breadcrumb_deltas: usize,
    /// Maximum age of breadcrumbs that are kept for reconnecting clients.
    pub log_age: Duration,
    /// Maximum size of the paths and values in the kept breadcrumbs, in bytes.
    pub log_bytes: u64,
    /// Maximum size of a value in bytes. A larger value cannot be sent; the object keeps its
    /// previous value.
    pub value_bytes: usize,
}

impl Default for CacheLimits {
    /// 100 changes per breadcrumb, as in Typha; breadcrumbs of the last five minutes, up to 64 MiB;
    /// values of up to 8 MiB, a multiple of the limit of a datastore.
    fn default() -> Self {
        Self {
            breadcrumb_deltas: 100,
            log_age: Duration::from_secs(300),
            log_bytes: 64 * 1024 * 1024,
            value_bytes: 8 * 1024 * 1024,
        }
    }
}

/// Identity of a cache. A sequence number is valid only in the cache that assigned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instance(pub u64);

/// All objects as of a breadcrumb.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Breadcrumb from which a client follows the changes.
    pub breadcrumb: Arc<Breadcrumb>,
    /// The objects.
    pub entries: Entries,
}

/// Objects of a datastore and the trail of their changes. Does no I/O.
///
/// ```
/// use std::time::Instant;
/// use tortie_datastore::Event;
/// use tortie_fanout::cache::{Cache, CacheLimits, Instance};
/// use tortie_model::{SyncStatus, Update};
///
/// let now = Instant::now();
/// let mut cache = Cache::new(Instance(1), CacheLimits::default(), now);
/// let start = cache.snapshot();
/// cache.apply(
///     Event::Updates { updates: vec![Update::Ready(Some(true))], noticed: now },
///     now,
/// );
/// cache.apply(Event::Status(SyncStatus::InSync), now);
/// cache.publish(now);
/// let next = start.breadcrumb.next().unwrap();
/// assert_eq!((next.deltas.len(), next.status), (1, SyncStatus::InSync));
/// ```
#[derive(Debug)]
pub struct Cache {
    instance: Instance,
    limits: CacheLimits,
    /// Includes unpublished changes.
    entries: Entries,
    pending: Vec<Delta>,
    noticed: Option<Instant>,
    status: SyncStatus,
    /// As of the newest breadcrumb.
    published: Entries,
    /// Never empty; the last is the newest.
    log: VecDeque<Arc<Breadcrumb>>,
    head: Arc<Breadcrumb>,
    /// Objects that cannot be sent, with the fallback that is in force.
    refused: BTreeMap<Key, InputProblem>,
    refused_changed: bool,
    /// Versions of the objects of the next updates, as far as the source knows them.
    versions: HashMap<Key, Arc<str>>,
    stats: CacheStats,
}

impl Cache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(instance: Instance, limits: CacheLimits, now: Instant) -> Self {
        let head = Arc::new(Breadcrumb::first(now));
        Self {
            instance,
            limits,
            entries: Entries::default(),
            pending: Vec::new(),
            noticed: None,
            status: head.status,
            published: Entries::default(),
            log: VecDeque::from([Arc::clone(&head)]),
            head,
            refused: BTreeMap::new(),
            refused_changed: false,
            versions: HashMap::new(),
            stats: CacheStats::default(),
        }
    }

    /// Applies an event of a source. Clients see it after [`Cache::publish`].
    pub fn apply(&mut self, event: Event, now: Instant) {
        match event {
            Event::Status(status) => self.status = status,
            Event::Updates { updates, noticed } => {
                let before = self.pending.len();
                let mut versions = std::mem::take(&mut self.versions);
                for update in updates {
                    let version = versions.remove(&update.key());
                    self.update(&update, version);
                }
                if self.pending.len() > before {
                    let noticed = noticed.min(now);
                    self.noticed = Some(self.noticed.map_or(noticed, |oldest| oldest.min(noticed)));
                }
            }
            Event::Versions(versions) => self.versions = versions.into_iter().collect(),
            Event::Problems(_) | Event::Unavailable { .. } | Event::Available => {}
        }
    }

    fn update(&mut self, update: &Update, version: Option<Arc<str>>) {
        self.stats.updates += 1;
        let key = update.key();
        if !update.exists() {
            self.refused_changed |= self.refused.remove(&key).is_some();
            return self.delete(&key);
        }
        let (path, message) = match Entry::new(update, version) {
            Some(entry) if entry.value.len() <= self.limits.value_bytes => {
                self.refused_changed |= self.refused.remove(&key).is_some();
                return self.set(entry);
            }
            Some(entry) => {
                let (bytes, most) = (entry.value.len(), self.limits.value_bytes);
                (Some(entry.path), format!("has {bytes} bytes, more than the {most} that the fan-out sends"))
            }
            None => (None, "has no path in the datastore, so that the fan-out cannot send it".to_owned()),
        };
        self.refuse(key, update, path.as_deref(), message);
    }

    /// Keeps the last valid value of an object that cannot be sent. A policy without one is
    /// replaced by one that denies the endpoints that it selects.
    fn refuse(&mut self, key: Key, update: &Update, path: Option<&str>, message: String) {
        self.stats.refused += 1;
        let entry = path.and_then(|path| self.entries.get(path));
        let before = entry.map(|_| self.refused.get(&key).map_or(Fallback::NotNeeded, |earlier| earlier.fallback));
        let denial = match update {
            Update::Policy(id, Some(policy)) if path.is_some() && !id.kind.is_staged() => {
                let denial = policy.denying(&id.kind, policy.selector.clone());
                Entry::new(&Update::Policy(id.clone(), Some(denial)), None)
                    .filter(|entry| entry.value.len() <= self.limits.value_bytes)
            }
            _ => None,
        };
        let fallback = Fallback::of_unusable(before, denial.is_some());
        if let Some(denial) = denial.filter(|_| fallback == Fallback::Denied) {
            self.set(denial);
        }
        let problem = FieldProblem::new(Severity::Error, Position::default(), "", message);
        let problem = InputProblem::new(key.to_string(), problem, fallback);
        tracing::error!(%problem, "an object cannot be sent to clients");
        self.refused.insert(key, problem);
        self.refused_changed = true;
    }

    /// Returns the objects that cannot be sent to clients, if they have changed since the last
    /// call.
    pub fn changed_refused(&mut self) -> Option<Vec<InputProblem>> {
        std::mem::take(&mut self.refused_changed).then(|| self.refused.values().cloned().collect())
    }

    fn set(&mut self, entry: Entry) {
        let before = self.entries.get(&entry.path);
        if before.is_some_and(|before| before.is_equal_but_for_version(&entry)) {
            self.stats.skipped += 1;
            return;
        }
        let audience = Audience::of(before.map(|before| &**before), Some(&entry));
        let entry = Arc::new(entry);
        let before = self.entries.insert(Arc::clone(&entry));
        let change = if before.is_some() { Change::Updated } else { Change::New };
        self.pending.push(Delta { path: Arc::clone(&entry.path), entry: Some(entry), change, audience });
    }

    fn delete(&mut self, key: &Key) {
        match path::to_path(key).ok().and_then(|path| self.entries.remove(&path)) {
            Some(before) => {
                self.pending.push(Delta {
                    path: Arc::clone(&before.path),
                    entry: None,
                    change: Change::Deleted,
                    audience: Audience::of(Some(&before), None),
                });
            }
            None => self.stats.skipped += 1,
        }
    }

    /// Appends breadcrumbs for the events since the last call; none if nothing has changed. Reports
    /// whether there was a change. The last breadcrumb carries the status, so that no breadcrumb
    /// claims more than its predecessors contain.
    pub fn publish(&mut self, now: Instant) -> bool {
        let status_before = self.head.status;
        let mut rest = std::mem::take(&mut self.pending);
        let noticed = self.noticed.take();
        let changed = !rest.is_empty() || self.status != status_before;
        while !rest.is_empty() || self.status != self.head.status {
            let later = rest.split_off(rest.len().min(self.limits.breadcrumb_deltas.max(1)));
            let status = if later.is_empty() { self.status } else { status_before };
            let deltas = std::mem::replace(&mut rest, later);
            self.stats.deltas += deltas.len() as u64;
            let breadcrumb = Arc::new(self.head.followed_by(deltas.into(), status, now, noticed));
            // Set only here, and only once.
            let _ = self.head.next.set(Arc::clone(&breadcrumb));
            self.log.push_back(Arc::clone(&breadcrumb));
            self.head = breadcrumb;
        }
        self.published = self.entries.clone();
        self.trim_log(now);
        changed
    }

    /// Drops the oldest breadcrumbs beyond the limits of age and size.
    fn trim_log(&mut self, now: Instant) {
        while self.log.len() > 1
            && self.log.front().is_some_and(|oldest| {
                now.saturating_duration_since(oldest.made) > self.limits.log_age
                    || self.head.bytes_so_far - oldest.bytes_so_far > self.limits.log_bytes
            })
        {
            self.log.pop_front();
        }
    }

    /// Returns all objects as of the newest breadcrumb, in constant time.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { breadcrumb: Arc::clone(&self.head), entries: self.published.clone() }
    }

    /// Returns the breadcrumb with this number, from which a client resumes; `None` if the client
    /// has to restart.
    #[must_use]
    pub fn resume(&self, instance: Instance, sequence: u64) -> Option<Arc<Breadcrumb>> {
        let oldest = self.log.front()?.sequence;
        let at = usize::try_from(sequence.checked_sub(oldest)?).ok()?;
        if instance == self.instance { self.log.get(at).cloned() } else { None }
    }

    /// Returns the identity of the cache.
    #[must_use]
    pub fn instance(&self) -> Instance {
        self.instance
    }

    /// Returns the newest breadcrumb.
    #[must_use]
    pub fn head(&self) -> &Arc<Breadcrumb> {
        &self.head
    }

    /// Returns the counters of the cache.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            entries: self.published.len(),
            sequence: self.head.sequence,
            log_breadcrumbs: self.log.len(),
            ..self.stats
        }
    }
}

#[cfg(test)]
mod tests;
