//! What has to be done, each thing once, and not too often.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Keys that wait for a worker. A key waits at most once, however often it is added, and is with at most one worker; if it
/// is added while it is with one, it waits again once the worker is done
/// (`k8s.io/client-go/util/workqueue/{queue,delaying_queue}.go`).
#[derive(Debug)]
pub struct WorkQueue<K> {
    /// Ready, in the order of coming.
    ready: VecDeque<K>,
    /// To be done: those that are ready, and those that came while they were with a worker.
    dirty: BTreeSet<K>,
    /// With a worker.
    working: BTreeSet<K>,
    /// Ready later.
    later: BTreeMap<K, Instant>,
    due: BTreeSet<(Instant, K)>,
}

impl<K> Default for WorkQueue<K> {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            dirty: BTreeSet::new(),
            working: BTreeSet::new(),
            later: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }
}

impl<K: Clone + Ord> WorkQueue<K> {
    /// Makes a key wait for a worker.
    pub fn add(&mut self, key: K) {
        if self.dirty.insert(key.clone()) && !self.working.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// Adds a key at this time; of several times, the first counts.
    pub fn add_at(&mut self, key: K, at: Instant) {
        if let Some(already) = self.later.get(&key).copied() {
            if already <= at {
                return;
            }
            self.due.remove(&(already, key.clone()));
        }
        self.later.insert(key.clone(), at);
        self.due.insert((at, key));
    }

    /// Gives the next key to a worker, who must say so when it is [`WorkQueue::done`].
    pub fn take(&mut self, now: Instant) -> Option<K> {
        while let Some((at, _)) = self.due.first()
            && *at <= now
            && let Some((_, key)) = self.due.pop_first()
        {
            self.later.remove(&key);
            self.add(key);
        }
        let key = self.ready.pop_front()?;
        self.dirty.remove(&key);
        self.working.insert(key.clone());
        Some(key)
    }

    /// A worker is done with a key.
    pub fn done(&mut self, key: &K) {
        if self.working.remove(key) && self.dirty.contains(key) {
            self.ready.push_back(key.clone());
        }
    }

    /// When the next key becomes ready that is not yet.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// How many keys wait for a worker, now or later.
    #[must_use]
    pub fn len(&self) -> usize {
        self.dirty.len() + self.later.keys().filter(|key| !self.dirty.contains(key)).count()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dirty.is_empty() && self.later.is_empty()
    }

    /// How many keys are with workers.
    #[must_use]
    pub fn working(&self) -> usize {
        self.working.len()
    }

    /// Forgets what waits. What is with workers remains with them.
    pub fn clear(&mut self) {
        self.ready.clear();
        self.dirty.clear();
        self.later.clear();
        self.due.clear();
    }
}

/// How long to wait before something is tried again: the longer, the more often it has failed, and longer still when too
/// much is tried again at all (`DefaultTypedControllerRateLimiter` in
/// `k8s.io/client-go/util/workqueue/default_rate_limiters.go`).
#[derive(Debug)]
pub struct RateLimiter<K> {
    failures: BTreeMap<K, u32>,
    /// How many may be tried again at once; negative where the future has been spent.
    tokens: f64,
    counted: Option<Instant>,
}

/// The pause after the first failure, doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1000);
/// Of all keys together, in a second.
const RATE: f64 = 10.0;
/// Of all keys together, at once.
const BURST: f64 = 100.0;

impl<K> Default for RateLimiter<K> {
    fn default() -> Self {
        Self { failures: BTreeMap::new(), tokens: BURST, counted: None }
    }
}

impl<K: Ord> RateLimiter<K> {
    /// A key has failed: how long to wait.
    pub fn failed(&mut self, key: K, now: Instant) -> Duration {
        let failures = self.failures.entry(key).or_default();
        let own = 2_u32.checked_pow(*failures).map_or(LONGEST_PAUSE, |factor| FIRST_PAUSE.saturating_mul(factor));
        *failures = failures.saturating_add(1);
        own.min(LONGEST_PAUSE).max(self.reserve(now))
    }

    /// How long until there is a token, which is taken.
    fn reserve(&mut self, now: Instant) -> Duration {
        let passed = self.counted.map_or(Duration::ZERO, |counted| now.saturating_duration_since(counted));
        self.counted = Some(now);
        self.tokens = (self.tokens + passed.as_secs_f64() * RATE).min(BURST) - 1.0;
        Duration::try_from_secs_f64(-self.tokens / RATE).unwrap_or_default()
    }

    /// How often a key has failed.
    #[must_use]
    pub fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or_default()
    }

    /// A key has not failed, or is given up.
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Forgets all failures.
    pub fn clear(&mut self) {
        self.failures.clear();
    }
}

#[cfg(test)]
mod tests;
