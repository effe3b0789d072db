//! Protocol between servers and clients of the fan-out.
//!
//! A client that has connected, by TCP or TLS on top of it, sends [`MAGIC`] and then frames
//! ([`frame`]); the server sends frames. The first byte of the magic begins neither TLS nor Go's
//! gob encoding, so that one port can serve Typha's clients too. Each frame holds one message in
//! protobuf's encoding: a [`ToServer`] or a [`ToClient`]. Unknown fields and messages are skipped.
//!
//! 1. The client sends [`ClientHello`]. The server answers with [`ServerHello`], or with
//!    [`Refusal`] and closes the connection.
//! 2. Unless [`ServerHello::resumed`] is set, all objects follow: [`Batch`]es that are not settled,
//!    then one that is [`Settled`]. Once the status is *in sync*, objects that the client had
//!    before and that are not among them no longer exist.
//! 3. Changes follow as settled batches, each perhaps preceded by unsettled batches that belong to
//!    it.
//! 4. Both sides send a [`Heartbeat`] periodically. Each considers the other dead after silence of
//!    three times the interval.
//! 5. [`Upstream`] reports the problems of the datastore, at first and after each change. The
//!    client's consumer evaluates them as if it read the datastore itself.
//! 6. [`Drain`] asks the client to use another server.
//!
//! A client that names its node gets the objects below `/calico/v1/host/NODE/` in batches that are
//! marked `own`. The other batches are the same for all nodes; the client ignores objects of its
//! own node in them. They contain a short form of other nodes' workload endpoints, and of other
//! nodes' configuration only the VXLAN tunnel addresses. They contain IPAM blocks if the client
//! asks for them and the server confirms it in its hello. A client that names no node gets
//! everything.
//!
//! Fields and messages may be added within a version if either side works without them. Servers of
//! 0.1 from before [`ClientHello::blocks`], for example, send no IPAM blocks and leave
//! [`ServerHello::blocks`] unset. Clients from before [`ClientHello::domains`] get policies without
//! the rules that name domains.

pub mod frame;
mod problem;
pub(crate) mod stream;

use bytes::Bytes;
use tortie_model::SyncStatus;

/// First bytes that a client sends. The last byte is the protocol version: a server refuses unknown
/// versions.
pub const MAGIC: [u8; 8] = *b"\xb7TORTIE\x01";

/// Version of the protocol, as in the last byte of [`MAGIC`].
pub const VERSION: u32 = 1;

/// Message of a client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToServer {
    /// The message.
    #[prost(oneof = "client::Message", tags = "1, 2")]
    pub message: Option<client::Message>,
}

/// Messages of clients.
pub mod client {
    /// A message.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Message {
        /// First message of a client.
        #[prost(message, tag = "1")]
        Hello(super::ClientHello),
        /// Periodic heartbeat.
        #[prost(message, tag = "2")]
        Heartbeat(super::Heartbeat),
    }
}

/// Message of a server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToClient {
    /// The message.
    #[prost(oneof = "server::Message", tags = "1, 2, 3, 4, 5, 6")]
    pub message: Option<server::Message>,
}

/// Messages of servers.
pub mod server {
    /// A message.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Message {
        /// First message of a server.
        #[prost(message, tag = "1")]
        Hello(super::ServerHello),
        /// Objects.
        #[prost(message, tag = "2")]
        Batch(super::Batch),
        /// Periodic heartbeat.
        #[prost(message, tag = "3")]
        Heartbeat(super::Heartbeat),
        /// Request to use another server.
        #[prost(message, tag = "4")]
        Drain(super::Drain),
        /// Refusal to serve the client.
        #[prost(message, tag = "5")]
        Refusal(super::Refusal),
        /// State of the server's source.
        #[prost(message, tag = "6")]
        Upstream(super::Upstream),
    }
}

