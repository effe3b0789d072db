//! Writes that are rolled back unless they are confirmed.

use std::env;
use std::error::Error;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_datastore::store::apply::{ApplyError, initialise};
use tortie_datastore::store::pending::{
    Attended, FileJournal, Locked, PendingChange, attend, begin, carry_out, confirm,
};
use tortie_datastore::store::{ResourceStore, StagedStore, StagedWrite, StoreError};
use tortie_resources::go_duration;
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
/// Longest wait for another process that works on the change.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Options of a write: confirmation, dry run, output format.
#[derive(Debug, clap::Args)]
pub(super) struct ConfirmingArgs {
    /// Change all resources or none, and roll the change back unless `tortie confirm` comes in this
    /// time, such as 60s, 5m or 1h30m. A second process, which does not depend on this one or its
    /// terminal, does that, and so does an agent of this machine with the same --state-dir. If all
    /// are killed, `tortie confirm --rollback` or the next command with --confirm does it;
    /// `tortie confirm --status` names the processes.
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
    output: WriteOutput,
}

/// Output format of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum WriteOutput {
    /// Text for people.
    #[default]
    Table,
    /// KIND/NAME of each resource of the command, written or unchanged.
    Name,
    /// JSON, everything.
    Json,
    /// YAML, everything.
    Yaml,
}

impl WriteOutput {
    /// Returns the format of the whole answer; `None` for names.
    pub(super) fn of_answer(self) -> Option<Output> {
        match self {
            Self::Table => Some(Output::Table),
            Self::Name => None,
            Self::Json => Some(Output::Json),
            Self::Yaml => Some(Output::Yaml),
        }
    }

    fn line(self, key: &ResourceKey, word: &str) -> String {
        match self {
            Self::Name => format!("{}/{}", key.kind().qualified(), key.name()),
            _ => format!("{key} {word}"),
        }
    }

    fn print(self, whole: impl FnOnce() -> Value, for_people: impl FnOnce() -> String) -> Result<(), Failure> {
        self.of_answer().unwrap_or_default().print(whole, for_people)
    }
}

impl From<Output> for WriteOutput {
    fn from(output: Output) -> Self {
        match output {
            Output::Table => Self::Table,
            Output::Json => Self::Json,
            Output::Yaml => Self::Yaml,
        }
    }
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
    #[error("must be a time such as 60s, 5m or 1h30m, in whole seconds")]
    Form,
    #[error("must be between a second and a week")]
    Range,
}

/// Reads a time such as `90`, in seconds, `5min` or `1h30m`.
pub(super) fn window(text: &str) -> Result<Duration, WindowError> {
    let time = match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => go_duration(&text.replace("min", "m")),
    };
    let time = time.ok_or(WindowError::Form)?;
    if time < Duration::from_secs(1) || time > LONGEST {
        return Err(WindowError::Range);
    }
    // The deadline is kept in whole seconds.
    let seconds = time.as_secs_f64();
    if (seconds - seconds.round()).abs() > 1e-6 {
        Err(WindowError::Form)
    } else {
        Ok(Duration::from_secs_f64(seconds.round()))
    }
}

impl ConfirmingArgs {
    pub(super) fn new(confirm: Option<Duration>, state_dir: PathBuf, output: Output) -> Self {
        Self { confirm, dry_run: DryRun::None, state_dir, output: output.into() }
    }

