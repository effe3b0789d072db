//! Connection to a server.

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
use crate::tls::{BoxStream, plain};

/// Bounds of the heartbeat interval.
const SLOWEST: Duration = Duration::from_secs(60);
const FASTEST: Duration = Duration::from_millis(100);

/// Reason for the end of a connection.
#[derive(Debug)]
pub(super) enum Lost {
    /// The server sends its clients to other servers, for this reason.
    Drained(String),
    /// The consumer wants all objects again, which requires a new connection.
    Resend,
    /// The connection failed.
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
    #[error("the server sent a second hello")]
    SecondHello,
    #[error("the server speaks version {0} of the protocol")]
    Version(u32),
    #[error("the server resumes at an unknown position")]
    ForeignResume,
    #[error("refused: {0}")]
    Refused(String),
    #[error("the server has been silent for too long")]
    Silent,
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Connects and passes the server's messages to the feed until the connection ends. Calls `serves`
/// when the server resumes at the client's position, and after each settled batch.
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
    tracing::info!(server = %address, software = hello.software, resumed = hello.resumed, "connected to the fan-out");
    if source.config.blocks && !hello.blocks {
        tracing::warn!(server = %address, "this release of the fan-out sends no IPAM blocks to nodes; routes between nodes are missing");
    }
    if hello.resumed {
        // No batch need follow.
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

/// Connection after the exchange of hellos.
struct Session<'s, 'v, F> {
    feed: &'s Feed,
    view: &'s mut View<'v>,
    instance: u64,
    heart: Heart,
    serves: F,
    /// Reason why the server sends its clients to other servers, until there is a position from
    /// which another connection can resume.
    going: Option<String>,
}

impl<F: FnMut()> Session<'_, '_, F> {
    /// Processes a message. Returns the server's reason to use another server once another
    /// connection can resume from here.
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
            // Handled by the caller.
            server::Message::Refusal(_) | server::Message::Hello(_) => {}
        }
        Ok(None)
    }
}

/// Waits until the consumer wants all objects again, or closes the feed.
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
            None => Ok(plain(stream)),
        }
    };
    let mut stream = timeout(CONNECT, connect).await.map_err(|_| SessionError::ConnectTimeout)??;
    let hello = ClientHello {
        version: VERSION,
        node: source.config.node.as_ref().map(ToString::to_string).unwrap_or_default(),
        software: concat!("tortie ", env!("CARGO_PKG_VERSION")).into(),
        resume: view.resume_token(),
        blocks: source.config.blocks,
        domains: true,
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

/// Heartbeats of the client. A separate task sends them, since the reading task may wait for the
/// consumer. It ends when this is dropped.
struct Heart {
    interval: Duration,
    state: Arc<HeartState>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct HeartState {
    /// Stamp to return to the server; 0 for none.
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
                // The reading task reports the failure.
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
