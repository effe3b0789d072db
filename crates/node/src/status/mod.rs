//! Status of this node and its endpoints, for other programs (`felix/statusrep`): in the datastore,
//! and in a file for each workload endpoint that is up.
//!
//! [`Reporter`] and [`EndpointFiles`] decide on the writes and are pure; [`StatusWriter`] and
//! [`FileWriter`] carry them out, each on a separate thread, so that an unavailable datastore or
//! file system blocks nothing else. [`StatusReports`] sends them the events of endpoints. With
//! Kubernetes as the datastore, only the nodes' keys of `WireGuard` are written, as in Felix: its
//! client for Kubernetes has no place for the status of processes and endpoints
//! (`libcalico-go/lib/backend/k8s/client.go`).

mod directory;
mod file_writer;
mod files;
mod mailbox;
#[cfg(feature = "kubernetes")]
pub mod node_keys;
#[cfg(feature = "etcd")]
mod reporter;
mod reports;
#[cfg(feature = "etcd")]
mod updates;
#[cfg(feature = "etcd")]
pub mod wireguard_key;
#[cfg(feature = "etcd")]
mod writer;

pub use file_writer::{FileUpdate, FileWriter};
pub use files::{EndpointFiles, FileJob, FileResult};
#[cfg(feature = "kubernetes")]
pub use node_keys::NodeKeyWriter;
#[cfg(feature = "etcd")]
pub use reporter::{Job, JobResult, Reporter, StatusSettings};
pub use reports::{StatusReports, StatusWriters};
#[cfg(feature = "etcd")]
pub use updates::StatusUpdate;
#[cfg(feature = "etcd")]
pub use writer::StatusWriter;
