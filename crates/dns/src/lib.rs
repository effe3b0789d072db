#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod cache;
mod changes;
mod cluster;
mod endpoint;
mod learned;
mod message;
mod names;
mod patterns;
mod sets;
mod slab;
mod stream;
mod types;

pub use cache::RestoreError;
pub use cluster::{Cluster, Refusal};
pub use learned::{Counts, Crowding, Known, Learned, Outcome, Restored};
pub use message::{Answer, MessageError, MessageLimits, read};
pub use stream::{Pushed, Stream, StreamEnd};
pub use types::{Action, Change, ClusterAddresses, Limits, MatchNames, Member, Millis, Scope, Settings};
