//! One watch of a datastore for any number of agents: Tortie's fan-out protocol and Typha's, server and client.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "a server and a client read clocks, files and sockets, and start threads"
)]

pub mod cache;
pub mod protocol;
pub mod tls;
