//! Which status files there should be, and what is to be done about those that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tortie_model::WorkloadEndpointId;
use tortie_protocol::status_file;

/// The directory is read again this often, in case somebody else has changed it (`felix/statusrep`).
const READ_EVERY: Duration = Duration::from_secs(10);
/// What failed is tried again after these pauses, the last of them for ever.
const PAUSES: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(5)];

/// Something to do with the directory; afterwards [`EndpointFiles::done`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileJob {
    /// Read all files, and make the directory if there is none.
    Read,
    /// Write a file, or replace it.
    Write {
        /// Its name.
        name: String,
        /// What it is to hold.
        text: String,
    },
    /// Remove a file; one that is not there counts as removed.
    Remove {
        /// Its name.
        name: String,
    },
}

/// What came of a [`FileJob`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileResult {
    /// It was done.
    Done,
    /// The files that there are, and what they hold; `None` for one that cannot be read.
    Read(BTreeMap<String, Option<String>>),
    /// It did not work.
    Failed,
}

/// Knows which files there should be: one for each workload endpoint that is up. Pure: time is an argument.
#[derive(Debug, Default)]
pub struct EndpointFiles {
    /// What the file of an endpoint is to hold when the endpoint is up.
    texts: BTreeMap<WorkloadEndpointId, String>,
    up: BTreeSet<WorkloadEndpointId>,
    /// What there should be, by name.
    wanted: BTreeMap<String, String>,
    /// What there is, by name, as far as it is known.
    present: BTreeMap<String, Option<String>>,
    /// The names of files that are not as they should be.
    pending: BTreeSet<String>,
    /// Those of them for which it was tried in this round.
    failed: BTreeSet<String>,
    /// When to read; `None` until everything is in force.
    next_read: Option<Instant>,
    /// How many rounds in a row have failed.
    failures: usize,
}

impl EndpointFiles {
    /// What the file of an endpoint is to hold; `None` for an endpoint that is gone.
    pub fn on_endpoint(&mut self, id: &WorkloadEndpointId, text: Option<String>) {
        match text {
            Some(text) => drop(self.texts.insert(id.clone(), text)),
            None => drop(self.texts.remove(id)),
        }
        self.review(id);
    }

    /// Whether an endpoint is up.
    pub fn on_status(&mut self, id: &WorkloadEndpointId, is_up: bool) {
        if is_up {
            self.up.insert(id.clone());
        } else {
            self.up.remove(id);
        }
        self.review(id);
    }

    /// Everything that was told is in force: other files are not true any more. Before, nothing is touched.
    pub fn in_force(&mut self, now: Instant) {
        self.next_read.get_or_insert(now);
    }

    fn review(&mut self, id: &WorkloadEndpointId) {
        let name = status_file::name(id);
        match self.texts.get(id).filter(|_| self.up.contains(id)) {
            Some(text) => drop(self.wanted.insert(name.clone(), text.clone())),
            None => drop(self.wanted.remove(&name)),
        }
        self.compare(name);
    }

    fn compare(&mut self, name: String) {
        let is_right = match (self.wanted.get(&name), self.present.get(&name)) {
            (Some(wanted), Some(present)) => present.as_ref() == Some(wanted),
            (wanted, present) => wanted.is_none() && present.is_none(),
        };
        if is_right {
            self.failed.remove(&name);
            self.pending.remove(&name);
        } else {
            self.pending.insert(name);
        }
    }

    /// When there may be something to do next; `None` if only news can change that.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        self.next_read
    }

    /// What there is to do now: first to write, then to remove.
    #[must_use]
    pub fn next(&mut self, now: Instant) -> Option<FileJob> {
        if self.next_read? <= now {
            return Some(FileJob::Read);
        }
        let untried = || self.pending.iter().filter(|name| !self.failed.contains(*name));
        let write = untried().find_map(|name| Some((name, self.wanted.get(name)?)));
        if let Some((name, text)) = write {
            return Some(FileJob::Write { name: name.clone(), text: text.clone() });
        }
        untried().next().map(|name| FileJob::Remove { name: name.clone() })
    }

    /// Takes what came of a job. What failed is tried again, after everything has been read again.
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
                // Nothing is tried before it is known what there is.
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
        let names: BTreeSet<String> = self.wanted.keys().chain(self.present.keys()).cloned().collect();
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
