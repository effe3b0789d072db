//! Leader election among several controllers.

use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::lease::{Record, micro_time};

/// Name and timing of the lease. The defaults are those of the Kubernetes components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectorConfig {
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// Unique name of this candidate.
    pub identity: String,
    /// Validity of a lease from the moment when other candidates see it change; 15 s by default.
    pub lease_duration: Duration,
    /// Time for which the leader acts, from the start of its last successful renewal; 10 s by
    /// default. It is less than [`ElectorConfig::lease_duration`], so that the leader stops before
    /// another candidate takes over. The difference covers operations in progress and clocks of
    /// different speeds.
    pub renew_deadline: Duration,
    /// Interval between attempts; 2 s by default.
    pub retry_period: Duration,
}

impl ElectorConfig {
    /// Returns the configuration of a lease with this name, held for 15 s, renewed every 2 s and
    /// given up after 10 s.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Candidate of a leader election by a lease
/// (`k8s.io/client-go/tools/leaderelection/leaderelection.go`).
///
/// The caller executes the request from [`LeaderElector::next`] and passes its result to
/// [`LeaderElector::answer`]. The elector trusts no clock of another machine: a lease has expired
/// when, by the local clock, it has not changed for its duration.
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use tortie_controller::elector::{Answer, LeaderElector, ElectorConfig, Request};
///
/// let now = Instant::now();
/// let mut elector = LeaderElector::new(ElectorConfig::new("kube-system", "tortie-controller", "node-1"), now);
/// assert_eq!(elector.next(now, SystemTime::now(), 0.5), Request::Get);
/// elector.answer(Answer::Absent, now);
/// let Request::Create(lease) = elector.next(now, SystemTime::now(), 0.5) else { panic!("there is none") };
/// elector.answer(Answer::Written(lease), now);
/// assert!(elector.leads(now));
/// assert!(!elector.leads(now + Duration::from_secs(10)));
/// ```
#[derive(Debug)]
pub struct LeaderElector {
    config: ElectorConfig,
    /// Last known lease.
    observed: Option<ObservedLease>,
    /// Start of the last successful renewal; `None` if this candidate does not hold the lease.
    renewed: Option<Instant>,
    term: u64,
    step: Step,
}

#[derive(Debug)]
struct ObservedLease {
    lease: Value,
    record: Record,
    /// Time when this record was first seen.
    at: Instant,
    /// True if this is the latest known version, which an update can replace.
    last: bool,
}

#[derive(Debug)]
enum Step {
    /// Nothing to do before this time.
    Rest(Instant),
    /// A read of the lease is in progress.
    Getting,
    /// The lease does not exist.
    Absent,
    /// The lease has been read.
    Decide,
    /// A write of the lease is in progress since this time.
    Writing(Instant),
}

/// Next action of the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Read the lease.
    Get,
    /// Create this lease.
    Create(Value),
    /// Replace the lease with this one, if its version is unchanged.
    Update(Value),
    /// Wait until this time.
    Rest(Instant),
}

/// Result of a [`Request`].
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The lease that was read.
    Found(Value),
    /// The lease does not exist.
    Absent,
    /// The lease was written; this is the object that the server returned.
    Written(Value),
    /// Another process changed the lease first.
    Overtaken,
    /// The request failed, and its effect is unknown.
    Failed,
}

impl LeaderElector {
    /// Returns a candidate that starts now.
    #[must_use]
    pub fn new(config: ElectorConfig, now: Instant) -> Self {
        Self { config, observed: None, renewed: None, term: 0, step: Step::Rest(now) }
    }

    /// Reports whether this candidate leads now. The caller must check this before each operation
    /// that is reserved to the leader. The operation must not take longer than the lease remains
    /// valid after the renewal deadline.
    #[must_use]
    pub fn leads(&self, now: Instant) -> bool {
        self.leads_until().is_some_and(|until| now < until)
    }

