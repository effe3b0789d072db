//! What was last good of a directory of manifests, kept on disk for the next start.
//!
//! After a reboot nothing is in force, and a manifest that has become unusable in the meantime, or was so already while the
//! agent went on with the last good version, would leave what it protected open. So there is a [`Record`] for each file:
//! its content when it was last taken and, of objects that are not good in it, the last good documents. At the start the
//! records are replayed through the same [`DirState`](crate::DirState) before the present files are read, which leads to
//! the state in which an agent would be that had never ended.
//!
//! Records are hints. One that is torn, changed, of somebody else or of a newer version is ignored with a warning; where
//! they cannot be written, enforcement goes on without them.

mod record;
mod store;
mod writer;

pub use record::{Record, RecordError};
pub(crate) use store::Store;
pub(crate) use writer::{Change, Writer};
