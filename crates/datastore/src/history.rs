//! States that the manifests of a directory, or the resources in etcd or Kubernetes, have been in, for people who want one of them back.
//!
//! A [`HistoryEntry`] is made of each change that a source has taken: which files have other texts since, by digests. Texts that
//! are replaced are kept under their digests; those that are there now are in the directory itself, and in what is
//! [last good](crate::last_good) of it, so that nothing is kept twice and nothing is read or hashed again but the files that have changed. The
//! entries after a state, undone, are the way back to it ([`History::way_back`]), and that change is an entry, too, once a
//! source takes it.
//!
//! Entries are bounded in number, and the texts in size. Each file is written beside its place and renamed; an entry is written
//! after the texts that it needs, and before what is last good is, so that whoever is killed in between makes the same entry
//! again, which counts once. Entries are files of the [journal](crate::journal).
//!
//! Of etcd and Kubernetes, which keep no times and forget what was before, there is a copy beside the history: a file for each
//! resource that people write ([`resource_text`], [`recorded_kinds`]). An index says by digests what the copy held when the newest
//! entry was made. Replaced texts come first, then the copy, the entry and the index, so that whoever is killed in between
//! makes the same entry again, or finds it made.

mod entry;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod index;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod mirror;
mod resource;
mod rollback;
mod store;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod writer;

pub use entry::{FileChange, HistoryEntry, TextId};
pub use resource::{recorded_kinds, resource_path, resource_text};
pub use rollback::{Back, Conflict, RollbackError, WayBack};
pub use store::{History, HistoryError, Origin};
pub(crate) use store::{Recorder, TextChange};
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
pub(crate) use writer::{HistorySettings, HistoryWriter};
