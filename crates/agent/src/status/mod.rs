//! How this node and its endpoints are, written into etcd for others to read (`felix/statusrep`).
//!
//! [`Reporter`] knows what is to be written when and is pure; [`StatusWriter`] does it on a thread of its own, so that a
//! datastore which is away does not hold up anything; [`Reported`] tells it what happens to endpoints.

mod mailbox;
mod reported;
mod reporter;
mod writer;

pub use reported::Reported;
pub use reporter::{Job, JobResult, Reporter, StatusSettings};
pub use writer::{StatusNews, StatusWriter};
