//! Nodes: their labels, host endpoints that are made for them, and what is left of those that are gone.

mod config;
mod controller;
mod followed;
mod host_endpoints;
mod kept;
mod labels;
mod task;

pub use config::Overrides;
pub use controller::{Kept, Next, NodeController};
pub use followed::Seen;
pub use task::{Access, Done, Job, JobError, LiveObjects};
