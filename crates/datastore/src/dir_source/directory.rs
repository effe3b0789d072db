//! Result of a scan of a directory, in whole files only. Pure except for the [`Disk`] that it reads
//! through.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tortie_model::{Update, with_causes};
use tortie_resources::manifest::Options;
use tortie_revisions::last_good::{Change, Record};

use super::settling::{Facts, FileEvent, ReadDecision, Settle, SettleDecision, Settling, TakenContent};
use crate::dir_state::{Missing, Reading};
use crate::scan::{ManifestError, ScanResult, Stamp};
use crate::{DirState, FileContent};

/// Interval until files are read again whose time stamps are too young to prove that they are
/// unchanged.
const RACY_RESCAN: Duration = Duration::from_millis(120);
/// Delay of another scan after a directory has changed.
const NEW_DIRECTORY: Duration = Duration::from_secs(1);
const RESTLESS: &str = "is being written without a pause";

/// Access to the files of a directory.
pub(crate) trait Disk {
    /// Lists all files.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    fn scan(&self) -> io::Result<ScanResult>;
    /// Brings a scan up to date for names that may have changed, and returns the checked ones;
    /// `None` if only another scan can tell.
    fn recheck(&self, found: &mut ScanResult, names: &BTreeSet<PathBuf>) -> Option<BTreeSet<PathBuf>>;
    /// Returns the text of a file; `Ok(None)` if it does not exist any more.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read(&self, path: &Path) -> Result<Option<String>, ManifestError>;
    /// Returns the stamp of a file; `None` if it is unavailable.
    fn stamp(&self, path: &Path) -> Option<Stamp>;
    /// Returns the time since the last change of a file, by its time stamps.
    fn age(&self, stamp: &Stamp) -> Duration;
}

/// A directory whose files are taken once they are whole.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) state: DirState,
    settling: Settling,
    /// The files at the last look.
    found: ScanResult,
    /// Time of the last scan, by the clock of [`Directory::turn`]; `None` if it failed.
    scanned: Option<Duration>,
    /// Time of the next scan, because names alone may not tell all changes.
    scan_at: Option<Duration>,
    /// Time of the scan after the last event of a directory.
    last_scan_at: Option<Duration>,
    /// Whether directories have changed since the last look.
    has_new_folder: bool,
    /// Texts that were taken while some definitions that they lack are kept.
    partial: BTreeMap<PathBuf, String>,
    /// Whether restored definitions have not been sent yet.
    is_restored: bool,
}

/// Result of a look.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) updates: Vec<Update>,
    /// Whether any file was taken or is gone, which may have changed the problems.
    pub(crate) touched: bool,
    /// Whether everything has been taken once.
    pub(crate) complete: bool,
    /// Changes of files, for the writer of the last valid versions.
    pub(crate) changes: Vec<(PathBuf, Change)>,
}

/// A file whose new content is about to be staged.
struct SettledFile {
    path: PathBuf,
    reading: Reading,
    keep: bool,
    as_file: Option<(Stamp, TakenContent)>,
    /// `None` if it cannot be read.
    text: Option<String>,
}

