//! The thread `dns-writer`: writes members and the cache, so that a write that hangs does not hold
//! replies.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use tortie_model::with_causes;

use super::cache_file::CacheFile;
use super::inbox::{Message, Outbox};
use super::kernel_sets::Sets;
use super::writes::{Batch, Written};

/// Work for the writer, done in order.
pub(super) enum Job {
    /// Members to write; answered by [`Message::Written`].
    Write(Batch),
    /// A cache to save.
    Save(Vec<u8>),
}

/// Starts the thread, which ends with the sender of jobs, and then closes `ended`.
pub(super) fn start(
    sets: impl Sets + 'static,
    cache: Option<CacheFile>,
    results: Outbox,
    ended: Sender<()>,
) -> io::Result<Sender<Job>> {
    let (sender, jobs) = channel();
    let mut writer = Writer { sets, cache, results, is_refused: false, is_unsaved: false, is_failed: false };
    Builder::new().name("dns-writer".to_owned()).spawn(move || {
        writer.run(&jobs);
        drop(ended);
    })?;
    Ok(sender)
}

struct Writer<S> {
    sets: S,
    cache: Option<CacheFile>,
    results: Outbox,
    /// Faults that were logged and still last.
    is_refused: bool,
    is_failed: bool,
    is_unsaved: bool,
}

impl<S: Sets> Writer<S> {
    fn run(&mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            match job {
                Job::Write(batch) => {
                    let written = self.write(&batch);
                    self.results.send(Message::Written(written));
                }
                Job::Save(bytes) => self.save(&bytes),
            }
        }
    }

    fn write(&mut self, batch: &Batch) -> Written {
        let refused = match self.sets.write(batch) {
            Ok(refused) => refused,
            Err(error) => {
                if !std::mem::replace(&mut self.is_failed, true) {
                    tracing::error!(error = %with_causes(&error), "members of domain sets cannot be written; trying again");
                }
                return Written::Unknown;
            }
        };
        if std::mem::take(&mut self.is_failed) {
            tracing::info!("members of domain sets can be written again");
        }
        let is_refused = !refused.is_empty();
        if let Some((at, reason)) = refused.first()
            && !self.is_refused
        {
            let (set, refused) = (batch.changes.get(*at).map(|(member, _)| member.set.as_str()), refused.len());
            tracing::error!(set, refused, reason, "the kernel refuses members of domain sets; trying again");
        }
        self.is_refused = is_refused;
        Written::Except(refused.into_iter().map(|(at, _)| at).collect())
    }

    fn save(&mut self, bytes: &[u8]) {
        let Some(cache) = &self.cache else { return };
        match cache.write(bytes) {
            Ok(()) => {
                if std::mem::take(&mut self.is_unsaved) {
                    tracing::info!("the cache of DNS answers can be saved again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_unsaved, true) {
                    tracing::error!(error = %with_causes(&error), "the cache of DNS answers cannot be saved");
                }
            }
        }
    }
}
