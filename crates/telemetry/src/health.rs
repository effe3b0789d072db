//! Liveness and readiness, as Felix reports them (`libcalico-go/lib/health/health.go`).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tortie_config::FormatValue;
use tortie_linux::Life;

use crate::escape;
use crate::http::Response;
pub use tortie_linux::Pulse;

/// A part of the program that reports its condition. The first three names are Felix's, for
/// `HealthTimeoutOverrides` and dashboards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reporter {
    /// The way from the start of the program to its main loop.
    Startup,
    /// The calculation of the node's desired state.
    CalculationGraph,
    /// The programming of the kernel.
    Dataplane,
    /// The source of cluster state.
    Datastore,
    /// The watch of network interfaces.
    Interfaces,
    /// The watch of our nftables tables.
    Ruleset,
    /// The cutting of connections that policy denies.
    Connections,
    /// The reading of DNS answers.
    DnsReader,
    /// The thread that writes to a dataplane driver.
    DriverWriter,
    /// The policy sync API.
    PolicySync,
    /// The HTTP listeners of health and metrics, once one of them has failed.
    Listeners,
}

impl Reporter {
    /// The reporter's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "FelixStartup",
            Self::CalculationGraph => "CalculationGraph",
            Self::Dataplane => "InternalDataplaneMainLoop",
            Self::Datastore => "Datastore",
            Self::Interfaces => "InterfaceMonitor",
            Self::Ruleset => "RulesetMonitor",
            Self::Connections => "ConnectionCutter",
            Self::DnsReader => "DnsReader",
            Self::DriverWriter => "DriverWriter",
            Self::PolicySync => "PolicySync",
            Self::Listeners => "Listeners",
        }
    }
}

/// Condition of a part of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// It works; if not, the program should be restarted.
    pub live: bool,
    /// It does its job.
    pub ready: bool,
    /// Details, one line.
    pub detail: String,
}

impl Condition {
    /// Works and does its job.
    #[must_use]
    pub fn good() -> Self {
        Self { live: true, ready: true, detail: String::new() }
    }

    /// Works, but does not do its job yet.
    #[must_use]
    pub fn waiting(detail: impl Into<String>) -> Self {
        Self { live: true, ready: false, detail: detail.into() }
    }
}

#[derive(Debug)]
struct Entry {
    condition: Condition,
    reported: Instant,
    /// Zero: reports do not expire.
    timeout: Duration,
    /// It waits for another part, whose reports count instead.
    paused: bool,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<Reporter, Entry>,
    /// Timeouts in place of those of entries, by the reporter's name.
    overrides: BTreeMap<String, Duration>,
}

/// The conditions of all reporters; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health {
    state: Arc<Mutex<State>>,
}

impl Health {
    /// Expects reports of `reporter`, none of which may be older than `timeout`; zero allows any
    /// age. Its earlier reports stay valid.
    pub fn expect(&self, reporter: Reporter, timeout: Duration) {
        let entry = || Entry {
            condition: Condition { live: true, ..Condition::default() },
            reported: Instant::now(),
            timeout,
            paused: false,
        };
        self.lock().entries.entry(reporter).or_insert_with(entry).timeout = timeout;
    }

    /// Replaces the timeouts of these reporters, by name, now and whenever they are expected
    /// (`HealthTimeoutOverrides`).
    pub fn override_timeouts(&self, overrides: BTreeMap<String, Duration>) {
        self.lock().overrides = overrides;
    }

    /// Expects signs of life of a thread, none of which may be older than `timeout` unless the
    /// thread rests.
    #[must_use]
    pub fn pulse(&self, reporter: Reporter, timeout: Duration) -> Pulse {
        self.expect(reporter, timeout);
        self.report(reporter, Condition::good());
        let health = self.clone();
        Pulse::new(move |life| match life {
            Life::Beats => health.still_alive(reporter),
            Life::Rests => health.pause(reporter),
        })
    }

    /// Takes a report.
    pub fn report(&self, reporter: Reporter, condition: Condition) {
        if let Some(entry) = self.lock().entries.get_mut(&reporter) {
            entry.condition = condition;
            entry.reported = Instant::now();
            entry.paused = false;
        }
    }

    /// Lets the last report of `reporter` grow old until the next one, because it waits for a part
    /// that reports itself.
    pub fn pause(&self, reporter: Reporter) {
        if let Some(entry) = self.lock().entries.get_mut(&reporter) {
            entry.paused = true;
        }
    }

    /// Repeats the last report, so that it does not grow too old.
    pub fn still_alive(&self, reporter: Reporter) {
        if let Some(entry) = self.lock().entries.get_mut(&reporter) {
            entry.reported = Instant::now();
            entry.paused = false;
        }
    }

    /// Answers `/liveness` and `/readiness`: 200 if all is good, 503 if not, each with a table.
    #[must_use]
    pub fn answer(&self, path: &str) -> Response {
        let good: fn(&Condition) -> bool = match path {
            "/liveness" => |c| c.live,
            "/readiness" => |c| c.ready,
            _ => return Response::text(404, "ask for /liveness or /readiness\n"),
        };
        let mut all_good = true;
        let mut table = format!("{:<28}{:<14}{:<8}{:<8}DETAIL\n", "COMPONENT", "TIMEOUT", "LIVE", "READY");
        for (reporter, timeout, condition) in self.timed_conditions() {
            all_good &= good(&condition);
            let timeout = if timeout.is_zero() { "-".into() } else { timeout.format_value() };
            // Writing to a string cannot fail.
            let _ = writeln!(
                table,
                "{:<28}{timeout:<14}{:<8}{:<8}{}",
                reporter.name(),
                condition.live,
                condition.ready,
                escape::line(&condition.detail)
            );
        }
        Response::text(if all_good { 200 } else { 503 }, table)
    }

    /// Returns the current condition of each reporter; one that has not reported in time is neither
    /// live nor ready.
    #[must_use]
    pub fn conditions(&self) -> Vec<(Reporter, Condition)> {
        self.timed_conditions().into_iter().map(|(reporter, _, condition)| (reporter, condition)).collect()
    }

    fn timed_conditions(&self) -> Vec<(Reporter, Duration, Condition)> {
        let now = Instant::now();
        let state = self.lock();
        let condition = |(reporter, entry): (&Reporter, &Entry)| {
            let replaced = state.overrides.get(reporter.name()).filter(|_| !entry.timeout.is_zero());
            let timeout = replaced.copied().unwrap_or(entry.timeout);
            let timed_out = !entry.paused && !timeout.is_zero() && now.duration_since(entry.reported) > timeout;
            let condition = if timed_out {
                Condition { detail: "no report in time".into(), ..Condition::default() }
            } else {
                entry.condition.clone()
            };
            (*reporter, timeout, condition)
        };
        state.entries.iter().map(condition).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
