//! State machine that schedules the jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tortie_datastore::store::Listing;
use tortie_net::with_causes;

use crate::cluster::{Cluster, DesiredObject, Observed, Watched};
use crate::item::Item;
use crate::queue::{RateLimiter, WorkQueue};
use crate::same::is_like;
use crate::work::{Done, Job, JobError, Task, follows, pod_of};

/// Number of retries of a failing item before it is left to the next comparison.
const RETRIES: u32 = 5;
/// Pause before the comparison after one that failed, or after an item was given up; doubled after
/// each further one.
const COMPARISON_PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause if comparisons are not periodic.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Tracks the Kubernetes objects and the state of the datastore that follows them.
///
/// The controller writes nothing before [`Controller::lead`], and nothing of a kind before its
/// first list is complete. Then it compares all its resources of the kind with Kubernetes, at once
/// and periodically, and repairs differences. It also writes each later change of Kubernetes. A
/// failing write is retried five times with growing pauses and then left to the next comparison
/// (`kube-controllers/pkg/cache/cache.go`, `kube-controllers/pkg/controllers/*`). kube-controllers
/// waits a full period for that comparison. This controller advances it, so that a datastore outage
/// of a second does not leave a policy out of force for minutes.
#[derive(Debug)]
pub struct Controller {
    period: Duration,
    cluster: Cluster,
    leads: bool,
    queue: WorkQueue<Item>,
    limiter: RateLimiter<Item>,
    comparisons: BTreeMap<Watched, Comparison>,
    /// Pod endpoints with other names than the usual one, as last listed.
    odd_endpoints: BTreeMap<Item, BTreeSet<String>>,
    status: Status,
    failing: BTreeMap<Item, String>,
}

#[derive(Debug, Default)]
struct Comparison {
    /// Time of the next comparison; `None` if none is scheduled.
    due: Option<Instant>,
    running: bool,
    /// Number of consecutive failures, or of items given up, since the last success.
    failures: u32,
    /// A comparison has succeeded since this controller leads.
    compared: bool,
    error: Option<String>,
}

/// Next action of a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Run this job, then call [`Controller::done`].
    Job(Job),
    /// Wait until this time or the next event; `None`: until the next event.
    Wait(Option<Instant>),
}

/// Progress of a controller. Counters cover its whole life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// True if it may write.
    pub leads: bool,
    /// True if all Kubernetes objects are known and, on the leader, compared with the datastore
    /// since it leads.
    pub in_sync: bool,
    /// Number of objects that wait to be written or are being written.
    pub waiting: usize,
    /// Number of created resources.
    pub created: usize,
    /// Number of updated resources.
    pub updated: usize,
    /// Number of deleted resources.
    pub deleted: usize,
    /// Number of retries.
    pub retries: usize,
    /// Number of items given up until the next comparison.
    pub given_up: usize,
    /// Number of successful comparisons.
    pub comparisons: usize,
    /// Number of failed comparisons.
    pub failed_comparisons: usize,
}

