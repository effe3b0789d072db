//! The file from which CNI plugins take the MTU of workloads (`writeMTUFile` of
//! `felix/dataplane/linux/int_dataplane.go`).

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A file that holds one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MtuFile {
    path: PathBuf,
}

impl MtuFile {
    /// The file at this path.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes this number, unless the file has it already. A concurrent reader sees the old number
    /// or the new one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn hold(&self, mtu: u32) -> io::Result<()> {
        let text = mtu.to_string();
        if fs::read_to_string(&self.path).is_ok_and(|held| held == text) {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let new = self.path.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(&new, &self.path)
    }
}
