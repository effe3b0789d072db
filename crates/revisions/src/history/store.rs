//! History on disk.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tortie_model::with_causes;

use super::entry::{FileChange, HistoryEntry, TextId};
use crate::journal::{JournalError, is_former, load, make_folders, save};
use crate::state_file::{folder_name, is_ours, put};

/// Size limit of all texts of a history in bytes.
const MAX_TEXTS: u64 = 256 << 20;

/// Reason why a history cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// There is no history of this origin.
    #[error("no history of {origin} is kept below {}", state.display())]
    Unknown {
        /// The requested origin.
        origin: Origin,
        /// The state directory.
        state: PathBuf,
    },
    /// There is none at all.
    #[error("no history is kept below {}: an agent keeps one if it reads a directory of manifests, etcd or Kubernetes", .0.display())]
    Nothing(PathBuf),
    /// There are several.
    #[error("there are several histories, so --datastore must say which: {}", .0.join(", "))]
    Several(Vec<String>),
    /// Reading failed.
    #[error("{}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
}

/// Origin of the states of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A directory of manifests, or a single one.
    Directory(PathBuf),
    /// User-written resources in etcd, by a URL such as `etcd://10.0.0.1:2379`.
    Etcd(String),
    /// User-written resources in Kubernetes that an agent reads, by the URL of the API server.
    Kubernetes(String),
}

impl Origin {
    /// Returns the origin of an etcd cluster, by the addresses of its members and the prefix of its
    /// keys, such as `/calico`. The set of the members matters, their order does not.
    ///
    /// ```
    /// use tortie_revisions::history::Origin;
    ///
    /// let members = ["10.0.0.2:2379".to_owned(), "10.0.0.1:2379".to_owned()];
    /// assert_eq!(Origin::etcd(&members, "").to_string(), "etcd://10.0.0.1:2379,10.0.0.2:2379");
    /// ```
    #[must_use]
    pub fn etcd(members: &[String], key_prefix: &str) -> Self {
        let members: BTreeSet<&str> = members.iter().map(String::as_str).collect();
        let members: Vec<&str> = members.into_iter().collect();
        Self::Etcd(format!("etcd://{}{key_prefix}", members.join(",")))
    }

    /// Returns the stored form: existing parts of a directory path are resolved, without links and
    /// dots.
    fn resolved(self) -> io::Result<Self> {
        match self {
            Self::Directory(directory) => {
                fs::canonicalize(&directory).or_else(|_| std::path::absolute(&directory)).map(Self::Directory)
            }
            resources @ (Self::Etcd(_) | Self::Kubernetes(_)) => Ok(resources),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => directory.display().fmt(f),
            Self::Etcd(url) => f.write_str(url),
            Self::Kubernetes(server) => write!(f, "kubernetes: at {server}"),
        }
    }
}

/// The recorded states of a directory of manifests, or of the resources in etcd or Kubernetes, as
/// an agent keeps them.
///
/// ```no_run
/// use tortie_revisions::history::History;
///
/// let history = History::find("/var/lib/tortie".as_ref(), None)?;
/// let first = history.entries()?.first().map_or(1, |entry| entry.number);
/// let plan = history.rollback_plan(first)?;
/// if plan.conflicts.is_empty() {
///     history.roll_back(&plan)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct History {
    folder: PathBuf,
    origin: Origin,
    node: String,
}

