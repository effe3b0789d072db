//! Records on disk.

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::{Record, RecordError};
use crate::journal::make_folders;
use crate::state_file::{folder_name, hex_digest, is_ours, put};

/// Size limit of a record in bytes; larger ones are not written.
const MAX_RECORD: u64 = 64 << 20;
/// Size limit of all records in bytes, those of other datastores included.
const MAX_TOTAL: u64 = 256 << 20;

/// Reason why the file of a record cannot be used.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("is not a regular file of this user that no other user may write")]
    NotOurs,
    #[error("is larger than any record")]
    TooLarge,
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("is the record of another file")]
    OtherFile,
}

/// The records of one directory of manifests, as one node sees it.
#[derive(Debug)]
pub struct Store {
    /// The records of all datastores, one folder for each.
    all: PathBuf,
    folder: PathBuf,
    /// Known total size of all records in bytes.
    total: Cell<u64>,
    max_total: u64,
}

impl Store {
    /// Opens the records of a datastore in a state directory. Temporary files of interrupted writes
    /// are removed.
    ///
    /// # Errors
    /// If it cannot be created, or other users may write into it.
    pub fn open(state: &Path, datastore: &Path, node: &str) -> io::Result<Self> {
        let datastore = fs::canonicalize(datastore).or_else(|_| std::path::absolute(datastore))?;
        let all = state.join("last-good");
        let folder = all.join(folder_name(&datastore, node));
        make_folders(&[state, &all, &folder]).map_err(io::Error::other)?;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if is_draft(&path) {
                fs::remove_file(path)?;
            }
        }
        let store = Self { all, folder, total: Cell::new(0), max_total: MAX_TOTAL };
        store.make_room(0)?;
        Ok(store)
    }

    /// Returns all usable records; calls `unusable` for each other one, with its reason.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub fn load(&self, mut unusable: impl FnMut(&Path, &dyn std::fmt::Display)) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            match self.load_from(&path) {
                // A temporary file of a write in progress.
                _ if is_draft(&path) => {}
                Ok(record) => records.push(record),
                Err(why) => unusable(&path, &why),
            }
        }
        records.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(records)
    }

    fn load_from(&self, path: &Path) -> Result<Record, LoadError> {
        let metadata = fs::symlink_metadata(path)?;
        if !metadata.is_file() || !is_ours(&metadata) {
            return Err(LoadError::NotOurs);
        }
        if metadata.len() > MAX_RECORD {
            return Err(LoadError::TooLarge);
        }
        let record = Record::parse(&fs::read(path)?)?;
        if self.place(&record.path) == path { Ok(record) } else { Err(LoadError::OtherFile) }
    }

    /// Returns the record of a file; `None` if there is no usable one.
    pub(crate) fn get(&self, path: &str) -> Option<Record> {
        self.load_from(&self.place(path)).ok()
    }

    /// Reports whether a record may exist although it is unusable.
    pub(crate) fn is_in_doubt(&self, path: &str) -> bool {
        !self.folder.is_dir() || fs::symlink_metadata(self.place(path)).is_ok()
    }

    /// Replaces a record atomically.
    ///
    /// # Errors
    /// If it cannot be written, or is too large.
    pub(crate) fn put(&self, record: &Record) -> io::Result<()> {
        let bytes = record.encode();
        let size = bytes.len() as u64;
        if size > MAX_RECORD {
            return Err(io::Error::other(format!("a record of {size} bytes is too large")));
        }
        let place = self.place(&record.path);
        let size_of_old = fs::symlink_metadata(&place).map_or(0, |metadata| metadata.len());
        let more = size.saturating_sub(size_of_old);
        if self.total.get() + more > self.max_total {
            self.make_room(more)?;
        }
        self.total.set(self.total.get() + more);
        put(&place, &bytes)
    }

    /// Removes the record of a file.
    ///
    /// # Errors
    /// If the record exists and cannot be removed.
    pub(crate) fn remove(&self, path: &str) -> io::Result<()> {
        match fs::remove_file(self.place(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Err(_) => Ok(()),
            Ok(()) => File::open(&self.folder)?.sync_all(),
        }
    }

    fn place(&self, path: &str) -> PathBuf {
        self.folder.join(hex_digest(path.as_bytes()))
    }

    /// Removes the oldest records of other datastores until so many more bytes fit into the limit.
    fn make_room(&self, more: u64) -> io::Result<()> {
        let mut others = Vec::new();
        let mut total = 0;
        for folder in fs::read_dir(&self.all)? {
            let folder = folder?.path();
            if !fs::symlink_metadata(&folder)?.is_dir() {
                continue;
            }
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let metadata = entry.metadata()?;
                total += metadata.len();
                if folder != self.folder && metadata.is_file() {
                    others.push((metadata.modified()?, metadata.len(), entry.path()));
                }
            }
        }
        others.sort();
        for (_, size, path) in others {
            if total + more <= self.max_total {
                break;
            }
            fs::remove_file(path)?;
            total -= size;
        }
        self.total.set(total);
        if more > 0 && total + more > self.max_total {
            return Err(io::Error::other(format!("the records would take more than {} bytes", self.max_total)));
        }
        Ok(())
    }
}

fn is_draft(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "tmp")
}

#[cfg(test)]
mod tests;
