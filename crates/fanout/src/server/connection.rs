//! Connection of one client of the fan-out protocol.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Buf;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use super::registry::{BeforeHello, Order, Ticket};
use super::{Context, wire};
use crate::cache::{Breadcrumb, Instance, OwnPrefix, Upstream, WireFormat};
use crate::counters::Streaming;
use crate::protocol::frame::{self, Compression, MAX_TO_SERVER};
use crate::protocol::stream::{Messages, Pieces, ReadError};
use crate::protocol::{
    ClientHello, Drain, Heartbeat, MAGIC, Refusal, ServerHello, ToClient, ToServer, VERSION, client, server,
};
use crate::tls::BoxStream;

/// Size in bytes up to which breadcrumbs are combined into one write.
const WRITE: usize = 256 * 1024;
/// Interval of the lag checks while a write to a client blocks.
const LOOK: Duration = Duration::from_millis(250);
/// Maximum number of messages of a client within a heartbeat interval.
const MESSAGES: u32 = 100;
/// Number of missing heartbeats after which a connection counts as dead.
pub(crate) const MISSING: u32 = 3;

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionEnd {
    /// The client has left, or reading from it failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Writing to the client failed.
    #[error(transparent)]
    Write(std::io::Error),
    /// A write to the client timed out.
    #[error("a write to it timed out")]
    WriteTimeout,
    /// The client is too far behind.
    #[error("it is {} s and {bytes} bytes behind", age.as_secs())]
    TooSlow {
        /// Time between the oldest change that it lacks and the newest one.
        age: Duration,
        /// Size of the changes that it lacks, in bytes.
        bytes: u64,
    },
    /// The client has been silent for too long.
    #[error("it is silent")]
    Silent,
    /// The client's hello is missing, or belongs to another version of the protocol.
    #[error(transparent)]
    Greeting(GreetingError),
    /// The client violates the protocol.
    #[error("{0}")]
    Protocol(&'static str),
    /// The client was sent to another server.
    #[error("it was sent to another server")]
    Drained,
    /// The server ends.
    #[error("the server ends")]
    ServerEnds,
}

/// Serves a client until it leaves or is cut off. The caller has read the first byte of the magic.
/// The rest of the hello must arrive before `deadline`.
pub(super) async fn serve(
    stream: BoxStream,
    context: &Arc<Context>,
    (mut ticket, before_hello): (Ticket, BeforeHello),
    deadline: Instant,
) -> Result<(), ConnectionEnd> {
    let greeting = tokio::time::timeout_at(deadline.into(), greeting(stream)).await;
    if !matches!(greeting, Ok(Ok((Ok(_), ..)))) {
        context.counters.handshakes_failed.add(1);
    }
    let (hello, mut messages, writer) = greeting.map_err(|_| ConnectionEnd::Silent)??;
    drop(before_hello);
    let mut writer = Writer { writer, context: Arc::clone(context) };
    let hello = match hello {
        Ok(hello) => hello,
        Err(reason) => {
            writer.refusal(&reason.to_string()).await?;
            return Err(ConnectionEnd::Greeting(reason));
        }
    };
    tracing::info!(connection = ticket.id(), node = hello.node, software = hello.software, "a client subscribes");
    let _streaming = Streaming::begin(context.hub.counters());
    tokio::select! {
        end = send_state(&mut writer, &hello, &mut ticket) => end,
        end = listen(&mut messages, context) => end,
    }
}

/// Rejects a client over the limit after its hello. The caller has read the first byte of the
/// magic.
pub(super) async fn refuse(stream: BoxStream, context: &Arc<Context>) -> Result<(), ConnectionEnd> {
    let (hello, _, writer) = greeting(stream).await?;
    let mut writer = Writer { writer, context: Arc::clone(context) };
    writer.refusal(&hello.err().unwrap_or(GreetingError::TooMany).to_string()).await?;
    writer.writer.shutdown().await.map_err(ConnectionEnd::Write)
}

/// The reason why a client is not served, as the server sends it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum GreetingError {
    #[error("there are too many connections")]
    TooMany,
    #[error("this version of the protocol is not known here")]
    Version,
    #[error("the first message must be a hello")]
    NoHello,
}

type Greeting = (Result<ClientHello, GreetingError>, Messages<ReadHalf<BoxStream>>, WriteHalf<BoxStream>);

/// Reads the hello of a client, or finds the reason why it cannot be served.
async fn greeting(mut stream: BoxStream) -> Result<Greeting, ReadError> {
    let mut magic = [0; MAGIC.len() - 1];
    stream.read_exact(&mut magic).await.map_err(ReadError::Io)?;
    let (reader, writer) = split(stream);
    let mut messages = Messages::new(reader, MAX_TO_SERVER);
    if magic != MAGIC[1..] {
        return Ok((Err(GreetingError::Version), messages, writer));
    }
    let ToServer { message } = messages.next().await?;
    let hello = match message {
        Some(client::Message::Hello(hello)) => Ok(hello),
        _ => Err(GreetingError::NoHello),
    };
    Ok((hello, messages, writer))
}