impl History {
    /// Finds the history below a state directory: that of `origin`, or the only one.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn find(state: &Path, origin: Option<&Origin>) -> Result<Self, HistoryError> {
        let Some(origin) = origin else { return Self::only(state, |_| true) };
        let wanted = origin.clone().resolved().map_err(at(state))?;
        Self::only(state, |found| *found == wanted).map_err(|error| match error {
            HistoryError::Nothing(state) if state.join("history").exists() => {
                HistoryError::Unknown { origin: wanted, state }
            }
            error => error,
        })
    }

    /// Finds the only history below a state directory whose origin `is_wanted`.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn only(state: &Path, is_wanted: impl Fn(&Origin) -> bool) -> Result<Self, HistoryError> {
        let all = state.join("history");
        let entries = match fs::read_dir(&all) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(HistoryError::Nothing(state.to_owned()));
            }
            entries => entries.map_err(at(&all))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let folder = entry.map_err(at(&all))?.path();
            // Another one is just being created, or the folder is no history.
            found.extend(Self::of(&folder));
        }
        found.retain(|history| is_wanted(&history.origin));
        match (found.pop(), &found[..]) {
            (None, _) => Err(HistoryError::Nothing(state.to_owned())),
            (Some(history), []) => Ok(history),
            (Some(last), others) => {
                let name = |history: &Self| format!("{} (node {})", history.origin, history.node);
                Err(HistoryError::Several(others.iter().chain([&last]).map(name).collect()))
            }
        }
    }

    fn of(folder: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(folder).ok().filter(is_ours)?;
        let about: Value = serde_json::from_slice(&fs::read(folder.join("about")).ok()?).ok()?;
        let text = |name: &str| about.get(name).and_then(Value::as_str).map(str::to_owned);
        let directory = text("directory").map(|directory| Origin::Directory(directory.into()));
        let resources = || text("etcd").map(Origin::Etcd).or_else(|| text("kubernetes").map(Origin::Kubernetes));
        let (origin, node) = (directory.or_else(resources)?, text("node")?);
        metadata.is_dir().then(|| Self { folder: folder.to_owned(), origin, node })
    }

    /// Returns the origin of the history.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the directory of the files: that of the manifests, or the copy of the resources
    /// beside the history.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        match &self.origin {
            Origin::Directory(directory) => directory.clone(),
            Origin::Etcd(_) | Origin::Kubernetes(_) => self.folder.join("resources"),
        }
    }

    /// Returns all readable entries, oldest first.
    ///
    /// # Errors
    /// [`HistoryError::Io`].
    pub fn entries(&self) -> Result<Vec<HistoryEntry>, HistoryError> {
        self.readable_entries(|error| tracing::warn!(error = %with_causes(&error), "a state of the history is missing"))
    }

    fn readable_entries(&self, missing: impl Fn(JournalError)) -> Result<Vec<HistoryEntry>, HistoryError> {
        let folder = self.folder.join("states");
        let mut entries = Vec::new();
        for path in files(&folder).map_err(at(&folder))? {
            match load(&path) {
                Ok(entry) => entries.extend(entry),
                Err(JournalError::Io { path, error }) => return Err(HistoryError::Io { path, error }),
                Err(error) => missing(error),
            }
        }
        entries.sort_by_key(|entry: &HistoryEntry| entry.number);
        Ok(entries)
    }

    /// Returns a text that is stored, or is the current one of its file; `None` otherwise.
    #[must_use]
    pub fn text(&self, id: &TextId, path: &str) -> Option<String> {
        let is_it = |text: &String| TextId::of(text) == *id;
        let kept = fs::read_to_string(self.text_path(id)).ok().filter(is_it);
        kept.or_else(|| fs::read_to_string(self.place(path)).ok().filter(is_it))
    }

    /// Rewrites entries of the former format in the current one.
    fn migrate(&self, entries: &[HistoryEntry]) -> Result<(), JournalError> {
        for entry in entries {
            let place = self.state_path(entry.number);
            if is_former::<HistoryEntry>(&place)? {
                save(&place, entry)?;
            }
        }
        Ok(())
    }

    /// Returns the path of a file beside the history.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the path of a file, given its path below the directory.
    pub(super) fn place(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.directory() } else { self.directory().join(path) }
    }

    fn state_path(&self, number: u64) -> PathBuf {
        self.folder.join("states").join(format!("{number:020}"))
    }

    fn text_path(&self, id: &TextId) -> PathBuf {
        self.folder.join("texts").join(id.to_string())
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> HistoryError {
    let path = path.to_owned();
    |error| HistoryError::Io { path, error }
}

/// Returns the files of a folder, without temporary ones.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<io::Result<_>>()?;
    paths.retain(|path| path.extension().is_none());
    Ok(paths)
}

/// Writer of a history.
#[derive(Debug)]
pub struct Recorder {
    history: History,
    /// Maximum number of states.
    keep: usize,
    max_texts: u64,
    /// The newest entry.
    newest: RefCell<Option<HistoryEntry>>,
    /// Number of entries.
    entries: Cell<usize>,
    /// Total size of all texts in bytes.
    texts: Cell<u64>,
    /// Whether a change since the newest entry could not be recorded.
    gap: Cell<bool>,
}

/// Change of a file's text, before it is recorded.
pub(crate) struct TextChange<'t> {
    pub(crate) path: &'t str,
    pub(crate) before: Option<&'t str>,
    pub(crate) after: Option<&'t str>,
}

