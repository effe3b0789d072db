//! What to ask the API server next, to keep a copy of a list up to date. Pure: time and chance are arguments.

use std::time::{Duration, Instant};

use super::error::ApiError;
use super::timing::Timing;
use crate::Backoff;

/// Failures in a row to watch from one version, after which it is given up
/// (`libcalico-go/lib/backend/watchersyncer/watchercache.go`).
const MAX_FAILURES: u32 = 5;
/// As often a server that was away may refuse everything, as it does for some seconds while it has not read the roles that there are.
const READS_ROLES: u32 = 3;
/// A watch that lasted this long was none that failed.
const SOUND: Duration = Duration::from_secs(5);

/// What to ask next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All objects.
    List,
    /// What has changed since this version.
    Watch(String),
    /// Whether the server is still as far as this version.
    Compare(String),
}

/// What follows from a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It means nothing.
    Fine,
    /// There are no objects of this kind, as there is no such kind.
    NotInstalled,
    /// The server cannot be reached, or refuses.
    Unavailable,
}

/// The state between two requests.
#[derive(Debug)]
pub(super) struct Cycle {
    timing: Timing,
    /// What is known; `None` if that has to be found out from the beginning.
    version: Option<String>,
    /// Failures since something was heard from the server.
    retry: Backoff,
    missing: Backoff,
    /// Failures to watch from the same version.
    failures: u32,
    listed: Option<Instant>,
    /// Whether lists are asked for in one piece, because pages have expired again and again before they were read.
    whole: bool,
    /// How many lists in a row have expired between two pages.
    expired: u32,
    /// Whether the server may be behind what it has told of, as with an etcd restored from a backup: the connection broke, or a watch
    /// said nothing, not even how far the server is. To who watches from a version that is still to come a server says nothing for as
    /// long as that takes.
    in_doubt: bool,
    /// Whether the last failure was that there was no answer.
    is_away: bool,
    /// How many times a server that was away may say that roles allow nothing before it is believed: it says so until it has read them.
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

    /// How many objects to ask for at a time; `None` for all.
    pub(super) fn page(&self) -> Option<usize> {
        (!self.whole).then_some(self.timing.page)
    }

    /// A list is about to be asked for. Says how long to wait before.
    pub(super) fn begin_list(&mut self, now: Instant) -> Duration {
        let wait = match self.listed {
            Some(listed) => self.timing.resync.saturating_sub(now.saturating_duration_since(listed)),
            None => Duration::ZERO,
        };
        self.listed = Some(now + wait);
        wait
    }

    /// A list is complete. Says how long to wait.
    pub(super) fn listed(&mut self, version: String) -> Duration {
        self.retry.succeed();
        self.missing.succeed();
        self.failures = 0;
        self.whole = false;
        self.expired = 0;
        self.in_doubt = false;
        self.reads_roles = 0;
        if version.is_empty() || version == "0" {
            // From there nothing can be watched.
            return self.timing.poll;
        }
        self.version = Some(version);
        Duration::ZERO
    }

    /// A list could not be read; `continuing` if some pages of it had been. Says how long to wait.
    pub(super) fn list_failed(&mut self, error: &ApiError, continuing: bool, chance: f64) -> (Duration, Verdict) {
        if error.is_not_found() && !continuing {
            self.retry.succeed();
            return (self.missing.fail(chance), Verdict::NotInstalled);
        }
        if error.is_expired() && continuing {
            self.expired += 1;
            self.whole = self.expired > 1;
            if self.expired <= 2 {
                return (Duration::ZERO, Verdict::Fine);
            }
        }
        self.failed(error, chance)
    }

    /// An object or a bookmark of this version has come.
    pub(super) fn progressed(&mut self, version: &str) {
        self.retry.succeed();
        self.failures = 0;
        self.in_doubt = false;
        self.reads_roles = 0;
        if !version.is_empty() && self.version.as_deref() != Some(version) {
            self.version = Some(version.to_owned());
        }
    }

    /// A watch has ended as it should after this time. Says how long to wait.
    pub(super) fn watch_ended(&mut self, lasted: Duration, heard: bool, chance: f64) -> Duration {
        if heard || lasted >= SOUND.min(self.timing.watch / 2) {
            self.in_doubt = !heard;
            self.retry.succeed();
            return Duration::ZERO;
        }
        self.retry.fail(chance)
    }

    /// The server has said which version is its newest. Says whether that is behind what it has told of before, so that everything
    /// is to be listed again. Versions are numbers that grow; others are not compared.
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

    /// It has not said so. Says how long to wait.
    pub(super) fn compare_failed(&mut self, error: &ApiError, chance: f64) -> (Duration, Verdict) {
        let answer = self.watch_failed(error, chance);
        if error.is_forbidden() && answer.1 == Verdict::Unavailable {
            // Who may not list can go on as before.
            self.in_doubt = false;
        }
        answer
    }

    /// A watch could not be begun, or broke. Says how long to wait.
    pub(super) fn watch_failed(&mut self, error: &ApiError, chance: f64) -> (Duration, Verdict) {
        if error.is_expired() {
            self.version = None;
            return (Duration::ZERO, Verdict::Fine);
        }
        match error {
            // Either way, a list tells more.
            ApiError::Status { code: 404, .. } => {
                self.version = None;
                return (Duration::ZERO, Verdict::Fine);
            }
            ApiError::Status { code: 405, .. } => {
                self.version = None;
                return (self.timing.poll, Verdict::Fine);
            }
            ApiError::Silent(_) if self.failures == 0 => {
                // Nothing may have happened; a comparison and a new watch will tell.
                self.in_doubt = true;
                self.failures = 1;
                return (Duration::ZERO, Verdict::Fine);
            }
            // As good a version as any other, once there is a server again that is as far.
            ApiError::Silent(_) | ApiError::Unreachable(_) => self.in_doubt = true,
            // Only a list fails by other versions.
            ApiError::Config(_) | ApiError::OtherVersions { .. } | ApiError::Status { code: 401 | 403 | 429, .. } => {}
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

    fn failed(&mut self, error: &ApiError, chance: f64) -> (Duration, Verdict) {
        let is_away = matches!(error, ApiError::Unreachable(_) | ApiError::Silent(_));
        if std::mem::replace(&mut self.is_away, is_away) && error.code().is_some() {
            // Long pauses are for servers that are away.
            self.retry.succeed();
        }
        if is_away {
            self.reads_roles = READS_ROLES;
        }
        let pause = self.timing.pause(&mut self.retry, error, chance);
        if error.is_forbidden() && self.reads_roles > 0 {
            self.reads_roles -= 1;
            return (pause, Verdict::Fine);
        }
        (pause, Verdict::Unavailable)
    }
}

#[cfg(test)]
mod tests;
