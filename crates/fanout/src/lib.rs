//! Fan-out: one watch of a datastore for any number of agents.
//!
//! * [`server::Server`] reads a source of `tortie-datastore` and serves its events.
//! * [`client::FanoutSource`] is a source that reads from such a server.
//! * [`cache`] holds all objects and the trail of their changes. It does no I/O and is independent
//!   of the protocols.
//! * [`protocol`] defines the messages between server and client, [`tls`] their mutual
//!   authentication.
//! * [`typha`] is Typha's protocol, which the server supports as well, and [`typha::TyphaSource`] a
//!   source that uses it. [`gob`] is the encoding of that protocol.
//! * [`ServerDiscovery`] finds the addresses of servers for either source before each connection.
//!
//! ```
//! use std::time::Instant;
//! use tortie_datastore::{channel, watch, Event};
//! use tortie_fanout::client::{ClientConfig, FanoutSource};
//! use tortie_fanout::server::{Server, ServerConfig};
//! use tortie_model::Update;
//!
//! // A source; a real one reads a datastore.
//! let (feed, upstream) = channel();
//! let listen = vec!["127.0.0.1:0".parse()?];
//! let server = Server::start(ServerConfig { listen, ..ServerConfig::default() }, upstream)?;
//! feed.begin_resync()?;
//! feed.send([Update::Ready(Some(true))], Instant::now())?;
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