impl Recorder {
    /// Opens the history of an origin as one node sees it, with at most `keep` states.
    ///
    /// # Errors
    /// If it cannot be created or read, or if other users may write into it.
    pub fn open(state: &Path, origin: Origin, node: &str, keep: usize) -> io::Result<Self> {
        let origin = origin.resolved()?;
        let all = state.join("history");
        let (kind, place) = match &origin {
            Origin::Directory(directory) => ("directory", directory.clone()),
            Origin::Etcd(url) => ("etcd", url.into()),
            Origin::Kubernetes(server) => ("kubernetes", server.into()),
        };
        let folder = all.join(folder_name(&place, node));
        let history = History { folder: folder.clone(), origin, node: node.to_owned() };
        let (states, texts) = (folder.join("states"), folder.join("texts"));
        make_folders(&[state, &all, &folder, &states, &texts]).map_err(io::Error::other)?;
        let about = json!({ kind: place.display().to_string(), "node": node });
        put(&folder.join("about"), about.to_string().as_bytes())?;
        let entries = history.entries().map_err(io::Error::other)?;
        history.migrate(&entries).map_err(io::Error::other)?;
        let recorder = Self {
            history,
            keep,
            max_texts: MAX_TEXTS,
            entries: Cell::new(entries.len()),
            newest: RefCell::new(entries.into_iter().last()),
            texts: Cell::new(sizes(&texts)?),
            gap: Cell::new(false),
        };
        recorder.prune()?;
        Ok(recorder)
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    /// Returns the number of the newest state; 0 if there is none yet.
    pub(super) fn newest(&self) -> u64 {
        self.newest.borrow().as_ref().map_or(0, |entry| entry.number)
    }

    /// Reports whether there is no state yet.
    pub fn is_empty(&self) -> bool {
        self.newest.borrow().is_none()
    }

    /// Records the current state as the first one.
    ///
    /// # Errors
    /// If it cannot be kept.
    pub fn begin(&self) -> io::Result<()> {
        self.add(Vec::new())
    }

    /// Stores the replaced text of a file, for the next entry. Returns the change; `None` if the
    /// text is the same or the change is already recorded.
    ///
    /// # Errors
    /// If it cannot be kept.
    pub(crate) fn keep(&self, change: &TextChange<'_>) -> io::Result<Option<FileChange>> {
        let TextChange { path, before, after } = change;
        if before.unwrap_or_default() == after.unwrap_or_default() {
            return Ok(None);
        }
        let (id, after) = (TextId::of_file(*before), TextId::of_file(*after));
        let change = FileChange { path: (*path).to_owned(), before: id, after };
        if self.newest.borrow().as_ref().is_some_and(|entry| entry.changes.contains(&change)) {
            // A process was killed after it made the entry and before it wrote the file's record.
            return Ok(None);
        }
        if let (Some(id), Some(text)) = (&change.before, before) {
            self.keep_text(id, text)?;
        }
        Ok(Some(change))
    }

    /// Stores a text that is about to be replaced.
    ///
    /// # Errors
    /// If it cannot be kept.
    pub(crate) fn keep_text(&self, id: &TextId, text: &str) -> io::Result<()> {
        let place = self.history.text_path(id);
        let size = text.len() as u64;
        // A text above the limit is not stored. Its entry remains, but a rollback beyond it is
        // impossible.
        if !place.exists() && size <= self.max_texts {
            put(&place, text.as_bytes())?;
            self.texts.set(self.texts.get() + size);
        }
        Ok(())
    }

    /// Adds a state, after [`Recorder::keep`] of each change.
    ///
    /// # Errors
    /// If it cannot be written; the next entry notes a gap then.
    pub(crate) fn add(&self, changes: Vec<FileChange>) -> io::Result<()> {
        let number = self.newest.borrow().as_ref().map_or(1, |entry| entry.number + 1);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A time beyond the range is stored as the last millisecond.
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let entry = HistoryEntry { number, time_ms, gap: self.gap.get(), changes };
        save(&self.history.state_path(number), &entry).map_err(io::Error::other)?;
        self.gap.set(false);
        *self.newest.borrow_mut() = Some(entry);
        self.entries.set(self.entries.get() + 1);
        Ok(())
    }

    /// Notes that a change could not be recorded.
    pub(crate) fn note_gap(&self) {
        self.gap.set(true);
    }

    /// Removes the oldest states while there are too many, or their texts take too much space.
    ///
    /// # Errors
    /// If one cannot be removed.
    pub(crate) fn prune(&self) -> io::Result<()> {
        if self.entries.get() <= self.keep && self.texts.get() <= self.max_texts {
            return Ok(());
        }
        let mut entries = self.history.readable_entries(drop).map_err(io::Error::other)?;
        let texts = self.history.folder.join("texts");
        loop {
            let surplus = entries.len().saturating_sub(self.keep.max(1));
            for entry in entries.drain(..surplus) {
                fs::remove_file(self.history.state_path(entry.number))?;
            }
            // The changes that led to the oldest state are not kept, because there is no state
            // before it.
            let undone = entries.iter().skip(1).flat_map(|entry| &entry.changes);
            let needed: BTreeSet<String> =
                undone.filter_map(|change| change.before.as_ref()).map(TextId::to_string).collect();
            for path in files(&texts)? {
                let is_needed =
                    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| needed.contains(name));
                if !is_needed {
                    fs::remove_file(path)?;
                }
            }
            self.texts.set(sizes(&texts)?);
            if self.texts.get() <= self.max_texts || entries.len() <= 1 {
                break;
            }
            let oldest = entries.remove(0);
            fs::remove_file(self.history.state_path(oldest.number))?;
        }
        self.entries.set(entries.len());
        Ok(())
    }
}

fn sizes(folder: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        sum += entry?.metadata()?.len();
    }
    Ok(sum)
}
