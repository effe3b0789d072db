//! Server side of a connection, as a state machine (`typha/pkg/syncserver/sync_server.go`).

use std::time::{Duration, Instant};

use bytes::Bytes;
use tortie_resources::syncer::SyncerType;

use super::GoTime;
use super::messages::{self, ClientMessage, Hello, SNAPPY, ServerMessage, Welcome};
use super::snappy;
use super::wire::{Incoming, WireError};
use crate::gob::Limits;

/// Settings of a server. The defaults are Typha's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Version that the server reports.
    pub version: String,
    /// Maximum time until the client's hello; 10 s by default.
    pub handshake_timeout: Duration,
    /// Interval between pings, to which up to a tenth is added; 10 s by default.
    pub ping_interval: Duration,
    /// Time without an answer after which a client is disconnected; 60 s by default. At least twice
    /// the interval.
    pub pong_timeout: Duration,
    /// Limits of a client's stream; its messages are small.
    pub limits: Limits,
    /// Syncers that clients may ask for.
    pub syncers: Vec<SyncerType>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            version: concat!("tortie-", env!("CARGO_PKG_VERSION")).into(),
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(10),
            pong_timeout: Duration::from_secs(60),
            limits: ServerSession::limits(),
            syncers: vec![SyncerType::Felix],
        }
    }
}

/// Action to take for a client; several are taken in order.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerAction {
    /// Send these bytes.
    Send(Bytes),
    /// Send all objects, then call [`ServerSession::snapshot_sent`]. A compressed snapshot is a
    /// separate stream, which ends with a restart of the decoder.
    Snapshot {
        /// Whether to compress it.
        compressed: bool,
    },
    /// From now on, send the changes, beginning with the status of the snapshot.
    Follow {
        /// Whether to compress them, with [`snappy::compress`].
        compressed: bool,
    },
    /// Close the connection.
    Close(ServerEnd),
}

