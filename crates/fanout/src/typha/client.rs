//! Client side of a connection, as a state machine (`typha/pkg/syncclient/sync_client.go`).

use bytes::Bytes;
use tortie_model::SyncStatus;
use tortie_resources::syncer::SyncerType;

use super::messages::{self, ClientMessage, Hello, SNAPPY, SerializedUpdate, ServerMessage, Welcome};
use super::wire::{Incoming, WireError};
use crate::gob::Limits;

/// Identity of a client and the syncer that it wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// Name of the node.
    pub hostname: String,
    /// Its version.
    pub version: String,
    /// Free text.
    pub info: String,
    /// Number of the connection in logs.
    pub connection: u64,
    /// Syncer that it wants.
    pub syncer: SyncerType,
}

/// Action to take for received bytes; several are taken in order.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientAction {
    /// Send these bytes.
    Send(Bytes),
    /// The server has sent its hello.
    Welcome(Welcome),
    /// Objects have changed.
    Updates(Vec<SerializedUpdate>),
    /// Status of the server's datastore.
    Status(SyncStatus),
}

/// Reason why a client closes a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientEnd {
    /// The first message must be the server's hello, and only the first.
    #[error("the server sent an unexpected message")]
    OutOfTurn,
    /// The server is too old to send nodes as resources.
    #[error("the server is too old: it does not send nodes as resources")]
    TooOld,
    /// The server serves another syncer.
    #[error("the server gives syncer type `{syncer_type}`, not `{wanted}`")]
    SyncerType {
        /// Requested syncer.
        wanted: SyncerType,
        /// Syncer type of the server.
        syncer_type: String,
    },
    /// The server uses a compression that the client did not offer.
    #[error("the server uses compression `{compression}`, which is not known")]
    Compression {
        /// The compression.
        compression: String,
    },
    /// The server's bytes cannot be decoded.
    #[error("the server's messages cannot be decoded")]
    Wire(#[from] WireError),
}

/// Connection to a server. Does no I/O.
#[derive(Debug)]
pub struct ClientSession {
    incoming: Incoming,
    syncer: SyncerType,
    welcomed: bool,
}

impl ClientSession {
    /// Creates the session of a new connection, and the bytes to send first.
    #[must_use]
    pub fn new(hello: ClientHello, limits: Limits) -> (Self, Bytes) {
        let syncer = hello.syncer;
        let hello = ClientMessage::Hello(Hello {
            hostname: hello.hostname,
            info: hello.info,
            version: hello.version,
            syncer_type: syncer.as_str().into(),
            supports_decoder_restart: true,
            compressions: vec![SNAPPY.into()],
            supports_modern_policy_keys: true,
            connection: hello.connection,
        });
        let bytes = [messages::client_definitions(), &hello.encode()].concat();
        (Self { incoming: Incoming::new(limits), syncer, welcomed: false }, bytes.into())
    }

    /// Returns the limits for a server's stream, whose snapshots come in messages of a thousand
    /// objects.
    #[must_use]
    pub fn limits() -> Limits {
        Limits { value_bytes: 64 << 20, values: 4 << 20, ..Limits::default() }
    }

    /// Processes bytes from the server. Actions that precede an error are to be taken.
    ///
    /// # Errors
    /// [`ClientEnd`] if the connection is no longer usable.
    pub fn received(&mut self, bytes: &[u8], actions: &mut Vec<ClientAction>) -> Result<(), ClientEnd> {
        self.incoming.push(bytes)?;
        while let Some(value) = self.incoming.read().map_err(WireError::from)? {
            let message = ServerMessage::decode(&value).map_err(WireError::from)?;
            drop(value);
            self.take(message, actions)?;
        }
        Ok(())
    }

    fn take(&mut self, message: ServerMessage, actions: &mut Vec<ClientAction>) -> Result<(), ClientEnd> {
        match message {
            ServerMessage::Welcome(welcome) if !self.welcomed => {
                if !welcome.supports_node_resource_updates {
                    return Err(ClientEnd::TooOld);
                }
                if messages::syncer(&welcome.syncer_type) != Some(self.syncer) {
                    return Err(ClientEnd::SyncerType { wanted: self.syncer, syncer_type: welcome.syncer_type });
                }
                self.welcomed = true;
                actions.push(ClientAction::Welcome(welcome));
            }
            ServerMessage::Welcome(_) => return Err(ClientEnd::OutOfTurn),
            _ if !self.welcomed => return Err(ClientEnd::OutOfTurn),
            ServerMessage::DecoderRestart { compression, .. } => {
                if !matches!(&*compression, "" | SNAPPY) {
                    return Err(ClientEnd::Compression { compression });
                }
                self.incoming.restart(!compression.is_empty())?;
                actions.push(ClientAction::Send(ClientMessage::Ack.encode().into()));
            }
            ServerMessage::Kvs(updates) => actions.push(ClientAction::Updates(updates)),
            ServerMessage::SyncStatus(status) => actions.push(ClientAction::Status(status)),
            ServerMessage::Ping(ping) => {
                actions.push(ClientAction::Send(ClientMessage::Pong { ping, pong: None }.encode().into()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