/// Receives the client's heartbeats.
async fn listen(messages: &mut Messages<ReadHalf<BoxStream>>, context: &Context) -> Result<(), ConnectionEnd> {
    let patience = context.config.heartbeat * MISSING;
    let mut since = Instant::now();
    let mut count = 0;
    loop {
        let ToServer { message } = timeout(patience, messages.next()).await.map_err(|_| ConnectionEnd::Silent)??;
        if since.elapsed() >= context.config.heartbeat {
            since = Instant::now();
            count = 0;
        }
        count += 1;
        if count > MESSAGES {
            return Err(ConnectionEnd::Protocol("it sends too many messages"));
        }
        match message {
            Some(client::Message::Heartbeat(Heartbeat { stamp, .. })) => {
                if let Some(round_trip) = context.stamp().checked_sub(stamp).filter(|_| stamp > 0) {
                    context.hub.counters().round_trip.time(Duration::from_micros(round_trip));
                }
            }
            Some(client::Message::Hello(_)) => return Err(ConnectionEnd::Protocol("the client sent a second hello")),
            // From a later version.
            None => {}
        }
    }
}

/// Sends the hello and a snapshot, or resumes at the client's position; then sends the changes.
async fn send_state(writer: &mut Writer, hello: &ClientHello, ticket: &mut Ticket) -> Result<(), ConnectionEnd> {
    let context = Arc::clone(&writer.context);
    let hub = &context.hub;
    let own = OwnPrefix::new(&hello.node.as_str().into());
    let format = match (&own, hello.blocks, hello.domains) {
        (Some(_), false, true) => WireFormat::OneNode,
        (Some(_), true, true) => WireFormat::OneNodeWithBlocks,
        (None, _, true) => WireFormat::AllNodes,
        (Some(_), false, false) => WireFormat::OneNodeOld,
        (Some(_), true, false) => WireFormat::OneNodeWithBlocksOld,
        (None, _, false) => WireFormat::AllNodesOld,
    };
    let resumed = hello.resume.and_then(|place| hub.resume(Instance(place.instance), place.sequence));
    let answer = ServerHello {
        version: VERSION,
        instance: hub.instance().0,
        resumed: resumed.is_some(),
        // Clients expect a heartbeat at least every minute, however long this interval is.
        heartbeat_ms: u32::try_from(context.config.heartbeat.as_millis()).unwrap_or(u32::MAX),
        software: concat!("tortie ", env!("CARGO_PKG_VERSION")).into(),
        blocks: hello.blocks || own.is_none(),
    };
    writer.message(server::Message::Hello(answer)).await?;
    // Sent before the objects, so that a consumer can refuse to begin.
    let mut upstream = hub.watch_upstream();
    writer.upstream(&mut upstream).await?;
    let breadcrumb = match resumed {
        Some(breadcrumb) => {
            context.counters.resumed.add(1);
            breadcrumb
        }
        None => snapshot(writer, format, own.as_ref()).await?,
    };
    follow(writer, breadcrumb, format, own.as_ref(), upstream, ticket).await
}

/// Sends a snapshot and returns the breadcrumb at which it was taken.
async fn snapshot(
    writer: &mut Writer,
    format: WireFormat,
    own: Option<&OwnPrefix>,
) -> Result<Arc<Breadcrumb>, ConnectionEnd> {
    let started = Instant::now();
    let written = writer.context.hub.written(format, move |base| wire::snapshot(base, format)).await;
    let written = written.ok_or(ConnectionEnd::ServerEnds)?;
    for piece in &written.pieces {
        writer.pieces(piece.clone().into()).await?;
    }
    for piece in wire::snapshot_end(&written.base, own) {
        writer.pieces(piece.into()).await?;
    }
    writer.context.hub.counters().snapshot_send.since(started);
    Ok(Arc::clone(&written.base.breadcrumb))
}

