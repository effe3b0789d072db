//! Processes that roll a change back when its deadline has passed.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::path::PathBuf;

use tortie_revisions::journal::JournalError;

use super::FileJournal;

/// Kind of a process that rolls changes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatcherKind {
    /// A process that the writing command started for this change.
    Guard,
    /// An agent, which attends to every change.
    Agent,
}

/// A running process that rolls a change back when its deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watcher {
    /// Its kind.
    pub kind: WatcherKind,
    /// Its process id, in its own namespace of processes.
    pub pid: u32,
}

impl fmt::Display for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            WatcherKind::Guard => write!(f, "process {}", self.pid),
            WatcherKind::Agent => write!(f, "the agent (process {})", self.pid),
        }
    }
}

impl Watcher {
    fn file_name(self) -> String {
        let kind = match self.kind {
            WatcherKind::Guard => "guard",
            WatcherKind::Agent => "agent",
        };
        format!("{kind}-{}", self.pid)
    }

    fn of_file(name: &str) -> Option<Self> {
        let (kind, pid) = name.split_once('-')?;
        let kind = match kind {
            "guard" => WatcherKind::Guard,
            "agent" => WatcherKind::Agent,
            _ => return None,
        };
        Some(Self { kind, pid: pid.parse().ok()? })
    }
}

/// Registration of this process as a [`Watcher`], until it is dropped or the process ends.
#[derive(Debug)]
pub struct Registered {
    path: PathBuf,
    /// The kernel releases the lock of a killed process.
    _lock: File,
}

impl Drop for Registered {
    fn drop(&mut self) {
        // A file without a lock stands for no process.
        let _ = fs::remove_file(&self.path);
    }
}

impl FileJournal {
    /// Registers this process as one that rolls changes back.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn register(&self, kind: WatcherKind) -> Result<Registered, JournalError> {
        let name = Watcher { kind, pid: std::process::id() }.file_name();
        let draft = self.folder.join(format!("new-{name}"));
        let path = self.folder.join(name);
        let file = File::create(&draft).map_err(JournalError::at(&draft))?;
        // The file is locked before others can see it, so that none of them takes it for a remnant.
        file.lock().map_err(JournalError::at(&draft))?;
        fs::rename(&draft, &path).map_err(JournalError::at(&path))?;
        Ok(Registered { path, _lock: file })
    }

    /// Returns the running processes that roll changes back, and removes the files of others.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn watchers(&self) -> Result<Vec<Watcher>, JournalError> {
        let mut running = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(JournalError::at(&self.folder))? {
            let entry = entry.map_err(JournalError::at(&self.folder))?;
            let Some(watcher) = entry.file_name().to_str().and_then(Watcher::of_file) else { continue };
            let path = entry.path();
            // The process may end at any time.
            let Ok(file) = File::open(&path) else { continue };
            match file.try_lock_shared() {
                Ok(()) => drop(fs::remove_file(&path)),
                Err(TryLockError::WouldBlock) => running.push(watcher),
                Err(TryLockError::Error(error)) => return Err(JournalError::at(&path)(error)),
            }
        }
        running.sort_unstable();
        Ok(running)
    }
}

#[cfg(test)]
mod tests;
