//! Where a pending change is kept.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::PendingChange;
use crate::journal::{JournalError, at, load, make_folders, save};

/// Keeps one change. Who calls it has seen to it that nobody else does.
pub trait Journal {
    /// The change that was kept last, if any.
    ///
    /// # Errors
    /// [`JournalError`].
    fn load(&self) -> Result<Option<PendingChange>, JournalError>;

    /// Keeps a change in place of the other one. When this returns, it is there after any loss of power; when it fails, the
    /// old one or the new one is.
    ///
    /// # Errors
    /// [`JournalError`].
    fn save(&self, change: &PendingChange) -> Result<(), JournalError>;
}

/// A change in a file of a state directory.
///
/// ```
/// use tortie_datastore::store::pending::{FileJournal, Journal};
///
/// let state = std::env::temp_dir().join(format!("tortie-doc-{}", std::process::id()));
/// let journal = FileJournal::open(&state)?;
/// let lock = journal.try_lock()?.expect("nobody else has it");
/// assert!(journal.try_lock()?.is_none());
/// assert!(journal.load()?.is_none());
/// # drop(lock);
/// # std::fs::remove_dir_all(state)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct FileJournal {
    folder: PathBuf,
}

/// As long as this lives, nobody else has the lock. Programs that are killed lose theirs.
#[derive(Debug)]
pub struct Locked {
    _file: File,
}

impl FileJournal {
    /// The journal below a state directory, which is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made, belongs to another user, or others may write into it.
    pub fn open(state: &Path) -> Result<Self, JournalError> {
        let folder = state.join("pending");
        make_folders(&[state, &folder])?;
        Ok(Self { folder })
    }

    /// The same where it is there already; `None` if it is not.
    ///
    /// # Errors
    /// If it belongs to another user, or others may write into it.
    pub fn find(state: &Path) -> Result<Option<Self>, JournalError> {
        if state.join("pending").exists() { Self::open(state).map(Some) } else { Ok(None) }
    }

    /// Takes the lock; `None` if somebody else has it.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn try_lock(&self) -> Result<Option<Locked>, JournalError> {
        let path = self.folder.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Locked { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(at(&path)(error)),
        }
    }

    /// The file of the change.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.join("change")
    }
}

impl Journal for FileJournal {
    fn load(&self) -> Result<Option<PendingChange>, JournalError> {
        load(&self.path())
    }

    fn save(&self, change: &PendingChange) -> Result<(), JournalError> {
        save(&self.path(), change)
    }
}

/// A journal in memory, for tests.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    kept: Mutex<Option<PendingChange>>,
}

impl Journal for MemoryJournal {
    fn load(&self) -> Result<Option<PendingChange>, JournalError> {
        Ok(self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn save(&self, change: &PendingChange) -> Result<(), JournalError> {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(change.clone());
        Ok(())
    }
}
