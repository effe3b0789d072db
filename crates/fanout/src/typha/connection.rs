//! Connection to a Felix, or to a client of another syncer, fed from the cache.

use std::collections::VecDeque;
use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tortie_model::SyncStatus;
use tortie_resources::syncer::SyncerType;

use super::GoTime;
use super::messages::{self, ServerMessage, UpdateRef, UpdateType};
use super::server::{ServerAction, ServerEnd, ServerSession, ServerSettings, encoded, restart, stream_begin};
use super::snappy;
use crate::cache::{Breadcrumb, Change, Hub, Snapshot, Subscription, WireFormat, WireSnapshot};
use crate::counters::{Streaming, SyncerCounters};

/// Settings for clients of Typha's protocol. The defaults are Typha's, which does not count bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeSettings {
    /// Settings of the protocol.
    pub session: ServerSettings,
    /// Maximum time without progress in sending queued data; 120 s by default.
    pub write_timeout: Duration,
    /// Maximum time between the oldest change that a client lacks and the newest one; 300 s by
    /// default.
    pub max_fall_behind: Duration,
    /// Maximum size of the changes that a client lacks, in bytes; unlimited by default.
    pub max_bytes_behind: u64,
    /// Time after its snapshot for which a client may be further behind than that; 300 s by
    /// default.
    pub grace: Duration,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            session: ServerSettings::default(),
            write_timeout: Duration::from_secs(120),
            max_fall_behind: Duration::from_secs(300),
            max_bytes_behind: u64::MAX,
            grace: Duration::from_secs(300),
        }
    }
}

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub enum ServeEnd {
    /// The client violated the protocol.
    #[error(transparent)]
    Rule(#[from] ServerEnd),
    /// The client closed the connection.
    #[error("the client has hung up")]
    Left,
    /// The connection failed.
    #[error("the connection is lost")]
    Lost(#[from] io::Error),
    /// The client read nothing for too long.
    #[error("the client stopped reading")]
    Stuck,
    /// The client is too far behind the changes.
    #[error("the client has fallen behind too far")]
    FellBehind,
    /// The server closed the connection.
    #[error("the server closes the connection")]
    Closed,
    /// The objects of the client's syncer cannot be read.
    #[error("the objects of syncer type `{syncer}` cannot be read")]
    NoSource {
        /// The syncer.
        syncer: SyncerType,
        /// The reason.
        source: BoxError,
    },
}

/// Reason why the source of a syncer cannot be opened; of any type, since the embedding program
/// provides the sources.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Provider of the hub of each syncer.
pub(crate) trait Hubs: Sync {
    /// Hub that stays in use until this is dropped.
    type Lease: AsRef<Hub> + Send;

    /// Returns the hub of a syncer for another client, or the reason why there is none.
    fn lease(&self, syncer: SyncerType) -> Result<Self::Lease, BoxError>;
}

/// Maximum number of objects in a message of a snapshot: compressed, uncompressed
/// (`typha/pkg/syncserver/snap_precalc.go`).
const SNAPSHOT_OBJECTS: [usize; 2] = [1000, 100];
/// Maximum size of the values in a message of a snapshot in bytes; a single larger object is sent
/// alone.
const MESSAGE_BYTES: usize = 4 << 20;
/// Size of the send queue in bytes from which no more breadcrumbs are queued. Waiting breadcrumbs
/// need no additional memory, since the cache has them anyway.
const WAITING: usize = 256 * 1024;
/// Interval of the lag checks while a client does not take the queued data.
const LOOK: Duration = Duration::from_millis(250);

/// Serves a client until the connection ends, or `hang_up` completes. `begin` has the bytes that
/// were already read from the connection. `before_hello` is dropped at the end of the client's
/// hello.
pub(crate) async fn serve(
    (stream, before_hello): (impl AsyncRead + AsyncWrite + Send, impl Send),
    begin: &[u8],
    connection: u64,
    hubs: &impl Hubs,
    settings: &ServeSettings,
    hang_up: impl Future<Output = ()>,
) -> ServeEnd {
    let (reader, writer) = tokio::io::split(stream);
    let now = Instant::now();
    let mut client = Client {
        session: ServerSession::new(connection, settings.session.clone(), now),
        out: SendQueue::new(writer, now),
        hubs,
        hub: None,
        settings,
        base: None,
        began: now,
        following: None,
        streaming: None,
    };
    let mut hang_up = std::pin::pin!(hang_up);
    tokio::select! {
        biased;
        () = &mut hang_up => ServeEnd::Closed,
        end = client.run(reader, begin, before_hello) => match end {
            Ok(never) => match never {},
            Err(end) => end,
        },
    }
}

/// Rejects a client over the limit after its hello. `begin` has the bytes that were already read
/// from the connection.
pub(crate) async fn refuse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    begin: &[u8],
    settings: ServerSettings,
) -> io::Result<()> {
    let mut session = ServerSession::new(0, settings, Instant::now()).over_limit();
    let mut buffer = vec![0; 4096];
    let mut actions = session.received(begin, Instant::now());
    loop {
        for action in actions {
            match action {
                ServerAction::Send(bytes) => stream.write_all(&bytes).await?,
                ServerAction::Close(_) => return stream.shutdown().await,
                ServerAction::Snapshot { .. } | ServerAction::Follow { .. } => {}
            }
        }
        actions = match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => session.received(buffer.get(..count).unwrap_or_default(), Instant::now()),
        };
    }
}

