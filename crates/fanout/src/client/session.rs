//! One connection to a server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tortie_datastore::{Closed, Feed};

use super::view::View;
use super::{CONNECT, FanoutSource, NoConnection};
use crate::protocol::frame::{self, Compression, MAX_TO_CLIENT};
use crate::protocol::stream::{Messages, ReadError};
use crate::protocol::{ClientHello, Heartbeat, MAGIC, ServerHello, ToClient, ToServer, VERSION, client, server};
use crate::server::MISSING;
use crate::tls::BoxStream;

/// Heartbeats are never further apart, nor closer, than this.
const SLOWEST: Duration = Duration::from_secs(60);
const FASTEST: Duration = Duration::from_millis(100);

/// Why a connection has ended.
#[derive(Debug)]
pub(super) enum Lost {
    /// The server wants its clients elsewhere, and why.
    Drained(String),
    /// Everything is wanted again, which takes a new connection.
    Resend,
    /// Something went wrong.
    Failed(NoConnection),
}

/// Error of a connection to one server.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("no connection in time")]
    ConnectTimeout,
    #[error(transparent)]
    Connect(#[from] io::Error),
    #[error("the server does not answer")]
    NoAnswer,
    #[error("the server does not say hello")]
    NoHello,
    #[error("the server says hello a second time")]
    SecondHello,
    #[error("the server speaks version {0} of the protocol")]
    Version(u32),
    #[error("the server goes on where we never were")]
    ForeignResume,
    #[error("refused: {0}")]
    Refused(String),
    #[error("nothing has been heard for too long")]
    Silent,
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Connects, and tells what the server tells until that ends. `serves` is called once the server has told something of
/// use.
pub(super) async fn run(
    source: &FanoutSource,
    address: SocketAddr,
    feed: &Feed,
    wake: &Notify,
    view: &mut View<'_>,
    mut serves: impl FnMut(),
) -> Result<Lost, Closed> {
    let failed = |source| Ok(Lost::Failed(NoConnection::Session { server: address, source }));
    let (mut messages, hello, heart) = match greet(source, address, view).await {
        Ok(greeted) => greeted,
        Err(error) => return failed(error),
    };
    if !hello.resumed {
        view.begin()?;
    }
    tracing::info!(server = %address, software = ?hello.software, resumed = hello.resumed, "connected to the fan-out");
    if source.config.blocks && !hello.blocks {
        tracing::warn!(server = %address, "this release of the fan-out sends no blocks of addresses to nodes; routes lack them");
    }
    if hello.resumed {
        // Nothing need follow.
        serves();
    }
    let mut session = Session { feed, view, instance: hello.instance, heart, serves, going: None };
    loop {
        let message = tokio::select! {
            message = timeout(session.heart.interval * MISSING, messages.next::<ToClient>()) => message,
            resend = resend_asked(feed, wake) => {
                resend?;
                return Ok(Lost::Resend);
            }
        };
        let message = match message {
            Ok(Ok(ToClient { message })) => message,
            Ok(Err(error)) => {
                return session.going.map_or_else(|| failed(error.into()), |reason| Ok(Lost::Drained(reason)));
            }
            Err(_) => return failed(SessionError::Silent),
        };
        match message {
            Some(server::Message::Refusal(refusal)) => return failed(SessionError::Refused(refusal.reason)),
            Some(server::Message::Hello(_)) => return failed(SessionError::SecondHello),
            Some(message) => {
                if let Some(reason) = session.take(message)? {
                    return Ok(Lost::Drained(reason));
                }
            }
            // From a later version.
            None => {}
        }
    }
}

/// A connection whose server has said hello.
struct Session<'s, 'v, F> {
    feed: &'s Feed,
    view: &'s mut View<'v>,
    instance: u64,
    heart: Heart,
    serves: F,
    /// Why the server wants its clients elsewhere, until there is a place from which another connection can go on.
    going: Option<String>,
}

impl<F: FnMut()> Session<'_, '_, F> {
    /// Takes a message; returns why the server sends us elsewhere, once another connection can go on from here.
    fn take(&mut self, message: server::Message) -> Result<Option<String>, Closed> {
        match message {
            server::Message::Batch(batch) => {
                let settled = batch.settled;
                self.view.batch(batch, self.instance)?;
                if let Some(settled) = settled {
                    self.heart.state.sequence.store(settled.sequence, Ordering::Relaxed);
                    (self.serves)();
                    return Ok(self.going.take());
                }
            }
            server::Message::Heartbeat(Heartbeat { stamp, .. }) => self.heart.answer(stamp),
            server::Message::Drain(drain) => {
                if self.view.resume_token().is_some() {
                    return Ok(Some(drain.reason));
                }
                self.going = Some(drain.reason);
            }
            server::Message::Upstream(upstream) => {
                match upstream.unavailable.as_str() {
                    "" => self.feed.available()?,
                    why => self.feed.unavailable(format!("the fan-out's datastore: {why}"))?,
                }
                self.view.upstream(upstream.problems, upstream.more)?;
            }
            // The caller takes these.
            server::Message::Refusal(_) | server::Message::Hello(_) => {}
        }
        Ok(None)
    }
}

/// Waits until the consumer wants everything again, or nothing any more.
async fn resend_asked(feed: &Feed, wake: &Notify) -> Result<(), Closed> {
    loop {
        wake.notified().await;
        if feed.is_closed() {
            return Err(Closed);
        }
        if feed.wants_resend() {
            return Ok(());
        }
    }
}

type Greeted = (Messages<ReadHalf<BoxStream>>, ServerHello, Heart);

async fn greet(source: &FanoutSource, address: SocketAddr, view: &View<'_>) -> Result<Greeted, SessionError> {
    let connect = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        match &source.connector {
            Some(connector) => connector.connect(&address.ip().to_string(), stream).await,
            None => Ok(Box::new(stream) as BoxStream),
        }
    };
    let mut stream = timeout(CONNECT, connect).await.map_err(|_| SessionError::ConnectTimeout)??;
    let hello = ClientHello {
        version: VERSION,
        node: source.config.node.as_ref().map(ToString::to_string).unwrap_or_default(),
        software: concat!("tortie ", env!("CARGO_PKG_VERSION")).into(),
        resume: view.resume_token(),
        blocks: source.config.blocks,
    };
    let hello = ToServer { message: Some(client::Message::Hello(hello)) };
    let greet = async {
        stream.write_all(&MAGIC).await?;
        stream.write_all(&frame::encode(&hello, Compression::None)).await?;
        stream.flush().await?;
        let (reader, writer) = split(stream);
        let mut messages = Messages::new(reader, MAX_TO_CLIENT);
        let ToClient { message } = messages.next().await?;
        Ok::<_, ReadError>((message, messages, writer))
    };
    let (message, messages, writer) = timeout(CONNECT, greet).await.map_err(|_| SessionError::NoAnswer)??;
    match message {
        Some(server::Message::Hello(hello)) if hello.version != VERSION => Err(SessionError::Version(hello.version)),
        Some(server::Message::Hello(hello))
            if hello.resumed && view.resume_token().is_none_or(|p| p.instance != hello.instance) =>
        {
            Err(SessionError::ForeignResume)
        }
        Some(server::Message::Hello(hello)) => {
            let heart = Heart::start(writer, hello.heartbeat_ms);
            Ok((messages, hello, heart))
        }
        Some(server::Message::Refusal(refusal)) => Err(SessionError::Refused(refusal.reason)),
        _ => Err(SessionError::NoHello),
    }
}

