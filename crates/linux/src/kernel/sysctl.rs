//! Kernel settings as files.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use tortie_dataplane::{KernelError, SysctlPath};
use tortie_model::Cause;

/// A tree of settings like `/proc/sys`.
#[derive(Debug)]
pub(super) struct SysctlTree {
    root: PathBuf,
}

impl SysctlTree {
    pub(super) const fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Returns the value without the line end.
    pub(super) fn read(&self, path: &SysctlPath) -> Result<String, KernelError> {
        let mut value = fs::read_to_string(self.file(path)).map_err(kernel_error)?;
        value.truncate(value.trim_end_matches('\n').len());
        Ok(value)
    }

    /// Writes an existing setting, in one piece, unless it already has the value.
    pub(super) fn write(&self, path: &SysctlPath, value: &str) -> Result<(), KernelError> {
        // Some settings can be written but not read; these are always written.
        if self.read(path).is_ok_and(|current| current == value) {
            return Ok(());
        }
        let mut file = OpenOptions::new().write(true).open(self.file(path)).map_err(kernel_error)?;
        match file.write(value.as_bytes()) {
            Ok(length) if length == value.len() => Ok(()),
            Ok(length) => Err(KernelError::Failed(format!("took {length} of {} bytes", value.len()).into())),
            Err(error) => Err(kernel_error(error)),
        }
    }

    fn file(&self, path: &SysctlPath) -> PathBuf {
        self.root.join(path.as_str())
    }
}

fn kernel_error(error: io::Error) -> KernelError {
    match error.kind() {
        // The directory of an interface disappears with the interface.
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => KernelError::NotFound,
        _ => KernelError::Failed(Cause::new(error)),
    }
}

#[cfg(test)]
mod tests;