/// Reason why a server closes a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerEnd {
    /// The client sent no hello in time.
    #[error("the client did not say hello in time")]
    NoHello,
    /// The client sent too much before its hello was complete.
    #[error("the client sent {limit} bytes without a complete hello")]
    LongHello {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The client wants a syncer that is not served.
    #[error("the client asks for syncer type `{syncer_type}`, which is not served here")]
    SyncerType {
        /// Syncer type that it wants.
        syncer_type: String,
    },
    /// The client is of a version that would misinterpret policies.
    #[error("the client does not know the policy keys of newer versions; it must be upgraded")]
    OldPolicyKeys,
    /// The server has reached its limit of clients.
    #[error("there are too many connections")]
    TooManyConnections,
    /// The client did not confirm the restart of its decoder in time.
    #[error("the client did not confirm in time that its decoder has been restarted")]
    NoAck,
    /// The client did not answer a ping in time.
    #[error("the client does not answer pings")]
    NoPong,
    /// The client sent a message that is not allowed in this state.
    #[error("the client sent an unexpected message")]
    OutOfTurn,
    /// The client's bytes cannot be decoded.
    #[error("the client's messages cannot be decoded")]
    Wire(#[from] WireError),
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for the client's hello.
    Hello {
        until: Instant,
    },
    /// Waits for the client's confirmation that its decoder has been restarted, before or after the
    /// snapshot.
    Ack {
        until: Instant,
        before_snapshot: bool,
    },
    /// The snapshot is being sent. The client may confirm its end before the server knows that it
    /// has sent all of it.
    Snapshot {
        compressed: bool,
        confirmed: bool,
    },
    Following {
        compressed: bool,
        last_pong: Instant,
        next_ping: Instant,
        /// Time of the last ping, if it has not been answered.
        pinged: Option<Instant>,
    },
    Closed,
}

/// Connection to a client. Does no I/O.
#[derive(Debug)]
pub struct ServerSession {
    connection: u64,
    settings: ServerSettings,
    incoming: Incoming,
    state: State,
    /// Number of bytes received before the hello was complete.
    before_hello: usize,
    hello: Option<Hello>,
    syncer: SyncerType,
    /// Whether the client exceeds the limit of connections.
    over_limit: bool,
    /// State of the pseudo-random sequence that spreads the pings of many connections.
    spread: u64,
    round_trip: Option<Duration>,
}

impl ServerSession {
    /// Creates the session of a new connection. `connection` is its number in logs.
    #[must_use]
    pub fn new(connection: u64, settings: ServerSettings, now: Instant) -> Self {
        let until = now + settings.handshake_timeout;
        let incoming = Incoming::new(settings.limits);
        let state = State::Hello { until };
        Self {
            connection,
            settings,
            incoming,
            state,
            before_hello: 0,
            hello: None,
            syncer: SyncerType::Felix,
            over_limit: false,
            spread: connection | 1,
            round_trip: None,
        }
    }

    /// Returns the limits for a client's stream: 16 KiB for a value and for all bytes before the
    /// hello, 1,024 values, 64 types in 8 KiB. Felix sends less than 1 KiB.
    #[must_use]
    pub fn limits() -> Limits {
        Limits { value_bytes: 16 * 1024, values: 1024, types: 64, definition_bytes: 8 * 1024, ..Limits::default() }
    }

    /// Marks the client as over the limit: it is rejected after its hello.
    #[must_use]
    pub fn over_limit(self) -> Self {
        Self { over_limit: true, ..self }
    }

    /// Returns the client's hello, once it has arrived.
    #[must_use]
    pub fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// Returns the syncer that the client gets, once it has sent its hello.
    #[must_use]
    pub fn syncer(&self) -> SyncerType {
        self.syncer
    }

    /// Returns the time that the client took to answer a ping, if it has answered one since the
    /// last call.
    pub fn take_round_trip(&mut self) -> Option<Duration> {
        self.round_trip.take()
    }

    /// Returns the time by which [`ServerSession::tick`] has to be called; `None` if no timeout is
    /// pending.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Hello { until } | State::Ack { until, .. } => Some(until),
            State::Following { last_pong, next_ping, .. } => {
                Some(next_ping.min(last_pong + self.settings.pong_timeout))
            }
            State::Snapshot { .. } | State::Closed => None,
        }
    }

    /// Returns the actions that are due at `now`. `wall` is the timestamp of a ping.
    #[must_use]
    pub fn tick(&mut self, now: Instant, wall: GoTime) -> Vec<ServerAction> {
        match &mut self.state {
            State::Hello { until } if now >= *until => self.close(ServerEnd::NoHello),
            State::Ack { until, .. } if now >= *until => self.close(ServerEnd::NoAck),
            State::Following { last_pong, .. } if now >= *last_pong + self.settings.pong_timeout => {
                self.close(ServerEnd::NoPong)
            }
            State::Following { compressed, next_ping, pinged, .. } if now >= *next_ping => {
                // Any sequence will do that differs between connections.
                self.spread = self.spread.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let more = self.settings.ping_interval.mul_f64((self.spread >> 40) as f64 / f64::from(1 << 24) / 10.0);
                *next_ping = now + self.settings.ping_interval + more;
                *pinged = Some(now);
                vec![ServerAction::Send(encoded(&ServerMessage::Ping(Some(wall)), *compressed))]
            }
            _ => Vec::new(),
        }
    }

    /// Processes bytes from the client and returns the actions that follow.
    #[must_use]
    pub fn received(&mut self, bytes: &[u8], now: Instant) -> Vec<ServerAction> {
        if self.state == State::Closed {
            return Vec::new();
        }
        let mut actions = Vec::new();
        if let Err(end) = self.take(bytes, now, &mut actions) {
            actions.extend(self.close(end));
        }
        actions
    }

    /// Returns the actions that follow after all of the snapshot has been sent.
    #[must_use]
    pub fn snapshot_sent(&mut self, now: Instant) -> Vec<ServerAction> {
        match self.state {
            State::Snapshot { compressed: true, confirmed: false } => {
                self.state = State::Ack { until: now + self.settings.pong_timeout, before_snapshot: false };
                Vec::new()
            }
            State::Snapshot { compressed, .. } => self.follow(compressed, now),
            _ => Vec::new(),
        }
    }

    fn take(&mut self, bytes: &[u8], now: Instant, actions: &mut Vec<ServerAction>) -> Result<(), ServerEnd> {
        let limit = self.settings.limits.value_bytes;
        if let State::Hello { .. } = self.state {
            self.before_hello += bytes.len();
        }
        self.incoming.push(bytes)?;
        while let Some(value) = self.incoming.read().map_err(WireError::from)? {
            let message = ClientMessage::decode(&value).map_err(WireError::from)?;
            drop(value);
            match (message, self.state) {
                (ClientMessage::Hello(hello), State::Hello { .. }) => self.greet(hello, now, actions)?,
                (ClientMessage::Ack, State::Ack { before_snapshot: true, .. }) => {
                    self.state = State::Snapshot { compressed: true, confirmed: false };
                    actions.push(ServerAction::Snapshot { compressed: true });
                }
                (ClientMessage::Ack, State::Ack { before_snapshot: false, .. }) => {
                    actions.extend(self.follow(true, now));
                }
                (ClientMessage::Ack, State::Snapshot { compressed: true, confirmed: false }) => {
                    self.state = State::Snapshot { compressed: true, confirmed: true };
                }
                (ClientMessage::Pong { .. }, State::Following { compressed, next_ping, pinged, .. }) => {
                    self.round_trip = pinged.map(|at| now.saturating_duration_since(at));
                    self.state = State::Following { compressed, last_pong: now, next_ping, pinged: None };
                }
                _ => return Err(ServerEnd::OutOfTurn),
            }
        }
        match self.state {
            State::Hello { .. } if self.before_hello >= limit => Err(ServerEnd::LongHello { limit }),
            _ => Ok(()),
        }
    }

    fn greet(&mut self, hello: Hello, now: Instant, actions: &mut Vec<ServerAction>) -> Result<(), ServerEnd> {
        let syncer = messages::syncer(&hello.syncer_type).filter(|syncer| self.settings.syncers.contains(syncer));
        self.syncer = syncer.unwrap_or_default();
        let refusal = if syncer.is_none() {
            Some(ServerEnd::SyncerType { syncer_type: hello.syncer_type.clone() })
        } else if !hello.supports_modern_policy_keys {
            Some(ServerEnd::OldPolicyKeys)
        } else if self.over_limit {
            Some(ServerEnd::TooManyConnections)
        } else {
            None
        };
        if let Some(end) = refusal {
            // The protocol has no message for a refusal. But clients log the server's version,
            // which carries the reason, and report a mismatch of the syncer.
            let version = format!("{}: {end}", self.settings.version);
            actions.push(ServerAction::Send(self.welcome(version).into()));
            return Err(end);
        }
        let compressed = hello.supports_decoder_restart && hello.compressions.iter().any(|name| name == SNAPPY);
        self.hello = Some(hello);
        let mut bytes = self.welcome(self.settings.version.clone());
        if compressed {
            bytes.extend(restart("the rest is compressed").encode());
            self.state = State::Ack { until: now + self.settings.pong_timeout, before_snapshot: true };
            actions.push(ServerAction::Send(bytes.into()));
        } else {
            self.state = State::Snapshot { compressed, confirmed: false };
            actions.extend([ServerAction::Send(bytes.into()), ServerAction::Snapshot { compressed }]);
        }
        Ok(())
    }

    /// Encodes the first message, preceded by the type definitions.
    fn welcome(&self, version: String) -> Vec<u8> {
        let welcome = ServerMessage::Welcome(Welcome {
            version,
            syncer_type: self.syncer.as_str().into(),
            supports_node_resource_updates: true,
            connection: self.connection,
        });
        [messages::server_definitions(), &welcome.encode()].concat()
    }

    fn follow(&mut self, compressed: bool, now: Instant) -> Vec<ServerAction> {
        let next_ping = now + self.settings.ping_interval;
        self.state = State::Following { compressed, last_pong: now, next_ping, pinged: None };
        let mut actions = vec![ServerAction::Follow { compressed }];
        if compressed {
            actions.insert(0, ServerAction::Send(stream_begin()));
        }
        actions
    }

    fn close(&mut self, end: ServerEnd) -> Vec<ServerAction> {
        self.state = State::Closed;
        vec![ServerAction::Close(end)]
    }
}

/// Returns the last message of a compressed snapshot, and the last one before it.
pub(super) fn restart(message: &str) -> ServerMessage {
    ServerMessage::DecoderRestart { message: message.into(), compression: SNAPPY.into() }
}

/// Returns the first bytes of a compressed stream of a server.
pub(super) fn stream_begin() -> Bytes {
    [snappy::STREAM_BEGIN, &snappy::compress(messages::server_definitions())].concat().into()
}

/// Encodes a message for a stream that has begun.
pub(super) fn encoded(message: &ServerMessage, compressed: bool) -> Bytes {
    let bytes = message.encode();
    if compressed { snappy::compress(&bytes).into() } else { bytes.into() }
}

#[cfg(test)]
mod tests;
