//! Work queue without duplicates, and its rate limiter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Keys that wait for a worker. A key waits at most once, however often it is added, and at most
/// one worker has it. If a key is added while a worker has it, it waits again once the worker is
/// done (`k8s.io/client-go/util/workqueue/{queue,delaying_queue}.go`).
#[derive(Debug)]
pub struct WorkQueue<K> {
    /// Ready keys in the order of arrival.
    ready: VecDeque<K>,
    /// Keys to do: the ready ones, and those added while a worker had them.
    dirty: BTreeSet<K>,
    /// Keys that workers have.
    working: BTreeSet<K>,
    /// Keys that become ready later.
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
    /// Adds a key.
    pub fn add(&mut self, key: K) {
        if self.dirty.insert(key.clone()) && !self.working.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// Adds a key at this time; of several times, the earliest counts.
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

    /// Returns the next key for a worker, which must call [`WorkQueue::done`] afterwards.
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

    /// Records that a worker is done with a key.
    pub fn done(&mut self, key: &K) {
        if self.working.remove(key) && self.dirty.contains(key) {
            self.ready.push_back(key.clone());
        }
    }

    /// Returns the time when the next delayed key becomes ready.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns the number of keys that wait for a worker, ready or delayed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.dirty.len() + self.later.keys().filter(|key| !self.dirty.contains(key)).count()
    }

    /// Reports whether no key waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dirty.is_empty() && self.later.is_empty()
    }

    /// Returns the number of keys that workers have.
    #[must_use]
    pub fn working(&self) -> usize {
        self.working.len()
    }

    /// Removes all waiting keys. Keys that workers have stay with them.
    pub fn clear(&mut self) {
        self.ready.clear();
        self.dirty.clear();
        self.later.clear();
        self.due.clear();
    }
}

/// Rate limiter of retries. The pause doubles with each failure of a key, and grows further when
/// all keys together exceed the overall rate (`DefaultTypedControllerRateLimiter` in
/// `k8s.io/client-go/util/workqueue/default_rate_limiters.go`).
#[derive(Debug)]
pub struct RateLimiter<K> {
    failures: BTreeMap<K, u32>,
    /// Number of retries allowed now; negative if later ones are already reserved.
    tokens: f64,
    counted: Option<Instant>,
}

/// Pause after the first failure, doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1000);
/// Retries per second, of all keys together.
const RATE: f64 = 10.0;
/// Burst of retries, of all keys together.
const BURST: f64 = 100.0;

impl<K> Default for RateLimiter<K> {
    fn default() -> Self {
        Self { failures: BTreeMap::new(), tokens: BURST, counted: None }
    }
}

impl<K: Ord> RateLimiter<K> {
    /// Records a failure of a key and returns the pause before its retry.
    pub fn failed(&mut self, key: K, now: Instant) -> Duration {
        let failures = self.failures.entry(key).or_default();
        let own = 2_u32.checked_pow(*failures).map_or(LONGEST_PAUSE, |factor| FIRST_PAUSE.saturating_mul(factor));
        *failures = failures.saturating_add(1);
        own.min(LONGEST_PAUSE).max(self.reserve(now))
    }

    /// Takes a token and returns the time until it is available.
    fn reserve(&mut self, now: Instant) -> Duration {
        let passed = self.counted.map_or(Duration::ZERO, |counted| now.saturating_duration_since(counted));
        self.counted = Some(now);
        self.tokens = (self.tokens + passed.as_secs_f64() * RATE).min(BURST) - 1.0;
        Duration::try_from_secs_f64(-self.tokens / RATE).unwrap_or_default()
    }

    /// Returns the number of consecutive failures of a key.
    #[must_use]
    pub fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or_default()
    }

    /// Resets the failures of a key that has succeeded or is given up.
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Resets all failures.
    pub fn clear(&mut self) {
        self.failures.clear();
    }
}

#[cfg(test)]
mod tests;
