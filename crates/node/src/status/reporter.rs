//! Writes of status, and their times.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tortie_config::Config;
use tortie_dataplane::{EndpointStatus, StatusChange};
use tortie_datastore::store::timestamp;
use tortie_model::{Family, Hostname};
use tortie_resources::path;

use crate::engine::ProcessStatus;

/// The first report of the process comes after this time, when there is something to report.
const FIRST: Duration = Duration::from_secs(10);
/// Number of delays between two comparisons of the datastore with the desired status.
const DELAYS_BETWEEN_COMPARISONS: u32 = 180;
const KEY_RETRY: Duration = Duration::from_secs(2);

/// Settings of status reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSettings {
    /// The node.
    pub host: Hostname,
    /// The region of `OpenStack`; empty for none.
    pub region: String,
    /// Interval of reports of this process; `None` for no reports.
    pub process_every: Option<Duration>,
    /// Time to live of such a report.
    pub process_ttl: Duration,
    /// Minimum time between two writes about endpoints; `None` if endpoints are not reported.
    pub endpoint_delay: Option<Duration>,
}

impl StatusSettings {
    /// Settings from Felix's parameters. A driver reports its process itself, in its own intervals.
    #[must_use]
    pub fn new(config: &Config, host: Hostname, has_driver: bool) -> Self {
        Self {
            host,
            region: config.openstack_region.clone(),
            process_every: Some(config.reporting_interval).filter(|interval| !has_driver && !interval.is_zero()),
            process_ttl: config.reporting_ttl,
            endpoint_delay: config.endpoint_reporting_enabled.then_some(config.endpoint_reporting_delay),
        }
    }
}

/// A job in the datastore; its result goes to [`Reporter::done`].
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// Write the process's report: to a path where it expires, and to one where it stays.
    Process {
        /// Path where it expires.
        active: String,
        /// Path where it stays.
        last: String,
        /// Text.
        text: String,
        /// Time to live.
        ttl: Duration,
    },
    /// Write the status of an endpoint, or delete it.
    Endpoint {
        /// Path.
        path: String,
        /// The status; `None` for an endpoint that is gone.
        status: Option<EndpointStatus>,
    },
    /// Write a public key of `WireGuard` into the node's resource.
    WireguardKey {
        /// The node.
        host: Hostname,
        /// Family of the key.
        family: Family,
        /// The key; empty for none.
        key: String,
    },
    /// Read the statuses of endpoints in the datastore.
    Compare {
        /// Prefixes of their paths.
        prefixes: [String; 2],
    },
}

/// Result of a [`Job`].
#[derive(Clone, Debug, PartialEq)]
pub enum JobResult {
    /// It was written.
    Written,
    /// This was read: paths and texts.
    Read(Vec<(String, String)>),
    /// It failed.
    Failed,
}

/// Decides on writes and their times. Pure: time and chance are arguments.
#[derive(Debug)]
pub struct Reporter {
    settings: StatusSettings,
    started: Instant,
    next_process: Option<Instant>,
    process_status: Option<ProcessStatus>,
    reported: bool,
    /// Keys that the node's resource may not have yet.
    wireguard_keys: BTreeMap<Family, String>,
    next_key: Instant,
    desired: BTreeMap<String, EndpointStatus>,
    /// The paths that are to be written, each once.
    queue: VecDeque<String>,
    next_write: Instant,
    /// Time of the next comparison; `None` until everything is in force.
    next_comparison: Option<Instant>,
}

/// Returns a time after this pause, up to a tenth later, so that nodes which started together do
/// not write together.
fn after(now: Instant, pause: Duration, chance: f64) -> Instant {
    now + pause + pause.mul_f64(chance.clamp(0.0, 1.0) / 10.0)
}

impl Reporter {
    /// A reporter that has received no statuses of endpoints yet.
    #[must_use]
    pub fn new(settings: StatusSettings, now: Instant) -> Self {
        Self {
            next_process: settings.process_every.map(|_| now + FIRST),
            settings,
            started: now,
            process_status: None,
            reported: false,
            wireguard_keys: BTreeMap::new(),
            next_key: now,
            desired: BTreeMap::new(),
            queue: VecDeque::new(),
            next_write: now,
            next_comparison: None,
        }
    }

    /// Begins a session, in which the engine will send all endpoints again.
    pub fn begin(&mut self, settings: StatusSettings, now: Instant) {
        self.next_process = match (settings.process_every, self.next_process) {
            (Some(_), None) => Some(now),
            (Some(every), Some(next)) => Some(next.min(now + every)),
            (None, _) => None,
        };
        self.settings = settings;
        self.wireguard_keys.clear();
        self.desired.clear();
        self.queue.clear();
        self.next_comparison = None;
    }

    /// Takes the status of a driver's process, which replaces this process's own report. Only the
    /// last one counts, and is written once (`handleProcessStatusUpdate` of
    /// `felix/daemon/daemon.go`).
    pub fn on_process_status(&mut self, sign: ProcessStatus) {
        self.process_status = Some(sign);
    }

