//! The directory of status files.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::{FileJob, FileResult};

/// Its name (`libcalico-go/lib/epstatusfile/status_file_writer.go`).
const NAME: &str = "endpoint-status";
/// Files are written beside the directory first: its watchers take every name in it for that of an
/// endpoint.
const NEW: &str = ".endpoint-status.new";
/// No file that belongs there is longer.
const MOST: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct StatusDirectory {
    files: PathBuf,
    new: PathBuf,
}

impl StatusDirectory {
    pub(super) fn below(prefix: &Path) -> Self {
        Self { files: prefix.join(NAME), new: prefix.join(NEW) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.files
    }

    pub(super) fn carry_out(&self, job: &FileJob) -> io::Result<FileResult> {
        match job {
            FileJob::Read => return self.read().map(FileResult::Read),
            FileJob::Write { name, text } => self.write(name, text)?,
            FileJob::Remove { name } => match fs::remove_file(self.files.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
        Ok(FileResult::Done)
    }

    fn read(&self) -> io::Result<BTreeMap<String, Option<String>>> {
        let entries = match fs::read_dir(&self.files) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o755).create(&self.files)?;
                return Ok(BTreeMap::new());
            }
            entries => entries?,
        };
        let mut present = BTreeMap::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            // A name that is not UTF-8 is not the agent's.
            let Ok(name) = entry.file_name().into_string() else { continue };
            present.insert(name, text(&entry.path()));
        }
        Ok(present)
    }

    /// Replaces a whole file. A concurrent reader sees the old one or the new one.
    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let path = self.files.join(name);
        let whole = fs::write(&self.new, text).and_then(|()| fs::rename(&self.new, &path));
        // Another file system may be mounted here, or only the directory itself be writable.
        whole.or_else(|_| fs::write(&path, text))
    }
}

/// Returns the content of a file, up to `MOST` bytes, if it is text.
fn text(path: &Path) -> Option<String> {
    // Opening a pipe would wait for its writer.
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    File::open(path).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests;
