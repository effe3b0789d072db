//! Writes that are rolled back unless they are confirmed.

use std::env;
use std::error::Error;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tortie_datastore::store::apply::{ApplyError, initialise};
use tortie_datastore::store::pending::{
    Attended, FileJournal, Locked, PendingChange, attend, begin, carry_out, confirm,
};
use tortie_datastore::store::{ResourceStore, StagedStore, StagedWrite, StoreError};
use tortie_resources::stored::ResourceKey;

use super::output::Output;
use super::pending_write::PendingWrite;
use super::store::{StoreArgs, open_reference};
use super::{Failure, with_causes};
use tortie_datastore::pending_change::{PendingSummary, STATE_DIR, Until, now, watch};

/// Line that a guard prints once its parent process may end.
pub(super) const READY: &str = "ready\n";
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Time after which a change is rolled back if its writer was killed before it could confirm it.
const UNCONFIRMED: Duration = Duration::from_secs(60);

/// Options of a write: confirmation, dry run, output format.
#[derive(Debug, clap::Args)]
pub(super) struct ConfirmingArgs {
    /// Change all resources or none, and roll the change back unless `tortie confirm` comes in this
    /// time, such as 60s, 5m or 1h. A killed process or a lost connection does not prevent the
    /// rollback.
    #[arg(long, value_name = "TIME", value_parser = window)]
    confirm: Option<Duration>,
    /// Validate, show the changes, and make none; in Kubernetes by its server-side dry runs.
    /// --dry-run=server, as kubectl has it, is the same; --dry-run=client only validates files, and
    /// does not contact the datastore.
    #[arg(long, value_enum, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "server",
        default_value = "none", hide_default_value = true, hide_possible_values = true, conflicts_with = "confirm")]
    dry_run: DryRun,
    /// With --confirm: directory for the previous state. An agent that uses the same directory
    /// rolls the change back if this machine restarts.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Dry run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum DryRun {
    /// Make the changes.
    #[default]
    None,
    /// Validate the files; do not contact the datastore.
    Client,
    /// Let the datastore check the changes.
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WindowError {
    #[error("must be a time such as 60s, 5m or 1h")]
    Form,
    #[error("must be between a second and a week")]
    Range,
}

pub(super) fn window(text: &str) -> Result<Duration, WindowError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match text.strip_prefix(digits) {
        Some("s" | "") => 1,
        Some("m" | "min") => 60,
        Some("h") => 3_600,
        _ => return Err(WindowError::Form),
    };
    let number: u64 = digits.parse().map_err(|_| WindowError::Form)?;
    match number.checked_mul(seconds).map(Duration::from_secs) {
        Some(time) if !time.is_zero() && time <= LONGEST => Ok(time),
        _ => Err(WindowError::Range),
    }
}

impl ConfirmingArgs {
    pub(super) fn new(confirm: Option<Duration>, state_dir: PathBuf, output: Output) -> Self {
        Self { confirm, dry_run: DryRun::None, state_dir, output }
    }

    pub(super) fn output(&self) -> Output {
        self.output
    }

    pub(super) fn is_asked_for(&self) -> bool {
        self.confirm.is_some()
    }

    pub(super) fn is_dry(&self) -> bool {
        self.dry_run != DryRun::None
    }

    pub(super) fn is_offline(&self) -> bool {
        self.dry_run == DryRun::Client
    }

