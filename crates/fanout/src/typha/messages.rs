//! Messages of Typha's protocol (`typha/pkg/syncproto/sync_proto.go`).
//!
//! ```
//! use tortie_fanout::gob::{Decoder, Limits};
//! use tortie_fanout::typha::messages::{self, ServerMessage};
//! use tortie_model::SyncStatus;
//!
//! let mut stream = messages::server_definitions().to_vec();
//! stream.extend(ServerMessage::SyncStatus(SyncStatus::InSync).encode());
//! let mut decoder = Decoder::new(Limits::default());
//! decoder.push(&stream);
//! let value = decoder.read()?.expect("a whole message");
//! assert_eq!(ServerMessage::decode(&value), Ok(ServerMessage::SyncStatus(SyncStatus::InSync)));
//! # Ok::<(), tortie_fanout::gob::GobError>(())
//! ```

use std::sync::LazyLock;

use tortie_model::SyncStatus;
use tortie_resources::syncer::SyncerType;

use super::GoTime;
use crate::gob::{self, Fields, Schema, StructValue, TypeId, Value};

/// Import path of the protocol's package at the time when the names of its types were fixed.
const PACKAGE: &str = "github.com/projectcalico/typha/pkg/syncproto.";

/// Returns the syncer of this name; `None` for an unknown name. An empty name means Felix's syncer,
/// since releases before 3.3 had no other.
#[must_use]
pub fn syncer(name: &str) -> Option<SyncerType> {
    if name.is_empty() { Some(SyncerType::Felix) } else { name.parse().ok() }
}
/// Compression that both sides support.
pub const SNAPPY: &str = "snappy";

/// `MsgClientHello`: the first message of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Name of the client's node.
    pub hostname: String,
    /// Free text of the client.
    pub info: String,
    /// The client's version.
    pub version: String,
    /// Syncer that it wants; empty for Felix's.
    pub syncer_type: String,
    /// Whether it supports [`ServerMessage::DecoderRestart`].
    pub supports_decoder_restart: bool,
    /// Compressions that it supports.
    pub compressions: Vec<String>,
    /// Whether it supports policy keys that contain the kind.
    pub supports_modern_policy_keys: bool,
    /// Number of the connection in logs.
    pub connection: u64,
}

/// `MsgServerHello`: the server's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// The server's version.
    pub version: String,
    /// Syncer that it serves; empty for Felix's.
    pub syncer_type: String,
    /// Whether nodes are sent as resources.
    pub supports_node_resource_updates: bool,
    /// Number of the connection in logs.
    pub connection: u64,
}

/// Kind of a change, for statistics only. The value alone decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateType {
    /// Unknown.
    #[default]
    Unknown,
    /// It did not exist before.
    New,
    /// It existed, with another value.
    Updated,
    /// It does not exist any more.
    Deleted,
}

/// `SerializedUpdate`: a changed object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SerializedUpdate {
    /// The object's path in the datastore.
    pub key: String,
    /// Its value as in the datastore; empty if the object does not exist.
    pub value: Vec<u8>,
    /// Its revision in the datastore, as text; empty if there is none.
    pub revision: String,
    /// Revision of a resource, which its value does not contain.
    pub v3_resource_version: String,
    /// Lifetime in nanoseconds; 0 if it exists until it is deleted.
    pub ttl: i64,
    /// Kind of the change.
    pub update_type: UpdateType,
}

/// Message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// `MsgClientHello`.
    Hello(Hello),
    /// `MsgACK`: the decoder has been restarted.
    Ack,
    /// `MsgPong`: the answer to a ping, with its time.
    Pong {
        /// The time of the ping.
        ping: Option<GoTime>,
        /// Time of the answer; Typha's client leaves it out.
        pong: Option<GoTime>,
    },
}

/// Message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerMessage {
    /// `MsgServerHello`.
    Welcome(Welcome),
    /// `MsgDecoderRestart`: a new stream follows.
    DecoderRestart {
        /// Reason.
        message: String,
        /// Compression of the new stream; empty for none.
        compression: String,
    },
    /// `MsgKVs`: objects have changed.
    Kvs(Vec<SerializedUpdate>),
    /// `MsgSyncStatus`: progress of reading the datastore.
    SyncStatus(SyncStatus),
    /// `MsgPing`: request for a pong.
    Ping(Option<GoTime>),
}

/// Reason why a value is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The value is not the envelope of a message, or the envelope is empty.
    #[error("there is no message in the envelope")]
    NoMessage,
    /// The message is unknown, or not one that the peer may send.
    #[error("`{name}` is not expected here")]
    Unexpected {
        /// Name of its type.
        name: String,
    },
    /// A field has the wrong type or is out of range.
    #[error("`{field}` has the wrong type or is out of range")]
    Field {
        /// The field.
        field: &'static str,
    },
}

