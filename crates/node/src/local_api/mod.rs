//! What a running agent says to programs on its node, over a unix socket: how it is, its configuration, and which endpoints,
//! policies and IP sets it has. It takes one order: that changes which are held back are confirmed.
//!
//! The protocol is [varlink](https://varlink.org): JSON objects, each ended by a zero byte; the interface is described in
//! `org.tortie.agent.varlink`, which the agent gives out itself. Root may ask, and whoever the agent runs as; only root may confirm.

mod client;
mod counters;
mod server;
mod service;
mod wire;

pub use client::{Client, ClientError};
pub use server::{DEFAULT_SOCKET, Server};
pub use service::{Component, Counters, Facts, Said, Service, Status};
