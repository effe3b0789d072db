//! Desired status files, and the jobs that bring the directory to them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tortie_model::WorkloadEndpointId;
use tortie_protocol::status_file;

/// Interval between readings of the directory, in case another process has changed it
/// (`felix/statusrep`).
const READ_EVERY: Duration = Duration::from_secs(10);
/// Pauses before failed jobs are retried, the last of them for ever.
const PAUSES: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(5)];

/// A job in the directory; its result goes to [`EndpointFiles::done`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileJob {
    /// Read all files, and make the directory if there is none.
    Read,
    /// Write a file, or replace it.
    Write {
        /// Its name.
        name: String,
        /// Its content.
        text: String,
    },
    /// Remove a file; a missing one counts as removed.
    Remove {
        /// Its name.
        name: String,
    },
}

/// Result of a [`FileJob`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileResult {
    /// It was done.
    Done,
    /// The existing files and their contents; `None` for one that cannot be read.
    Read(BTreeMap<String, Option<String>>),
    /// It failed.
    Failed,
}

/// The desired files: one for each workload endpoint that is up. Pure: time is an argument.
#[derive(Debug, Default)]
pub struct EndpointFiles {
    texts: BTreeMap<WorkloadEndpointId, String>,
    up: BTreeSet<WorkloadEndpointId>,
    desired: BTreeMap<String, String>,
    /// Existing files, by name, as far as they are known.
    present: BTreeMap<String, Option<String>>,
    pending: BTreeSet<String>,
    /// Those of them whose job has failed in this round.
    failed: BTreeSet<String>,
    /// Time of the next reading; `None` until everything is in force.
    next_read: Option<Instant>,
    failures: usize,
}

impl EndpointFiles {
    /// Sets the content of an endpoint's file; `None` for an endpoint that is gone.
    pub fn on_endpoint(&mut self, id: &WorkloadEndpointId, text: Option<String>) {
        match text {
            Some(text) => drop(self.texts.insert(id.clone(), text)),
            None => drop(self.texts.remove(id)),
        }
        self.review(id);
    }

    /// Sets whether an endpoint is up.
    pub fn on_status(&mut self, id: &WorkloadEndpointId, is_up: bool) {
        if is_up {
            self.up.insert(id.clone());
        } else {
            self.up.remove(id);
        }
        self.review(id);
    }

    /// All updates so far are in force, so other files are out of date. Before this, no file is
    /// touched.
    pub fn in_force(&mut self, now: Instant) {
        self.next_read.get_or_insert(now);
    }

    fn review(&mut self, id: &WorkloadEndpointId) {
        let name = status_file::name(id);
        match self.texts.get(id).filter(|_| self.up.contains(id)) {
            Some(text) => drop(self.desired.insert(name.clone(), text.clone())),
            None => drop(self.desired.remove(&name)),
        }
        self.compare(name);
    }

    fn compare(&mut self, name: String) {
        let is_right = match (self.desired.get(&name), self.present.get(&name)) {
            (Some(desired), Some(present)) => present.as_ref() == Some(desired),
            (desired, present) => desired.is_none() && present.is_none(),
        };
        if is_right {
            self.failed.remove(&name);
            self.pending.remove(&name);
        } else {
            self.pending.insert(name);
        }
    }

    /// Returns the time of the next job; `None` if only an event can cause one.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        self.next_read
    }

    /// Returns the next job: writes come before removals.
    #[must_use]
    pub fn next(&mut self, now: Instant) -> Option<FileJob> {
        if self.next_read? <= now {
            return Some(FileJob::Read);
        }
        let untried = || self.pending.iter().filter(|name| !self.failed.contains(*name));
        let write = untried().find_map(|name| Some((name, self.desired.get(name)?)));
        if let Some((name, text)) = write {
            return Some(FileJob::Write { name: name.clone(), text: text.clone() });
        }
        untried().next().map(|name| FileJob::Remove { name: name.clone() })
    }

    /// Takes the result of a job. A failed job is retried after the directory has been read again.
    pub fn done(&mut self, job: &FileJob, outcome: FileResult, now: Instant) {
        match (job, outcome) {
            (FileJob::Read, FileResult::Read(present)) => self.take(present, now),
            (FileJob::Write { name, text }, FileResult::Done) => {
                self.present.insert(name.clone(), Some(text.clone()));
                self.compare(name.clone());
            }
            (FileJob::Remove { name }, FileResult::Done) => {
                self.present.remove(name);
                self.compare(name.clone());
            }
            (FileJob::Read, _) => {
                // Nothing is tried before the existing files are known.
                self.pending.clear();
                self.failed.clear();
                return self.retry(now);
            }
            (FileJob::Write { name, .. } | FileJob::Remove { name }, _) => {
                if self.failed.is_empty() {
                    self.retry(now);
                }
                self.failed.insert(name.clone());
            }
        }
        if self.pending.is_empty() {
            self.failures = 0;
        }
    }

    fn take(&mut self, present: BTreeMap<String, Option<String>>, now: Instant) {
        self.next_read = Some(now + READ_EVERY);
        self.failed.clear();
        self.pending.clear();
        self.present = present.into_iter().filter(|(name, _)| status_file::is_name(name)).collect();
        let names: BTreeSet<String> = self.desired.keys().chain(self.present.keys()).cloned().collect();
        names.into_iter().for_each(|name| self.compare(name));
    }

    fn retry(&mut self, now: Instant) {
        let [first, second, last] = PAUSES;
        let pause = match self.failures {
            0 => first,
            1 => second,
            _ => last,
        };
        self.failures += 1;
        self.next_read = Some(now + pause);
    }
}

#[cfg(test)]
mod tests;
