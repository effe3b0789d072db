//! What is to be written when.

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
/// What is in the datastore is compared with what should be there every so many delays.
const DELAYS_BETWEEN_COMPARISONS: u32 = 180;

/// The least time between two attempts to write a public key.
const KEY_RETRY: Duration = Duration::from_secs(2);

/// What is reported, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSettings {
    /// The node.
    pub host: Hostname,
    /// The region of `OpenStack`; empty for none.
    pub region: String,
    /// How often this process reports itself; `None` for never.
    pub process_every: Option<Duration>,
    /// How long such a report counts.
    pub process_ttl: Duration,
    /// The least time between two writes about endpoints; `None` if nobody wants to know of endpoints.
    pub endpoint_delay: Option<Duration>,
}

impl StatusSettings {
    /// What Felix's parameters say, for a process that enforces itself or for one that has a driver, which reports
    /// itself as often as it likes.
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

/// Something to do with the datastore; afterwards [`Reporter::done`].
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// Write the process's report: to a path where it vanishes after some time, and to one where it stays.
    Process {
        /// Where it vanishes.
        active: String,
        /// Where it stays.
        last: String,
        /// What to write.
        text: String,
        /// When it vanishes.
        ttl: Duration,
    },
    /// Write the status of an endpoint, or delete it.
    Endpoint {
        /// Where.
        path: String,
        /// The status; `None` for an endpoint that is gone.
        status: Option<EndpointStatus>,
    },
    /// Let the node's resource say its public key of `WireGuard`.
    WireguardKey {
        /// The node.
        host: Hostname,
        /// Of which family.
        family: Family,
        /// The key; empty for none.
        key: String,
    },
    /// Read what is there about endpoints.
    Compare {
        /// What the paths begin with.
        prefixes: [String; 2],
    },
}

/// What came of a [`Job`].
#[derive(Clone, Debug, PartialEq)]
pub enum JobResult {
    /// It was written.
    Written,
    /// This was read: paths and texts.
    Read(Vec<(String, String)>),
    /// It did not work.
    Failed,
}

/// Knows what is to be written when. Pure: time and chance are arguments.
#[derive(Debug)]
pub struct Reporter {
    settings: StatusSettings,
    started: Instant,
    next_process: Option<Instant>,
    /// What a driver has said of itself, until it is written.
    process_status: Option<ProcessStatus>,
    /// Whether a report of the process has been written.
    reported: bool,
    /// What the node's resource is to say, as far as it may not.
    wireguard_keys: BTreeMap<Family, String>,
    next_key: Instant,
    /// How each endpoint is, by path.
    wanted: BTreeMap<String, EndpointStatus>,
    /// The paths that are to be written, each once.
    queue: VecDeque<String>,
    next_write: Instant,
    /// When to compare; `None` until everything is in force.
    next_comparison: Option<Instant>,
}

/// A time from now, up to a tenth later than asked for, so that nodes which started together do not write together.
fn after(now: Instant, pause: Duration, chance: f64) -> Instant {
    now + pause + pause.mul_f64(chance.clamp(0.0, 1.0) / 10.0)
}

impl Reporter {
    /// Nothing is known of endpoints yet.
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
            wanted: BTreeMap::new(),
            queue: VecDeque::new(),
            next_write: now,
            next_comparison: None,
        }
    }

    /// A new session begins, which will tell of all endpoints again.
    pub fn begin(&mut self, settings: StatusSettings, now: Instant) {
        self.next_process = match (settings.process_every, self.next_process) {
            (Some(_), None) => Some(now),
            (Some(every), Some(next)) => Some(next.min(now + every)),
            (None, _) => None,
        };
        self.settings = settings;
        self.wireguard_keys.clear();
        self.wanted.clear();
        self.queue.clear();
        self.next_comparison = None;
    }

    /// A driver is alive: its report stands where this process would write its own. Only the last one counts, and is
    /// written but once (`handleProcessStatusUpdate` of `felix/daemon/daemon.go`).
    pub fn on_process_status(&mut self, sign: ProcessStatus) {
        self.process_status = Some(sign);
    }

    /// This node's public key of `WireGuard` is this one; empty for none.
    pub fn on_wireguard_key(&mut self, family: Family, key: String) {
        self.wireguard_keys.insert(family, key);
    }

    /// An endpoint is otherwise than before.
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
            Some(status) => self.wanted.insert(path.clone(), status),
            None => self.wanted.remove(&path),
        };
        if before != status {
            self.enqueue(path);
        }
    }

    /// Everything that was told is in force: what is in the datastore about other endpoints is not true any more.
    pub fn in_force(&mut self, now: Instant) {
        self.next_comparison.get_or_insert(now);
    }

    fn enqueue(&mut self, path: String) {
        if !self.queue.contains(&path) {
            self.queue.push_back(path);
        }
    }

    /// When there may be something to do next; `None` if only news can change that.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let write = (!self.queue.is_empty()).then_some(self.next_write);
        let comparison = self.next_comparison.filter(|_| self.settings.endpoint_delay.is_some());
        let key = (!self.wireguard_keys.is_empty()).then_some(self.next_key);
        [self.next_process, write, comparison, key].into_iter().flatten().min()
    }

    /// What there is to do now. `chance` is between 0 and 1.
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
        let status = self.wanted.get(&path).copied();
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

    /// Takes what came of a job. A write that failed is tried again before any other.
    pub fn done(&mut self, job: &Job, outcome: JobResult) {
        match (job, outcome) {
            (Job::Process { .. }, JobResult::Written) => self.reported = true,
            (Job::Endpoint { path, status }, JobResult::Written)
                if self.queue.front() == Some(path) && self.wanted.get(path) == status.as_ref() =>
            {
                self.queue.pop_front();
            }
            (Job::WireguardKey { family, key, .. }, JobResult::Written)
                if self.wireguard_keys.get(family) == Some(key) =>
            {
                self.wireguard_keys.remove(family);
            }
            (Job::Compare { .. }, JobResult::Read(there)) => self.compare(&there),
            _ => {}
        }
    }

    fn compare(&mut self, there: &[(String, String)]) {
        let said = |text: &str| {
            let value: Value = serde_json::from_str(text).ok()?;
            value.get("status")?.as_str().map(str::to_owned)
        };
        let mut missing: BTreeSet<&String> = self.wanted.keys().collect();
        let mut wrong = Vec::new();
        for (path, text) in there {
            missing.remove(path);
            if said(text).as_deref() != self.wanted.get(path).map(|status| status.as_str()) {
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
