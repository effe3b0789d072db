//! Answers of a running agent to programs on its node, over a Unix socket: its state, its
//! configuration, its endpoints, policies and IP sets, and the names that endpoints have learned.
//! It takes one command, which confirms held changes.
//!
//! The protocol is [varlink](https://varlink.org): JSON objects, each ended by a zero byte.
//! `org.tortie.agent.varlink`, which the agent returns on request, describes the interface. Root
//! and the agent's user may query; only root may confirm.

mod client;
mod counters;
mod domains;
mod server;
mod service;
mod wire;

pub use client::{Client, ClientError};
pub use domains::{Domain, DomainAddress, EndpointDomains, LearnedDomains};
pub use server::{DEFAULT_SOCKET, Server};
pub use service::{Component, Counters, Facts, Service, Status, StatusSources};
