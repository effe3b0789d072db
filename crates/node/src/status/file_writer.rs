//! The thread that keeps the status files.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use tortie_model::WorkloadEndpointId;

use super::directory::StatusDirectory;
use super::mailbox::{Mailbox, MailboxReader, mailbox};
use super::{EndpointFiles, FileJob, FileResult};

const REST: Duration = Duration::from_secs(60);

/// Event that concerns the files.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FileUpdate {
    /// A session begins, whose files are below this directory; `None` for no files.
    Begin(Option<PathBuf>),
    /// Content of an endpoint's file; `None` for an endpoint that is gone.
    Endpoint(WorkloadEndpointId, Option<String>),
    /// Whether an endpoint is up.
    Status(WorkloadEndpointId, bool),
    /// All updates so far are in force.
    InForce,
}

/// Waiting events; of each endpoint the latest. The beginning of a session drops all earlier ones.
#[derive(Debug, Default, PartialEq)]
struct PendingFileUpdates {
    begin: Option<Option<PathBuf>>,
    endpoints: BTreeMap<WorkloadEndpointId, Option<String>>,
    statuses: BTreeMap<WorkloadEndpointId, bool>,
    in_force: bool,
}

impl PendingFileUpdates {
    fn add(&mut self, update: FileUpdate) {
        match update {
            FileUpdate::Begin(prefix) => *self = Self { begin: Some(prefix), ..Self::default() },
            FileUpdate::Endpoint(id, text) => drop(self.endpoints.insert(id, text)),
            FileUpdate::Status(id, is_up) => drop(self.statuses.insert(id, is_up)),
            FileUpdate::InForce => self.in_force = true,
        }
    }
}

/// Sends events to the thread that keeps the files. The thread ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct FileWriter {
    mailbox: Mailbox<PendingFileUpdates>,
}

impl FileWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let (mailbox, reader) = mailbox();
        thread::Builder::new().name("endpoint-files".into()).spawn(move || keep(&reader))?;
        Ok(Self { mailbox })
    }

    /// Sends events. Never blocks; of each endpoint only the latest is kept until it is written.
    pub fn send(&self, updates: impl IntoIterator<Item = FileUpdate>) {
        self.mailbox.put(|waiting| updates.into_iter().for_each(|one| waiting.add(one)));
    }
}

fn keep(reader: &MailboxReader<PendingFileUpdates>) {
    let mut directory = None;
    let mut files = EndpointFiles::default();
    let mut works = true;
    loop {
        if let Some(directory) = &directory {
            work(directory, &mut files, &mut works);
        }
        let rest = files.wake_at().map_or(REST, |at| at.saturating_duration_since(Instant::now()));
        let Some(pending) = reader.take(rest.min(REST)) else { return };
        if let Some(prefix) = pending.begin {
            directory = prefix.map(|prefix| StatusDirectory::below(&prefix));
            files = EndpointFiles::default();
        }
        pending.endpoints.into_iter().for_each(|(id, text)| files.on_endpoint(&id, text));
        pending.statuses.iter().for_each(|(id, is_up)| files.on_status(id, *is_up));
        if pending.in_force && directory.is_some() {
            files.in_force(Instant::now());
        }
    }
}

/// Does all due jobs. A failure is logged once, until all jobs are done.
fn work(directory: &StatusDirectory, files: &mut EndpointFiles, works: &mut bool) {
    let mut is_complete = false;
    while let Some(job) = files.next(Instant::now()) {
        let result = directory.carry_out(&job);
        is_complete |= job == FileJob::Read && result.is_ok();
        if let Err(error) = &result {
            is_complete = false;
            if *works {
                let directory = directory.path().display();
                tracing::warn!(%error, %directory, "endpoint status files cannot be kept; trying again");
            }
            *works = false;
        }
        files.done(&job, result.unwrap_or(FileResult::Failed), Instant::now());
    }
    if is_complete && !*works {
        tracing::info!("endpoint status files are kept again");
        *works = true;
    }
}

#[cfg(test)]
mod tests;
