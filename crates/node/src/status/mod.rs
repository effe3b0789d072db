//! How this node and its endpoints are, for others to read (`felix/statusrep`): in the datastore, and in a file for each
//! workload endpoint that is up.
//!
//! [`Reporter`] and [`EndpointFiles`] know what is to be written when and are pure; [`StatusWriter`] and [`FileWriter`] do it,
//! each on a thread of its own, so that a datastore or a file system that is away does not hold up anything; [`StatusReports`]
//! tells them what happens to endpoints. Of Kubernetes as the datastore, nodes are told their keys of `WireGuard`, and
//! nothing else: as in the original, whose client for Kubernetes has nowhere to put the status of processes and endpoints
//! (`libcalico-go/lib/backend/k8s/client.go`).

mod directory;
mod file_writer;
mod files;
mod mailbox;
#[cfg(feature = "etcd")]
mod news;
#[cfg(feature = "kubernetes")]
pub mod node_keys;
#[cfg(feature = "etcd")]
mod reporter;
mod reports;
#[cfg(feature = "etcd")]
pub mod wireguard_key;
#[cfg(feature = "etcd")]
mod writer;

pub use file_writer::{FileNews, FileWriter};
pub use files::{EndpointFiles, FileJob, FileResult};
#[cfg(feature = "etcd")]
pub use news::StatusNews;
#[cfg(feature = "kubernetes")]
pub use node_keys::NodeKeyWriter;
#[cfg(feature = "etcd")]
pub use reporter::{Job, JobResult, Reporter, StatusSettings};
pub use reports::{StatusReports, StatusWriters};
#[cfg(feature = "etcd")]
pub use writer::StatusWriter;