impl Directory {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            state: DirState::new(options),
            settling: Settling::new(Settle::default()),
            found: ScanResult::default(),
            scanned: None,
            scan_at: None,
            last_scan_at: None,
            has_new_folder: false,
            partial: BTreeMap::new(),
            is_restored: false,
        }
    }

    /// Restores the last valid versions, before the first scan.
    pub(crate) fn restore(&mut self, records: &[(PathBuf, Record)]) {
        self.state.restore(records);
        self.is_restored = true;
    }

    pub(crate) fn settle(&mut self, settle: Settle) -> Settle {
        self.settling.exchange(settle)
    }

    /// Processes an event; see [`Settling::note`].
    pub(crate) fn note(&mut self, event: FileEvent, stamp: &Stamp, now: Duration) {
        self.settling.note(event, stamp, now);
    }

    /// Notes an event of a directory, which has no events of its own until it is watched: another
    /// scan follows [`NEW_DIRECTORY`] after the next look.
    pub(crate) fn note_folder(&mut self) {
        self.has_new_folder = true;
    }

    /// Discards the states of all writers, because events have been lost.
    pub(crate) fn clear_events(&mut self) {
        self.settling.clear_events();
    }

    /// Looks for changes in the directory: in the files of these names and those that wait, or, if
    /// `names` is `None`, in all files by a scan. A scan takes place as well where names do not
    /// tell enough, and before any definition of a file is removed: an event may be late or lost.
    ///
    /// # Errors
    /// If the directory cannot be listed; nothing has changed then.
    pub(crate) fn turn(
        &mut self,
        disk: &impl Disk,
        names: Option<BTreeSet<PathBuf>>,
        now: Duration,
    ) -> io::Result<Turn> {
        let checked = self.refresh(disk, names, now)?;
        let found = std::mem::take(&mut self.found);
        let mut changed = Vec::new();
        let touched = self.stage(disk, &found, checked.as_ref(), &mut changed, now) | self.release(&mut changed, now);
        self.found = found;
        let mut updates = self.state.take_updates();
        if std::mem::take(&mut self.is_restored) {
            updates = self.state.snapshot();
        }
        let complete = self.settling.has_read_all(now);
        if complete {
            self.state.complete();
        }
        let changes = changed.into_iter().map(|(path, text)| self.change(path, text)).collect();
        Ok(Turn { updates, touched, complete, changes })
    }

    /// Brings the list of files up to date. Returns the checked names; `None` if all are.
    fn refresh(
        &mut self,
        disk: &impl Disk,
        names: Option<BTreeSet<PathBuf>>,
        now: Duration,
    ) -> io::Result<Option<BTreeSet<PathBuf>>> {
        let is_scan_due = self.settling.is_due(now) || self.scan_at.is_some_and(|at| at <= now);
        if std::mem::take(&mut self.has_new_folder) {
            self.scan_after(now);
        }
        if let Some(mut names) = names.filter(|_| !is_scan_due) {
            let may_be_new = self.found.is_checkable;
            names.extend(self.settling.active_names().cloned());
            if let Some(checked) = disk.recheck(&mut self.found, &names) {
                return Ok(Some(checked));
            }
            if may_be_new {
                self.scan_after(now);
            }
        }
        self.scanned = None;
        self.found = disk.scan()?;
        self.scanned = Some(now);
        let is_ahead = |at: &Duration| *at > now;
        self.scan_at = self.scan_at.filter(is_ahead).or(self.last_scan_at.filter(is_ahead));
        Ok(None)
    }

    /// Requests a scan some time after a directory has changed. An earlier one stays requested, so
    /// that events without a pause do not postpone it.
    fn scan_after(&mut self, now: Duration) {
        self.last_scan_at = Some(now + NEW_DIRECTORY);
        self.scan_at = self.scan_at.or(self.last_scan_at);
    }

    /// Stages the new contents of the checked files; of all files if `checked` is `None`. Returns
    /// whether there are any.
    fn stage(
        &mut self,
        disk: &impl Disk,
        found: &ScanResult,
        checked: Option<&BTreeSet<PathBuf>>,
        changed: &mut Vec<(PathBuf, Option<String>)>,
        now: Duration,
    ) -> bool {
        let mut taken = self.look(disk, &among(&found.files, checked), now);
        let loses = |taken: &SettledFile| !taken.keep && self.state.loses(&taken.path, &taken.reading);
        let is_confirmed = || disk.scan().is_ok_and(|other| other.files == found.files);
        if taken.iter().any(loses) && !is_confirmed() {
            // A definition that is lost here may appear in another file: several files are being
            // exchanged, or the directory cannot be listed.
            taken.iter_mut().for_each(|taken| taken.keep = true);
            self.scan_at = Some(now);
        }
        for (path, why) in among(&found.closed, checked) {
            self.settling.remove(path);
            self.read_closed(path, why).into_iter().for_each(|closed| taken.push(closed));
        }
        let mut touched = self.miss(found, checked, now);
        for SettledFile { path, reading, mut keep, as_file, text } in taken {
            touched = true;
            keep = self.state.loses(&path, &reading) && (keep || self.settling.others_in_doubt(&path, now));
            self.state.stage(&path, Some(reading), if keep { Missing::Kept } else { Missing::Gone });
            if let Some((stamp, content)) = as_file {
                self.settling.take(&path, stamp, content, keep, now);
            }
            match text {
                // The file may still be incomplete.
                Some(text) if keep => drop(self.partial.insert(path, text)),
                text => {
                    self.partial.remove(&path);
                    changed.push((path, text));
                }
            }
        }
        touched
    }

    /// Stages files that never settle as unreadable, and removes expired definitions. Returns
    /// whether there are any.
    fn release(&mut self, changed: &mut Vec<(PathBuf, Option<String>)>, now: Duration) -> bool {
        let mut touched = false;
        for path in self.settling.restless(now) {
            if self.state.stage_file(&path, Some(FileContent::Unreadable(RESTLESS))) {
                touched = true;
                changed.push((path, None));
            }
        }
        for (path, is_missing) in self.settling.due(now) {
            touched = true;
            let text = self.partial.remove(&path);
            if is_missing {
                self.state.stage(&path, None, Missing::Gone);
                changed.push((path, None));
            } else {
                self.state.release(&path);
                changed.extend(text.map(|text| (path, Some(text))));
            }
        }
        touched
    }

    /// Returns the change of a file, given its current text if it can be read.
    fn change(&self, path: PathBuf, text: Option<String>) -> (PathBuf, Change) {
        let change = match (self.state.closed_for(&path).cloned(), text) {
            (Some(closed), Some(text)) => Change::Taken(text, closed),
            (Some(closed), None) => Change::Unreadable(closed),
            (None, _) => Change::Gone,
        };
        (path, change)
    }

    /// Returns the staged problem of an unreadable directory.
    fn read_closed(&mut self, path: &Path, why: &str) -> Option<SettledFile> {
        let reading = self.state.read(path, FileContent::Unreadable(why))?;
        if self.state.files().any(|file| file != path && file.starts_with(path)) {
            // The files in it were known before, and their definitions stay in force.
            self.state.stage(path, None, Missing::Kept);
            self.state.restore_closed(path, BTreeSet::new());
        }
        Some(SettledFile { path: path.to_path_buf(), reading, keep: false, as_file: None, text: None })
    }

    /// Reads the changed files that seem to be whole.
    fn look(&mut self, disk: &impl Disk, files: &[(&PathBuf, &Stamp)], now: Duration) -> Vec<SettledFile> {
        let mut taken = Vec::new();
        for &(path, stamp) in files {
            let age = disk.age(stamp);
            if self.settling.look(path, stamp, age, now) != ReadDecision::Read {
                continue;
            }
            let text = disk.read(path);
            if disk.stamp(path).is_some_and(|after| after != *stamp) {
                self.settling.changed_meanwhile(path, stamp, now);
                continue;
            }
            let why;
            let (ends, content) = match &text {
                Ok(Some(text)) => (ends_with_a_token(text), FileContent::Text(text)),
                // The next scan finds it missing.
                Ok(None) => continue,
                Err(error) => {
                    why = with_causes(error);
                    (true, FileContent::Unreadable(&why))
                }
            };
            let racy = Stamp::is_racy(age);
            let failed = matches!(content, FileContent::Unreadable(_));
            let Some(reading) = self.state.read(path, content) else {
                let is_empty = false;
                self.settling.confirm(path, stamp.clone(), TakenContent { is_empty, racy, failed });
                continue;
            };
            let facts = Facts { is_empty: reading.is_empty(), is_readable: reading.is_readable(), ends };
            let keep = match self.settling.decide(path, stamp, facts, age, now) {
                SettleDecision::Wait => continue,
                SettleDecision::Take => false,
                SettleDecision::TakeAndKeep => true,
            };
            let as_file = Some((stamp.clone(), TakenContent { is_empty: facts.is_empty, racy, failed }));
            taken.push(SettledFile { path: path.clone(), reading, keep, as_file, text: text.ok().flatten() });
        }
        taken
    }

    /// Notes the missing files among the checked ones. Returns whether any of them existed before.
    fn miss(&mut self, found: &ScanResult, checked: Option<&BTreeSet<PathBuf>>, now: Duration) -> bool {
        let ScanResult { files, closed, .. } = found;
        let is_hidden = |path: &Path| path.ancestors().skip(1).any(|folder| closed.contains_key(folder));
        let is_gone = |path: &Path| !files.contains_key(path) && !closed.contains_key(path) && !is_hidden(path);
        let gone = |known: &mut dyn Iterator<Item = &Path>| -> Vec<PathBuf> {
            known.filter(|path| is_gone(path)).map(Path::to_path_buf).collect()
        };
        let gone = match checked {
            Some(checked) => gone(&mut checked.iter().map(PathBuf::as_path)),
            None => gone(&mut self.settling.files().map(PathBuf::as_path).chain(self.state.files())),
        };
        let mut touched = false;
        for path in gone {
            if !self.state.is_known(&path) {
                self.settling.remove(&path);
            } else if self.settling.miss(&path, files.is_empty(), now) {
                self.state.stage(&path, None, Missing::Kept);
                touched = true;
            }
        }
        touched
    }

    /// As [`ScanResult::may_link_to_folder`], by the last look.
    pub(crate) fn may_link_to_folder(&self, root: &Path, path: &Path) -> bool {
        self.found.may_link_to_folder(root, path)
    }

    /// Returns the time of the last scan; `None` if it failed, or there was none.
    pub(crate) fn scanned(&self) -> Option<Duration> {
        self.scanned
    }

    /// Returns the time until the next look without an event; `None` if no file is in doubt.
    pub(crate) fn next_look(&self, now: Duration) -> Option<Duration> {
        let scan = self.scan_at.map(|at| at.saturating_sub(now));
        self.settling.next_look(RACY_RESCAN, now).into_iter().chain(scan).min()
    }
}

/// Returns the entries of the checked names; all if `checked` is `None`.
fn among<'m, V>(entries: &'m BTreeMap<PathBuf, V>, checked: Option<&BTreeSet<PathBuf>>) -> Vec<(&'m PathBuf, &'m V)> {
    match checked {
        Some(checked) => checked.iter().filter_map(|path| entries.get_key_value(path)).collect(),
        None => entries.iter().collect(),
    }
}

/// Reports whether a text ends at a token boundary, so that it is not cut off within a token.
fn ends_with_a_token(text: &str) -> bool {
    text.is_empty() || text.ends_with(['\n', '}', ']', '"', '\''])
}

#[cfg(test)]
mod tests;
