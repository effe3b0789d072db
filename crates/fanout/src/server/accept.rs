//! Accepting of connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{timeout, timeout_at};
use tortie_model::with_causes;

use super::Context;
use super::connection::{self, ConnectionEnd};
use super::registry::{BeforeHello, Excess, Ticket};
use crate::protocol::MAGIC;
use crate::tls::BoxStream;
use crate::typha::{self, ServeEnd, ServeSettings, ServerEnd, ServerSettings};

/// Pause after a connection could not be accepted, for example for lack of file descriptors.
const RETRY: Duration = Duration::from_millis(100);
/// Maximum number of clients over the limit that are rejected with a reason at the same time.
/// Further connections are closed at once.
pub(super) const REFUSED_AT_ONCE: usize = 64;
/// Timeout of such a rejection.
const REFUSAL: Duration = Duration::from_secs(3);

/// Accepts connections until `closing`.
pub(super) async fn run(listener: TcpListener, context: Arc<Context>, mut closing: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closing.wait_for(|closed| *closed) => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                context.counters.accepted.add(1);
                match context.registry.enter(peer.ip(), context.config.connection_limits()) {
                    Ok((ticket, before_hello)) => {
                        tokio::spawn(serve(stream, peer, Arc::clone(&context), ticket, before_hello));
                    }
                    Err(Excess::Address) => {
                        context.counters.refused.add(1);
                        tracing::warn!(%peer, "a connection is refused: its address has too many");
                    }
                    Err(Excess::Total) => {
                        context.counters.refused.add(1);
                        tracing::warn!(%peer, "a connection is refused: there are too many");
                        if let Ok(permit) = Arc::clone(&context.refusals).try_acquire_owned() {
                            tokio::spawn(refuse(stream, peer, Arc::clone(&context), permit));
                        }
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// The reason why a client over the limit got no rejection.
#[derive(Debug, thiserror::Error)]
enum RefusalError {
    /// The connection cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The connection ended.
    #[error(transparent)]
    Ended(#[from] ConnectionEnd),
    /// The client takes too long.
    #[error("it takes too long")]
    TooSlow,
}

/// Rejects a client over the limit, in its own protocol.
async fn refuse(stream: TcpStream, peer: SocketAddr, context: Arc<Context>, _permit: OwnedSemaphorePermit) {
    let refuse = async {
        let (first, stream) = open(stream, &context).await?;
        if first == MAGIC[0] {
            connection::refuse(stream, &context).await?;
        } else {
            typha::refuse(stream, &[first], typha_settings(&context)).await?;
        }
        Ok(())
    };
    let sent = timeout(REFUSAL.min(context.config.handshake_timeout), refuse).await;
    if let Err(error) = sent.unwrap_or(Err(RefusalError::TooSlow)) {
        tracing::debug!(%peer, error = %with_causes(&error), "a client over the limit got no rejection");
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, context: Arc<Context>, ticket: Ticket, before_hello: BeforeHello) {
    let connection = ticket.id();
    let deadline = Instant::now() + context.config.handshake_timeout;
    let opened = match timeout_at(deadline.into(), open(stream, &context)).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => {
            context.counters.handshakes_failed.add(1);
            tracing::info!(connection, %peer, error = %with_causes(&error), "handshake failed");
            return;
        }
        Err(_) => {
            context.counters.handshakes_failed.add(1);
            tracing::info!(connection, %peer, "a client sent no hello in time");
            return;
        }
    };
    let (first, stream) = opened;
    if first != MAGIC[0] {
        return serve_typha((stream, first), peer, &context, (ticket, before_hello), deadline).await;
    }
    let Err(end) = connection::serve(stream, &context, (ticket, before_hello), deadline).await else { return };
    match &end {
        ConnectionEnd::TooSlow { .. } | ConnectionEnd::WriteTimeout => context.counters.too_slow.add(1),
        ConnectionEnd::Silent => context.counters.silent.add(1),
        _ => {}
    }
    match end {
        ConnectionEnd::Read(_) | ConnectionEnd::Write(_) | ConnectionEnd::Drained | ConnectionEnd::ServerEnds => {
            tracing::info!(connection, %peer, reason = %with_causes(&end), "a client has left");
        }
        ConnectionEnd::WriteTimeout
        | ConnectionEnd::TooSlow { .. }
        | ConnectionEnd::Silent
        | ConnectionEnd::Greeting(_)
        | ConnectionEnd::Protocol(_) => {
            tracing::warn!(connection, %peer, reason = %with_causes(&end), "a client is cut off");
        }
    }
}

/// Serves a client of Typha's protocol. No gob stream begins with the first byte of the magic.
async fn serve_typha(
    (stream, first): (BoxStream, u8),
    peer: SocketAddr,
    context: &Arc<Context>,
    (mut ticket, before_hello): (Ticket, BeforeHello),
    deadline: Instant,
) {
    let config = &context.config;
    // The time for TLS is part of the time for the hello.
    let handshake_timeout = deadline.saturating_duration_since(Instant::now());
    let settings = ServeSettings {
        session: ServerSettings { handshake_timeout, ..typha_settings(context) },
        write_timeout: config.write_timeout,
        max_fall_behind: config.max_behind,
        max_bytes_behind: config.max_bytes_behind,
        grace: config.grace,
    };
    let connection = ticket.id();
    let order_to_leave = async {
        ticket.order_to_leave().await;
    };
    let stream = (stream, before_hello);
    let end = typha::serve(stream, &[first], connection, &context.syncers, &settings, order_to_leave).await;
    let counters = &context.counters;
    match &end {
        ServeEnd::Stuck | ServeEnd::FellBehind => counters.too_slow.add(1),
        ServeEnd::Rule(ServerEnd::NoPong) => counters.silent.add(1),
        ServeEnd::Rule(_) | ServeEnd::NoSource { .. } => counters.handshakes_failed.add(1),
        ServeEnd::Left | ServeEnd::Lost(_) | ServeEnd::Closed => {
            return tracing::info!(connection, %peer, reason = %with_causes(&end), "a client of Typha's protocol has left");
        }
    }
    tracing::warn!(connection, %peer, reason = %with_causes(&end), "a client of Typha's protocol is cut off");
}

fn typha_settings(context: &Context) -> ServerSettings {
    let config = &context.config;
    ServerSettings {
        handshake_timeout: config.handshake_timeout,
        ping_interval: config.heartbeat,
        pong_timeout: config.heartbeat * 6,
        syncers: context.syncers.served(),
        ..ServerSettings::default()
    }
}

/// Sets up TLS if configured, and reads the first byte, which identifies the protocol.
async fn open(stream: TcpStream, context: &Context) -> io::Result<(u8, BoxStream)> {
    stream.set_nodelay(true)?;
    let mut stream: BoxStream = match &context.acceptor {
        Some(acceptor) => acceptor.accept(stream).await?,
        None => Box::new(stream),
    };
    let first = stream.read_u8().await?;
    Ok((first, stream))
}