    /// Reports nothing else: the changes depend on the state of the datastore.
    pub(super) fn report_valid<'k>(&self, keys: impl Iterator<Item = &'k ResourceKey>) -> Result<(), Failure> {
        let words = keys.map(|key| (key.clone(), "valid")).collect();
        WriteOutcome { words, errors: Vec::new() }.print_dry(self.output)
    }

    pub(super) fn needs_datastore(&self) -> Result<(), Failure> {
        if !self.is_offline() {
            return Ok(());
        }
        let why =
            "--dry-run=client only validates files; the result of this command depends on the datastore: use --dry-run";
        Err(Failure::usage(why))
    }

    pub(super) fn write(
        &self,
        store: &StoreArgs,
        pending: &[PendingWrite<'_>],
        is_initial: bool,
    ) -> Result<(), Failure> {
        self.needs_datastore()?;
        self.write_to(&*store.open()?, store, pending, is_initial)
    }

    pub(super) fn write_to(
        &self,
        opened: &dyn ResourceStore,
        store: &StoreArgs,
        pending: &[PendingWrite<'_>],
        is_initial: bool,
    ) -> Result<(), Failure> {
        self.needs_datastore()?;
        if self.is_dry() {
            return try_all(opened, pending, is_initial, self.output);
        }
        if self.confirm.is_none() {
            return write_now(opened, pending, is_initial, self.output);
        }
        let datastore = store.reference()?;
        self.write_whole(opened, datastore, pending, is_initial).map(drop)
    }

    /// Makes all writes or none, also without `--confirm`. Returns whether any resource was
    /// concerned.
    pub(super) fn write_whole(
        &self,
        opened: &dyn ResourceStore,
        datastore: Value,
        pending: &[PendingWrite<'_>],
        is_initial: bool,
    ) -> Result<bool, Failure> {
        let journal = FileJournal::open(&self.state_dir).map_err(Failure::failed)?;
        let lock = self.lock(&journal)?;
        if is_initial {
            initialise(opened).map_err(Failure::failed)?;
        }
        let staged = StagedStore::new(opened);
        let mut written = write_each(&staged, pending, |_, _| {})?;
        let mut writes = Vec::new();
        if written.errors.is_empty() {
            writes = written.try_out(opened, staged.into_writes(), pending)?;
            if self.confirm.is_some() {
                written.require_rollback_right(opened, &writes, pending)?;
            }
        }
        if !written.errors.is_empty() {
            eprintln!("tortie: nothing has been changed");
            let none = WriteOutcome { words: Vec::new(), ..written };
            self.output.print(|| none.whole(None), String::new)?;
            return Err(Failure::Reported(1));
        }
        if !writes.is_empty() {
            let window = self.confirm.unwrap_or(UNCONFIRMED);
            // Time limits are whole seconds, at most a week.
            let window_ms = window.as_secs() * 1_000;
            let change = PendingChange::new(writes, datastore, &user_name(), window_ms, &now());
            let change = begin(&journal, change).map_err(Failure::failed)?;
            if let Err(error) = self.start_guard() {
                // Nothing has been written, so that this only updates the journal.
                attend(&journal, &open_again, &now()).map_err(Failure::failed)?;
                let failure = "no process can be started to roll the change back, so nothing is changed";
                return Err(Failure::failed_at(failure)(error));
            }
            carry_out(&journal, opened, change, &now).map_err(Failure::failed)?;
            if self.confirm.is_some() {
                eprintln!("tortie: this is rolled back in {} s unless `tortie confirm` comes", window.as_secs());
            } else {
                confirm(&journal, &now()).map_err(Failure::failed)?;
            }
        }
        drop(lock);
        let text = || written.words.iter().map(|(key, word)| format!("{key} {word}\n")).collect();
        self.output.print(|| written.whole(self.confirm), text)?;
        Ok(!written.words.is_empty())
    }

    /// Takes the lock, and rolls back an expired change. Fails if a change waits to be confirmed.
    fn lock(&self, journal: &FileJournal) -> Result<Locked, Failure> {
        let busy = || Failure::failed("another change is being made or rolled back at this moment; try again");
        let lock = journal.try_lock().map_err(Failure::failed)?.ok_or_else(busy)?;
        match attend(journal, &open_again, &now()).map_err(Failure::failed)? {
            Attended::Waits { .. } => Err(Failure::failed(waiting(&self.state_dir))),
            Attended::Retry { why } => Err(Failure::failed(format!(
                "an earlier change has not been confirmed and is being rolled back: {why}"
            ))),
            Attended::RolledBack(_) => {
                eprintln!("tortie: an earlier change was not confirmed, and has been rolled back now");
                Ok(lock)
            }
            _ => Ok(lock),
        }
    }

    /// Starts a separate process that rolls the change back: this one may be killed, and its
    /// terminal may be gone.
    fn start_guard(&self) -> io::Result<()> {
        let state_dir = std::path::absolute(&self.state_dir)?;
        let mut child = Command::new("/proc/self/exe")
            .arg0("tortie")
            .args(["confirm", "--guard", "--state-dir"])
            .arg(state_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line == READY { Ok(()) } else { Err(io::Error::other("it ended")) }
    }
}

fn waiting(state: &Path) -> String {
    match PendingSummary::of(state) {
        Some(PendingSummary { by, seconds_left, resources, .. }) => format!(
            "a change by {by} waits for {seconds_left} s more: {}; `tortie confirm` keeps it",
            resources.join(", ")
        ),
        None => "another change waits; `tortie confirm` keeps it".into(),
    }
}

fn write_now(
    store: &dyn ResourceStore,
    pending: &[PendingWrite<'_>],
    is_initial: bool,
    output: Output,
) -> Result<(), Failure> {
    if is_initial {
        initialise(store).map_err(Failure::failed)?;
    }
    // A table prints each outcome as soon as it is known.
    let written = write_each(store, pending, |key, word| {
        if output == Output::Table {
            println!("{key} {word}");
        }
    })?;
    output.print(|| written.whole(None), String::new)?;
    if written.errors.is_empty() { Ok(()) } else { Err(Failure::Reported(1)) }
}

fn try_all(
    store: &dyn ResourceStore,
    pending: &[PendingWrite<'_>],
    is_initial: bool,
    output: Output,
) -> Result<(), Failure> {
    let staged = StagedStore::new(store);
    if is_initial {
        initialise(&staged).map_err(Failure::failed)?;
    }
    let mut written = write_each(&staged, pending, |_, _| {})?;
    written.try_out(store, staged.into_writes(), pending)?;
    let WriteOutcome { words, errors } = &mut written;
    words.retain(|(key, _)| errors.iter().all(|(wrong, ..)| wrong != key));
    written.print_dry(output)
}

#[derive(Debug, Default)]
struct WriteOutcome {
    words: Vec<(ResourceKey, &'static str)>,
    errors: Vec<(ResourceKey, String, String)>,
}

impl WriteOutcome {
    /// Returns the writes that would change something, and records the errors.
    fn try_out(
        &mut self,
        store: &dyn ResourceStore,
        writes: Vec<StagedWrite>,
        pending: &[PendingWrite<'_>],
    ) -> Result<Vec<StagedWrite>, Failure> {
        let mut changing = Vec::new();
        for mut write in writes {
            match write.dry_run(store) {
                Ok(true) => changing.push(write),
                Ok(false) => {
                    // The difference consists of the datastore's defaults, which were not written.
                    let words = self.words.iter_mut().filter(|(key, _)| *key == write.key);
                    words.for_each(|(_, word)| *word = "unchanged");
                }
                Err(error @ StoreError::Unavailable(_)) => return Err(Failure::failed(error)),
                Err(error) => self.refused(&write.key, with_causes(&error), pending),
            }
        }
        Ok(changing)
    }

    /// Asks whether this user may roll back each write. Otherwise the guard, which has the same
    /// rights, could not.
    fn require_rollback_right(
        &mut self,
        store: &dyn ResourceStore,
        writes: &[StagedWrite],
        pending: &[PendingWrite<'_>],
    ) -> Result<(), Failure> {
        for write in writes {
            // The rollback of an update is another update and needs the same right.
            let Some(back) = write.reverse() else { continue };
            let verb = back.as_str();
            let why = match store.is_allowed(back, &write.key) {
                Ok(true) => continue,
                Ok(false) => format!("it could not be rolled back, as you have no right to {verb} it"),
                Err(error @ StoreError::Unavailable(_)) => return Err(Failure::failed(error)),
                Err(error) => {
                    format!(
                        "it is not known whether you have the right to {verb} it, to roll it back: {}",
                        with_causes(&error)
                    )
                }
            };
            self.refused(&write.key, format!("{}: {why}; without --confirm, it is done for good", write.key), pending);
        }
        Ok(())
    }

    fn refused(&mut self, key: &ResourceKey, error: String, pending: &[PendingWrite<'_>]) {
        let pending = pending.iter().find(|pending| pending.key == *key);
        let place = pending.map_or("tortie", |pending| &pending.place).to_owned();
        eprintln!("{place}: {error}");
        self.errors.push((key.clone(), place, error));
    }

    fn print_dry(&self, output: Output) -> Result<(), Failure> {
        let whole = || {
            let mut whole = self.whole(None);
            if let Some(whole) = whole.as_object_mut() {
                whole.insert("dry_run".to_owned(), true.into());
            }
            whole
        };
        let text = || self.words.iter().map(|(key, word)| format!("{key} {word} (dry run)\n")).collect();
        output.print(whole, text)?;
        if self.errors.is_empty() { Ok(()) } else { Err(Failure::Reported(1)) }
    }

    /// `confirm` is the time limit of the confirmation.
    fn whole(&self, confirm: Option<Duration>) -> Value {
        let resources = self.words.iter().map(|(key, word)| json!({ "resource": key.to_string(), "outcome": word }));
        let errors = self
            .errors
            .iter()
            .map(|(key, place, error)| json!({ "resource": key.to_string(), "place": place, "error": error }));
        let (resources, errors): (Vec<Value>, Vec<Value>) = (resources.collect(), errors.collect());
        let mut whole = json!({ "resources": resources, "errors": errors });
        if let (Some(confirm), Some(whole)) = (confirm.filter(|_| !self.words.is_empty()), whole.as_object_mut()) {
            whole.insert("confirm_within_seconds".to_owned(), confirm.as_secs().into());
        }
        whole
    }
}

fn write_each(
    store: &dyn ResourceStore,
    pending: &[PendingWrite<'_>],
    done: impl Fn(&ResourceKey, &'static str),
) -> Result<WriteOutcome, Failure> {
    let mut written = WriteOutcome::default();
    for PendingWrite { place, key, write } in pending {
        match write(store) {
            Ok(Some(word)) => {
                done(key, word);
                written.words.push((key.clone(), word));
            }
            Ok(None) => {}
            // The next write would wait as long, and fail as well.
            Err(ApplyError::Store(error @ StoreError::Unavailable(_))) => return Err(Failure::failed(error)),
            Err(error) => {
                let error = with_causes(&error);
                eprintln!("{place}: {error}");
                written.errors.push((key.clone(), place.clone(), error));
            }
        }
    }
    Ok(written)
}

/// Watches for unconfirmed changes on a background thread as long as the process runs, and rolls
/// them back. This covers changes that were made before a restart of the machine.
///
/// # Errors
/// If the thread cannot be started.
pub fn watch_in_background(state_dir: Option<&Path>) -> Result<(), Failure> {
    let Some(state) = state_dir.map(Path::to_owned) else { return Ok(()) };
    let watching = move || watch(&state, Until::End, &open_again);
    thread::Builder::new().name("pending-change".into()).spawn(watching).map_err(Failure::io("a thread"))?;
    Ok(())
}

pub(super) fn open_again(change: &PendingChange) -> Result<Arc<dyn ResourceStore>, Box<dyn Error + Send + Sync>> {
    Ok(open_reference(&change.datastore)?)
}

fn user_name() -> String {
    let name = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| env::var(name).ok().filter(|it| !it.is_empty()));
    name.unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, seconds) in [("60s", 60), ("60", 60), ("5m", 300), ("1h", 3_600), ("168h", 604_800)] {
            assert_eq!(window(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "s", "0s", "-1s", "1.5m", "169h", "1d", "99999999999999999999h", "5 m"] {
            assert!(window(text).is_err(), "{text}");
        }
    }
}
