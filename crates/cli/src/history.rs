#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod resources;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tortie_analysis::line_diff::unified;
#[cfg(feature = "kubernetes")]
use tortie_datastore::kubernetes::KubeConfig;
use tortie_datastore::store::timestamp;
use tortie_model::Interner;
use tortie_resources::manifest::{Format, Options, read_written};
#[cfg(feature = "kubernetes")]
use tortie_revisions::history::HistoryError;
use tortie_revisions::history::{Conflict, FileChange, FileRollback, History, HistoryEntry, Origin, RollbackPlan};

#[cfg(feature = "kubernetes")]
use super::Cause;
use super::Failure;
#[cfg(feature = "etcd")]
use super::datastore::{AccessArgs, DatastoreArgs};
use super::datastore_url::DatastoreUrl;
#[cfg(not(all(feature = "etcd", feature = "kubernetes")))]
use super::datastore_url::NotBuilt;
use super::output::Output;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
use super::store::{StoreArgs, StoreUrl};
use tortie_datastore::pending_change::STATE_DIR;
use tortie_telemetry::escape;

/// Selection of a history.
#[derive(Debug, clap::Args)]
struct HistoryArgs {
    /// Datastore of the history: file:DIR, etcd://HOST[:PORT],... as in the agent's options, or
    /// kubernetes:[KUBECONFIG]; not needed if the agents of this machine read only one. `rollback`
    /// writes to Kubernetes with that kubeconfig.
    #[arg(long, value_name = "URL")]
    datastore: Option<DatastoreUrl>,
    /// The agent's --state-dir.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
}

impl HistoryArgs {
    fn open(&self) -> Result<History, Failure> {
        let origin = match &self.datastore {
            None => None,
            Some(DatastoreUrl::Directory(directory)) => Some(Origin::Directory(directory.clone())),
            #[cfg(feature = "etcd")]
            Some(url @ DatastoreUrl::Etcd(_)) => {
                let config = DatastoreArgs::at(url.clone(), AccessArgs::default())
                    .etcd(&super::program::local_sources(None)?)?;
                config.as_ref().map(|config| Origin::etcd(&config.endpoints, &config.key_prefix))
            }
            #[cfg(feature = "kubernetes")]
            Some(DatastoreUrl::Kubernetes(file)) => return self.of_kubernetes(file.as_deref()),
            Some(other) => {
                let why = format!("{other}: a history is kept of directories of manifests, etcd and Kubernetes only");
                return Err(Failure::usage(why));
            }
        };
        History::find(&self.state_dir, origin.as_ref()).map_err(Failure::failed)
    }

    /// This server's, or the only one of Kubernetes: the agent may know the server by another
    /// address.
    #[cfg(feature = "kubernetes")]
    fn of_kubernetes(&self, file: Option<&Path>) -> Result<History, Failure> {
        let server = super::datastore::kubeconfig(file)?.fixed().map_err(Failure::failed)?.server;
        match History::find(&self.state_dir, Some(&Origin::Kubernetes(server))) {
            Err(HistoryError::Unknown { .. }) => {
                History::only(&self.state_dir, |origin| matches!(origin, Origin::Kubernetes(_)))
                    .map_err(Failure::failed)
            }
            found => found.map_err(Failure::failed),
        }
    }

    #[cfg(feature = "kubernetes")]
    #[cfg_attr(not(feature = "etcd"), expect(unused_variables, reason = "only etcd has separate flags"))]
    fn kubernetes_store(&self, args: &RollbackArgs, server: &str) -> Result<StoreArgs, Failure> {
        let config = match &self.datastore {
            Some(DatastoreUrl::Kubernetes(file)) => super::datastore::kubeconfig(file.as_deref())?,
            _ => {
                let usual = KubeConfig::usual();
                let why: Option<Cause> = match usual.fixed() {
                    Ok(fixed) if fixed.server == server => None,
                    Ok(fixed) => Some(format!("the usual kubeconfig leads to {}", fixed.server).into()),
                    Err(error) => Some(error.into()),
                };
                if let Some(why) = why {
                    return Err(Failure::usage(OtherServer { server: server.to_owned(), why }));
                }
                usual
            }
        };
        Ok(StoreArgs::at(
            StoreUrl::Kubernetes(config),
            #[cfg(feature = "etcd")]
            args.etcd.clone(),
        ))
    }
}

