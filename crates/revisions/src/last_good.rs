//! Last valid versions of the manifests of a directory, kept on disk for the next start.
//!
//! After a reboot no policy is in force. A manifest may have become unusable in the meantime, or
//! while the agent still enforced its last valid version; the endpoints that it protected would be
//! open then. Therefore a [`Record`] is kept for each file: its content when it was last taken, and
//! the last valid documents of objects that are invalid in it. At the start the records are
//! replayed through the code that reads the directory, before the current files are read. This
//! leads to the state of an agent that had never stopped.
//!
//! Records are hints. A record that is incomplete, modified, owned by another user or of a newer
//! version is ignored with a warning. If they cannot be written, enforcement continues without
//! them.

mod record;
mod store;
mod writer;

pub use record::{Record, RecordError};
pub use store::Store;
pub use writer::{Change, Writer};
