#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod cluster;
mod connection;
mod host;
mod index;
mod network_set;
mod node;
mod service;
mod services;

pub use cluster::{Cluster, TraceError};
pub use connection::{At, Connection, Leg, Place};
pub use host::Traffic;
pub use index::Places;
pub use network_set::SetNetwork;
pub use service::{Backend, ServiceError};
pub use services::{ServicePortName, Services};
pub use tortie_evaluate as evaluate;
