//! Who of several leads.

use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::lease::{Record, micro_time};

/// Where the lease is, and how it is held. The defaults are those of Kubernetes' own components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectorConfig {
    /// The namespace of the lease.
    pub namespace: String,
    /// The name of the lease.
    pub name: String,
    /// What this candidate is called; no other may be called the same.
    pub identity: String,
    /// How long a lease holds from when others have seen it change.
    pub lease_duration: Duration,
    /// How long the leader acts from when it began to renew its lease. Less than [`ElectorConfig::lease_duration`], so that
    /// it stops before another begins; the difference is for what was begun before, and for clocks that go at different
    /// speeds.
    pub renew_deadline: Duration,
    /// How often to try.
    pub retry_period: Duration,
}

impl ElectorConfig {
    /// A lease of this name, held for 15 seconds, renewed every 2, given up after 10.
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

/// One candidate of an election by a lease (`k8s.io/client-go/tools/leaderelection/leaderelection.go`).
///
/// Whoever drives it does what [`LeaderElector::next`] says and tells [`LeaderElector::answer`] what came of it. No clock of another
/// machine is believed: a lease has run out when it has not been seen to change for its duration, by one's own clock.
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
    /// The lease as it was last seen.
    seen: Option<Seen>,
    /// When the renewal was begun that succeeded last; `None` if the lease is not ours.
    renewed: Option<Instant>,
    term: u64,
    step: Step,
}

#[derive(Debug)]
struct Seen {
    lease: Value,
    record: Record,
    /// When it was first seen to say this.
    at: Instant,
    /// Whether it is the last version, as far as is known: one that can be replaced.
    last: bool,
}

#[derive(Debug)]
enum Step {
    /// Nothing to do before.
    Rest(Instant),
    /// The lease has been asked for.
    Getting,
    /// The lease is absent.
    Absent,
    /// The lease has been seen.
    Decide,
    /// A write has been asked for, at this time.
    Writing(Instant),
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Read the lease.
    Get,
    /// Create this lease.
    Create(Value),
    /// Replace the lease by this one, if it still has the version that this one has.
    Update(Value),
    /// Nothing until this time.
    Rest(Instant),
}

/// What came of a [`Request`].
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// There is a lease.
    Found(Value),
    /// There is none.
    Absent,
    /// It was written, as the server gives it back.
    Written(Value),
    /// Somebody else was faster.
    Overtaken,
    /// It is unknown whether anything was done.
    Failed,
}

impl LeaderElector {
    /// A candidate that begins now.
    #[must_use]
    pub fn new(config: ElectorConfig, now: Instant) -> Self {
        Self { config, seen: None, renewed: None, term: 0, step: Step::Rest(now) }
    }

    /// Whether this candidate leads now. What it decides must be asked again before everything that only the leader may do,
    /// which must not take longer than the lease outlasts the deadline.
    #[must_use]
    pub fn leads(&self, now: Instant) -> bool {
        self.leads_until().is_some_and(|until| now < until)
    }

    /// Until when it leads if it cannot renew its lease.
    #[must_use]
    pub fn leads_until(&self) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + self.config.renew_deadline)
    }

    /// How many times it has begun to lead. Another may have led between two terms.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Who holds the lease, as last seen; empty if nobody does.
    #[must_use]
    pub fn holder(&self) -> &str {
        self.seen.as_ref().map_or("", |seen| &seen.record.holder)
    }

    /// What to do next. `chance`, between 0 and 1, spreads candidates that wait.
    pub fn next(&mut self, now: Instant, wall: SystemTime, chance: f64) -> Request {
        match &self.step {
            Step::Rest(until) if now < *until => Request::Rest(*until),
            Step::Rest(_) => match self.renewal(wall).filter(|_| self.leads(now)) {
                // Nobody can have taken it, so it need not be read.
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
            Step::Decide => match &self.seen {
                Some(seen) if self.is_free(seen, now) => {
                    let lease = self.record(wall, Some(&seen.record)).replace_in(&seen.lease);
                    self.write(Request::Update(lease), now)
                }
                _ => self.rest(now, chance),
            },
            // What was asked for has not been answered: whoever drives this has given up on it.
            Step::Getting | Step::Writing(_) => self.rest(now, chance),
        }
    }

    fn write(&mut self, request: Request, now: Instant) -> Request {
        self.step = Step::Writing(now);
        request
    }

    fn rest(&mut self, now: Instant, chance: f64) -> Request {
        // The leader is punctual; who waits for its turn may come a little later.
        let chance = if self.leads(now) { 0.0 } else { chance.clamp(0.0, 1.0) };
        let until = now + self.config.retry_period.mul_f64(1.0 + 1.2 * chance);
        self.step = Step::Rest(until);
        Request::Rest(until)
    }

    fn is_free(&self, seen: &Seen, now: Instant) -> bool {
        let duration = seen.record.duration.unwrap_or(self.config.lease_duration);
        seen.record.holder.is_empty() || seen.record.holder == self.config.identity || seen.at + duration <= now
    }

    /// The lease as last seen, held for longer; `None` if it is not ours, or must be read first.
    fn renewal(&self, wall: SystemTime) -> Option<Value> {
        let seen = self.seen.as_ref().filter(|seen| seen.last && seen.record.holder == self.config.identity)?;
        Some(self.record(wall, Some(&seen.record)).replace_in(&seen.lease))
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

    /// Says what came of what was asked for.
    pub fn answer(&mut self, answer: Answer, now: Instant) {
        let begun = match std::mem::replace(&mut self.step, Step::Rest(now)) {
            Step::Writing(at) => Some(at),
            Step::Getting => None,
            // An answer to a question that was given up.
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
                self.seen = None;
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
                // Written or not: it must be read before it can be replaced. What was seen remains, because by that it is
                // known for how long others hold it.
                if let Some(seen) = &mut self.seen {
                    seen.last = false;
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
        // Only a change of what it says counts: anybody may touch the object.
        let at = match &self.seen {
            Some(seen) if seen.record == record => seen.at,
            _ => now,
        };
        self.seen = Some(Seen { lease, record, at, last: true });
    }

    /// Gives the lease up, for others to have it at once: the lease to write, if it is ours and its last version is known. Only for when nothing is being
    /// done any more that only the leader may do.
    pub fn release(&mut self, now: Instant, wall: SystemTime) -> Option<Value> {
        let leads = self.leads(now);
        self.renewed = None;
        let seen = self.seen.take().filter(|seen| leads && seen.last && seen.record.holder == self.config.identity)?;
        let time = micro_time(wall);
        let record = Record {
            holder: String::new(),
            duration: Some(Duration::from_secs(1)),
            acquired: time.clone(),
            renewed: time,
            transitions: seen.record.transitions,
        };
        Some(record.replace_in(&seen.lease))
    }
}

#[cfg(test)]
mod tests;