    /// Takes this node's public key of `WireGuard`; empty for none.
    pub fn on_wireguard_key(&mut self, family: Family, key: String) {
        self.wireguard_keys.insert(family, key);
    }

    /// Takes the changed status of an endpoint.
    pub fn change(&mut self, change: &StatusChange) {
        if self.settings.endpoint_delay.is_none() {
            return;
        }
        let StatusSettings { region, host, .. } = &self.settings;
        let (path, status) = match change {
            StatusChange::Workload(id, status) => (path::workload_status(region, host, id), *status),
            StatusChange::Host(name, status) => (path::host_endpoint_status(host, name), *status),
        };
        let before = match status {
            Some(status) => self.desired.insert(path.clone(), status),
            None => self.desired.remove(&path),
        };
        if before != status {
            self.enqueue(path);
        }
    }

    /// All updates so far are in force: statuses of other endpoints in the datastore are out of
    /// date.
    pub fn in_force(&mut self, now: Instant) {
        self.next_comparison.get_or_insert(now);
    }

    fn enqueue(&mut self, path: String) {
        if !self.queue.contains(&path) {
            self.queue.push_back(path);
        }
    }

    /// Returns the time of the next job; `None` if only an event can cause one.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let write = (!self.queue.is_empty()).then_some(self.next_write);
        let comparison = self.next_comparison.filter(|_| self.settings.endpoint_delay.is_some());
        let key = (!self.wireguard_keys.is_empty()).then_some(self.next_key);
        [self.next_process, write, comparison, key].into_iter().flatten().min()
    }

    /// Returns the next job. `chance` is between 0 and 1.
    #[must_use]
    pub fn next(&mut self, now: Instant, clock: SystemTime, chance: f64) -> Option<Job> {
        if let (Some(every), Some(next)) = (self.settings.process_every, self.next_process)
            && next <= now
        {
            self.next_process = Some(after(now, every, chance));
            let uptime = now.saturating_duration_since(self.started).as_secs_f64();
            return Some(self.process(&ProcessStatus { time: timestamp(clock), uptime }));
        }
        if let Some(sign) = self.process_status.take() {
            return Some(self.process(&sign));
        }
        if let Some((family, key)) = self.wireguard_keys.first_key_value().filter(|_| self.next_key <= now) {
            let job = Job::WireguardKey { host: self.settings.host.clone(), family: *family, key: key.clone() };
            self.next_key = after(now, KEY_RETRY, chance);
            return Some(job);
        }
        let delay = self.settings.endpoint_delay?;
        if self.next_comparison.is_some_and(|next| next <= now) {
            self.next_comparison = Some(after(now, delay.saturating_mul(DELAYS_BETWEEN_COMPARISONS), chance));
            let StatusSettings { region, host, .. } = &self.settings;
            return Some(Job::Compare { prefixes: path::endpoint_status_prefixes(region, host) });
        }
        if self.next_write > now {
            return None;
        }
        let path = self.queue.front()?.clone();
        self.next_write = after(now, delay, chance);
        let status = self.desired.get(&path).copied();
        Some(Job::Endpoint { path, status })
    }

    fn process(&self, ProcessStatus { time, uptime }: &ProcessStatus) -> Job {
        let StatusSettings { region, host, process_ttl, .. } = &self.settings;
        let [active, last] = path::process_status(region, host);
        let text = json!({
            "time": time,
            "uptime": uptime,
            "first_update": !self.reported,
        });
        Job::Process { active, last, text: text.to_string(), ttl: *process_ttl }
    }

    /// Takes the result of a job. A failed write is retried before any other.
    pub fn done(&mut self, job: &Job, outcome: JobResult) {
        match (job, outcome) {
            (Job::Process { .. }, JobResult::Written) => self.reported = true,
            (Job::Endpoint { path, status }, JobResult::Written)
                if self.queue.front() == Some(path) && self.desired.get(path) == status.as_ref() =>
            {
                self.queue.pop_front();
            }
            (Job::WireguardKey { family, key, .. }, JobResult::Written)
                if self.wireguard_keys.get(family) == Some(key) =>
            {
                self.wireguard_keys.remove(family);
            }
            (Job::Compare { .. }, JobResult::Read(stored)) => self.compare(&stored),
            _ => {}
        }
    }

    fn compare(&mut self, stored: &[(String, String)]) {
        let status_in = |text: &str| {
            let value: Value = serde_json::from_str(text).ok()?;
            value.get("status")?.as_str().map(str::to_owned)
        };
        let mut missing: BTreeSet<&String> = self.desired.keys().collect();
        let mut wrong = Vec::new();
        for (path, text) in stored {
            missing.remove(path);
            if status_in(text).as_deref() != self.desired.get(path).map(|status| status.as_str()) {
                wrong.push(path.clone());
            }
        }
        wrong.extend(missing.into_iter().cloned());
        for path in wrong {
            self.enqueue(path);
        }
    }
}

#[cfg(test)]
mod tests;
