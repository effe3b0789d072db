//! Sources of updates for the Tortie engine.
//!
//! * [`DirSource`]: a directory of manifests, watched. Its heart, [`DirState`], is pure: contents of files in, the
//!   smallest set of updates and all current problems out. Files count when they are whole ([`Settle`]), and what was
//!   last good is kept on disk ([`last_good`]), as is what it was before ([`history`]).
//! * [`read`](fn@read): any source, read once. [`watch`]: any source, followed. [`from_fn`]: a source of one's own.
//! * [`Objects`]: the same for objects that come one by one, as those of a datastore over the network do.
//! * [`recording`]: recorded streams of updates.
//! * `etcd` (feature `etcd`): etcd v3.
//! * `kubernetes` (feature `kubernetes`): the API server of Kubernetes.
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
#![allow(clippy::disallowed_methods, reason = "sources read files and wait on threads of their own")]

mod backoff;
mod buffer;
mod built_in;
mod dir_source;
mod dir_state;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod history;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod last_good;
mod objects;
pub mod pending_change;
mod problem;
mod quantiles;
mod read;
pub mod recording;
mod register;
mod scan;
mod source;

pub use backoff::{Backoff, chance};
pub use buffer::{DedupeBuffer, Next};
pub use dir_source::{DirSource, Settle};
pub use dir_state::{DirState, FileContent};
pub use objects::Objects;
pub use problem::{Fallback, InputProblem};
pub use quantiles::Quantiles;
pub use read::{Everything, ReadError, read};
pub use scan::{DirAccess, MAX_DIRECTORY_BYTES, MAX_FILE_BYTES, manifest_texts};
pub use source::{Closed, Event, Events, EventsIter, Feed, Resend, Source, Watching, channel, from_fn, watch};
