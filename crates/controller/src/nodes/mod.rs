//! Node controller: node labels, generated host endpoints, address garbage collection, and removal
//! of the remains of deleted nodes.

mod addresses;
mod config;
mod controller;
mod custom;
mod followed;
mod host_endpoints;
mod labels;
mod stored_endpoints;
mod task;

pub use config::Overrides;
pub use controller::{Next, NodeController, StoredEvent};
pub use custom::{CustomForm, CustomKind};
pub use task::{Done, Job};

pub use crate::access::{Access, JobError, LiveError, LiveKind, LiveObjects};
