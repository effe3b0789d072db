//! The rules of a connection, as the client sees it (`typha/pkg/syncclient/sync_client.go`).

use bytes::Bytes;
use tortie_model::SyncStatus;
use tortie_resources::syncer::SyncerType;

use super::messages::{self, ClientMessage, Hello, SNAPPY, SerializedUpdate, ServerMessage, Welcome};
use super::wire::{Incoming, WireError};
use crate::gob::Limits;

/// What a client says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The name of the node.
    pub hostname: String,
    /// Its version.
    pub version: String,
    /// Anything else.
    pub info: String,
    /// A number to find the connection in logs by.
    pub connection: u64,
    /// Which syncer it wants.
    pub syncer: SyncerType,
}

/// What a client does with what it received, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientAction {
    /// Send these bytes.
    Send(Bytes),
    /// The server has introduced itself.
    Welcome(Welcome),
    /// Objects have changed.
    Updates(Vec<SerializedUpdate>),
    /// How far the server has read the datastore.
    Status(SyncStatus),
}

/// Why a client hangs up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientEnd {
    /// The first message must be the server's hello, and only the first.
    #[error("the server said something out of turn")]
    OutOfTurn,
    /// The server is older than resources of nodes.
    #[error("the server is too old: it does not send nodes as resources")]
    TooOld,
    /// The server has another syncer.
    #[error("the server gives syncer type `{syncer_type}`, not `{wanted}`")]
    SyncerType {
        /// Which was asked for.
        wanted: SyncerType,
        /// Which it has.
        syncer_type: String,
    },
    /// The server wants to use a compression that we did not offer.
    #[error("the server uses compression `{compression}`, which is not known")]
    Compression {
        /// Which.
        compression: String,
    },
    /// The server cannot be understood.
    #[error("the server cannot be understood")]
    Wire(#[from] WireError),
}

/// A connection to a server. Pure.
#[derive(Debug)]
pub struct ClientSession {
    incoming: Incoming,
    syncer: SyncerType,
    welcomed: bool,
}

impl ClientSession {
    /// A connection that has just been made, and what to send first.
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

    /// What the server has to be able to say: snapshots come in messages of a thousand objects.
    #[must_use]
    pub fn limits() -> Limits {
        Limits { value_bytes: 64 << 20, values: 4 << 20, ..Limits::default() }
    }

    /// The server has sent bytes. Actions that precede an error are to be taken.
    ///
    /// # Errors
    /// [`ClientEnd`] if the connection is of no use any more.
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
