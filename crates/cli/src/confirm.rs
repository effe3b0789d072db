mod held;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod pending;

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::Failure;
use super::agent_socket::AskArgs;
use held::{confirm_held, held_back};
use tortie_datastore::pending_change::STATE_DIR;

/// Confirm a change in etcd or Kubernetes, or the agent's held changes.
///
/// Keeps the change that a command with --confirm has made, such as `tortie apply`; without
/// confirmation it is rolled back when its time has passed. Also puts in force the change that an
/// agent with --confirm-host-changes holds back, because it would cut the management connection of
/// the host; only root may do that. Exits with 0 if a change stays, also if it was confirmed
/// before. Exits with 1 if there is no change, or if it has been or is being rolled back. With
/// --status nothing is confirmed, and exit code 0 means that a change waits; the last line names
/// the processes that roll the change back. If none of them runs, --rollback does it.
///
/// Example: tortie confirm
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Show the change that waits, or the outcome of the last one, and change nothing.
    #[arg(long, visible_alias = "list")]
    status: bool,
    /// Roll the change in etcd or Kubernetes back now, before its time has passed or because the
    /// processes that should have done it were killed.
    #[arg(long, conflicts_with = "status")]
    rollback: bool,
    /// State directory of the command that made the change.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
    #[command(flatten)]
    ask: AskArgs,
    /// Roll the change back when its time has passed.
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    #[arg(long, hide = true, conflicts_with = "status")]
    guard: bool,
}

struct ChangeReport {
    name: Option<&'static str>,
    whole: Value,
    text: String,
    is_good: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    if args.guard {
        return pending::guard(&args.state_dir);
    }
    let held = match (args.status, args.rollback) {
        (true, _) => held_back(&args.ask),
        (_, true) => Ok(None),
        _ => confirm_held(&args.ask),
    };
    let changed = matches!(held, Ok(Some(_)));
    let kept = in_datastore(args, changed);
    let report: Vec<&ChangeReport> =
        [&kept, &held].into_iter().filter_map(|report| report.as_ref().ok()?.as_ref()).collect();
    let (is_silent, is_good) = (report.is_empty(), report.iter().any(|report| report.is_good));
    if !is_silent {
        let whole = || {
            let mut all = Map::new();
            for report in &report {
                match (report.name, &report.whole) {
                    (Some(name), whole) => drop(all.insert(name.to_owned(), whole.clone())),
                    (None, Value::Object(fields)) => all.extend(fields.clone()),
                    (None, _) => {}
                }
            }
            json!(all)
        };
        args.ask.print_value(whole, || report.iter().map(|report| report.text.as_str()).collect())?;
    }
    // An error about one kind is reported although the other kind succeeded.
    kept?;
    match held {
        Err(failure) if is_silent => Err(failure),
        Err(failure) if is_good => {
            let _ = failure.report();
            Ok(())
        }
        _ if is_good => Ok(()),
        _ if is_silent => Err(Failure::failed("no change waits to be confirmed")),
        _ => Err(Failure::Reported(1)),
    }
}

#[cfg(any(feature = "etcd", feature = "kubernetes"))]
fn in_datastore(args: &Args, is_other: bool) -> Result<Option<ChangeReport>, Failure> {
    let report = |found: &pending::Attendance, is_good| ChangeReport {
        name: None,
        whole: pending::whole(found),
        text: pending::text(found),
        is_good,
    };
    if args.status {
        return Ok(pending::load(&args.state_dir)?.map(|found| report(&found, found.change.is_open())));
    }
    if args.rollback {
        let found = pending::roll_back(&args.state_dir)?;
        return Ok(found.map(|found| report(&found, found.is_rolled_back_entirely())));
    }
    let kept = pending::keep(&args.state_dir)?.filter(|(_, is_new)| *is_new || !is_other);
    Ok(kept.map(|(found, _)| report(&found, true)))
}

/// Returns `None`: this build cannot write to a datastore.
#[cfg(not(any(feature = "etcd", feature = "kubernetes")))]
#[allow(clippy::unnecessary_wraps, reason = "with a datastore that can be written it may fail")]
fn in_datastore(_: &Args, _: bool) -> Result<Option<ChangeReport>, Failure> {
    Ok(None)
}
