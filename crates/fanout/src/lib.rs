//! One watch of a datastore for any number of agents.
//!
//! * [`server::Server`] reads a source of `tortie-datastore` and serves what it tells.
//! * [`client::FanoutSource`] is a source again: what a server tells.
//! * [`cache`] is what the server keeps: all objects, and the trail of their changes. It is pure, and apart from the
//!   protocols.
//! * [`protocol`] is what the two say to each other, [`tls`] how they know each other.
//! * [`typha`] is Typha's protocol instead, which the server understands as well, and [`typha::TyphaSource`] a source that
//!   speaks it; [`gob`] is the format that it is written in.
//! * [`ServerDiscovery`] tells either source before each connection where servers are.
//!
//! ```
//! use std::time::Instant;
//! use tortie_datastore::{channel, watch, Event};
//! use tortie_fanout::client::{ClientConfig, FanoutSource};
//! use tortie_fanout::server::{Server, ServerConfig};
//! use tortie_model::Update;
//!
//! // A source; in earnest one for a real datastore.
//! let (feed, upstream) = channel();
//! let listen = vec!["127.0.0.1:0".parse()?];
//! let server = Server::start(ServerConfig { listen, ..ServerConfig::default() }, upstream)?;
//! feed.begin_resync()?;
//! feed.tell([Update::Ready(Some(true))], Instant::now())?;
//! feed.end_resync()?;
//!
//! let servers = vec![server.addresses()[0].to_string()];
//! let client = watch(FanoutSource::new(ClientConfig::new(servers, Some("node-1".into())))?)?;
//! let mut events = client.events;
//! let told = events.find_map(|event| match event {
//!     Event::Updates { updates, .. } => Some(updates),
//!     _ => None,
//! });
//! assert_eq!(told, Some(vec![Update::Ready(Some(true))]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]
#![allow(
    clippy::disallowed_methods,
    reason = "a server and a client read clocks, files and sockets, and start threads"
)]

mod attempts;
pub mod cache;
pub mod client;
mod counters;
mod discovery;
pub mod gob;
mod last_good;
pub mod protocol;
pub mod server;
pub mod tls;
pub mod typha;

pub use discovery::{DiscoveryError, ServerDiscovery};