/// Sends heartbeats from a task of its own, as the one that reads may wait for the consumer. Ends when dropped.
struct Heart {
    interval: Duration,
    state: Arc<HeartState>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct HeartState {
    /// What the server wants back; 0 for nothing.
    stamp: AtomicU64,
    sequence: AtomicU64,
    asked: Notify,
}

impl Heart {
    fn start(mut writer: WriteHalf<BoxStream>, interval_ms: u32) -> Self {
        let interval = Duration::from_millis(interval_ms.into()).clamp(FASTEST, SLOWEST);
        let state = Arc::new(HeartState::default());
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let _ = timeout(interval, shared.asked.notified()).await;
                let stamp = shared.stamp.swap(0, Ordering::Relaxed);
                let sequence = shared.sequence.load(Ordering::Relaxed);
                let beat = client::Message::Heartbeat(Heartbeat { stamp, sequence });
                let bytes = frame::encode(&ToServer { message: Some(beat) }, Compression::None);
                let write = async {
                    writer.write_all(&bytes).await?;
                    writer.flush().await
                };
                // Whoever reads finds out what is wrong.
                if !matches!(timeout(interval * MISSING, write).await, Ok(Ok(()))) {
                    return;
                }
            }
        });
        Self { interval, state, task }
    }

    fn answer(&self, stamp: u64) {
        self.state.stamp.store(stamp, Ordering::Relaxed);
        self.state.asked.notify_one();
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.task.abort();
    }
}