/// Sends the changes after `breadcrumb`.
async fn follow(
    writer: &mut Writer,
    mut breadcrumb: Arc<Breadcrumb>,
    format: WireFormat,
    own: Option<&OwnPrefix>,
    mut upstream: watch::Receiver<Arc<Upstream>>,
    ticket: &mut Ticket,
) -> Result<(), ConnectionEnd> {
    let context = Arc::clone(&writer.context);
    let mut subscription = context.hub.subscription();
    let mut lag = Lag::new(&context);
    let mut heartbeat = interval(context.config.heartbeat);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut leave = None::<tokio::time::Instant>;
    loop {
        let closing = async {
            match leave {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            next = subscription.next(&breadcrumb) => {
                let before = std::mem::replace(&mut breadcrumb, next.ok_or(ConnectionEnd::ServerEnds)?);
                let mut pieces = Pieces::default();
                let mut objects = breadcrumb.deltas.len();
                collect(&mut pieces, &breadcrumb, format, own);
                while pieces.remaining() < WRITE && let Some(next) = subscription.ready(&breadcrumb) {
                    breadcrumb = next;
                    objects += breadcrumb.deltas.len();
                    collect(&mut pieces, &breadcrumb, format, own);
                }
                if pieces.has_remaining() {
                    context.hub.counters().objects.size(objects);
                    tokio::select! {
                        // Most writes finish at once and need no timer.
                        biased;
                        written = writer.pieces(pieces) => written?,
                        end = lag.watch(&before) => return Err(end),
                    }
                    context.hub.counters().latency.since(breadcrumb.made);
                }
                lag.check(&breadcrumb)?;
            }
            _ = heartbeat.tick() => {
                let stamp = context.stamp();
                writer.message(server::Message::Heartbeat(Heartbeat { stamp, sequence: breadcrumb.sequence })).await?;
            }
            Order { within, reason } = ticket.order_to_leave() => {
                leave = Some(tokio::time::Instant::now() + within);
                // u32 holds 49 days; longer times make no difference to a client.
                let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
                writer.message(server::Message::Drain(Drain { within_ms, reason: reason.into() })).await?;
            }
            Ok(()) = upstream.changed() => writer.upstream(&mut upstream).await?,
            () = closing => return Err(ConnectionEnd::Drained),
        }
    }
}

fn collect(pieces: &mut Pieces, breadcrumb: &Arc<Breadcrumb>, format: WireFormat, own: Option<&OwnPrefix>) {
    let common = breadcrumb.wire(format, |breadcrumb| wire::breadcrumb(breadcrumb, format));
    if let Some(own) = own.and_then(|own| wire::own_part(breadcrumb, own, common.is_empty())) {
        pieces.push(own);
    }
    pieces.push(common);
}

/// Check that a client keeps up.
///
/// A client is cut off when the oldest change that it lacks is older than the newest by more than
/// `max_behind`, or when it lacks more than `max_bytes_behind` of changes. During `grace` after its
/// snapshot, which it has to process first, this does not apply. A client is also cut off at any
/// time when one write takes longer than `write_timeout`.
pub(crate) struct Lag<'a> {
    context: &'a Context,
    forgiven_until: Instant,
    warned: bool,
}

impl<'a> Lag<'a> {
    /// Begins the grace period of a client that now has its snapshot.
    pub(crate) fn new(context: &'a Context) -> Self {
        Self { context, forgiven_until: Instant::now() + context.config.grace, warned: false }
    }

    /// Checks periodically a client that has been sent this breadcrumb and is slow to take the next
    /// ones. Returns when it has to be cut off.
    pub(crate) async fn watch(&mut self, breadcrumb: &Breadcrumb) -> ConnectionEnd {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Err(end) = self.check(breadcrumb) {
                return end;
            }
        }
    }

    /// Checks a client that has been sent this breadcrumb and all earlier ones.
    pub(crate) fn check(&mut self, breadcrumb: &Breadcrumb) -> Result<(), ConnectionEnd> {
        // A client with the newest breadcrumb is not behind.
        let Some(next) = breadcrumb.next() else {
            self.warned = false;
            return Ok(());
        };
        let config = &self.context.config;
        let head = self.context.hub.head();
        // Measured from the next breadcrumb: after a long quiet time, a new change is not late.
        let age = head.made.saturating_duration_since(next.made);
        let bytes = head.bytes_so_far - breadcrumb.bytes_so_far;
        if age <= config.max_behind && bytes <= config.max_bytes_behind {
            return Ok(());
        }
        if Instant::now() < self.forgiven_until {
            if !self.warned {
                self.context.hub.counters().grace_used.add(1);
                self.warned = true;
            }
            return Ok(());
        }
        Err(ConnectionEnd::TooSlow { age, bytes })
    }
}

/// Writer that limits the time of each write.
pub(crate) struct Writer<W = WriteHalf<BoxStream>> {
    pub(crate) writer: W,
    pub(crate) context: Arc<Context>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    async fn message(&mut self, message: server::Message) -> Result<(), ConnectionEnd> {
        self.pieces(frame::encode(&ToClient { message: Some(message) }, Compression::None).into()).await
    }

    async fn refusal(&mut self, reason: &str) -> Result<(), ConnectionEnd> {
        self.message(server::Message::Refusal(Refusal { reason: reason.into() })).await
    }

    async fn upstream(&mut self, upstream: &mut watch::Receiver<Arc<Upstream>>) -> Result<(), ConnectionEnd> {
        let upstream = Arc::clone(&upstream.borrow_and_update());
        let message = ToClient { message: Some(server::Message::Upstream((&*upstream).into())) };
        self.pieces(frame::encode(&message, Compression::Fast).into()).await
    }

    /// Writes and flushes.
    pub(crate) async fn pieces(&mut self, mut pieces: Pieces) -> Result<(), ConnectionEnd> {
        let started = Instant::now();
        let bytes = pieces.remaining() as u64;
        let write = async {
            self.writer.write_all_buf(&mut pieces).await?;
            self.writer.flush().await
        };
        match timeout(self.context.config.write_timeout, write).await {
            Ok(Ok(())) => {
                let counters = self.context.hub.counters();
                counters.bytes_sent.add(bytes);
                counters.write.since(started);
                Ok(())
            }
            Ok(Err(error)) => Err(ConnectionEnd::Write(error)),
            Err(_) => Err(ConnectionEnd::WriteTimeout),
        }
    }
}