/// Types of both sides. Each stream begins with all types of its side, used or not, so that a
/// message always has the same bytes.
struct Types {
    client: Schema,
    server: Schema,
    envelope: TypeId,
    hello: TypeId,
    ack: TypeId,
    pong: TypeId,
    welcome: TypeId,
    restart: TypeId,
    status: TypeId,
    ping: TypeId,
    kvs: TypeId,
}

static TYPES: LazyLock<Types> = LazyLock::new(|| {
    let envelope_fields = [("Message", TypeId::INTERFACE)];
    let mut client = Schema::default();
    let envelope = client.structure("Envelope", &envelope_fields);
    let time = client.opaque("Time");
    let compressions = client.slice("[]syncproto.CompressionAlgorithm", TypeId::TEXT);
    let hello = client.structure(
        "MsgClientHello",
        &[
            ("Hostname", TypeId::TEXT),
            ("Info", TypeId::TEXT),
            ("Version", TypeId::TEXT),
            ("SyncerType", TypeId::TEXT),
            ("SupportsDecoderRestart", TypeId::BOOL),
            ("SupportedCompressionAlgorithms", compressions),
            ("SupportsModernPolicyKeys", TypeId::BOOL),
            ("ClientConnID", TypeId::UINT),
        ],
    );
    let ack = client.structure("MsgACK", &[]);
    let pong = client.structure("MsgPong", &[("PingTimestamp", time), ("PongTimestamp", time)]);

    let mut server = Schema::default();
    // The same id as the client's: both are the first.
    let _ = server.structure("Envelope", &envelope_fields);
    let time = server.opaque("Time");
    let welcome = server.structure(
        "MsgServerHello",
        &[
            ("Version", TypeId::TEXT),
            ("SyncerType", TypeId::TEXT),
            ("SupportsNodeResourceUpdates", TypeId::BOOL),
            ("ServerConnID", TypeId::UINT),
        ],
    );
    let restart =
        server.structure("MsgDecoderRestart", &[("Message", TypeId::TEXT), ("CompressionAlgorithm", TypeId::TEXT)]);
    let status = server.structure("MsgSyncStatus", &[("SyncStatus", TypeId::UINT)]);
    let ping = server.structure("MsgPing", &[("Timestamp", time)]);
    let update = server.structure(
        "SerializedUpdate",
        &[
            ("Key", TypeId::TEXT),
            ("Value", TypeId::BYTES),
            ("Revision", TypeId::INTERFACE),
            ("V3ResourceVersion", TypeId::TEXT),
            ("TTL", TypeId::INT),
            ("UpdateType", TypeId::UINT),
        ],
    );
    let updates = server.slice("[]syncproto.SerializedUpdate", update);
    let kvs = server.structure("MsgKVs", &[("KVs", updates)]);
    Types { client, server, envelope, hello, ack, pong, welcome, restart, status, ping, kvs }
});

/// Returns the type definitions with which a client's stream begins.
#[must_use]
pub fn client_definitions() -> &'static [u8] {
    TYPES.client.definitions()
}

/// Returns the type definitions with which each stream of a server begins.
#[must_use]
pub fn server_definitions() -> &'static [u8] {
    TYPES.server.definitions()
}

