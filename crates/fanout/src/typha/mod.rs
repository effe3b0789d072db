//! Typha's protocol, both sides (`typha/pkg/{syncproto,syncserver,syncclient}`). An existing Felix
//! can connect to Tortie's fan-out, and Tortie's agent to an existing Typha.
//!
//! * [`messages`]: the messages as types, and their encoding in [`crate::gob`];
//! * [`snappy`]: incremental compression and decompression;
//! * [`ServerSession`], [`ClientSession`]: the state machines of a connection. They do no I/O:
//!   bytes and the time go in, actions come out;
//! * [`ServeSettings`]: settings of a connection to a Felix, or to a client of another syncer,
//!   which is fed from a [`crate::cache::Hub`];
//! * [`TyphaSource`]: an existing Typha as a source of updates.
//!
//! A Felix programs routes between nodes from IPAM blocks, and removes routes without a block. So
//! the source of a server must read the blocks ([`tortie_resources::manifest::BlockSource`]). A
//! [`TyphaSource`] passes them on if [`TyphaOptions::blocks`] is set.
//!
//! The messages of one connection form several consecutive gob streams. Each [`MsgDecoderRestart`]
//! ends a stream. The next one begins after the client's confirmation, compressed or not.
//!
//! [`MsgDecoderRestart`]: messages::ServerMessage::DecoderRestart

mod client;
mod connection;
pub mod messages;
mod server;
pub mod snappy;
mod source;
mod time;
mod update;
mod update_reader;
mod wire;

pub use client::{ClientAction, ClientEnd, ClientHello, ClientSession};
pub(crate) use connection::{BoxError, Hubs, refuse, serve};
pub use connection::{ServeEnd, ServeSettings};
pub use server::{ServerAction, ServerEnd, ServerSession, ServerSettings};
pub use source::{TyphaOptions, TyphaSource};
pub use time::GoTime;
pub use update::{Reading, read_update};
pub use wire::WireError;

/// Text in the hello of Tortie's client, besides its version.
pub(crate) const TORTIE: &str = "Tortie";
