//! `tortie confirm`.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tortie_store::pending::{Confirmed, FileJournal, Journal as _, Locked, PendingChange, Phase, confirm};
use tortie_store::timestamp;

use super::Failure;
use super::confirming::open_again;
use super::output::Output;
use crate::pending_change::{STATE_DIR, Until, now, watch};

/// What a guard says when nothing can end it any more but a kill.
pub(super) const READY: &str = "ready\n";

/// How long another program is waited for that is at work on the change.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keep the change that `tortie apply --confirm` or `tortie delete --confirm` has made.
///
/// Without this, it is taken back when its time has passed. Ends with exit code 0 if the change stays, also if that was
/// confirmed before, and with 1 if there is none, or it is being taken back or has been. With --status nothing is confirmed,
/// and exit code 0 says that a change waits.
///
/// Example: tortie confirm
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Say what waits to be confirmed, or what became of it, and change nothing.
    #[arg(long)]
    status: bool,
    /// The directory that the change was made with.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// How to answer.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Take the change back when its time has passed.
    #[arg(long, hide = true, conflicts_with = "status")]
    guard: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.guard {
        return guard(&args.state_dir);
    }
    let none = || Failure::Failed("no change waits to be confirmed".into());
    let journal = FileJournal::find(&args.state_dir).map_err(failed)?.ok_or_else(none)?;
    if args.status {
        let change = journal.load().map_err(failed)?.ok_or_else(none)?;
        print(args.output, &change)?;
        return if change.is_open() { Ok(()) } else { Err(Failure::Reported(1)) };
    }
    let lock = lock(&journal)?;
    let (Confirmed::Now(change) | Confirmed::Before(change)) = confirm(&journal, &now()).map_err(failed)? else {
        return Err(none());
    };
    drop(lock);
    print(args.output, &change)
}

fn lock(journal: &FileJournal) -> Result<Locked, Failure> {
    let begun = Instant::now();
    loop {
        match journal.try_lock().map_err(failed)? {
            Some(lock) => return Ok(lock),
            None if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
            None => {
                return Err(Failure::Failed("the change is being made or taken back at this moment; try again".into()));
            }
        }
    }
}

/// Takes the change back when its time has passed; ends when nothing waits.
fn guard(state: &Path) -> Result<(), Failure> {
    // The end of a terminal or of a connection is not the end of this session.
    rustix::process::setsid().map_err(|error| Failure::io("a session of its own")(error.into()))?;
    std::env::set_current_dir("/").map_err(Failure::io("/"))?;
    let mut stdout = io::stdout();
    stdout.write_all(READY.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::io("standard output"))?;
    watch(state, Until::Settled, &open_again);
    Ok(())
}

fn print(output: Output, change: &PendingChange) -> Result<(), Failure> {
    output.print(|| whole(change), || text(change))
}

/// Milliseconds since 1970 as a time that people read.
fn time(ms: u64) -> String {
    timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

fn whole(change: &PendingChange) -> Value {
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
fn text(change: &PendingChange) -> String {
    let state = match &change.phase {
        Phase::Applying => "is being made".to_owned(),
        Phase::Waiting => {
            format!("is taken back in {} s unless it is confirmed", change.remaining_ms(&now()).div_ceil(1_000))
        }
        Phase::Confirmed { at_ms } => format!("is confirmed since {}", time(*at_ms)),
        Phase::RollingBack { why } => format!("is being taken back: {why}"),
        Phase::RolledBack { at_ms, why, .. } => format!("was taken back at {}: {why}", time(*at_ms)),
    };
    let mut out = format!("the change by {} of {} {state}\n", change.by, time(change.began_ms));
    for write in &change.writes {
        let _ = writeln!(out, "  {}", write.key());
    }
    if let Phase::RolledBack { kept, .. } = &change.phase {
        for kept in kept {
            let _ = writeln!(out, "not put back: {}: {}", kept.resource, kept.why);
        }
    }
    out
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}
