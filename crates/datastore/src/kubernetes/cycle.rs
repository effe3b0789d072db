//! Sequence of requests that keeps a copy of a list up to date. Pure: time and random numbers are
//! arguments.

use std::time::{Duration, Instant};

use super::error::ApiError;
use super::timing::Timing;
use crate::Backoff;

/// Consecutive failures to watch from one version, after which the version is given up
/// (`libcalico-go/lib/backend/watchersyncer/watchercache.go`).
const MAX_FAILURES: u32 = 5;
/// Number of times that a server may refuse a request after it was unreachable. For some seconds
/// after a start it refuses everything, until it has read the roles.
const READS_ROLES: u32 = 3;
/// Duration after which an ended watch does not count as failed.
const SOUND: Duration = Duration::from_secs(5);

/// Next request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// List all objects.
    List,
    /// Watch the changes since this version.
    Watch(String),
    /// Check that the server has not fallen behind this version.
    Compare(String),
}

/// Consequence of a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FailureEffect {
    /// None.
    Fine,
    /// The kind does not exist, so there are no objects of it.
    NotInstalled,
    /// The server is unreachable, or refuses the request.
    Unavailable,
}

/// The state between two requests.
#[derive(Debug)]
pub(super) struct Cycle {
    timing: Timing,
    /// Known version; `None` if a list is required.
    version: Option<String>,
    /// Failures since the last response.
    retry: Backoff,
    missing: Backoff,
    /// Failures to watch from the same version.
    failures: u32,
    listed: Option<Instant>,
    /// Whether lists are requested without pages, because pages have expired repeatedly before they
    /// were read.
    whole: bool,
    /// Number of consecutive lists that have expired between two pages.
    expired: u32,
    /// Whether the server may be behind the known version, as with an etcd restored from a backup.
    /// This is so if the connection broke, or a watch ended without any event or bookmark. A watch
    /// from a version that the server has not reached yet stays silent until then.
    in_doubt: bool,
    /// Whether the last failure was a missing response.
    is_away: bool,
    /// Remaining number of `Forbidden` responses to tolerate after the server was unreachable: it
    /// refuses everything until it has read the roles.
    reads_roles: u32,
}

impl Cycle {
    pub(super) fn new(timing: Timing) -> Self {
        Self {
            timing,
            version: None,
            retry: Backoff::new(timing.retry.0, timing.retry.1),
            missing: Backoff::new(timing.missing.0, timing.missing.1),
            failures: 0,
            listed: None,
            whole: false,
            expired: 0,
            in_doubt: false,
            is_away: false,
            reads_roles: 0,
        }
    }

    pub(super) fn step(&self) -> Step {
        match self.version.clone() {
            None => Step::List,
            Some(version) if self.in_doubt => Step::Compare(version),
            Some(version) => Step::Watch(version),
        }
    }

    /// Returns the number of objects in a page; `None` for all.
    pub(super) fn page(&self) -> Option<usize> {
        (!self.whole).then_some(self.timing.page)
    }

    /// Begins a list; returns the pause before it.
    pub(super) fn begin_list(&mut self, now: Instant) -> Duration {
        let wait = match self.listed {
            Some(listed) => self.timing.resync.saturating_sub(now.saturating_duration_since(listed)),
            None => Duration::ZERO,
        };
        self.listed = Some(now + wait);
        wait
    }

    /// Ends a complete list; returns the pause before the next request.
    pub(super) fn listed(&mut self, version: String) -> Duration {
        self.retry.succeed();
        self.missing.succeed();
        self.failures = 0;
        self.whole = false;
        self.expired = 0;
        self.in_doubt = false;
        self.reads_roles = 0;
        if version.is_empty() || version == "0" {
            // This version cannot be watched from.
            return self.timing.poll;
        }
        self.version = Some(version);
        Duration::ZERO
    }

    /// Handles a failed list, `continuing` if some pages had been read; returns the pause before
    /// the next request.
    pub(super) fn list_failed(&mut self, error: &ApiError, continuing: bool, chance: f64) -> (Duration, FailureEffect) {
        if error.is_not_found() && !continuing {
            self.retry.succeed();
            return (self.missing.fail(chance), FailureEffect::NotInstalled);
        }
        if error.is_expired() && continuing {
            self.expired += 1;
            self.whole = self.expired > 1;
            if self.expired <= 2 {
                return (Duration::ZERO, FailureEffect::Fine);
            }
        }
        self.failed(error, chance)
    }

