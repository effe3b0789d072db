//! Conversion of file events to signs of writers.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ahash::RandomState;
use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RemoveKind, RenameMode};
use notify::{Event, EventKind};

use super::settling::FileEvent;
use crate::DirAccess;
use crate::scan::{self, Stamp};

/// Limit of pending events; beyond it all of them are discarded as lost.
const MANY: usize = 64 * 1024;

/// The files that names belong to now.
pub(super) trait Names {
    /// Returns the stamp of a file; `None` if there is none.
    fn stamp(&self, path: &Path) -> Option<Stamp>;
    /// Reports whether the name is that of a link.
    fn is_link(&self, path: &Path) -> bool;
    /// Reports whether the name is that of a directory, or of a link to one.
    fn is_folder(&self, path: &Path) -> bool;
    /// Returns the stamps of a file, or of all manifests below a directory.
    fn below(&self, path: &Path) -> Vec<Stamp>;
}

/// The names below a directory on disk.
pub(super) struct OnDisk {
    pub(super) root: PathBuf,
    pub(super) access: DirAccess,
}

impl Names for OnDisk {
    fn stamp(&self, path: &Path) -> Option<Stamp> {
        Stamp::at(path)
    }

    fn is_link(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
    }

    fn is_folder(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn below(&self, path: &Path) -> Vec<Stamp> {
        scan::scan_from(&self.root, path, self.access).unwrap_or_default().files.into_values().collect()
    }
}

/// Signs of writers, each with its file and time, and the changed names.
#[derive(Debug, Default)]
pub(super) struct Signs {
    pub(super) notes: Vec<(FileEvent, Stamp, Duration)>,
    /// The names of all events.
    pub(super) changed: BTreeSet<PathBuf>,
    /// The names that were removed, or belong to another file or directory now.
    pub(super) moved: BTreeSet<PathBuf>,
    /// Whether a directory was created, renamed or removed.
    pub(super) of_folder: bool,
    /// Events have been lost, so that earlier notes may not be true any more, and other names may
    /// have changed.
    pub(super) lost: bool,
}

/// File events since they were last taken.
#[derive(Debug, Default)]
pub(super) struct FileEvents {
    signs: Signs,
    /// Files being written, by the names that their events bear. An event may be read late, when
    /// its name belongs to another file or to none.
    names: HashMap<PathBuf, Stamp, RandomState>,
}

impl FileEvents {
    /// Takes the signs since the last call.
    pub(super) fn take(&mut self) -> Signs {
        std::mem::take(&mut self.signs)
    }

    /// Takes an event; `None` for one that could not be received.
    pub(super) fn handle_event(&mut self, names: &impl Names, event: Option<&Event>, now: Duration) {
        let has_room = self.signs.notes.len().max(self.signs.changed.len()).max(self.names.len()) < MANY;
        let Some(event) = event.filter(|event| !event.need_rescan() && has_room) else {
            self.names.clear();
            self.signs = Signs { lost: true, ..Signs::default() };
            return;
        };
        self.signs.changed.extend(event.paths.iter().cloned());
        if matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))) {
            self.signs.moved.extend(event.paths.iter().cloned());
        }
        let Some(path) = event.paths.first() else { return };
        self.signs.of_folder |= match event.kind {
            EventKind::Create(CreateKind::Folder) | EventKind::Remove(RemoveKind::Folder) => true,
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => names.is_folder(path),
            _ => false,
        };
        match event.kind {
            EventKind::Create(CreateKind::File | CreateKind::Any) if !names.is_link(path) => {
                self.names.remove(path);
                let stamp = self.named(names, path);
                self.note(FileEvent::Created, stamp, now);
            }
            EventKind::Modify(ModifyKind::Data(_)) => {
                let stamp = self.named(names, path);
                self.note(FileEvent::Written, stamp, now);
            }
            EventKind::Modify(ModifyKind::Metadata(_)) => self.note(FileEvent::Touched, names.stamp(path), now),
            EventKind::Modify(ModifyKind::Name(RenameMode::From)) | EventKind::Remove(_) => self.remove_name(path),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => {
                self.remove_name(path);
                // A directory, or a link to one, appears with everything in it, as the versions of
                // a `ConfigMap` do.
                for stamp in names.below(path) {
                    self.note(FileEvent::Renamed, Some(stamp), now);
                }
            }
            kind if is_end_of_writing(kind) => {
                let stamp = self.named(names, path);
                self.names.remove(path);
                self.note(FileEvent::Closed, stamp, now);
            }
            _ => {}
        }
    }

    /// Returns the file that a name belonged to when the event occurred: the file of earlier
    /// events, or else the one that has the name now.
    fn named(&mut self, names: &impl Names, path: &Path) -> Option<Stamp> {
        let there = names.stamp(path);
        let known = self.names.get_mut(path);
        match (known, there) {
            (Some(known), Some(there)) if known.file() == there.file() => *known = there,
            (None, Some(there)) => drop(self.names.insert(path.to_path_buf(), there)),
            _ => {}
        }
        self.names.get(path).cloned()
    }

    /// Notes that a name, or that of a directory, does not belong to the same file any more.
    fn remove_name(&mut self, path: &Path) {
        self.names.retain(|name, _| !name.starts_with(path));
    }

    fn note(&mut self, file_event: FileEvent, stamp: Option<Stamp>, now: Duration) {
        let Some(stamp) = stamp else { return };
        let is_repeated =
            |(last, of, _): &(FileEvent, Stamp, Duration)| *last == file_event && of.file() == stamp.file();
        if file_event == FileEvent::Written && self.signs.notes.last().is_some_and(is_repeated) {
            self.signs.notes.pop();
        }
        self.signs.notes.push((file_event, stamp, now));
    }
}

pub(super) fn is_end_of_writing(kind: EventKind) -> bool {
    kind == EventKind::Access(AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests;