fn envelope(name: &str, id: TypeId, fields: impl FnOnce(&mut Fields<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    write_envelope(&mut out, name, id, fields);
    out
}

fn write_envelope(out: &mut Vec<u8>, name: &str, id: TypeId, fields: impl FnOnce(&mut Fields<'_>)) {
    gob::message(out, TYPES.envelope, |out| {
        gob::structure(out, |envelope| {
            envelope.interface(0, &format!("{PACKAGE}{name}"), id, |out| gob::structure(out, fields));
        });
    });
}

fn time(fields: &mut Fields<'_>, number: u64, time: Option<&GoTime>) {
    if let Some(time) = time {
        fields.bytes(number, &time.encode());
    }
}

/// Borrowed object of a [`ServerMessage::Kvs`].
#[derive(Clone, Copy, Debug)]
pub struct UpdateRef<'u> {
    /// Its path.
    pub key: &'u str,
    /// Its value; empty if it does not exist.
    pub value: &'u [u8],
    /// Its revision; empty if there is none.
    pub revision: &'u str,
    /// The revision of a resource, which is not in its value; empty for other objects.
    pub v3_resource_version: &'u str,
    /// Kind of the change.
    pub update_type: UpdateType,
}

/// Writes a [`ServerMessage::Kvs`] from borrowed objects.
pub fn write_kvs(out: &mut Vec<u8>, updates: &[UpdateRef<'_>]) {
    write_envelope(out, "MsgKVs", TYPES.kvs, |fields| {
        fields.list(0, updates, |out, update| {
            gob::structure(out, |fields| {
                fields.text(0, update.key);
                fields.bytes(1, update.value);
                revision(fields, update.revision);
                fields.text(3, update.v3_resource_version);
                fields.uint(5, update.update_type as u64);
            });
        });
    });
}

fn revision(fields: &mut Fields<'_>, revision: &str) {
    if !revision.is_empty() {
        fields.interface(2, "string", TypeId::TEXT, |out| gob::basic(out, |out| gob::text_value(out, revision)));
    }
}

impl ClientMessage {
    /// Encodes it for a stream that has begun with [`client_definitions`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => envelope("MsgClientHello", TYPES.hello, |fields| {
                fields.text(0, &hello.hostname);
                fields.text(1, &hello.info);
                fields.text(2, &hello.version);
                fields.text(3, &hello.syncer_type);
                fields.bool(4, hello.supports_decoder_restart);
                fields.list(5, &hello.compressions, |out, name| gob::text_value(out, name));
                fields.bool(6, hello.supports_modern_policy_keys);
                fields.uint(7, hello.connection);
            }),
            Self::Ack => envelope("MsgACK", TYPES.ack, |_| {}),
            Self::Pong { ping, pong } => envelope("MsgPong", TYPES.pong, |fields| {
                time(fields, 0, ping.as_ref());
                time(fields, 1, pong.as_ref());
            }),
        }
    }

    /// Decodes it.
    ///
    /// # Errors
    /// [`MessageError`] if it is not a message of a client.
    pub fn decode(value: &Value<'_>) -> Result<Self, MessageError> {
        let (name, message) = opened(value)?;
        Ok(match name {
            "MsgClientHello" => Self::Hello(Hello {
                hostname: text(message, "Hostname")?,
                info: text(message, "Info")?,
                version: text(message, "Version")?,
                syncer_type: text(message, "SyncerType")?,
                supports_decoder_restart: flag(message, "SupportsDecoderRestart")?,
                compressions: list(message, "SupportedCompressionAlgorithms", |item| match item {
                    Value::Text(text) => Some(text.clone().into_owned()),
                    _ => None,
                })?,
                supports_modern_policy_keys: flag(message, "SupportsModernPolicyKeys")?,
                connection: number(message, "ClientConnID")?,
            }),
            "MsgACK" => Self::Ack,
            "MsgPong" => {
                Self::Pong { ping: timestamp(message, "PingTimestamp")?, pong: timestamp(message, "PongTimestamp")? }
            }
            name => return Err(MessageError::Unexpected { name: name.into() }),
        })
    }
}

impl ServerMessage {
    /// Encodes it for a stream that has begun with [`server_definitions`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(welcome) => envelope("MsgServerHello", TYPES.welcome, |fields| {
                fields.text(0, &welcome.version);
                fields.text(1, &welcome.syncer_type);
                fields.bool(2, welcome.supports_node_resource_updates);
                fields.uint(3, welcome.connection);
            }),
            Self::DecoderRestart { message, compression } => envelope("MsgDecoderRestart", TYPES.restart, |fields| {
                fields.text(0, message);
                fields.text(1, compression);
            }),
            Self::Kvs(updates) => envelope("MsgKVs", TYPES.kvs, |fields| {
                fields.list(0, updates, |out, update| {
                    gob::structure(out, |fields| {
                        fields.text(0, &update.key);
                        fields.bytes(1, &update.value);
                        revision(fields, &update.revision);
                        fields.text(3, &update.v3_resource_version);
                        fields.int(4, update.ttl);
                        fields.uint(5, update.update_type as u64);
                    });
                });
            }),
            Self::SyncStatus(status) => envelope("MsgSyncStatus", TYPES.status, |fields| {
                let number = match status {
                    SyncStatus::WaitForDatastore => 0,
                    SyncStatus::Resync => 1,
                    SyncStatus::InSync => 2,
                };
                fields.uint(0, number);
            }),
            Self::Ping(at) => envelope("MsgPing", TYPES.ping, |fields| time(fields, 0, at.as_ref())),
        }
    }

    /// Decodes it.
    ///
    /// # Errors
    /// [`MessageError`] if it is not a message of a server.
    pub fn decode(value: &Value<'_>) -> Result<Self, MessageError> {
        let (name, message) = opened(value)?;
        Ok(match name {
            "MsgServerHello" => Self::Welcome(Welcome {
                version: text(message, "Version")?,
                syncer_type: text(message, "SyncerType")?,
                supports_node_resource_updates: flag(message, "SupportsNodeResourceUpdates")?,
                connection: number(message, "ServerConnID")?,
            }),
            "MsgDecoderRestart" => Self::DecoderRestart {
                message: text(message, "Message")?,
                compression: text(message, "CompressionAlgorithm")?,
            },
            "MsgKVs" => Self::Kvs(list(message, "KVs", |item| match item {
                Value::Struct(update) => serialized_update(update),
                _ => None,
            })?),
            "MsgSyncStatus" => Self::SyncStatus(match number(message, "SyncStatus")? {
                0 => SyncStatus::WaitForDatastore,
                1 => SyncStatus::Resync,
                2 => SyncStatus::InSync,
                _ => return Err(MessageError::Field { field: "SyncStatus" }),
            }),
            "MsgPing" => Self::Ping(timestamp(message, "Timestamp")?),
            name => return Err(MessageError::Unexpected { name: name.into() }),
        })
    }
}

