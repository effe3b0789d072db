#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]
#![allow(clippy::disallowed_methods, reason = "a node has threads, clocks and files")]

mod agent;
pub mod connections;
pub mod driver;
pub mod engine;
pub mod flows;
pub mod host_changes;
pub mod local_api;
pub mod machine;
pub mod metrics;
#[cfg(feature = "policysync")]
pub mod policysync;
pub mod status;

pub use agent::{
    Agent, AgentError, AgentOptions, DataplaneKind, DriverAgent, Embedder, Handle, MachineOptions, RunningAgent,
};