    /// Notes an object or a bookmark of this version.
    pub(super) fn progressed(&mut self, version: &str) {
        self.retry.succeed();
        self.failures = 0;
        self.in_doubt = false;
        self.reads_roles = 0;
        if !version.is_empty() && self.version.as_deref() != Some(version) {
            self.version = Some(version.to_owned());
        }
    }

    /// Handles the regular end of a watch after this time; returns the pause before the next
    /// request.
    pub(super) fn watch_ended(&mut self, lasted: Duration, received_event: bool, chance: f64) -> Duration {
        if received_event || lasted >= SOUND.min(self.timing.watch / 2) {
            self.in_doubt = !received_event;
            self.retry.succeed();
            return Duration::ZERO;
        }
        self.retry.fail(chance)
    }

    /// Handles the newest version of the server. Returns whether it is older than the known
    /// version, so that everything has to be listed again. Versions are compared as increasing
    /// numbers; other versions are not compared.
    pub(super) fn compared(&mut self, newest: &str) -> bool {
        self.in_doubt = false;
        let number = |version: &str| version.parse::<u64>().ok();
        let known = self.version.as_deref().and_then(number);
        let is_behind = number(newest).zip(known).is_some_and(|(newest, known)| newest < known);
        if is_behind {
            self.version = None;
            self.failures = 0;
        }
        is_behind
    }

    /// Handles a failed comparison; returns the pause before the next request.
    pub(super) fn compare_failed(&mut self, error: &ApiError, chance: f64) -> (Duration, FailureEffect) {
        let answer = self.watch_failed(error, chance);
        if error.is_forbidden() && answer.1 == FailureEffect::Unavailable {
            // A client without permission to list continues with the watch.
            self.in_doubt = false;
        }
        answer
    }

    /// Handles a watch that could not be started, or broke; returns the pause before the next
    /// request.
    pub(super) fn watch_failed(&mut self, error: &ApiError, chance: f64) -> (Duration, FailureEffect) {
        if error.is_expired() {
            self.version = None;
            return (Duration::ZERO, FailureEffect::Fine);
        }
        match error {
            // A list shows whether the kind is gone or only the watch failed.
            ApiError::Status { code: 404, .. } => {
                self.version = None;
                return (Duration::ZERO, FailureEffect::Fine);
            }
            ApiError::Status { code: 405, .. } => {
                self.version = None;
                return (self.timing.poll, FailureEffect::Fine);
            }
            ApiError::Silent(_) if self.failures == 0 => {
                // The watch may just have had no events; a comparison and a new watch will show.
                self.in_doubt = true;
                self.failures = 1;
                return (Duration::ZERO, FailureEffect::Fine);
            }
            // The version stays valid once a server responds that has reached it.
            ApiError::Silent(_) | ApiError::Unreachable(_) => self.in_doubt = true,
            // `OtherVersions` occurs only with lists, `UnclearApi` before them.
            ApiError::Config(_)
            | ApiError::OtherVersions { .. }
            | ApiError::UnclearApi { .. }
            | ApiError::Status { code: 401 | 403 | 429, .. } => {}
            ApiError::Status { .. } | ApiError::TooLarge(_) | ApiError::Malformed(_) => {
                self.failures += 1;
                if self.failures >= MAX_FAILURES {
                    self.failures = 0;
                    self.version = None;
                }
            }
        }
        self.failed(error, chance)
    }

    fn failed(&mut self, error: &ApiError, chance: f64) -> (Duration, FailureEffect) {
        let is_away = matches!(error, ApiError::Unreachable(_) | ApiError::Silent(_));
        if std::mem::replace(&mut self.is_away, is_away) && error.code().is_some() {
            // Long pauses are for unreachable servers only.
            self.retry.succeed();
        }
        if is_away {
            self.reads_roles = READS_ROLES;
        }
        let pause = self.timing.pause(&mut self.retry, error, chance);
        if error.is_forbidden() && self.reads_roles > 0 {
            self.reads_roles -= 1;
            return (pause, FailureEffect::Fine);
        }
        (pause, FailureEffect::Unavailable)
    }
}

#[cfg(test)]
mod tests;