    pub(super) fn output(&self) -> WriteOutput {
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
        WriteOutcome { words, ..WriteOutcome::default() }.print_dry(self.output)
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
            let checked = check_all(StagedStore::new(opened), opened, pending, true, true)?;
            if !checked.errors.is_empty() {
                return Err(checked.refuse(self.output, true));
            }
            initialise(opened).map_err(Failure::failed)?;
        }
        let staged = StagedStore::new(opened);
        let mut written = stage_each(&staged, pending)?;
        let mut writes = Vec::new();
        if written.errors.is_empty() {
            writes = written.try_out(opened, staged.into_writes(), pending, true)?;
            if self.confirm.is_some() {
                written.require_rollback_right(opened, &writes, pending)?;
            }
        }
        if !written.errors.is_empty() {
            return Err(written.refuse(self.output, true));
        }
        if !writes.is_empty() {
            let window = self.confirm.unwrap_or(UNCONFIRMED);
            // Time limits are whole seconds, at most a week.
            let window_ms = window.as_secs() * 1_000;
            let change = PendingChange::new(writes, datastore, &user_name(), window_ms, &now());
            let change = begin(&journal, change).map_err(Failure::failed)?;
            let guard = match self.start_guard() {
                Ok(guard) => guard,
                Err(error) => {
                    // Nothing has been written, so that this only updates the journal.
                    attend(&journal, &open_again, &now()).map_err(Failure::failed)?;
                    let failure = "no process can be started to roll the change back, so nothing is changed";
                    return Err(Failure::failed_at(failure)(error));
                }
            };
            carry_out(&journal, opened, change, &now).map_err(Failure::failed)?;
            if self.confirm.is_some() {
                let seconds = window.as_secs();
                eprintln!("tortie: process {guard} rolls this back in {seconds} s unless `tortie confirm` comes");
            } else {
                confirm(&journal, &now()).map_err(Failure::failed)?;
            }
        }
        drop(lock);
        let text = || written.words.iter().map(|(key, word)| self.output.line(key, word) + "\n").collect();
        self.output.print(|| written.whole(self.confirm), text)?;
        Ok(!written.words.is_empty())
    }

    /// Takes the lock, and rolls back an expired change. Fails if a change waits to be confirmed.
    fn lock(&self, journal: &FileJournal) -> Result<Locked, Failure> {
        let lock = lock(journal)?;
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
    /// terminal may be gone. Returns its process id.
    fn start_guard(&self) -> io::Result<u32> {
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
        if line == READY { Ok(child.id()) } else { Err(io::Error::other("it ended")) }
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

/// Takes the lock, which another process may have for a moment.
pub(super) fn lock(journal: &FileJournal) -> Result<Locked, Failure> {
    let begun = Instant::now();
    loop {
        match journal.try_lock().map_err(Failure::failed)? {
            Some(lock) => return Ok(lock),
            None if begun.elapsed() < LOCK_PATIENCE => thread::sleep(Duration::from_millis(20)),
            None => {
                return Err(Failure::failed("a change is being made or rolled back at this moment; try again"));
            }
        }
    }
}

fn write_now(
    store: &dyn ResourceStore,
    pending: &[PendingWrite<'_>],
    is_initial: bool,
    output: WriteOutput,
) -> Result<(), Failure> {
    // One write is checked as well: an API server that drops domain names reports no error.
    let checked = check_all(StagedStore::checking(store), store, pending, is_initial, false)?;
    if !checked.errors.is_empty() {
        return Err(checked.refuse(output, pending.len() > 1));
    }
    if is_initial {
        initialise(store).map_err(Failure::failed)?;
    }
    let mut written = WriteOutcome::default();
    for (index, PendingWrite { place, key, write }) in pending.iter().enumerate() {
        match write(store) {
            Ok(Some(word)) => {
                // A table prints each outcome as soon as it is known.
                if matches!(output, WriteOutput::Table | WriteOutput::Name) {
                    println!("{}", output.line(key, word));
                }
                written.words.push((key.clone(), word));
            }
            Ok(None) => {}
            Err(error) => {
                written.failed(place, key, with_causes(&error));
                written.untried = pending.iter().skip(index + 1).map(|pending| pending.key.clone()).collect();
                written.is_unknown = matches!(error, ApplyError::Store(StoreError::Unavailable(_)));
                if pending.len() > 1 || written.is_unknown {
                    eprint!("{}", written.account());
                }
                break;
            }
        }
    }
    output.print(|| written.whole(None), String::new)?;
    if written.errors.is_empty() { Ok(()) } else { Err(Failure::Reported(1)) }
}

/// Returns the outcome that the writes would have. With `must_try` the datastore has to support dry
/// runs.
fn check_all(
    staged: StagedStore<'_>,
    store: &dyn ResourceStore,
    pending: &[PendingWrite<'_>],
    is_initial: bool,
    must_try: bool,
) -> Result<WriteOutcome, Failure> {
    if is_initial {
        initialise(&staged).map_err(Failure::failed)?;
    }
    let mut checked = stage_each(&staged, pending)?;
    checked.try_out(store, staged.into_writes(), pending, must_try)?;
    Ok(checked)
}

fn try_all(
    store: &dyn ResourceStore,
    pending: &[PendingWrite<'_>],
    is_initial: bool,
    output: WriteOutput,
) -> Result<(), Failure> {
    let mut written = check_all(StagedStore::new(store), store, pending, is_initial, true)?;
    let WriteOutcome { words, errors, .. } = &mut written;
    words.retain(|(key, _)| errors.iter().all(|(wrong, ..)| wrong != key));
    written.print_dry(output)
}

#[derive(Debug, Default)]
struct WriteOutcome {
    words: Vec<(ResourceKey, &'static str)>,
    errors: Vec<(ResourceKey, String, String)>,
    /// Resources after the one whose write failed.
    untried: Vec<ResourceKey>,
    /// Whether the failed write may have been made.
    is_unknown: bool,
}

impl WriteOutcome {
    /// Returns the failure of a command that has written nothing, and prints the errors.
    fn refuse(self, output: WriteOutput, of_several: bool) -> Failure {
        if of_several {
            eprintln!("tortie: nothing has been changed");
        }
        let none = WriteOutcome { words: Vec::new(), ..self };
        match output.print(|| none.whole(None), String::new) {
            Ok(()) => Failure::Reported(1),
            Err(failure) => failure,
        }
    }

    /// Returns the state of each resource after a failed write, for people.
    fn account(&self) -> String {
        if self.words.is_empty() && !self.is_unknown {
            return "tortie: nothing has been changed\n".to_owned();
        }
        let failed = if self.is_unknown { "failed, and possibly written" } else { "failed" };
        let lists: [(&str, Vec<String>); 3] = [
            ("written", self.words.iter().map(|(key, word)| format!("{key} {word}")).collect()),
            (failed, self.errors.iter().map(|(key, ..)| key.to_string()).collect()),
            ("not tried", self.untried.iter().map(ToString::to_string).collect()),
        ];
        let lists = lists.iter().filter(|(_, list)| !list.is_empty());
        lists.map(|(title, list)| format!("tortie: {title}: {}\n", list.join(", "))).collect()
    }

    /// Returns the writes that would change something, and records the errors. Unless `must_try`,
    /// a write without domain names is not checked if the datastore cannot try it.
    fn try_out(
        &mut self,
        store: &dyn ResourceStore,
        writes: Vec<StagedWrite>,
        pending: &[PendingWrite<'_>],
        must_try: bool,
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
                // Another client has written it since. The write itself reads it again.
                Err(StoreError::Conflict { .. } | StoreError::AlreadyExists(_) | StoreError::NotFound(_))
                    if !must_try && !write.has_domains() => {}
                // An admission webhook that has side effects refuses dry runs.
                Err(error) if !must_try && !write.has_domains() && with_causes(&error).contains("dry run") => {}
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
        self.failed(pending.map_or("tortie", |pending| &pending.place), key, error);
    }

    fn failed(&mut self, place: &str, key: &ResourceKey, error: String) {
        eprintln!("{place}: {error}");
        self.errors.push((key.clone(), place.to_owned(), error));
    }

    fn print_dry(&self, output: WriteOutput) -> Result<(), Failure> {
        let whole = || {
            let mut whole = self.whole(None);
            if let Some(whole) = whole.as_object_mut() {
                whole.insert("dry_run".to_owned(), true.into());
            }
            whole
        };
        let text =
            || self.words.iter().map(|(key, word)| output.line(key, &format!("{word} (dry run)")) + "\n").collect();
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
        if let (false, Some(whole)) = (self.untried.is_empty(), whole.as_object_mut()) {
            whole.insert("not_tried".to_owned(), self.untried.iter().map(ToString::to_string).collect());
        }
        whole
    }
}

/// Stages all writes and records the errors.
fn stage_each(staged: &StagedStore<'_>, pending: &[PendingWrite<'_>]) -> Result<WriteOutcome, Failure> {
    let mut written = WriteOutcome::default();
    for PendingWrite { place, key, write } in pending {
        match write(staged) {
            Ok(Some(word)) => written.words.push((key.clone(), word)),
            Ok(None) => {}
            // The next request would wait as long, and fail as well.
            Err(ApplyError::Store(error @ StoreError::Unavailable(_))) => return Err(Failure::failed(error)),
            Err(error) => written.failed(place, key, with_causes(&error)),
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
mod tests;
