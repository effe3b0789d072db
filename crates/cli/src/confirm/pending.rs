use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tortie_datastore::store::pending::{Confirmed, FileJournal, Journal as _, Locked, PendingChange, Phase, confirm};
use tortie_datastore::store::timestamp;

use crate::Failure;
use crate::confirming::{READY, open_again};
use tortie_datastore::pending_change::{Until, now, watch};

/// Longest wait for another process that is working on the change.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) enum ConfirmedChange {
    Now(Box<PendingChange>),
    Before(Box<PendingChange>),
}

/// Returns the change that waits, or the last one with its outcome; `None` if there never was any.
pub(super) fn load(state: &Path) -> Result<Option<PendingChange>, Failure> {
    match FileJournal::find(state).map_err(Failure::failed)? {
        Some(journal) => journal.load().map_err(Failure::failed),
        None => Ok(None),
    }
}

pub(super) fn keep(state: &Path) -> Result<Option<ConfirmedChange>, Failure> {
    let Some(journal) = FileJournal::find(state).map_err(Failure::failed)? else { return Ok(None) };
    let _lock = lock(&journal)?;
    Ok(match confirm(&journal, &now()).map_err(Failure::failed)? {
        Confirmed::Now(change) => Some(ConfirmedChange::Now(change)),
        Confirmed::Before(change) => Some(ConfirmedChange::Before(change)),
        _ => None,
    })
}

fn lock(journal: &FileJournal) -> Result<Locked, Failure> {
    let begun = Instant::now();
    loop {
        match journal.try_lock().map_err(Failure::failed)? {
            Some(lock) => return Ok(lock),
            None if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
            None => {
                return Err(Failure::failed("the change is being made or rolled back at this moment; try again"));
            }
        }
    }
}

/// Rolls the change back when its time has passed; returns when no change waits.
pub(super) fn guard(state: &Path) -> Result<(), Failure> {
    // This process must survive the end of the terminal or the connection.
    rustix::process::setsid().map_err(|error| Failure::io("a new session")(error.into()))?;
    std::env::set_current_dir("/").map_err(Failure::io("/"))?;
    let mut stdout = io::stdout();
    stdout.write_all(READY.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::io("standard output"))?;
    watch(state, Until::Settled, &open_again);
    Ok(())
}

fn time(ms: u64) -> String {
    timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

pub(super) fn whole(change: &PendingChange) -> Value {
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
            whole.insert("seconds_left".into(), json!(change.remaining_ms(&now()).div_ceil(1_000)));
        }
        whole.insert("resources".into(), json!(resources));
    }
    whole
}

/// Writing to a string cannot fail.
pub(super) fn text(change: &PendingChange) -> String {
    let state = match &change.phase {
        Phase::Applying => "is being made".to_owned(),
        Phase::Waiting => {
            format!("is rolled back in {} s unless it is confirmed", change.remaining_ms(&now()).div_ceil(1_000))
        }
        Phase::Confirmed { at_ms } => format!("is confirmed since {}", time(*at_ms)),
        Phase::RollingBack { why } => format!("is being rolled back: {why}"),
        Phase::RolledBack { at_ms, why, .. } => format!("was rolled back at {}: {why}", time(*at_ms)),
    };
    let mut out = format!("the change by {} of {} {state}\n", change.by, time(change.began_ms));
    for write in &change.writes {
        let _ = writeln!(out, "  {}", write.key());
    }
    if let Phase::RolledBack { kept, .. } = &change.phase {
        for kept in kept {
            let _ = writeln!(out, "not rolled back: {}: {}", kept.resource, kept.why);
        }
    }
    out
}
