//! Nodes: their labels, host endpoints that are made for them, addresses, and what is left of those that are gone.

mod addresses;
mod config;
mod controller;
mod custom;
mod followed;
mod host_endpoints;
mod kept;
mod labels;
mod task;

pub use config::Overrides;
pub use controller::{Kept, Next, NodeController};
pub use custom::CustomKind;
pub use task::{Done, Job};

pub use crate::access::{Access, JobError, LiveError, LiveObjects, Seen};