#[cfg(feature = "kubernetes")]
#[derive(Debug, thiserror::Error)]
#[error("the history is of Kubernetes at {server}; give --datastore kubernetes:KUBECONFIG, with rights to write")]
struct OtherServer {
    server: String,
    #[source]
    why: Cause,
}

/// List former states of the manifests, or of etcd or Kubernetes.
///
/// The agent of this machine keeps the latest states (`tortie run --history`) of a directory of
/// manifests, or of the resources that users write into etcd or Kubernetes. Without a number, lists
/// them, newest first, with the time and the number of changed files and objects. With a number,
/// shows the changes that led to that state, as `diff -u` does.
///
/// Examples: tortie history
///           tortie history 12
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// A state.
    state: Option<u64>,
    #[command(flatten)]
    place: HistoryArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Restore a former state of the manifests, or of etcd or Kubernetes.
///
/// Writes only files or resources that differ, and removes those that the state does not have. The
/// running agent handles this like any other change. It becomes a new state of the history, which
/// can be rolled back as well. If a file or resource has content that no state of the history has,
/// nothing is changed without --force. Each file is replaced in one step. Resources in etcd or
/// Kubernetes are changed all or not at all, and with --confirm the change is rolled back unless
/// `tortie confirm` comes in time.
///
/// Examples: tortie rollback 12
///           tortie rollback 12 --confirm 60s
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct RollbackArgs {
    /// The state.
    state: u64,
    #[command(flatten)]
    place: HistoryArgs,
    /// Go back even if that loses content that the history does not have.
    #[arg(long)]
    force: bool,
    /// Show the changes, as `diff -u` does, and make none.
    #[arg(long)]
    dry_run: bool,
    /// For etcd and Kubernetes: roll the change back unless `tortie confirm` comes in this time,
    /// such as 60s, 5m or 1h.
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    #[arg(long, value_name = "TIME", value_parser = super::confirming::window, conflicts_with = "dry_run")]
    confirm: Option<Duration>,
    #[cfg(feature = "etcd")]
    #[command(flatten)]
    etcd: super::etcd::EtcdArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let history = args.place.open()?;
    let entries = history.entries().map_err(Failure::failed)?;
    let Some(number) = args.state else {
        let described: Vec<Described<'_>> = entries.iter().rev().map(|entry| describe(&history, entry)).collect();
        let whole = || json!({ "states": described.iter().map(|one| one.whole(false)).collect::<Vec<_>>() });
        return args.output.print(whole, || table(&described));
    };
    let entry = entries.iter().find(|entry| entry.number == number);
    let entry = entry.ok_or_else(|| Failure::failed(format!("state {number} is not kept; see `tortie history`")))?;
    let described = describe(&history, entry);
    args.output.print(|| described.whole(true), || described.text())
}

pub(super) fn rollback(args: &RollbackArgs) -> Result<(), Failure> {
    let history = args.place.open()?;
    match history.origin() {
        Origin::Directory(_) => roll_back_files(args, &history),
        #[cfg(feature = "etcd")]
        Origin::Etcd(url) => {
            let config = url.parse().map_err(Failure::failed_at(url))?;
            resources::roll_back(args, &history, &StoreArgs::at(StoreUrl::Etcd(Box::new(config)), args.etcd.clone()))
        }
        #[cfg(feature = "kubernetes")]
        Origin::Kubernetes(server) => resources::roll_back(args, &history, &args.place.kubernetes_store(args, server)?),
        #[cfg(not(feature = "kubernetes"))]
        Origin::Kubernetes(server) => Err(Failure::failed_at(server)(NotBuilt::KUBERNETES)),
        #[cfg(not(feature = "etcd"))]
        Origin::Etcd(url) => Err(Failure::failed_at(url)(NotBuilt::ETCD)),
    }
}

