//! Earlier states of the manifests of a directory, or of the resources in etcd or Kubernetes, and
//! the way to restore them.
//!
//! Each change that a source has taken becomes a [`HistoryEntry`]: the changed files with the
//! digests of their texts. Replaced texts are stored under their digests. Current texts are in the
//! directory itself, and in its [last valid versions](crate::last_good). So nothing is stored
//! twice, and only changed files are read and hashed. To restore a state, the entries after it are
//! undone ([`History::rollback_plan`]). That change becomes an entry, too, once a source takes it.
//!
//! The number of entries and the size of texts are limited. Each file is written as a temporary
//! file and renamed. An entry is written after the texts that it needs, and before the last valid
//! versions. A process that is killed in between makes the same entry again, which counts once.
//! Entries are files of the [journal](crate::journal).
//!
//! etcd and Kubernetes keep neither times nor earlier versions. Therefore a copy of them is kept
//! beside the history: one file for each user-written resource ([`resource_text`],
//! [`recorded_kinds`]). An index holds the digests of the copy at the newest entry. Replaced texts
//! are written first, then the copy, the entry and the index. A process that is killed in between
//! makes the same entry again, or finds it made.

mod entry;
mod index;
mod mirror;
mod resource;
mod rollback;
mod store;
mod writer;

pub use entry::{FileChange, HistoryEntry, TextId};
pub use resource::{recorded_kinds, resource_path, resource_text};
pub use rollback::{Conflict, FileRollback, RollbackError, RollbackPlan};
pub(crate) use store::TextChange;
pub use store::{History, HistoryError, Origin, Recorder};
pub use writer::{HistorySettings, HistoryWriter, ToWritten};
