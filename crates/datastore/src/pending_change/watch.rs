//! Seeing to it that a change is taken back.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tortie_model::with_causes;

use crate::journal::JournalError;
use crate::store::pending::{Attended, FileJournal, Opener, PendingChange, Phase, attend};

/// How soon it is looked again for a change, or whether one was confirmed.
const PAUSE: Duration = Duration::from_secs(1);
/// How soon it is tried again to get the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// How soon a datastore is tried again that could not be written, at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// How long to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until nothing waits.
    Settled,
    /// For as long as the program runs.
    End,
}

/// Which file it is, and of when.
type Stamp = (u64, i64, i64);

/// Watches for a change below a state directory, and takes it back when its time has passed. Others may do so at the same
/// time. `open` opens a change's datastore.
pub fn watch(state: &Path, until: Until, open: &Opener<'_>) {
    let mut said = None;
    let mut failures = 0;
    let mut settled: Option<Stamp> = None;
    loop {
        let pause = match look(state, open, settled) {
            Ok(Look::Locked) => LOCK_PAUSE,
            Ok(Look::Nothing(stamp)) => {
                if until == Until::Settled {
                    return;
                }
                (settled, failures) = (stamp, 0);
                said = None;
                PAUSE
            }
            Ok(Look::Waits(left)) => {
                say(&mut said, "a change waits to be confirmed, and is taken back otherwise; see `tortie confirm`");
                left.min(PAUSE)
            }
            Ok(Look::RolledBack(change)) => {
                log(&change);
                continue;
            }
            Ok(Look::Failed(why)) => {
                say(&mut said, &format!("a change that was not confirmed cannot be taken back yet: {why}"));
                failures += 1;
                longer(failures)
            }
            Err(error) => {
                say(
                    &mut said,
                    &format!("it is unknown whether a change waits to be confirmed: {}", with_causes(&error)),
                );
                failures += 1;
                longer(failures)
            }
        };
        thread::sleep(pause);
    }
}

fn longer(failures: u32) -> Duration {
    PAUSE.saturating_mul(failures).min(LONGEST_PAUSE)
}

enum Look {
    /// Somebody else is at work.
    Locked,
    Nothing(Option<Stamp>),
    Waits(Duration),
    RolledBack(Box<PendingChange>),
    Failed(String),
}

fn look(state: &Path, open: &Opener<'_>, settled: Option<Stamp>) -> Result<Look, JournalError> {
    let Some(journal) = FileJournal::find(state)? else { return Ok(Look::Nothing(None)) };
    let stamp = fs::symlink_metadata(journal.path()).ok().map(|file| (file.ino(), file.mtime(), file.mtime_nsec()));
    if stamp.is_none() || stamp == settled {
        return Ok(Look::Nothing(stamp));
    }
    let Some(_lock) = journal.try_lock()? else { return Ok(Look::Locked) };
    Ok(match attend(&journal, open, &super::now())? {
        Attended::Waits { ms } => Look::Waits(Duration::from_millis(ms)),
        Attended::RolledBack(change) => Look::RolledBack(change),
        Attended::Retry { why } => Look::Failed(why),
        _ => Look::Nothing(stamp),
    })
}

/// Logs what has not been said last.
fn say(said: &mut Option<String>, what: &str) {
    if said.as_deref() != Some(what) {
        tracing::warn!("{what}");
        *said = Some(what.to_owned());
    }
}

fn log(change: &PendingChange) {
    let Phase::RolledBack { why, kept, .. } = &change.phase else { return };
    tracing::warn!(by = change.by, resources = change.writes.len(), why, "a change has been taken back");
    for kept in kept {
        tracing::warn!(resource = kept.resource, why = kept.why, "was not put back");
    }
}
