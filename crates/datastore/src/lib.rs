//! Sources of updates for the Tortie engine, and stores that resources are written to.
//!
//! * [`DirSource`]: a directory of manifests, watched. Its core, [`DirState`], is pure: contents of
//!   files in, the smallest set of updates and all current problems out. Files are taken once they
//!   are whole ([`Settle`]). Their last valid versions and earlier states are kept on disk
//!   (`tortie-revisions`).
//! * [`read`](fn@read): any source, read once. [`watch`]: any source, followed. [`from_fn`]: a
//!   source made of a function.
//! * [`Objects`]: the same for objects that arrive one by one, such as those of a datastore over
//!   the network.
//! * [`recording`]: recorded streams of updates.
//! * `etcd` (feature `etcd`): etcd v3.
//! * `kubernetes` (feature `kubernetes`): the API server of Kubernetes.
//! * [`store`]: single resources, read and written. It exists without the default feature
//!   `sources`, which contains all the rest.
//!
//! ```
//! use tortie_datastore::{DirState, FileContent};
//! use tortie_resources::manifest::Options;
//!
//! let mut state = DirState::new(Options::default());
//! state.take_updates(); // What every cluster has.
//! let manifest = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
//! let updates = state.set_file("cluster.yaml".as_ref(), Some(FileContent::Text(manifest)));
//! assert!(!updates.is_empty() && state.problems().next().is_none());
//! // Nothing new, nothing to do.
//! assert!(state.set_file("cluster.yaml".as_ref(), Some(FileContent::Text(manifest))).is_empty());
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]
#![allow(
    clippy::disallowed_methods,
    reason = "sources read files and wait on their own threads; writers get the time as an argument"
)]

#[cfg(feature = "sources")]
mod backoff;
#[cfg(feature = "sources")]
mod buffer;
#[cfg(feature = "sources")]
mod built_in;
#[cfg(feature = "sources")]
mod dir_source;
#[cfg(feature = "sources")]
mod dir_state;
#[cfg(all(feature = "etcd", feature = "sources"))]
pub mod etcd;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(feature = "sources")]
mod objects;
#[cfg(feature = "sources")]
pub mod pending_change;
#[cfg(feature = "sources")]
mod problem;
#[cfg(feature = "sources")]
mod quantiles;
#[cfg(feature = "sources")]
mod read;
#[cfg(feature = "sources")]
pub mod recording;
#[cfg(feature = "sources")]
mod register;
#[cfg(feature = "sources")]
mod scan;
#[cfg(feature = "sources")]
mod source;
pub mod store;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod tls_reason;

#[cfg(feature = "sources")]
pub use backoff::{Backoff, chance};
#[cfg(feature = "sources")]
pub use buffer::{DedupeBuffer, Next};
#[cfg(feature = "sources")]
pub use dir_source::{DirSource, Settle};
#[cfg(feature = "sources")]
pub use dir_state::{DirState, FileContent};
#[cfg(feature = "sources")]
pub use objects::Objects;
#[cfg(feature = "sources")]
pub use problem::{Fallback, InputProblem};
#[cfg(feature = "sources")]
pub use quantiles::Quantiles;
#[cfg(feature = "sources")]
pub use read::{Everything, ReadError, read};
#[cfg(feature = "sources")]
pub use scan::{DirAccess, MAX_DIRECTORY_BYTES, MAX_FILE_BYTES, manifest_texts};
#[cfg(feature = "sources")]
pub use source::{Closed, Event, Events, EventsIter, Feed, Resend, Source, Watching, channel, from_fn, watch};