fn roll_back_files(args: &RollbackArgs, history: &History) -> Result<(), Failure> {
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    if args.confirm.is_some() {
        return Err(Failure::usage("--confirm is for resources in etcd or Kubernetes"));
    }
    let plan = history.rollback_plan(args.state).map_err(Failure::failed)?;
    if !is_to_be_made(args, history, &plan)? {
        return Ok(());
    }
    history.roll_back(&plan).map_err(Failure::failed)?;
    let word = |file: &FileRollback| if file.text.is_some() { "restored" } else { "removed" };
    let whole = || {
        let outcome = |file: &FileRollback| json!({ "resource": name(history, &file.path), "outcome": word(file) });
        json!({ "resources": plan.files.iter().map(outcome).collect::<Vec<_>>(), "errors": [] })
    };
    let line = |file: &FileRollback| format!("{} {}\n", word(file), escape::line(&name(history, &file.path)));
    args.output.print(whole, || plan.files.iter().map(line).collect())
}

/// Prints conflicts, and with `--dry-run` the changes.
fn is_to_be_made(args: &RollbackArgs, history: &History, plan: &RollbackPlan) -> Result<bool, Failure> {
    if plan.files.is_empty() {
        let nothing = || json!({ "resources": [], "errors": [] });
        args.output.print(nothing, || format!("everything is as in state {}\n", args.state))?;
        return Ok(false);
    }
    for (path, conflict) in &plan.conflicts {
        let why = match conflict {
            Conflict::Unknown => "has content that the history does not have",
            _ => "had content in between that the history does not have",
        };
        eprintln!("{}: {why}", name(history, path));
    }
    if args.dry_run {
        let diff = |file: &FileRollback| {
            unified(&escape::line(&name(history, &file.path)), file.now.as_deref(), file.text.as_deref())
        };
        let whole = || {
            let each = |file: &FileRollback| json!({ "resource": name(history, &file.path), "diff": diff(file) });
            json!({ "would_change": plan.files.iter().map(each).collect::<Vec<_>>() })
        };
        args.output.print(whole, || plan.files.iter().map(diff).collect())?;
        return Ok(false);
    }
    if !plan.conflicts.is_empty() && !args.force {
        return Err(Failure::failed("nothing has been changed; --force rolls back and discards that content"));
    }
    Ok(true)
}

fn name(history: &History, path: &str) -> String {
    match history.origin() {
        Origin::Directory(directory) if path.is_empty() => directory.display().to_string(),
        Origin::Directory(directory) => directory.join(path).display().to_string(),
        Origin::Etcd(_) | Origin::Kubernetes(_) => path.strip_suffix(".yaml").unwrap_or(path).to_owned(),
    }
}

struct Described<'e> {
    entry: &'e HistoryEntry,
    files: Vec<ChangedFile<'e>>,
    objects: BTreeMap<Object, Change>,
}

/// An object in messages: kind and names, and the API group, which distinguishes kinds of Calico
/// and Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Object {
    subject: String,
    /// API group, such as `networking.k8s.io`; without the version, as the same object may be
    /// written with another one.
    group: String,
}

struct ChangedFile<'e> {
    change: &'e FileChange,
    name: String,
    /// Texts before and after; `None` if one is not kept.
    texts: Option<(Option<String>, Option<String>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Created,
    Changed,
    Deleted,
}

impl Change {
    const ALL: [Self; 3] = [Self::Created, Self::Changed, Self::Deleted];

    fn of<T>(before: Option<&T>, after: Option<&T>) -> Self {
        match (before, after) {
            (None, _) => Self::Created,
            (_, None) => Self::Deleted,
            _ => Self::Changed,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Deleted => "deleted",
        }
    }

    fn sign(self) -> char {
        match self {
            Self::Created => '+',
            Self::Changed => '~',
            Self::Deleted => '-',
        }
    }
}

fn describe<'e>(history: &History, entry: &'e HistoryEntry) -> Described<'e> {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    let files = entry.changes.iter().map(|change| {
        let text = |id: &Option<_>| match id {
            None => Some(None),
            Some(id) => history.text(id, &change.path).map(Some),
        };
        let texts = text(&change.before).zip(text(&change.after));
        if let Some((old, new)) = &texts {
            objects(&change.path, old.as_deref(), &mut before);
            objects(&change.path, new.as_deref(), &mut after);
        }
        ChangedFile { change, name: name(history, &change.path), texts }
    });
    let files = files.collect();
    let mut objects = BTreeMap::new();
    for object in before.keys().chain(after.keys()) {
        let (old, new) = (before.get(object), after.get(object));
        if old != new {
            objects.insert(object.clone(), Change::of(old, new));
        }
    }
    Described { entry, files, objects }
}

