//! The rules of a connection, as the server sees it (`typha/pkg/syncserver/sync_server.go`).

use std::time::{Duration, Instant};

use bytes::Bytes;
use tortie_resources::syncer::SyncerType;

use super::GoTime;
use super::messages::{self, ClientMessage, Hello, SNAPPY, ServerMessage, Welcome};
use super::snappy;
use super::wire::{Incoming, WireError};
use crate::gob::Limits;

/// How a server deals with its clients. The defaults are Typha's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// What it calls its version.
    pub version: String,
    /// How long a client may take to say hello.
    pub handshake_timeout: Duration,
    /// How often a client is asked whether it is there; up to a tenth more.
    pub ping_interval: Duration,
    /// For how long a client may fail to answer. At least twice the interval.
    pub pong_timeout: Duration,
    /// What is taken of a client: its messages are small.
    pub limits: Limits,
    /// Which syncers clients may ask for.
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

/// What is to be done for a client, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerAction {
    /// Send these bytes.
    Send(Bytes),
    /// Send all objects. Compressed: as a stream of its own, which ends with a restart of the decoder. Then call
    /// [`ServerSession::snapshot_sent`].
    Snapshot {
        /// Whether it is to be compressed.
        compressed: bool,
    },
    /// From now on, send changes as they come, first of all the status of the snapshot.
    Follow {
        /// Whether they are to be compressed, by [`snappy::compress`].
        compressed: bool,
    },
    /// Hang up.
    Close(ServerEnd),
}

/// Why a server hangs up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerEnd {
    /// The client did not say hello in time.
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
        /// Which it wants.
        syncer_type: String,
    },
    /// The client is of a version that would misunderstand policies.
    #[error("the client does not know the policy keys of newer versions; it must be upgraded")]
    OldPolicyKeys,
    /// The server has as many clients as it may have.
    #[error("there are too many connections")]
    TooManyConnections,
    /// The client did not confirm in time that its decoder has been restarted.
    #[error("the client did not confirm in time that its decoder has been restarted")]
    NoAck,
    /// The client did not answer in time.
    #[error("the client does not answer pings")]
    NoPong,
    /// The client said something out of turn.
    #[error("the client said something out of turn")]
    OutOfTurn,
    /// The client cannot be understood.
    #[error("the client cannot be understood")]
    Wire(#[from] WireError),
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Until then.
    Hello {
        until: Instant,
    },
    /// The client restarts its decoder, before the snapshot or after it.
    Ack {
        until: Instant,
        before_snapshot: bool,
    },
    /// The snapshot is on its way. The client may have confirmed its end before we know that all has been sent.
    Snapshot {
        compressed: bool,
        confirmed: bool,
    },
    Following {
        compressed: bool,
        last_pong: Instant,
        next_ping: Instant,
        /// When the last ping was sent that has not been answered.
        pinged: Option<Instant>,
    },
    Closed,
}

/// A connection to a client. Pure.
#[derive(Debug)]
pub struct ServerSession {
    connection: u64,
    settings: ServerSettings,
    incoming: Incoming,
    state: State,
    /// The number of bytes that came before the hello was complete.
    before_hello: usize,
    hello: Option<Hello>,
    syncer: SyncerType,
    /// Whether the client is one too many.
    over_limit: bool,
    /// Spreads the pings of many connections.
    spread: u64,
    round_trip: Option<Duration>,
}

impl ServerSession {
    /// A connection that has just been made. `connection` is a number to find it in logs by.
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

    /// The limits for the stream of a client: 16 KiB for a value and for all before the hello, 1,024 values, 64 types in
    /// 8 KiB. Felix sends less than 1 KiB.
    #[must_use]
    pub fn limits() -> Limits {
        Limits { value_bytes: 16 * 1024, values: 1024, types: 64, definition_bytes: 8 * 1024, ..Limits::default() }
    }

    /// The same for a client that is one too many: it is told so when it has said hello.
    #[must_use]
    pub fn over_limit(self) -> Self {
        Self { over_limit: true, ..self }
    }

    /// What the client said of itself.
    #[must_use]
    pub fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// Which syncer the client is served, once it has said hello.
    #[must_use]
    pub fn syncer(&self) -> SyncerType {
        self.syncer
    }

    /// How long the client took to answer a ping, if it has since this was last asked.
    pub fn take_round_trip(&mut self) -> Option<Duration> {
        self.round_trip.take()
    }

    /// When to call [`ServerSession::tick`] at the latest; `None` if nothing is waited for.
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

    /// Time has passed. `wall` is what is written into a ping.
    #[must_use]
    pub fn tick(&mut self, now: Instant, wall: GoTime) -> Vec<ServerAction> {
        match &mut self.state {
            State::Hello { until } if now >= *until => self.close(ServerEnd::NoHello),
            State::Ack { until, .. } if now >= *until => self.close(ServerEnd::NoAck),
            State::Following { last_pong, .. } if now >= *last_pong + self.settings.pong_timeout => {
                self.close(ServerEnd::NoPong)
            }
            State::Following { compressed, next_ping, pinged, .. } if now >= *next_ping => {
                // Any sequence will do that is not the same for all.
                self.spread = self.spread.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let more = self.settings.ping_interval.mul_f64((self.spread >> 40) as f64 / f64::from(1 << 24) / 10.0);
                *next_ping = now + self.settings.ping_interval + more;
                *pinged = Some(now);
                vec![ServerAction::Send(encoded(&ServerMessage::Ping(Some(wall)), *compressed))]
            }
            _ => Vec::new(),
        }
    }

    /// The client has sent bytes.
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

    /// All of the snapshot has been sent.
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
            // The protocol has no message for it. Clients log the version, and that the syncer is another.
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

    /// The first message, behind what the stream begins with.
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

/// The last message of a compressed snapshot, and the last before one.
pub(super) fn restart(message: &str) -> ServerMessage {
    ServerMessage::DecoderRestart { message: message.into(), compression: SNAPPY.into() }
}

/// What a compressed stream of a server begins with.
pub(super) fn stream_begin() -> Bytes {
    [snappy::STREAM_BEGIN, &snappy::compress(messages::server_definitions())].concat().into()
}

/// A message on a stream that has begun.
pub(super) fn encoded(message: &ServerMessage, compressed: bool) -> Bytes {
    let bytes = message.encode();
    if compressed { snappy::compress(&bytes).into() } else { bytes.into() }
}

#[cfg(test)]
mod tests;
