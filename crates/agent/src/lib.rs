//! The Tortie agent: command line, configuration, and everything that touches the world. The engine itself is in the
//! crates that this one brings together; no policy logic is here.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]
#![allow(clippy::disallowed_methods, reason = "the agent is where processes, threads, clocks and files belong")]

pub mod cli;
pub mod connections;
#[cfg(all(feature = "etcd", feature = "kubernetes"))]
pub mod controller;
pub mod driver;
pub mod engine;
mod escape;
pub mod flows;
pub mod health;
pub mod host_changes;
pub mod http;
pub mod leftovers;
pub mod local_api;
pub mod logging;
pub mod machine;
pub mod metrics;
pub mod pending_change;
#[cfg(feature = "policysync")]
pub mod policysync;
mod service_manager;
pub mod status;
#[cfg(feature = "fanout")]
mod wireguard_bootstrap;
