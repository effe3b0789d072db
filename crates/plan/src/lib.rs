#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod cluster;
mod connections;
mod ends;
mod findings;
mod one_node;
mod plan;

pub use cluster::Cluster;
pub use connections::{Connections, HostPackets, Packets, Why};
pub use ends::Ends;
pub use findings::Finding;
pub use one_node::on_one_node;
pub use plan::{Existence, Options, Plan, Programming, between, plan};
pub use tortie_classes as classes;
