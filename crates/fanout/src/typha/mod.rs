//! Typha's protocol, both sides (`typha/pkg/{syncproto,syncserver,syncclient}`): an existing Felix can attach to our
//! fan-out, and our agent to an existing Typha.
//!
//! * [`messages`]: what is said, as types, and their form in [`crate::gob`];
//! * [`snappy`]: the compression, as the bytes come in;
//! * [`ServerSession`], [`ClientSession`]: the rules of a connection. Pure: bytes and the time go in, actions come out;
//! * [`ServeSettings`]: how a connection to a Felix, or to a client of another syncer, is served, fed from a
//!   [`crate::cache::Hub`];
//! * [`TyphaSource`]: an existing Typha as a source of updates.
//!
//! A Felix programs routes between nodes from blocks of addresses (IPAM), and removes those for which it finds none. So the
//! source of a server must read them ([`tortie_resources::manifest::BlockSource`]); a [`TyphaSource`] takes them over if
//! [`TyphaOptions::blocks`] is set.
//!
//! The messages of one connection are several gob streams, one after the other: each [`MsgDecoderRestart`] ends one, and
//! the next begins after the client has confirmed, compressed or not.
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

/// What our client says of itself in its hello, besides its version.
pub(crate) const TORTIE: &str = "Tortie";