struct Client<'h, S, H: Hubs> {
    session: ServerSession,
    out: SendQueue<S>,
    hubs: &'h H,
    /// Hub of the client's syncer, once it is known.
    hub: Option<H::Lease>,
    settings: &'h ServeSettings,
    /// The breadcrumb of the snapshot that was sent.
    base: Option<Arc<Breadcrumb>>,
    /// Time at which the snapshot was requested.
    began: Instant,
    following: Option<Following>,
    streaming: Option<Streaming>,
}

/// Client that follows the trail.
struct Following {
    breadcrumb: Arc<Breadcrumb>,
    subscription: Subscription,
    compressed: bool,
    /// Status that was last sent to the client.
    status: SyncStatus,
    /// Newest breadcrumb when following began. No status is sent before the client has it. The
    /// snapshot may be some seconds old; a client that considered it complete would go back in time
    /// and delete newer objects.
    newest_at_begin: u64,
    grace_until: Instant,
    /// Whether the client has used its grace period.
    forgiven: bool,
}

impl<S: AsyncRead + AsyncWrite + Send, H: Hubs> Client<'_, S, H> {
    async fn run(
        &mut self,
        mut reader: ReadHalf<S>,
        begin: &[u8],
        before_hello: impl Send,
    ) -> Result<std::convert::Infallible, ServeEnd> {
        let mut before_hello = Some(before_hello);
        let mut buffer = vec![0; 4096];
        let actions = self.session.received(begin, Instant::now());
        self.act(actions).await?;
        loop {
            let room = self.out.bytes < WAITING;
            let deadline = self.deadline();
            let actions = tokio::select! {
                biased;
                count = reader.read(&mut buffer) => match count? {
                    0 => return Err(ServeEnd::Left),
                    count => {
                        self.session.received(buffer.get(..count).unwrap_or_default(), Instant::now())
                    }
                },
                done = self.out.step(), if self.out.has_work() => match done? {
                    Done::Some => Vec::new(),
                    Done::Snapshot => self.session.snapshot_sent(Instant::now()),
                },
                next = next_breadcrumb(&mut self.following), if room && self.following.is_some() => {
                    self.send_breadcrumb(next.ok_or(ServeEnd::Closed)?);
                    Vec::new()
                }
                () = tokio::time::sleep_until(deadline.into()) => self.session.tick(Instant::now(), GoTime::utc(SystemTime::now())),
            };
            if self.session.hello().is_some() {
                drop(before_hello.take());
            }
            self.act(actions).await?;
            if let Some((round_trip, hub)) = self.session.take_round_trip().zip(self.hub.as_ref()) {
                hub.as_ref().counters().round_trip.time(round_trip);
            }
            if self.out.is_stuck(self.settings.write_timeout) {
                return Err(ServeEnd::Stuck);
            }
            if !room && self.has_fallen_behind() {
                return Err(ServeEnd::FellBehind);
            }
        }
    }

    fn deadline(&self) -> Instant {
        let idle = Instant::now() + Duration::from_secs(60);
        let stuck = self.out.has_work().then(|| self.out.progress + self.settings.write_timeout);
        let look = (self.following.is_some() && self.out.bytes >= WAITING).then(|| Instant::now() + LOOK);
        [self.session.deadline(), stuck, look].into_iter().flatten().min().unwrap_or(idle)
    }

    async fn act(&mut self, actions: Vec<ServerAction>) -> Result<(), ServeEnd> {
        for action in actions {
            match action {
                ServerAction::Send(bytes) => self.out.push(bytes),
                ServerAction::Snapshot { compressed } => {
                    let format = wire_format(compressed);
                    let syncer = self.session.syncer();
                    let lease = self.hubs.lease(syncer).map_err(|source| ServeEnd::NoSource { syncer, source })?;
                    let hub = (*self.hub.insert(lease)).as_ref();
                    self.streaming = Some(Streaming::begin(hub.counters()));
                    self.out.counters = Some(Arc::clone(hub.counters()));
                    self.began = Instant::now();
                    let snapshot = hub.written(format, move |base| write_snapshot(base, compressed)).await;
                    let snapshot = snapshot.ok_or(ServeEnd::Closed)?;
                    for piece in &snapshot.pieces {
                        self.out.push(piece.clone());
                    }
                    self.out.end_snapshot();
                    self.base = Some(Arc::clone(&snapshot.base.breadcrumb));
                }
                ServerAction::Follow { compressed } => {
                    let breadcrumb = self.base.take().ok_or(ServeEnd::Closed)?;
                    let hub = self.hub.as_ref().ok_or(ServeEnd::Closed)?.as_ref();
                    hub.counters().snapshot_send.since(self.began);
                    let mut following = Following {
                        breadcrumb,
                        subscription: hub.subscription(),
                        compressed,
                        status: SyncStatus::WaitForDatastore,
                        newest_at_begin: hub.head().sequence,
                        grace_until: Instant::now() + self.settings.grace,
                        forgiven: false,
                    };
                    following.send_status(&mut self.out);
                    self.following = Some(following);
                }
                ServerAction::Close(end) => {
                    // The queue may hold the reason for the client.
                    let _ = tokio::time::timeout(Duration::from_secs(1), self.out.rest()).await;
                    return Err(end.into());
                }
            }
        }
        Ok(())
    }

    /// Queues a breadcrumb. A client that is up to date gets each change at once; another one gets
    /// as many together as the queue has room for.
    fn send_breadcrumb(&mut self, breadcrumb: Arc<Breadcrumb>) {
        let Some(following) = &mut self.following else { return };
        if !breadcrumb.deltas.is_empty() {
            let compressed = following.compressed;
            let bytes = breadcrumb.wire(wire_format(compressed), |breadcrumb| write_breadcrumb(breadcrumb, compressed));
            if let Some(hub) = &self.hub {
                hub.as_ref().counters().objects.size(breadcrumb.deltas.len());
            }
            self.out.push_change(bytes, breadcrumb.made);
        }
        following.breadcrumb = breadcrumb;
        following.send_status(&mut self.out);
    }

    /// Reports whether a client is too far behind the changes.
    fn has_fallen_behind(&mut self) -> bool {
        let Some((following, hub)) = self.following.as_mut().zip(self.hub.as_ref()) else { return false };
        let Some(next) = following.breadcrumb.next() else { return false };
        let head = hub.as_ref().head();
        let behind = head.made.saturating_duration_since(next.made) > self.settings.max_fall_behind
            || head.bytes_so_far - following.breadcrumb.bytes_so_far > self.settings.max_bytes_behind;
        if behind && Instant::now() < following.grace_until {
            if !following.forgiven {
                hub.as_ref().counters().grace_used.add(1);
            }
            following.forgiven = true;
            return false;
        }
        behind
    }
}

