//! Our protocol: what servers and clients of the fan-out say to each other.
//!
//! A client that has connected, by TCP or TLS on top of it, sends [`MAGIC`] and then frames ([`frame`]); the server
//! sends frames. The first byte of the magic begins neither TLS nor Go's gob encoding, so that one port can serve Typha's
//! clients too. Each frame holds one message in protobuf's encoding: a [`ToServer`] or a [`ToClient`]. Unknown fields and
//! messages are skipped.
//!
//! 1. The client says [`ClientHello`], the server [`ServerHello`], or [`Refusal`] and closes the connection.
//! 2. Unless the hello says that the client goes on where it was, everything follows: [`Batch`]es without an end, then
//!    one that is [`Settled`]. What was known before and is not among it is gone, once the status is *in sync*.
//! 3. Changes follow: batches that are settled, each perhaps after others that belong to it.
//! 4. Both sides send a [`Heartbeat`] now and then, and take the other for dead when it is silent for three times as
//!    long.
//! 5. [`Upstream`] tells, at first and when it changes, what is wrong with the datastore: the client's consumer judges it
//!    as if it read the datastore itself.
//! 6. [`Drain`] asks the client to go to another server.
//!
//! To a client that names its node, the server says in batches that are `own` what is below `/calico/v1/host/NODE/`; of
//! the other batches, which are the same for all nodes, the client leaves that out. They have a short form of other nodes'
//! workload endpoints, and nothing of other nodes' configuration but the ends of their VXLAN tunnels. They have blocks of
//! addresses (IPAM) if the client asks for them, and the server says so. To a client that names no node, it says everything.
//!
//! Fields and messages may be added within a version, if either side can do without: servers of 0.1 before
//! [`ClientHello::blocks`] send none, and do not say that they do.

pub mod frame;
mod problem;
pub(crate) mod stream;

use bytes::Bytes;
use tortie_model::SyncStatus;

/// What a client says first. Its last byte is the version: a server refuses those that it does not know.
pub const MAGIC: [u8; 8] = *b"\xb7TORTIE\x01";

/// The version of the protocol: that of [`MAGIC`].
pub const VERSION: u32 = 1;

/// What clients say.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToServer {
    /// Which message.
    #[prost(oneof = "client::Message", tags = "1, 2")]
    pub message: Option<client::Message>,
}

/// Messages of clients.
pub mod client {
    /// A message.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Message {
        /// The first.
        #[prost(message, tag = "1")]
        Hello(super::ClientHello),
        /// From time to time.
        #[prost(message, tag = "2")]
        Heartbeat(super::Heartbeat),
    }
}

/// What servers say.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToClient {
    /// Which message.
    #[prost(oneof = "server::Message", tags = "1, 2, 3, 4, 5, 6")]
    pub message: Option<server::Message>,
}

/// Messages of servers.
pub mod server {
    /// A message.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Message {
        /// The first.
        #[prost(message, tag = "1")]
        Hello(super::ServerHello),
        /// Objects.
        #[prost(message, tag = "2")]
        Batch(super::Batch),
        /// From time to time.
        #[prost(message, tag = "3")]
        Heartbeat(super::Heartbeat),
        /// Go elsewhere.
        #[prost(message, tag = "4")]
        Drain(super::Drain),
        /// Not here, and not so.
        #[prost(message, tag = "5")]
        Refusal(super::Refusal),
        /// How the server's own source is.
        #[prost(message, tag = "6")]
        Upstream(super::Upstream),
    }
}

/// Who a client is, and what it wants.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClientHello {
    /// The version that it speaks.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The node that it wants the view of; empty for all of them.
    #[prost(string, tag = "2")]
    pub node: String,
    /// What to call it in logs.
    #[prost(string, tag = "3")]
    pub software: String,
    /// How far it has got; absent if it wants everything.
    #[prost(message, optional, tag = "4")]
    pub resume: Option<ResumeToken>,
    /// Whether a client that names its node wants blocks of addresses, too.
    #[prost(bool, tag = "5")]
    pub blocks: bool,
}

/// A place in the history that a server tells.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ResumeToken {
    /// Whose history: servers that know nothing of each other have different ones.
    #[prost(fixed64, tag = "1")]
    pub instance: u64,
    /// The last change that the client has heard of.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
}

