//! Automatic rollback of unconfirmed changes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tortie_model::with_causes;
use tortie_revisions::journal::JournalError;

use crate::store::pending::{Attended, FileJournal, Opener, PendingChange, Phase, WatcherKind, attend};

/// Interval between checks for a change or a confirmation.
const PAUSE: Duration = Duration::from_secs(1);
/// Interval between attempts to get the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// Longest interval between attempts to write to a failing datastore.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// End of the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When no change is pending.
    Settled,
    /// Never: the watch continues for as long as the program runs.
    End,
}

/// Identity of a file, and the time of its last change.
type Stamp = (u64, i64, i64);

/// Watches for a change below a state directory, and rolls it back when its deadline has passed.
/// Several programs may do so at the same time. `open` opens a change's datastore. With
/// [`Until::End`] this process is registered as an agent while a change is open; a guard registers
/// itself.
pub fn watch(state: &Path, until: Until, open: &Opener<'_>) {
    let mut last_notice = None;
    let mut failures = 0;
    let mut settled: Option<Stamp> = None;
    let mut registered = None;
    loop {
        let pause = match attend_once(state, open, settled, |journal| {
            if until == Until::End && registered.is_none() {
                // A rollback is more important than a list of the processes that do it.
                registered = journal.register(WatcherKind::Agent).ok();
            }
        }) {
            Ok(AttendOutcome::Locked) => LOCK_PAUSE,
            Ok(AttendOutcome::Nothing(stamp)) => {
                if until == Until::Settled {
                    return;
                }
                (settled, failures) = (stamp, 0);
                (last_notice, registered) = (None, None);
                PAUSE
            }
            Ok(AttendOutcome::Waits(left)) => {
                log_if_new(&mut last_notice, Notice::Waits);
                left.min(PAUSE)
            }
            Ok(AttendOutcome::RolledBack(change)) => {
                log(&change);
                continue;
            }
            Ok(AttendOutcome::Failed(why)) => {
                log_if_new(&mut last_notice, Notice::Failed(why));
                failures += 1;
                longer(failures)
            }
            Err(error) => {
                log_if_new(&mut last_notice, Notice::Unknown(with_causes(&error)));
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

enum AttendOutcome {
    /// Another program holds the lock.
    Locked,
    Nothing(Option<Stamp>),
    Waits(Duration),
    RolledBack(Box<PendingChange>),
    Failed(String),
}

/// Calls `found` before a change that may be open.
fn attend_once(
    state: &Path,
    open: &Opener<'_>,
    settled: Option<Stamp>,
    found: impl FnOnce(&FileJournal),
) -> Result<AttendOutcome, JournalError> {
    let Some(journal) = FileJournal::find(state)? else { return Ok(AttendOutcome::Nothing(None)) };
    let stamp = fs::symlink_metadata(journal.path()).ok().map(|file| (file.ino(), file.mtime(), file.mtime_nsec()));
    if stamp.is_none() || stamp == settled {
        return Ok(AttendOutcome::Nothing(stamp));
    }
    found(&journal);
    let Some(_lock) = journal.try_lock()? else { return Ok(AttendOutcome::Locked) };
    Ok(match attend(&journal, open, &super::now())? {
        Attended::Waits { ms } => AttendOutcome::Waits(Duration::from_millis(ms)),
        Attended::RolledBack(change) => AttendOutcome::RolledBack(change),
        Attended::Retry { why } => AttendOutcome::Failed(why),
        _ => AttendOutcome::Nothing(stamp),
    })
}

/// State of a change that is logged once.
#[derive(PartialEq, Eq)]
enum Notice {
    Waits,
    Failed(String),
    Unknown(String),
}

/// Logs a notice unless it is the same as the last one.
fn log_if_new(last: &mut Option<Notice>, notice: Notice) {
    if last.as_ref() == Some(&notice) {
        return;
    }
    match &notice {
        Notice::Waits => {
            tracing::warn!("a change waits to be confirmed, and is rolled back otherwise; see `tortie confirm`");
        }
        Notice::Failed(why) => tracing::warn!(why, "a change that was not confirmed cannot be rolled back yet"),
        Notice::Unknown(error) => tracing::warn!(error, "it is unknown whether a change waits to be confirmed"),
    }
    *last = Some(notice);
}

fn log(change: &PendingChange) {
    let Phase::RolledBack { why, kept, .. } = &change.phase else { return };
    tracing::warn!(by = change.by, resources = change.writes.len(), why, "a change was rolled back");
    for kept in kept {
        tracing::warn!(resource = kept.resource, why = kept.why, "the resource was not rolled back");
    }
}