impl Following {
    fn send_status<S: AsyncWrite>(&mut self, out: &mut SendQueue<S>) {
        let status = self.breadcrumb.status;
        if status != self.status && self.breadcrumb.sequence >= self.newest_at_begin {
            self.status = status;
            out.push(encoded(&ServerMessage::SyncStatus(status), self.compressed));
        }
    }
}

async fn next_breadcrumb(following: &mut Option<Following>) -> Option<Arc<Breadcrumb>> {
    let following = following.as_mut()?;
    following.subscription.next(&following.breadcrumb).await
}

fn wire_format(compressed: bool) -> WireFormat {
    if compressed { WireFormat::TyphaSnappy } else { WireFormat::TyphaPlain }
}

fn write_breadcrumb(breadcrumb: &Breadcrumb, compressed: bool) -> Bytes {
    let updates: Vec<_> = breadcrumb
        .deltas
        .iter()
        .map(|delta| UpdateRef {
            key: &delta.path,
            value: delta.entry.as_ref().map_or(&[], |entry| entry.value_for_typha()),
            revision: delta.entry.as_ref().map_or("", |entry| entry.revision()),
            v3_resource_version: delta.entry.as_ref().map_or("", |entry| entry.v3_resource_version()),
            update_type: match delta.change {
                Change::New => UpdateType::New,
                Change::Updated => UpdateType::Updated,
                Change::Deleted => UpdateType::Deleted,
            },
        })
        .collect();
    let mut out = Vec::new();
    messages::write_kvs(&mut out, &updates);
    if compressed { snappy::compress(&out).into() } else { out.into() }
}