    /// Returns the end of its leadership if no further renewal succeeds.
    #[must_use]
    pub fn leads_until(&self) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + self.config.renew_deadline)
    }

    /// Returns the number of times that this candidate became the leader. Another may have led
    /// between two terms.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Returns the last known holder of the lease; empty if it has none.
    #[must_use]
    pub fn holder(&self) -> &str {
        self.observed.as_ref().map_or("", |observed| &observed.record.holder)
    }

    /// Returns the next request. `chance`, between 0 and 1, spreads the attempts of waiting
    /// candidates.
    pub fn next(&mut self, now: Instant, wall: SystemTime, chance: f64) -> Request {
        match &self.step {
            Step::Rest(until) if now < *until => Request::Rest(*until),
            Step::Rest(_) => match self.renewal(wall).filter(|_| self.leads(now)) {
                // No other candidate can have taken the lease, so it is updated without a read.
                Some(lease) => self.write(Request::Update(lease), now),
                _ => {
                    self.step = Step::Getting;
                    Request::Get
                }
            },
            Step::Absent => {
                let record = self.record(wall, None);
                let lease = record.object(&self.config.namespace, &self.config.name);
                self.write(Request::Create(lease), now)
            }
            Step::Decide => match &self.observed {
                Some(observed) if self.is_free(observed, now) => {
                    let lease = self.record(wall, Some(&observed.record)).replace_in(&observed.lease);
                    self.write(Request::Update(lease), now)
                }
                _ => self.rest(now, chance),
            },
            // The last request has no answer: the caller has abandoned it.
            Step::Getting | Step::Writing(_) => self.rest(now, chance),
        }
    }

    fn write(&mut self, request: Request, now: Instant) -> Request {
        self.step = Step::Writing(now);
        request
    }

    fn rest(&mut self, now: Instant, chance: f64) -> Request {
        // The leader renews on time; a waiting candidate may be a little later.
        let chance = if self.leads(now) { 0.0 } else { chance.clamp(0.0, 1.0) };
        let until = now + self.config.retry_period.mul_f64(1.0 + 1.2 * chance);
        self.step = Step::Rest(until);
        Request::Rest(until)
    }

    fn is_free(&self, observed: &ObservedLease, now: Instant) -> bool {
        let duration = observed.record.duration.unwrap_or(self.config.lease_duration);
        observed.record.holder.is_empty()
            || observed.record.holder == self.config.identity
            || observed.at + duration <= now
    }

    /// Returns the renewed lease; `None` if this candidate does not hold it or has to read it
    /// first.
    fn renewal(&self, wall: SystemTime) -> Option<Value> {
        let observed = self
            .observed
            .as_ref()
            .filter(|observed| observed.last && observed.record.holder == self.config.identity)?;
        Some(self.record(wall, Some(&observed.record)).replace_in(&observed.lease))
    }

    fn record(&self, wall: SystemTime, before: Option<&Record>) -> Record {
        let time = micro_time(wall);
        let own = before.filter(|before| before.holder == self.config.identity);
        let (acquired, transitions) = match (own, before) {
            (Some(own), _) => (own.acquired.clone(), own.transitions),
            (None, Some(other)) => (time.clone(), other.transitions.saturating_add(1)),
            (None, None) => (time.clone(), 0),
        };
        let holder = self.config.identity.clone();
        Record { holder, duration: Some(self.config.lease_duration), acquired, renewed: time, transitions }
    }

    /// Records the result of the last request.
    pub fn answer(&mut self, answer: Answer, now: Instant) {
        let begun = match std::mem::replace(&mut self.step, Step::Rest(now)) {
            Step::Writing(at) => Some(at),
            Step::Getting => None,
            // This answers an abandoned request.
            other => {
                self.step = other;
                return;
            }
        };
        match (answer, begun) {
            (Answer::Found(lease), None) => {
                self.see(lease, now);
                self.step = Step::Decide;
            }
            (Answer::Absent, None) => {
                self.observed = None;
                self.renewed = None;
                self.step = Step::Absent;
            }
            (Answer::Written(lease), Some(begun)) => {
                let led = self.leads(now);
                self.see(lease, now);
                self.renewed = (self.holder() == self.config.identity).then_some(begun);
                self.term += u64::from(!led);
                self.step = Step::Rest(begun + self.config.retry_period);
            }
            _ => {
                // Whether it was written is unknown, so it must be read before the next update. The
                // last known record stays, because its age shows how long another candidate still
                // holds the lease.
                if let Some(observed) = &mut self.observed {
                    observed.last = false;
                }
                self.step = Step::Rest(now + self.config.retry_period);
            }
        }
    }

    fn see(&mut self, lease: Value, now: Instant) {
        let record = Record::read(&lease);
        if record.holder != self.config.identity {
            self.renewed = None;
        }
        // Only a change of the record counts: any process may change other parts of the object.
        let at = match &self.observed {
            Some(observed) if observed.record == record => observed.at,
            _ => now,
        };
        self.observed = Some(ObservedLease { lease, record, at, last: true });
    }

    /// Gives up the lease, so that another candidate can take it at once. Returns the lease to
    /// write if this candidate holds it and knows its latest version. Call this only when no
    /// operation that is reserved to the leader is in progress.
    pub fn release(&mut self, now: Instant, wall: SystemTime) -> Option<Value> {
        let leads = self.leads(now);
        self.renewed = None;
        let observed = self
            .observed
            .take()
            .filter(|observed| leads && observed.last && observed.record.holder == self.config.identity)?;
        let time = micro_time(wall);
        let record = Record {
            holder: String::new(),
            duration: Some(Duration::from_secs(1)),
            acquired: time.clone(),
            renewed: time,
            transitions: observed.record.transitions,
        };
        Some(record.replace_in(&observed.lease))
    }
}

#[cfg(test)]
mod tests;