fn serialized_update(update: &StructValue<'_>) -> Option<SerializedUpdate> {
    let revision = match update.get("Revision") {
        None | Some(Value::Nil) => String::new(),
        Some(Value::Named(_, value)) => match &**value {
            Value::Text(text) => text.clone().into_owned(),
            Value::Int(number) => number.to_string(),
            Value::Uint(number) => number.to_string(),
            // Other types are of no use here, but must not make the object unreadable.
            _ => String::new(),
        },
        Some(_) => return None,
    };
    Some(SerializedUpdate {
        key: text(update, "Key").ok()?,
        value: match update.get("Value") {
            None => Vec::new(),
            Some(Value::Bytes(bytes)) => bytes.to_vec(),
            Some(_) => return None,
        },
        revision,
        v3_resource_version: text(update, "V3ResourceVersion").ok()?,
        ttl: match update.get("TTL") {
            None => 0,
            Some(Value::Int(ttl)) => *ttl,
            Some(_) => return None,
        },
        update_type: match number(update, "UpdateType").ok()? {
            1 => UpdateType::New,
            2 => UpdateType::Updated,
            3 => UpdateType::Deleted,
            _ => UpdateType::Unknown,
        },
    })
}

/// Returns the message within an envelope, and the name of its type without the package.
fn opened<'v, 'm>(value: &'v Value<'m>) -> Result<(&'m str, &'v StructValue<'m>), MessageError> {
    let Value::Struct(envelope) = value else { return Err(MessageError::NoMessage) };
    let Some(Value::Named(name, message)) = envelope.get("Message") else { return Err(MessageError::NoMessage) };
    match (name.strip_prefix(PACKAGE), &**message) {
        (Some(name), Value::Struct(message)) => Ok((name, message)),
        _ => Err(MessageError::Unexpected { name: (*name).into() }),
    }
}

fn text(of: &StructValue<'_>, field: &'static str) -> Result<String, MessageError> {
    match of.get(field) {
        None => Ok(String::new()),
        Some(Value::Text(text)) => Ok(text.clone().into_owned()),
        Some(_) => Err(MessageError::Field { field }),
    }
}

fn flag(of: &StructValue<'_>, field: &'static str) -> Result<bool, MessageError> {
    match of.get(field) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(MessageError::Field { field }),
    }
}

fn number(of: &StructValue<'_>, field: &'static str) -> Result<u64, MessageError> {
    match of.get(field) {
        None => Ok(0),
        Some(Value::Uint(number)) => Ok(*number),
        Some(_) => Err(MessageError::Field { field }),
    }
}

fn timestamp(of: &StructValue<'_>, field: &'static str) -> Result<Option<GoTime>, MessageError> {
    match of.get(field) {
        None => Ok(None),
        Some(Value::Opaque(bytes)) => GoTime::decode(bytes).map(Some).ok_or(MessageError::Field { field }),
        Some(_) => Err(MessageError::Field { field }),
    }
}

fn list<T>(
    of: &StructValue<'_>,
    field: &'static str,
    read: impl FnMut(&Value<'_>) -> Option<T>,
) -> Result<Vec<T>, MessageError> {
    match of.get(field) {
        None => Ok(Vec::new()),
        Some(Value::List(items)) => items.iter().map(read).collect::<Option<_>>().ok_or(MessageError::Field { field }),
        Some(_) => Err(MessageError::Field { field }),
    }
}

#[cfg(test)]
mod tests;
