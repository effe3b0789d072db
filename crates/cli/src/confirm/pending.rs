use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tortie_datastore::store::pending::{
    Attended, ConfirmError, Confirmed, FileJournal, Journal as _, PendingChange, Phase, Watcher, WatcherKind, cancel,
    confirm,
};
use tortie_datastore::store::timestamp;

use crate::Failure;
use crate::confirming::{READY, lock, open_again};
use tortie_datastore::pending_change::{Until, now, watch};

const UNATTENDED: &str = "no running process rolls it back; `tortie confirm --rollback` does";

/// A stored change, and the processes that work on it.
pub(super) struct Attendance {
    pub(super) change: PendingChange,
    watchers: Vec<Watcher>,
    /// Whether a process is writing it or rolling it back at this moment.
    is_busy: bool,
}

impl Attendance {
    pub(super) fn settled(change: PendingChange) -> Self {
        Self { change, watchers: Vec::new(), is_busy: false }
    }

    pub(super) fn is_rolled_back_entirely(&self) -> bool {
        matches!(&self.change.phase, Phase::RolledBack { kept, .. } if kept.is_empty())
    }
}

/// Returns the change that waits, or the last one with its outcome; `None` if there never was any.
pub(super) fn load(state: &Path) -> Result<Option<Attendance>, Failure> {
    let Some(journal) = FileJournal::find(state).map_err(Failure::failed)? else { return Ok(None) };
    let Some(mut change) = journal.load().map_err(Failure::failed)? else { return Ok(None) };
    let mut is_busy = false;
    if matches!(change.phase, Phase::Applying | Phase::RollingBack { .. }) {
        let lock = journal.try_lock().map_err(Failure::failed)?;
        is_busy = lock.is_none();
        // The writer may have finished before this process had the lock.
        if let Some(finished) = journal.load().map_err(Failure::failed)?.filter(|_| !is_busy) {
            change = finished;
        }
    }
    let watchers = journal.watchers().map_err(Failure::failed)?;
    Ok(Some(Attendance { change, watchers, is_busy }))
}

/// Confirms the change. Returns it, and whether it was not confirmed before.
pub(super) fn keep(state: &Path) -> Result<Option<(Attendance, bool)>, Failure> {
    let Some(journal) = FileJournal::find(state).map_err(Failure::failed)? else { return Ok(None) };
    let _lock = lock(&journal)?;
    match confirm(&journal, &now()) {
        Ok(Confirmed::Now(change)) => Ok(Some((Attendance::settled(*change), true))),
        Ok(Confirmed::Before(change)) => Ok(Some((Attendance::settled(*change), false))),
        Ok(_) => Ok(None),
        Err(ConfirmError::RollingBack(why)) if journal.watchers().map_err(Failure::failed)?.is_empty() => {
            Err(Failure::failed(format!("the change cannot be confirmed any more: {why}; {UNATTENDED}")))
        }
        Err(error) => Err(Failure::failed(error)),
    }
}

/// Rolls the open change back now; `None` if there is none.
pub(super) fn roll_back(state: &Path) -> Result<Option<Attendance>, Failure> {
    let Some(journal) = FileJournal::find(state).map_err(Failure::failed)? else { return Ok(None) };
    let _lock = lock(&journal)?;
    match cancel(&journal, &open_again, &now()).map_err(Failure::failed)? {
        Attended::RolledBack(change) => Ok(Some(Attendance::settled(*change))),
        Attended::Retry { why } => Err(Failure::failed_at("the change cannot be rolled back")(why)),
        _ => Ok(None),
    }
}

/// Rolls the change back when its time has passed; returns when no change waits.
pub(super) fn guard(state: &Path) -> Result<(), Failure> {
    // This process must survive the end of the terminal or the connection.
    rustix::process::setsid().map_err(|error| Failure::io("a new session")(error.into()))?;
    std::env::set_current_dir("/").map_err(Failure::io("/"))?;
    let journal = FileJournal::open(state).map_err(Failure::failed)?;
    let _registered = journal.register(WatcherKind::Guard).map_err(Failure::failed)?;
    let mut stdout = io::stdout();
    stdout.write_all(READY.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::io("standard output"))?;
    watch(state, Until::Settled, &open_again);
    Ok(())
}

fn time(ms: u64) -> String {
    timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

pub(super) fn whole(Attendance { change, watchers, .. }: &Attendance) -> Value {
    let resources: Vec<Value> = change
        .writes
        .iter()
        .map(|write| {
            let change = match (write.was_there(), write.stays()) {
                (false, _) => "created",
                (true, true) => "updated",
                (true, false) => "deleted",
            };
            json!({ "resource": write.key().to_string(), "change": change })
        })
        .collect();
    let mut whole = json!(change.phase);
    if let Value::Object(whole) = &mut whole {
        whole.insert("by".into(), json!(change.by));
        whole.insert("began".into(), json!(time(change.began_ms)));
        if change.phase == Phase::Waiting {
            let left = change.remaining_ms(&now()).div_ceil(1_000);
            whole.insert("seconds_left".into(), json!(left));
            if left == 0 {
                whole.insert("overdue_since".into(), json!(time(change.deadline.wall_ms)));
            }
        }
        if change.is_open() {
            let watchers = watchers.iter().map(|watcher| {
                let is_agent = watcher.kind == WatcherKind::Agent;
                json!({ "process": watcher.pid, "kind": if is_agent { "agent" } else { "guard" } })
            });
            whole.insert("rolled_back_by".into(), watchers.collect());
        }
        whole.insert("resources".into(), json!(resources));
    }
    whole
}

/// Writing to a string cannot fail.
pub(super) fn text(Attendance { change, watchers, is_busy }: &Attendance) -> String {
    let state = match &change.phase {
        Phase::Applying if *is_busy => "is being made".to_owned(),
        Phase::Applying => "was interrupted, and may be in effect in part".to_owned(),
        Phase::Waiting => match change.remaining_ms(&now()).div_ceil(1_000) {
            0 => format!("is overdue since {}", time(change.deadline.wall_ms)),
            left if watchers.is_empty() => format!("can be confirmed for {left} s more"),
            left => format!("is rolled back in {left} s unless it is confirmed"),
        },
        Phase::Confirmed { at_ms } => format!("is confirmed since {}", time(*at_ms)),
        Phase::RollingBack { why } if *is_busy || !watchers.is_empty() => format!("is being rolled back: {why}"),
        Phase::RollingBack { why } => format!("is not rolled back entirely: {why}"),
        Phase::RolledBack { at_ms, why, .. } => format!("was rolled back at {}: {why}", time(*at_ms)),
    };
    let mut out = format!("the change by {} of {} {state}\n", change.by, time(change.began_ms));
    for write in &change.writes {
        let _ = writeln!(out, "  {}", write.key());
    }
    let names: Vec<String> = watchers.iter().map(ToString::to_string).collect();
    let _ = match (change.is_open(), names.is_empty()) {
        (true, false) => writeln!(out, "rolled back by {}", names.join(", ")),
        (true, true) if !is_busy => writeln!(out, "{UNATTENDED}"),
        _ => Ok(()),
    };
    if let Phase::RolledBack { kept, .. } = &change.phase {
        for kept in kept {
            let _ = writeln!(out, "not rolled back: {}: {}", kept.resource, kept.why);
        }
    }
    out
}