fn objects(path: &str, text: Option<&str>, to: &mut BTreeMap<Object, Value>) {
    let Some(text) = text else { return };
    let (manifest, values) = read_written(text, Format::of(Path::new(path)), &Options::default(), &mut Interner::new());
    let named = manifest.resources.into_iter().map(|resource| resource.subject).zip(values);
    to.extend(named.filter(|(subject, _)| !subject.is_empty()).map(|(subject, value)| {
        let api_version = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let group = match api_version.split_once('/').map_or("", |(group, _)| group) {
            // Both forms of Calico's resources describe the same object.
            "crd.projectcalico.org" => "projectcalico.org",
            group => group,
        };
        (Object { subject, group: group.to_owned() }, value)
    }));
}

impl Described<'_> {
    fn time(&self) -> String {
        timestamp(UNIX_EPOCH + Duration::from_millis(self.entry.time_ms))
    }

    fn files_that(&self, change: Change) -> usize {
        self.files
            .iter()
            .filter(|file| Change::of(file.change.before.as_ref(), file.change.after.as_ref()) == change)
            .count()
    }

    fn objects_that(&self, change: Change) -> usize {
        self.objects.values().filter(|found| **found == change).count()
    }

    /// Returns kind and names, with the API group if objects of two groups share them.
    fn name(&self, object: &Object) -> String {
        let Object { subject, group } = object;
        let is_alone = self.objects.keys().filter(|other| other.subject == *subject).count() == 1;
        if is_alone { subject.clone() } else { format!("{subject} ({group})") }
    }

    fn whole(&self, with_diff: bool) -> Value {
        let file = |file: &ChangedFile<'_>| {
            let mut whole = json!({
                "path": file.name,
                "change": Change::of(file.change.before.as_ref(), file.change.after.as_ref()).word(),
            });
            if let (true, Value::Object(whole)) = (with_diff, &mut whole) {
                whole.insert("diff".into(), json!(file.diff()));
            }
            whole
        };
        let object =
            |(object, change): (&Object, &Change)| json!({ "object": self.name(object), "change": change.word() });
        json!({
            "state": self.entry.number,
            "time": self.time(),
            "gap": self.entry.gap,
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
            "objects": self.objects.iter().map(object).collect::<Vec<_>>(),
        })
    }

    /// Writing to a string cannot fail, here and below.
    fn text(&self) -> String {
        let mut out = format!("state {} of {}\n", self.entry.number, self.time());
        if self.entry.gap {
            out.push_str("changes before this one could not be kept\n");
        }
        for (object, change) in &self.objects {
            let _ = writeln!(out, "  {} {}", change.sign(), escape::line(&self.name(object)));
        }
        for file in &self.files {
            match file.diff() {
                Some(diff) => out.push_str(&diff),
                None => {
                    let _ = writeln!(out, "{}: a text is not kept", escape::line(&file.name));
                }
            }
        }
        out
    }
}

impl ChangedFile<'_> {
    fn diff(&self) -> Option<String> {
        let (before, after) = self.texts.as_ref()?;
        Some(unified(&escape::line(&self.name), before.as_deref(), after.as_deref()))
    }
}

/// Returns the number of changes of each kind, such as `+2 ~1`.
fn counts(count: impl Fn(Change) -> usize) -> String {
    let parts = Change::ALL.iter().map(|change| (change.sign(), count(*change)));
    let parts: Vec<String> =
        parts.filter(|(_, count)| *count > 0).map(|(sign, count)| format!("{sign}{count}")).collect();
    parts.join(" ")
}

fn table(states: &[Described<'_>]) -> String {
    let mut out = format!("{:>5}  {:<20}  {:<12}  {}\n", "STATE", "TIME", "FILES", "OBJECTS");
    for state in states {
        let (files, objects) = (counts(|change| state.files_that(change)), counts(|change| state.objects_that(change)));
        let (files, objects) = match state.files.is_empty() {
            true => ("first known".to_owned(), String::new()),
            false => (files, objects),
        };
        let line = format!("{:>5}  {:<20}  {files:<12}  {objects}", state.entry.number, state.time());
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}
