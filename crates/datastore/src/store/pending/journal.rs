//! Storage of a pending change.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tortie_revisions::journal::{JournalError, load, make_folders, save};

use super::PendingChange;

/// Storage of one change. The caller ensures exclusive access.
pub trait Journal {
    /// Returns the change that was stored last, if any.
    ///
    /// # Errors
    /// [`JournalError`].
    fn load(&self) -> Result<Option<PendingChange>, JournalError>;

    /// Replaces the stored change. When this returns, the change survives a power failure. After an
    /// error, the old or the new one is stored.
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
    pub(super) folder: PathBuf,
}

/// Holds the lock until it is dropped. The kernel releases the lock of a killed program.
#[derive(Debug)]
pub struct Locked {
    _file: File,
}

impl FileJournal {
    /// Opens the journal below a state directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created, belongs to another user, or other users may write into it.
    pub fn open(state: &Path) -> Result<Self, JournalError> {
        let folder = state.join("pending");
        make_folders(&[state, &folder])?;
        Ok(Self { folder })
    }

    /// Opens an existing journal; `None` if there is none.
    ///
    /// # Errors
    /// If it belongs to another user, or other users may write into it.
    pub fn find(state: &Path) -> Result<Option<Self>, JournalError> {
        if state.join("pending").exists() { Self::open(state).map(Some) } else { Ok(None) }
    }

    /// Takes the lock; `None` if another program holds it.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn try_lock(&self) -> Result<Option<Locked>, JournalError> {
        let path = self.folder.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(JournalError::at(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Locked { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(JournalError::at(&path)(error)),
        }
    }

    /// Returns the file of the change.
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
