//! Rollback to a state.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use super::entry::{HistoryEntry, TextId};
use super::store::{History, HistoryError};

/// A file whose text a rollback replaces or removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRollback {
    /// Path of the file below the directory.
    pub path: String,
    /// Current text; invalid UTF-8 is replaced.
    pub now: Option<String>,
    /// Text to restore; `None` if the file is to be removed.
    pub text: Option<String>,
}

/// Reason against overwriting a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conflict {
    /// Its current content is not that of the newest state, so it is not recorded.
    Unknown,
    /// A later change of it was not recorded.
    Gap,
}

/// The changes that restore a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RollbackPlan {
    /// The files that differ.
    pub files: Vec<FileRollback>,
    /// Those of them whose content would be lost, with the reason.
    pub conflicts: Vec<(String, Conflict)>,
}

/// Reason why a rollback is impossible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RollbackError {
    /// There is no such state any more, or not yet.
    #[error("state {number} is not kept; there are {oldest} to {newest}")]
    NoState {
        /// The state.
        number: u64,
        /// The oldest that is kept.
        oldest: u64,
        /// The newest.
        newest: u64,
    },
    /// A text was too large to be stored, or is damaged.
    #[error("{path}: the text that it had is not kept")]
    NoText {
        /// The file.
        path: String,
    },
    /// The file is a link, or in a linked folder, whose target is managed elsewhere.
    #[error("{path}: is a link or behind one, and must be changed where it leads to")]
    Link {
        /// The file.
        path: String,
    },
    /// The history cannot be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
}

/// The digest that a file should have after a rollback, and the one that it is expected to have
/// now.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    wanted: Option<TextId>,
    expected: Option<TextId>,
    has_gap: bool,
}

/// Returns the inverse of all changes since a state.
fn targets(entries: &[HistoryEntry], number: u64) -> BTreeMap<&str, Target> {
    let mut targets: BTreeMap<&str, Target> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.number > number) {
        for change in &entry.changes {
            match targets.get_mut(change.path.as_str()) {
                None => {
                    let (wanted, expected) = (change.before.clone(), change.after.clone());
                    targets.insert(&change.path, Target { wanted, expected, has_gap: entry.gap });
                }
                Some(target) => {
                    target.has_gap |= target.expected != change.before;
                    target.expected.clone_from(&change.after);
                }
            }
        }
    }
    targets
}

impl History {
    /// Returns the differences between the directory and a state. For etcd and Kubernetes this
    /// compares the local copy, which may be outdated; [`History::rollback_plan_from`] compares the
    /// content that the caller provides.
    ///
    /// # Errors
    /// [`RollbackError`].
    pub fn rollback_plan(&self, number: u64) -> Result<RollbackPlan, RollbackError> {
        self.rollback_plan_from(number, |path| self.present(path))
    }

    /// As [`History::rollback_plan`], with `present` returning the current text of each path.
    ///
    /// # Errors
    /// [`RollbackError`], and the errors of `present`.
    pub fn rollback_plan_from(
        &self,
        number: u64,
        mut present: impl FnMut(&str) -> Result<Option<String>, RollbackError>,
    ) -> Result<RollbackPlan, RollbackError> {
        let entries = self.entries()?;
        let ends = (entries.first().map_or(0, |entry| entry.number), entries.last().map_or(0, |entry| entry.number));
        if !entries.iter().any(|entry| entry.number == number) {
            return Err(RollbackError::NoState { number, oldest: ends.0, newest: ends.1 });
        }
        // A damaged entry may have concerned any file.
        let later = entries.iter().filter(|entry| entry.number >= number).map(|entry| entry.number);
        let is_broken = !later.eq(number..=ends.1);
        let mut plan = RollbackPlan::default();
        for (path, Target { wanted, expected, has_gap }) in targets(&entries, number) {
            let now = present(path)?;
            let is = TextId::of_file(now.as_deref());
            if is == wanted {
                continue;
            }
            if is != expected {
                plan.conflicts.push((path.to_owned(), Conflict::Unknown));
            } else if has_gap || is_broken {
                plan.conflicts.push((path.to_owned(), Conflict::Gap));
            }
            let text = match wanted {
                Some(id) => Some(self.text(&id, path).ok_or_else(|| RollbackError::NoText { path: path.to_owned() })?),
                None => None,
            };
            plan.files.push(FileRollback { path: path.to_owned(), now, text });
        }
        Ok(plan)
    }

    /// Returns the current text of a file.
    fn present(&self, path: &str) -> Result<Option<String>, RollbackError> {
        let place = self.place(path);
        match fs::read(&place) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RollbackError::Io { path: place, error }),
        }
    }

    /// Applies a rollback to a directory, regardless of conflicts. First it replaces files, each
    /// atomically, and then it removes files. After an interruption the rollback can be applied
    /// again.
    ///
    /// # Errors
    /// [`RollbackError::Link`] before anything is changed, or [`RollbackError::Io`].
    pub fn roll_back(&self, plan: &RollbackPlan) -> Result<(), RollbackError> {
        for FileRollback { path, .. } in &plan.files {
            self.refuse_links(path)?;
        }
        for FileRollback { path, text, .. } in &plan.files {
            if let Some(text) = text {
                let place = self.place(path);
                write(&place, text).map_err(|error| RollbackError::Io { path: place, error })?;
            }
        }
        for FileRollback { path, text, .. } in &plan.files {
            let place = self.place(path);
            if text.is_none() {
                match fs::remove_file(&place) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(RollbackError::Io { path: place, error });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn refuse_links(&self, path: &str) -> Result<(), RollbackError> {
        let place = self.place(path);
        let directory = self.directory();
        let below = place.ancestors().take_while(|ancestor| *ancestor != directory);
        let itself = path.is_empty().then_some(place.as_path());
        let mut parts = below.chain(itself);
        if parts.any(|part| fs::symlink_metadata(part).is_ok_and(|metadata| metadata.is_symlink())) {
            return Err(RollbackError::Link { path: path.to_owned() });
        }
        Ok(())
    }
}

/// Replaces a file atomically, by one of the same mode and owner. The name of the temporary file is
/// hidden, so that sources do not read it.
fn write(place: &Path, text: &str) -> io::Result<()> {
    let folder = place.parent().unwrap_or(place);
    fs::create_dir_all(folder)?;
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let draft = folder.join(format!(".{name}.tortie"));
    let old = fs::metadata(place).ok();
    let mode = old.as_ref().map_or(0o644, |old| old.mode() & 0o7777);
    let written =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&draft).and_then(|mut file| {
            if let Some(old) = &old {
                // Only root may change the owner.
                let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
            }
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, place)
        });
    if let Err(error) = written {
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    File::open(folder)?.sync_all()
}