/// How a server begins.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerHello {
    /// The version that it speaks.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Whose history it tells.
    #[prost(fixed64, tag = "2")]
    pub instance: u64,
    /// Whether it goes on from the place that the client has named; if not, everything follows.
    #[prost(bool, tag = "3")]
    pub resumed: bool,
    /// How long either side is silent at the most, in milliseconds.
    #[prost(uint32, tag = "4")]
    pub heartbeat_ms: u32,
    /// What to call it in logs.
    #[prost(string, tag = "5")]
    pub software: String,
    /// Whether blocks of addresses are among what follows.
    #[prost(bool, tag = "6")]
    pub blocks: bool,
}

/// Objects.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Batch {
    /// The objects.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<WireEntry>,
    /// They belong to the client's node.
    #[prost(bool, tag = "2")]
    pub own: bool,
    /// With this batch, a place in the history is reached.
    #[prost(message, optional, tag = "3")]
    pub settled: Option<Settled>,
}

/// An object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireEntry {
    /// Its path in the datastore.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Its value as Calico's datastore has it, mostly JSON; absent if the object does not exist any more.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub value: Option<Bytes>,
    /// Its version in the datastore when it got this value; empty if that is not known, or the client names a node.
    #[prost(string, tag = "3")]
    pub version: String,
}

/// A place in the history, and how far the datastore has been read there.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Settled {
    /// The place.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// The status.
    #[prost(enumeration = "WireStatus", tag = "2")]
    pub status: i32,
}

/// [`SyncStatus`] as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum WireStatus {
    /// No contact yet.
    Wait = 0,
    /// Incomplete.
    Resync = 1,
    /// Complete.
    InSync = 2,
}

impl From<SyncStatus> for WireStatus {
    fn from(status: SyncStatus) -> Self {
        match status {
            SyncStatus::WaitForDatastore => Self::Wait,
            SyncStatus::Resync => Self::Resync,
            SyncStatus::InSync => Self::InSync,
        }
    }
}

/// Says that the sender is still there.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Heartbeat {
    /// From servers: a number for the client to give back.
    #[prost(uint64, tag = "1")]
    pub stamp: u64,
    /// From clients: how far they have got.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
}

/// The server wants the client to go to another one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Drain {
    /// After this many milliseconds it closes the connection itself.
    #[prost(uint32, tag = "1")]
    pub within_ms: u32,
    /// Why, for the log.
    #[prost(string, tag = "2")]
    pub reason: String,
}

/// The server does not serve the client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refusal {
    /// Why, for the log.
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// How the source is that the server reads.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Upstream {
    /// What is wrong with objects; all of it, replacing what was said before.
    #[prost(message, repeated, tag = "1")]
    pub problems: Vec<WireProblem>,
    /// How many more problems there are than are listed.
    #[prost(uint32, tag = "2")]
    pub more: u32,
    /// Why the datastore cannot be read now; empty if it can.
    #[prost(string, tag = "3")]
    pub unavailable: String,
}

/// A problem of an object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireProblem {
    /// The object.
    #[prost(string, tag = "1")]
    pub subject: String,
    /// The file; empty if there is none.
    #[prost(string, tag = "2")]
    pub file: String,
    /// The line in the file; 0 if unknown.
    #[prost(uint32, tag = "3")]
    pub line: u32,
    /// The column in the line; 0 if unknown.
    #[prost(uint32, tag = "4")]
    pub column: u32,
    /// The field.
    #[prost(string, tag = "5")]
    pub field: String,
    /// What is wrong.
    #[prost(string, tag = "6")]
    pub what: String,
    /// Whether it is just a warning.
    #[prost(bool, tag = "7")]
    pub warning: bool,
    /// What is in force instead.
    #[prost(enumeration = "WireFallback", tag = "8")]
    pub fallback: i32,
}

/// [`tortie_datastore::Fallback`] as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum WireFallback {
    /// Nothing; also what a later version may say.
    Nothing = 0,
    /// The object itself.
    NotNeeded = 1,
    /// The last version that was good.
    LastGood = 2,
    /// A policy that denies.
    Denied = 3,
}
