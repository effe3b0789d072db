//! Copy of the resources in etcd or Kubernetes as files, and its history.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::entry::{FileChange, TextId};
use super::index::Index;
use super::store::{Origin, Recorder};
use crate::state_file::put;

/// Size limit of the copy in bytes.
const MAX_COPY: u64 = 256 << 20;

/// The copy and the recorder of its history.
#[derive(Debug)]
pub(crate) struct Mirror {
    recorder: Recorder,
    /// Recorded content of the copy, whatever the files hold.
    index: Index,
    /// Whether the index on disk is outdated.
    unsaved: bool,
    /// Files whose content differs from the index, or which it does not contain.
    damaged: BTreeSet<String>,
    max_copy: u64,
}

impl Mirror {
    /// Opens the copy of a datastore as one node sees it, with a history of at most `keep` states.
    ///
    /// # Errors
    /// If it cannot be created or read, or if other users may write into it.
    pub(crate) fn open(state: &Path, origin: Origin, node: &str, keep: usize) -> io::Result<Self> {
        let recorder = Recorder::open(state, origin, node, keep)?;
        let directory = recorder.history().directory();
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let entries = recorder.history().entries().map_err(io::Error::other)?;
        let index = match fs::read(recorder.history().beside("index")) {
            Ok(bytes) => Index::parse(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let (found, newest) = (found(&directory)?, recorder.newest());
        let (mut index, unsaved) = match index {
            Some(index) => (index, false),
            None => (Index { state: newest, ..found.clone() }, true),
        };
        if unsaved && newest > 0 {
            recorder.note_gap();
            tracing::warn!("the index of the copy of the resources is lost; its files are taken as they are");
        }
        if index.state > newest {
            // An entry was lost in a power failure.
            recorder.note_gap();
            index.state = newest;
        }
        let size = |path: &str| found.files.get(path).map_or(0, |(_, size)| *size);
        index.catch_up(&entries, size);
        let is_damaged = |path: &&str| found.get(path) != index.get(path);
        let damaged: BTreeSet<String> =
            index.paths().chain(found.paths()).filter(is_damaged).map(str::to_owned).collect();
        if !damaged.is_empty() {
            let files = damaged.len();
            tracing::warn!(
                files,
                "the copy of the resources is not as it was recorded, as after a kill; it is written again"
            );
        }
        Ok(Self { recorder, index, unsaved, damaged, max_copy: MAX_COPY })
    }

    /// Returns the files of the copy; one may occur twice.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.index.paths().chain(self.damaged.iter().map(String::as_str))
    }

    /// Records new texts of files as one state; `None` removes a file. After a failure, the partial
    /// work is harmless; the caller may pass the same texts again, or newer ones.
    ///
    /// # Errors
    /// If the change cannot be recorded.
    pub(crate) fn take(&mut self, texts: &BTreeMap<String, Option<String>>) -> io::Result<()> {
        let changes: Vec<(FileChange, Option<&str>)> = texts
            .iter()
            .filter_map(|(path, text)| Some((self.index.change(path, text.as_deref())?, text.as_deref())))
            .collect();
        let mut next = self.index.clone();
        for (change, text) in &changes {
            next.set(&change.path, change.after.clone().map(|id| (id, text.map_or(0, |text| text.len() as u64))));
        }
        if next.size() > self.max_copy {
            return Err(io::Error::other(format!("the resources would take more than {} bytes", self.max_copy)));
        }
        let is_first = self.recorder.is_empty();
        for (change, _) in &changes {
            self.keep(change)?;
        }
        for (change, text) in &changes {
            self.write(&change.path, *text)?;
        }
        for (path, text) in texts {
            if self.damaged.contains(path) {
                self.write(path, text.as_deref())?;
                self.damaged.remove(path);
            }
        }
        if is_first || !changes.is_empty() {
            let changes = changes.into_iter().map(|(change, _)| change).filter(|_| !is_first).collect();
            self.recorder.add(changes)?;
            self.index = Index { state: self.recorder.newest(), ..next };
            self.unsaved = true;
        }
        self.recorder.prune()?;
        if self.unsaved {
            put(&self.recorder.history().beside("index"), &self.index.encode())?;
            self.unsaved = false;
        }
        Ok(())
    }

    /// Stores the text that a change replaces.
    fn keep(&self, change: &FileChange) -> io::Result<()> {
        let Some(id) = &change.before else { return Ok(()) };
        match self.recorder.history().text(id, &change.path) {
            Some(text) => self.recorder.keep_text(id, &text),
            None => {
                tracing::warn!(file = change.path, "the previous text is lost; a rollback to it is impossible");
                Ok(())
            }
        }
    }

    fn place(&self, path: &str) -> PathBuf {
        self.recorder.history().directory().join(path)
    }

    /// Writes a file of the copy. It is not synced: after a power failure the index shows whether
    /// it is intact.
    fn write(&self, path: &str, text: Option<&str>) -> io::Result<()> {
        let place = self.place(path);
        let Some(text) = text else {
            return match fs::remove_file(&place) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        };
        if let Some(folder) = place.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let draft = place.with_extension("tmp");
        let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let written =
            written.and_then(|mut file| file.write_all(text.as_bytes())).and_then(|()| fs::rename(&draft, &place));
        if written.is_err() {
            // A partial file is useless, and its space may be needed on a full disk.
            let _ = fs::remove_file(&draft);
        }
        written
    }
}

/// Returns the digests of the files, and removes temporary files.
fn found(directory: &Path) -> io::Result<Index> {
    let mut index = Index::default();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if fs::symlink_metadata(&path)?.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_some_and(|extension| extension == "tmp") {
                fs::remove_file(&path)?;
            }
            let name = path.strip_prefix(directory).ok().and_then(Path::to_str).filter(|name| name.ends_with(".yaml"));
            if let (Some(name), Ok(text)) = (name, fs::read_to_string(&path)) {
                index.set(name, Some((TextId::of(&text), text.len() as u64)));
            }
        }
    }
    Ok(index)
}

#[cfg(test)]
mod tests;