/// Identity and requests of a client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClientHello {
    /// Protocol version of the client.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Node whose view the client wants; empty for the view of all nodes.
    #[prost(string, tag = "2")]
    pub node: String,
    /// Name and version of the client's software, for logs.
    #[prost(string, tag = "3")]
    pub software: String,
    /// Position from which the client resumes; absent if it wants all objects.
    #[prost(message, optional, tag = "4")]
    pub resume: Option<ResumeToken>,
    /// Whether a client that names its node wants IPAM blocks as well.
    #[prost(bool, tag = "5")]
    pub blocks: bool,
    /// Whether the client knows rules with domain names. It gets policies without these rules
    /// otherwise: it would take them as rules for all addresses.
    #[prost(bool, tag = "6")]
    pub domains: bool,
}

/// Position in the history of a server.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ResumeToken {
    /// Instance of the history. Independent servers have different ones.
    #[prost(fixed64, tag = "1")]
    pub instance: u64,
    /// Last change that the client has received.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
}

/// First message of a server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerHello {
    /// Protocol version of the server.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Instance of the history that the server sends.
    #[prost(fixed64, tag = "2")]
    pub instance: u64,
    /// Whether the server continues from the client's position; if not, all objects follow.
    #[prost(bool, tag = "3")]
    pub resumed: bool,
    /// Maximum silence of either side in milliseconds.
    #[prost(uint32, tag = "4")]
    pub heartbeat_ms: u32,
    /// Name and version of the server's software, for logs.
    #[prost(string, tag = "5")]
    pub software: String,
    /// Whether the following objects include IPAM blocks.
    #[prost(bool, tag = "6")]
    pub blocks: bool,
}

/// Objects.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Batch {
    /// The objects.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<WireEntry>,
    /// True if the objects belong to the client's node.
    #[prost(bool, tag = "2")]
    pub own: bool,
    /// Position in the history that the client reaches with this batch; absent if more batches
    /// belong to it.
    #[prost(message, optional, tag = "3")]
    pub settled: Option<Settled>,
}

/// An object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireEntry {
    /// Its path in the datastore.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Its value as Calico's datastore has it, mostly JSON; absent if the object does not exist any
    /// more.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub value: Option<Bytes>,
    /// Its version in the datastore when it got this value; empty if that is unknown, or the client
    /// names a node.
    #[prost(string, tag = "3")]
    pub version: String,
}

/// Position in the history, with the status of the datastore there.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Settled {
    /// The position.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// The status.
    #[prost(enumeration = "WireStatus", tag = "2")]
    pub status: i32,
}

/// [`SyncStatus`] in a message.
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

/// Periodic proof that the sender is alive.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Heartbeat {
    /// From servers: number that the client returns.
    #[prost(uint64, tag = "1")]
    pub stamp: u64,
    /// From clients: position that they have reached.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
}

/// Request of the server that the client use another one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Drain {
    /// After this many milliseconds it closes the connection itself.
    #[prost(uint32, tag = "1")]
    pub within_ms: u32,
    /// Reason, for the log.
    #[prost(string, tag = "2")]
    pub reason: String,
}

/// Refusal of the server to serve the client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refusal {
    /// Reason, for the log.
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// State of the source that the server reads.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Upstream {
    /// Problems of objects. The list is complete and replaces the previous one.
    #[prost(message, repeated, tag = "1")]
    pub problems: Vec<WireProblem>,
    /// Number of problems that exist beyond those listed.
    #[prost(uint32, tag = "2")]
    pub more: u32,
    /// Reason why the datastore is unavailable; empty if it is available.
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
    /// Description of the problem.
    #[prost(string, tag = "6")]
    pub what: String,
    /// Whether the problem is only a warning.
    #[prost(bool, tag = "7")]
    pub warning: bool,
    /// Fallback that is in force instead.
    #[prost(enumeration = "WireFallback", tag = "8")]
    pub fallback: i32,
}

/// [`tortie_datastore::Fallback`] in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum WireFallback {
    /// Nothing; also stands for fallbacks of later versions.
    Nothing = 0,
    /// The object itself.
    NotNeeded = 1,
    /// The last valid version.
    LastGood = 2,
    /// A policy that denies.
    Denied = 3,
}