impl Controller {
    /// Returns a controller that compares everything at the beginning and then once per period;
    /// zero disables later comparisons.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        Self {
            period,
            cluster: Cluster::default(),
            leads: false,
            queue: WorkQueue::default(),
            limiter: RateLimiter::default(),
            comparisons: BTreeMap::new(),
            odd_endpoints: BTreeMap::new(),
            status: Status::default(),
            failing: BTreeMap::new(),
        }
    }

    /// Records a watch event of Kubernetes.
    pub fn observe(&mut self, kind: Watched, observed: Observed<'_>, now: Instant) {
        let was_synced = self.cluster.synced(kind);
        let different = self.cluster.observe(kind, observed);
        if !self.leads || !self.cluster.synced(kind) {
            return;
        }
        if !was_synced {
            self.comparisons.insert(kind, Comparison { due: Some(now), ..Comparison::default() });
        }
        for item in different {
            // The desired state is new, so earlier failures do not count.
            self.limiter.forget(&item);
            self.queue.add(item);
        }
    }

    /// Allows the controller to write. It first compares everything, unless it leads already.
    pub fn lead(&mut self, now: Instant) {
        if self.leads {
            return;
        }
        self.leads = true;
        for kind in Watched::ALL {
            let running = self.comparisons.get(&kind).is_some_and(|comparison| comparison.running);
            let due = self.cluster.synced(kind).then_some(now);
            self.comparisons.insert(kind, Comparison { due, running, ..Comparison::default() });
        }
    }

    /// Forbids the controller to write. Running jobs should be abandoned; the controller does not
    /// rely on their results.
    pub fn follow(&mut self) {
        if !self.leads {
            return;
        }
        self.leads = false;
        self.queue.clear();
        self.limiter.clear();
        self.failing.clear();
        self.odd_endpoints.clear();
        for comparison in self.comparisons.values_mut() {
            *comparison = Comparison { running: comparison.running, ..Comparison::default() };
        }
    }

    /// Returns the next action of a worker.
    pub fn next(&mut self, now: Instant) -> Next {
        if !self.leads {
            return Next::Wait(None);
        }
        let due = self
            .comparisons
            .iter_mut()
            .find(|(_, comparison)| !comparison.running && comparison.due.is_some_and(|due| due <= now));
        if let Some((kind, comparison)) = due {
            comparison.running = true;
            comparison.due = None;
            return Next::Job(Job { task: Task::Reconcile(*kind) });
        }
        if let Some(item) = self.queue.take(now) {
            let wanted = self.cluster.get(&item).cloned();
            let endpoints = self.odd_endpoints.get(&item).into_iter().flatten().cloned().collect();
            return Next::Job(Job { task: Task::Sync { item, wanted, endpoints } });
        }
        let comparisons = self.comparisons.values().filter(|comparison| !comparison.running);
        Next::Wait(comparisons.filter_map(|comparison| comparison.due).chain(self.queue.next_due()).min())
    }

    /// Records the result of a job.
    pub fn done(&mut self, job: Job, result: Result<Done, JobError>, now: Instant) {
        match job.task {
            Task::Reconcile(kind) => self.compared(kind, result, now),
            Task::Sync { item, .. } => {
                self.queue.done(&item);
                self.synced(item, result, now);
            }
        }
    }

    fn synced(&mut self, item: Item, result: Result<Done, JobError>, now: Instant) {
        let error = match result {
            Ok(done) => {
                self.status.created += done.created;
                self.status.updated += done.updated;
                self.status.deleted += done.deleted;
                self.limiter.forget(&item);
                self.failing.remove(&item);
                return;
            }
            Err(error) => error,
        };
        if !self.leads {
            return;
        }
        self.failing.insert(item.clone(), with_causes(&error));
        if self.limiter.failures(&item) < RETRIES {
            let pause = self.limiter.failed(item.clone(), now);
            self.queue.add_at(item, now + pause);
            self.status.retries += 1;
        } else {
            self.limiter.forget(&item);
            self.status.given_up += 1;
            if let Some(kind) = Watched::ALL.into_iter().find(|kind| kind.makes(&item)) {
                self.compare_soon(kind, now);
            }
        }
    }

    fn compare_soon(&mut self, kind: Watched, now: Instant) {
        let comparison = self.comparisons.entry(kind).or_default();
        let longest = if self.period.is_zero() { LONGEST_PAUSE } else { self.period };
        let soon = now + COMPARISON_PAUSE.saturating_mul(2_u32.saturating_pow(comparison.failures)).min(longest);
        // Several items that are given up together count as one failure.
        if comparison.due.is_none_or(|due| due > soon) {
            comparison.failures = comparison.failures.saturating_add(1);
            comparison.due = Some(soon);
        }
    }

    fn compared(&mut self, kind: Watched, result: Result<Done, JobError>, now: Instant) {
        let converged = !self.failing.keys().any(|item| kind.makes(item));
        let comparison = self.comparisons.entry(kind).or_default();
        comparison.running = false;
        // Another comparison may have been requested while this one ran.
        if !self.leads || comparison.due.is_some() || !self.cluster.synced(kind) {
            return;
        }
        match result {
            Err(error) => {
                comparison.error = Some(with_causes(&error));
                self.status.failed_comparisons += 1;
                self.compare_soon(kind, now);
            }
            Ok(done) => {
                comparison.due = (!self.period.is_zero()).then(|| now + self.period);
                comparison.compared = true;
                comparison.error = None;
                if converged {
                    comparison.failures = 0;
                }
                self.status.comparisons += 1;
                for item in self.different(kind, &done.listing.unwrap_or_default()) {
                    self.queue.add(item);
                }
            }
        }
    }

    /// Returns the items that differ from their desired state in the datastore.
    fn different(&mut self, kind: Watched, listing: &Listing) -> Vec<Item> {
        if kind == Watched::Pods {
            return self.different_endpoints(listing);
        }
        let mut different: BTreeSet<Item> = BTreeSet::new();
        let mut absent: BTreeMap<&Item, &DesiredObject> = self.cluster.of_kind(kind).collect();
        for stored in listing.resources.iter().filter(|stored| kind.owns(&stored.key)) {
            let item = Item::Resource(stored.key.clone());
            match absent.remove(&item) {
                Some(DesiredObject::Like(resource)) if is_like(&stored.object, resource) => {}
                Some(DesiredObject::Unchanged(_) | DesiredObject::Endpoint(_)) => {}
                // It may exist in Kubernetes under a name that could not be read.
                None if self.cluster.is_incomplete(kind) => {}
                Some(DesiredObject::Like(_)) | None => {
                    different.insert(item);
                }
            }
        }
        let unreadable = listing.unreadable.iter().map(|(key, _)| key).filter(|key| kind.owns(key));
        for item in unreadable.map(|key| Item::Resource(key.clone())) {
            if absent.contains_key(&item) || !self.cluster.is_incomplete(kind) {
                different.insert(item);
            }
        }
        let wanted = absent.into_iter().filter(|(_, wanted)| **wanted != DesiredObject::Unchanged(None));
        different.extend(wanted.map(|(item, _)| item.clone()));
        different.into_iter().collect()
    }

    /// Endpoints that are missing, or whose pod is missing, are left to the CNI plugin.
    fn different_endpoints(&mut self, listing: &Listing) -> Vec<Item> {
        let mut different = BTreeSet::new();
        self.odd_endpoints.clear();
        for stored in &listing.resources {
            // Endpoints of other orchestrators follow no pod.
            let Some(pod) = pod_of(&stored.object) else { continue };
            let item = Item::Pod { namespace: stored.key.namespace().into(), name: pod.into() };
            let Some(DesiredObject::Endpoint(facts)) = self.cluster.get(&item) else { continue };
            let usual = tortie_resources::to_v3::workload_endpoint_name(&facts.node, pod);
            let is_different = !follows(&stored.object, facts);
            if usual.as_deref() != Ok(stored.key.name()) {
                self.odd_endpoints.entry(item.clone()).or_default().insert(stored.key.name().into());
            }
            if is_different {
                different.insert(item);
            }
        }
        different.into_iter().collect()
    }

    /// Returns the progress.
    #[must_use]
    pub fn status(&self) -> Status {
        let compared = |kind: Watched| self.comparisons.get(&kind).is_some_and(|comparison| comparison.compared);
        Status {
            leads: self.leads,
            in_sync: Watched::ALL.into_iter().all(|kind| self.cluster.synced(kind) && (!self.leads || compared(kind))),
            waiting: self.queue.len() + self.queue.working(),
            ..self.status.clone()
        }
    }

    /// Returns the current problems: Kubernetes objects that are invalid as a whole or in part, and
    /// resources that cannot be written or read.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let failing = self.failing.iter().map(|(item, error)| format!("{item}: {error}"));
        let unread = self.comparisons.iter().filter_map(|(kind, comparison)| {
            comparison.error.as_ref().map(|error| format!("comparing {kind}: {error}"))
        });
        self.cluster.problems().chain(unread).chain(failing).collect()
    }
}

#[cfg(test)]
mod tests;
