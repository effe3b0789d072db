//! The thread that writes.

use std::io;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tortie_datastore::chance;
use tortie_datastore::store::StoreError;
use tortie_datastore::store::etcd::{EtcdConfig, EtcdPace, EtcdStore};
use tortie_model::with_causes;

use super::mailbox::{Mailbox, MailboxReader, mailbox};
use super::reporter::{Job, JobResult, Reporter};
use super::updates::{PendingUpdates, StatusUpdate};
use super::wireguard_key;

/// Timeout of a write (`felix/statusrep/status_reporter.go`).
const PATIENCE: Duration = Duration::from_secs(2);
const REST: Duration = Duration::from_secs(60);

/// Sends events to the thread that writes. The thread ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct StatusWriter {
    mailbox: Mailbox<PendingUpdates>,
}

impl StatusWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the configuration is invalid, or the thread cannot be started.
    pub fn start(config: &EtcdConfig) -> io::Result<Self> {
        let pace = EtcdPace { connect: PATIENCE, request: PATIENCE, ..config.pace };
        let store = EtcdStore::new(EtcdConfig { pace, ..config.clone() })?;
        let (mailbox, reader) = mailbox();
        thread::Builder::new().name("status".into()).spawn(move || write(&store, &reader))?;
        Ok(Self { mailbox })
    }

    /// Sends an event. Never blocks; of each endpoint only the latest is kept until it is written.
    pub fn send(&self, update: StatusUpdate) {
        self.mailbox.put(|waiting| waiting.add(update));
    }
}

fn write(store: &EtcdStore, reader: &MailboxReader<PendingUpdates>) {
    // Nothing can be written before the first session begins.
    let mut reporter = loop {
        let Some(pending) = reader.take(REST) else { return };
        if let Some(settings) = pending.begin.clone() {
            let mut reporter = Reporter::new(settings, Instant::now());
            pass_to(&mut reporter, pending);
            break reporter;
        }
    };
    let mut works = true;
    loop {
        while let Some(job) = reporter.next(Instant::now(), SystemTime::now(), chance()) {
            let result = carry_out(store, &job);
            match (&result, works) {
                (Err(why), true) => tracing::warn!(error = %with_causes(why), "status cannot be written; trying again"),
                (Ok(_), false) => tracing::info!("status is written again"),
                _ => {}
            }
            works = result.is_ok();
            reporter.done(&job, result.unwrap_or(JobResult::Failed));
            if !works {
                break;
            }
        }
        let rest = reporter.wake_at().map_or(REST, |at| at.saturating_duration_since(Instant::now()));
        let Some(mut pending) = reader.take(rest) else { return };
        if let Some(settings) = pending.begin.take() {
            reporter.begin(settings, Instant::now());
        }
        pass_to(&mut reporter, pending);
    }
}

fn pass_to(reporter: &mut Reporter, pending: PendingUpdates) {
    pending.changes.values().for_each(|change| reporter.change(change));
    for (family, key) in pending.wireguard_keys {
        reporter.on_wireguard_key(family, key);
    }
    if let Some(sign) = pending.process_status {
        reporter.on_process_status(sign);
    }
    if pending.in_force {
        reporter.in_force(Instant::now());
    }
}

fn carry_out(store: &EtcdStore, job: &Job) -> Result<JobResult, StoreError> {
    match job {
        Job::Process { active, last, text, ttl } => {
            let active = store.put_text(active, text, Some(*ttl).filter(|ttl| !ttl.is_zero()));
            store.put_text(last, text, None)?;
            active?;
        }
        Job::Endpoint { path, status: Some(status) } => {
            store.put_text(path, &json!({"status": status.as_str()}).to_string(), None)?;
        }
        Job::WireguardKey { host, family, key } => wireguard_key::write(store, host, *family, key)?,
        Job::Endpoint { path, status: None } => {
            store.delete_text(path)?;
        }
        Job::Compare { prefixes } => {
            let mut stored = Vec::new();
            for prefix in prefixes {
                stored.extend(store.list_texts(prefix)?);
            }
            return Ok(JobResult::Read(stored));
        }
    }
    Ok(JobResult::Written)
}