/// Encodes a snapshot for all clients. A compressed snapshot is a separate stream, which ends with
/// a restart of the decoder.
fn write_snapshot(base: Snapshot, compressed: bool) -> WireSnapshot {
    let [many, few] = SNAPSHOT_OBJECTS;
    let limit = if compressed { many } else { few };
    let mut pieces = Vec::new();
    let mut raw_bytes = 0;
    let mut message = Vec::new();
    let mut write = |updates: &mut Vec<UpdateRef<'_>>, pieces: &mut Vec<Bytes>| {
        message.clear();
        messages::write_kvs(&mut message, updates);
        updates.clear();
        raw_bytes += message.len() as u64;
        pieces.push(if compressed { snappy::compress(&message).into() } else { Bytes::copy_from_slice(&message) });
    };
    if compressed {
        pieces.push(stream_begin());
    }
    let (mut updates, mut bytes) = (Vec::with_capacity(limit), 0);
    for entry in base.entries.iter() {
        if updates.len() >= limit || bytes + entry.value_for_typha().len() > MESSAGE_BYTES && !updates.is_empty() {
            write(&mut updates, &mut pieces);
            bytes = 0;
        }
        bytes += entry.value_for_typha().len();
        updates.push(UpdateRef {
            key: &entry.path,
            value: entry.value_for_typha(),
            revision: entry.revision(),
            v3_resource_version: entry.v3_resource_version(),
            update_type: UpdateType::New,
        });
    }
    if !updates.is_empty() {
        write(&mut updates, &mut pieces);
    }
    if compressed {
        pieces.push(encoded(&restart("end of the snapshot"), true));
    }
    drop(updates);
    WireSnapshot::new(base, pieces, raw_bytes)
}

/// Queue of data to send.
struct SendQueue<S> {
    writer: WriteHalf<S>,
    queue: VecDeque<Waiting>,
    /// Queued bytes.
    bytes: usize,
    unflushed: bool,
    /// Time at which the client last took data, or the queue was last empty.
    progress: Instant,
    /// Counters of the sent data, once the syncer is known.
    counters: Option<Arc<SyncerCounters>>,
}

enum Waiting {
    Bytes {
        bytes: Bytes,
        /// Time at which they were queued.
        since: Instant,
        /// Time of the change that they contain.
        change: Option<Instant>,
    },
    EndOfSnapshot,
}

/// Result of a step.
enum Done {
    Some,
    /// The snapshot has been sent completely.
    Snapshot,
}

impl<S: AsyncWrite> SendQueue<S> {
    fn new(writer: WriteHalf<S>, now: Instant) -> Self {
        Self { writer, queue: VecDeque::new(), bytes: 0, unflushed: false, progress: now, counters: None }
    }

    fn push(&mut self, bytes: Bytes) {
        self.enqueue(bytes, None);
    }

    /// Queues a change that was made at `made`.
    fn push_change(&mut self, bytes: Bytes, made: Instant) {
        self.enqueue(bytes, Some(made));
    }

    fn enqueue(&mut self, bytes: Bytes, change: Option<Instant>) {
        let now = Instant::now();
        if !self.has_work() {
            self.progress = now;
        }
        self.bytes += bytes.len();
        if !bytes.is_empty() {
            self.queue.push_back(Waiting::Bytes { bytes, since: now, change });
        }
    }

    fn end_snapshot(&mut self) {
        self.queue.push_back(Waiting::EndOfSnapshot);
    }

    fn has_work(&self) -> bool {
        self.unflushed || !self.queue.is_empty()
    }

    fn is_stuck(&self, timeout: Duration) -> bool {
        self.has_work() && self.progress.elapsed() >= timeout
    }

    /// Sends a part of the queue. Cancelling it neither loses nor repeats data.
    async fn step(&mut self) -> io::Result<Done> {
        match self.queue.front_mut() {
            Some(Waiting::Bytes { bytes, since, change }) => {
                let count = self.writer.write(bytes).await?;
                if count == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                self.unflushed = true;
                self.bytes -= count;
                bytes.advance(count);
                let is_sent = bytes.is_empty();
                if let Some(counters) = &self.counters {
                    counters.bytes_sent.add(count as u64);
                    if is_sent {
                        counters.write.since(*since);
                        change.iter().for_each(|made| counters.latency.since(*made));
                    }
                }
                if is_sent {
                    self.queue.pop_front();
                }
            }
            Some(Waiting::EndOfSnapshot) if !self.unflushed => {
                self.queue.pop_front();
                return Ok(Done::Snapshot);
            }
            Some(Waiting::EndOfSnapshot) | None => {
                self.writer.flush().await?;
                self.unflushed = false;
            }
        }
        self.progress = Instant::now();
        Ok(Done::Some)
    }

    /// Sends the whole queue.
    async fn rest(&mut self) -> io::Result<()> {
        while self.has_work() {
            self.step().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
