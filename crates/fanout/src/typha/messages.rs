//! What the two sides say to each other (`typha/pkg/syncproto/sync_proto.go`).
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

/// The place of the protocol's package when its names were chosen.
const PACKAGE: &str = "github.com/projectcalico/typha/pkg/syncproto.";

/// The syncer of this name; that of Felix if it is empty, as releases before 3.3 knew no other. `None` if there is none.
#[must_use]
pub fn syncer(name: &str) -> Option<SyncerType> {
    if name.is_empty() { Some(SyncerType::Felix) } else { name.parse().ok() }
}
/// The compression that both sides know.
pub const SNAPPY: &str = "snappy";

/// `MsgClientHello`: the first message of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The name of the client's node.
    pub hostname: String,
    /// What the client says of itself.
    pub info: String,
    /// The client's version.
    pub version: String,
    /// Which syncer it wants; empty means that of Felix.
    pub syncer_type: String,
    /// Whether it knows [`ServerMessage::DecoderRestart`].
    pub supports_decoder_restart: bool,
    /// The compressions that it knows.
    pub compressions: Vec<String>,
    /// Whether it knows policy keys with the kind in them.
    pub supports_modern_policy_keys: bool,
    /// A number to find the connection in logs by.
    pub connection: u64,
}

/// `MsgServerHello`: the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// The server's version.
    pub version: String,
    /// Which syncer is behind it; empty means that of Felix.
    pub syncer_type: String,
    /// Whether nodes are sent as resources.
    pub supports_node_resource_updates: bool,
    /// A number to find the connection in logs by.
    pub connection: u64,
}

/// How an object has changed; for statistics only, as it is the value that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateType {
    /// Not said.
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
    /// Its value as a datastore has it; empty if the object does not exist.
    pub value: Vec<u8>,
    /// Its revision in the datastore, as text; empty if there is none.
    pub revision: String,
    /// The revision of a resource, which is taken out of its value.
    pub v3_resource_version: String,
    /// For how many nanoseconds it exists; 0 means until it is deleted.
    pub ttl: i64,
    /// How it has changed.
    pub update_type: UpdateType,
}

/// What a client says.
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
        /// The time of the answer; the original leaves it out.
        pong: Option<GoTime>,
    },
}

/// What a server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerMessage {
    /// `MsgServerHello`.
    Welcome(Welcome),
    /// `MsgDecoderRestart`: what follows is a new stream.
    DecoderRestart {
        /// Why.
        message: String,
        /// How the new stream is compressed; empty if it is not.
        compression: String,
    },
    /// `MsgKVs`: objects have changed.
    Kvs(Vec<SerializedUpdate>),
    /// `MsgSyncStatus`: how far the datastore has been read.
    SyncStatus(SyncStatus),
    /// `MsgPing`: are you there?
    Ping(Option<GoTime>),
}

/// Why a value is not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The value is not the envelope of a message, or there is nothing in it.
    #[error("there is no message in the envelope")]
    NoMessage,
    /// A message that is not known, or that the other side does not say.
    #[error("`{name}` is not expected here")]
    Unexpected {
        /// The name of its type.
        name: String,
    },
    /// A field is of another type than it should be, or out of range.
    #[error("`{field}` is not what it should be")]
    Field {
        /// The field.
        field: &'static str,
    },
}

/// The types of both sides. Each stream begins with all of its side's, whether they are used or not: so a message is
/// always the same bytes.
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

/// What a client's stream begins with.
#[must_use]
pub fn client_definitions() -> &'static [u8] {
    TYPES.client.definitions()
}

/// What each stream of a server begins with.
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

/// An object to be written into a [`ServerMessage::Kvs`], borrowed.
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
    /// How it has changed.
    pub update_type: UpdateType,
}

/// Writes a [`ServerMessage::Kvs`] without owning what is in it.
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
    /// Writes it, for a stream that has begun with [`client_definitions`].
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

    /// Reads it.
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
    /// Writes it, for a stream that has begun with [`server_definitions`].
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

    /// Reads it.
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
            // Of no use here; it must not stand in the way of the object.
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

/// The message within an envelope, and the name of its type without the package.
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
