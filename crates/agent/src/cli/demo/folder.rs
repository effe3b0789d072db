//! A folder for the time of the demo.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::agent::manifests_in;
use super::manifests::File;
use crate::cli::Failure;

/// A folder that only this user may look into; removed when dropped.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// A new one, with an empty folder for manifests in it.
    pub(super) fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("tortie-demo-{}", std::process::id()));
        let failed = |error| Failure::io(path.display().to_string())(error);
        // One that exists is not ours, whatever its name says.
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let folder = Self(path.clone());
        fs::create_dir(manifests_in(&path)).map_err(failed)?;
        Ok(folder)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes manifests as careful editors do: each appears at once, complete.
    pub(super) fn write<'f>(&self, files: impl IntoIterator<Item = &'f File>) -> Result<(), Failure> {
        let manifests = manifests_in(&self.0);
        let mut written = Vec::new();
        for File { name, text } in files {
            // Hidden files are no manifests.
            let (draft, path) = (manifests.join(format!(".{name}.new")), manifests.join(name));
            fs::write(&draft, text).map_err(Failure::io(draft.display().to_string()))?;
            written.push((draft, path));
        }
        for (draft, path) in written {
            fs::rename(draft, &path).map_err(Failure::io(path.display().to_string()))?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing is lost if it stays: it holds copies and a log.
        let _ = fs::remove_dir_all(&self.0);
    }
}
