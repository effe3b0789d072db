//! How this node and its endpoints are, for others to read (`felix/statusrep`): in the datastore, and in a file for each
//! workload endpoint that is up.
//!
//! [`Reporter`] and [`EndpointFiles`] know what is to be written when and are pure; [`StatusWriter`] and [`FileWriter`] do it,
//! each on a thread of its own, so that a datastore or a file system that is away does not hold up anything; [`Reported`]
//! tells them what happens to endpoints.

mod directory;
mod file_text;
mod file_writer;
mod files;
mod mailbox;
#[cfg(feature = "etcd")]
mod news;
mod reported;
#[cfg(feature = "etcd")]
mod reporter;
#[cfg(feature = "etcd")]
mod wireguard_key;
#[cfg(feature = "etcd")]
mod writer;

pub use file_writer::{FileNews, FileWriter};
pub use files::{EndpointFiles, FileJob, FileResult};
pub use reported::{Reported, StatusWriters};
#[cfg(feature = "etcd")]
pub use reporter::{Job, JobResult, Reporter, StatusSettings};
#[cfg(feature = "etcd")]
pub use writer::{StatusNews, StatusWriter};
