//! The threads `dns-writer`, which lists and writes members, and `dns-cache`, which saves learned
//! addresses: neither a write that hangs nor a slow disk holds replies.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use tortie_model::with_causes;

use super::cache_file::CacheFile;
use super::inbox::{Message, Outbox};
use super::kernel_sets::Sets;
use super::machine::SetPart;
use super::writes::{Batch, Written};

const WRITER: &str = "dns-writer";
const SAVER: &str = "dns-cache";

/// Work for the writer, done in order.
pub(super) enum Job {
    /// Members to write; answered by [`Message::Written`].
    Write(Batch),
    /// Sets to list; answered by [`Message::Listed`].
    List(Vec<SetPart>),
}

/// Tells the thread `dns` that a thread beside it has ended, even by a panic.
struct Farewell(&'static str, Outbox);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.1.send(Message::WorkerEnded(self.0));
    }
}

/// Starts the writer, which ends with the sender of jobs, and then closes `ended`.
pub(super) fn start(sets: impl Sets + 'static, results: Outbox, ended: Sender<()>) -> io::Result<Sender<Job>> {
    let (sender, jobs) = channel();
    let farewell = Farewell(WRITER, results.clone());
    let mut writer = Writer { sets, results, is_refused: false, is_failed: false };
    Builder::new().name(WRITER.to_owned()).spawn(move || {
        writer.run(&jobs);
        drop((farewell, ended));
    })?;
    Ok(sender)
}

/// Starts the thread that saves states, which ends with their sender, and then closes `ended`. Each
/// state is answered by [`Message::Saved`].
pub(super) fn start_saver(cache: CacheFile, results: Outbox, ended: Sender<()>) -> io::Result<Sender<Vec<u8>>> {
    let (sender, states) = channel::<Vec<u8>>();
    let farewell = Farewell(SAVER, results.clone());
    Builder::new().name(SAVER.to_owned()).spawn(move || {
        let mut is_unsaved = false;
        for state in states {
            is_unsaved = save(&cache, &state, is_unsaved);
            results.send(Message::Saved);
        }
        drop((farewell, ended));
    })?;
    Ok(sender)
}

struct Writer<S> {
    sets: S,
    results: Outbox,
    /// Faults that were logged and still last.
    is_refused: bool,
    is_failed: bool,
}

impl<S: Sets> Writer<S> {
    fn run(&mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            let result = match job {
                Job::Write(batch) => Message::Written(self.write(&batch)),
                Job::List(sets) => {
                    let members = self.sets.list(&sets);
                    Message::Listed(sets, members)
                }
            };
            self.results.send(result);
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
}

/// Saves a state. Takes and returns whether the last save has failed.
fn save(cache: &CacheFile, state: &[u8], is_unsaved: bool) -> bool {
    match cache.write(state) {
        Ok(()) => {
            if is_unsaved {
                tracing::info!("the cache of DNS answers can be saved again");
            }
            false
        }
        Err(error) => {
            if !is_unsaved {
                tracing::error!(error = %with_causes(&error), "the cache of DNS answers cannot be saved");
            }
            true
        }
    }
}
