//! Source that reads from an existing Typha, or from Tortie's fan-out by Typha's protocol.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};
use tortie_datastore::{Closed, Feed, Source, chance};
use tortie_model::{SyncStatus, with_causes};
use tortie_resources::syncer::SyncerType;

use super::TORTIE;
use super::client::{ClientAction, ClientEnd, ClientHello, ClientSession};
use super::update_reader::UpdateReader;
use crate::attempts::Attempts;
use crate::discovery::{DiscoveryError, ServerDiscovery, find};
use crate::tls::{BoxStream, Connector, TlsError, TlsSettings, plain};

/// Servers and settings of a [`TyphaSource`]. The defaults are those of Typha's client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TyphaOptions {
    /// Servers as host and port, which are tried one after the other. Empty if [`ServerDiscovery`]
    /// finds them.
    pub servers: Vec<String>,
    /// Name of this node.
    pub hostname: String,
    /// TLS settings; `None` to connect without TLS.
    pub tls: Option<TlsSettings>,
    /// Whether IPAM blocks are passed on ([`tortie_model::Key::Block`]).
    pub blocks: bool,
    /// Timeout for connecting; 10 s by default.
    pub connect_timeout: Duration,
    /// Maximum silence of a server, which sends pings more often; 30 s by default.
    pub read_timeout: Duration,
    /// Timeout of a write; 10 s by default.
    pub write_timeout: Duration,
    /// Minimum pause before the next server is tried, longer after each failure; 100 ms by default.
    pub min_pause: Duration,
    /// Maximum pause; 10 s by default.
    pub max_pause: Duration,
    /// Time without updates that ends a resync after the server has reported *in sync*; at most ten
    /// times as long in total. 100 ms by default. A Typha reports this status after a snapshot that
    /// it shares between clients, before it sends the newer changes. A reconnecting client that
    /// believed it would delete newer objects for a moment.
    pub settle: Duration,
}

impl TyphaOptions {
    /// Creates options for these servers, each as host and port.
    ///
    /// ```
    /// use tortie_fanout::typha::TyphaOptions;
    ///
    /// let options = TyphaOptions::new(vec!["typha-1:5473".to_owned()], "node-1");
    /// assert_eq!((&*options.hostname, options.tls), ("node-1", None));
    /// ```
    #[must_use]
    pub fn new(servers: Vec<String>, hostname: &str) -> Self {
        Self {
            servers,
            hostname: hostname.to_owned(),
            tls: None,
            blocks: false,
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(10),
            min_pause: Duration::from_millis(100),
            max_pause: Duration::from_secs(10),
            settle: Duration::from_millis(100),
        }
    }
}

/// Source that reads from a Typha.
///
/// After the connection is lost, the source connects to the next server. All objects stay as last
/// received until the new server has sent everything and reports *in sync*. Objects that it did not
/// send are then deleted.
#[derive(Debug)]
pub struct TyphaSource {
    options: TyphaOptions,
    discovery: Option<Arc<dyn ServerDiscovery>>,
    tls: Option<Arc<Connector>>,
    versions: bool,
}

impl TyphaSource {
    /// Creates a source, which connects when it runs.
    ///
    /// # Errors
    /// If the files of TLS are unusable.
    pub fn new(options: TyphaOptions) -> Result<Self, TlsError> {
        let tls = options.tls.clone().map(Connector::new).transpose()?.map(Arc::new);
        Ok(Self { options, discovery: None, tls, versions: false })
    }

    /// Finds the servers before each connection instead of using [`TyphaOptions::servers`].
    #[must_use]
    pub fn with_discovery(mut self, discovery: Arc<dyn ServerDiscovery>) -> Self {
        self.discovery = Some(discovery);
        self
    }

    /// Also reports the version of each object, if the server sends it.
    #[must_use]
    pub fn with_versions(mut self) -> Self {
        self.versions = true;
        self
    }

    /// Returns the server to connect to next (`typha/pkg/discovery`, `ConnectionAttemptTracker`).
    async fn next_server(&self, attempts: &mut Attempts<String>) -> Result<String, NoConnection> {
        let servers = match &self.discovery {
            None => self.options.servers.clone(),
            Some(discovery) => find(discovery).await?,
        };
        attempts.next(&servers).map(|(server, _)| server).ok_or(NoConnection::NoServer)
    }

    async fn watch(&self, feed: &Feed) -> Closed {
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        feed.wake_with(move || wake.notify_one());
        let mut objects = UpdateReader::new(self.options.blocks);
        let mut failures = 0u32;
        let mut attempts = Attempts::default();
        for attempt in 0.. {
            let (synced, why) = match self.next_server(&mut attempts).await {
                Err(why) => (false, why),
                Ok(server) => match self.connection(&server, attempt, feed, &woken, &mut objects).await {
                    Ok(Lost::Resend) => continue,
                    Ok(Lost::After { synced, why }) => (synced, NoConnection::Server { server, source: why }),
                    Err(closed) => return closed,
                },
            };
            failures = if synced { 0 } else { failures.saturating_add(1) };
            let why = with_causes(&why);
            tracing::warn!(why, "no connection to Typha");
            if let Err(closed) = feed.unavailable(why) {
                return closed;
            }
            if let Err(closed) = self.pause(failures, feed, &woken).await {
                return closed;
            }
        }
        Closed
    }

    /// Waits before the next attempt: longer after each failure, and for different times on
    /// different nodes.
    async fn pause(&self, failures: u32, feed: &Feed, woken: &Notify) -> Result<(), Closed> {
        let pause = self.options.min_pause.saturating_mul(1 << failures.min(10)).min(self.options.max_pause);
        let until = tokio::time::Instant::now() + pause.mul_f64(0.5 + chance() / 2.0);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return Ok(()),
                // The next connection sends all objects anyway.
                () = woken.notified() => drop(feed.take_resend()?),
            }
        }
    }

    /// Connects and passes the server's messages to the feed until the connection ends.
    async fn connection(
        &self,
        server: &str,
        attempt: u64,
        feed: &Feed,
        woken: &Notify,
        objects: &mut UpdateReader,
    ) -> Result<Lost, Closed> {
        let stream = match self.connect(server).await {
            Ok(stream) => stream,
            Err(why) => return Ok(Lost::After { synced: false, why }),
        };
        let hello = ClientHello {
            hostname: self.options.hostname.clone(),
            version: concat!("tortie-", env!("CARGO_PKG_VERSION")).into(),
            info: TORTIE.into(),
            syncer: SyncerType::Felix,
            connection: u64::from(std::process::id()) << 32 | attempt & 0xffff_ffff,
        };
        // A separate task answers pings while the consumer is busy.
        let (sender, mut receiver) = mpsc::channel(4);
        let reading = tokio::spawn(read(stream, hello, sender, self.options.read_timeout, self.options.write_timeout));
        let _reading = AbortOnDrop(reading.abort_handle());
        let is_first = attempt == 0;
        let mut session = Session { source: self, server, feed, objects, is_first, synced: false, settles: None };
        loop {
            let event = tokio::select! {
                event = receiver.recv() => event,
                () = session.settled() => {
                    session.settle()?;
                    continue;
                }
                () = woken.notified() => {
                    if feed.take_resend()? {
                        return Ok(Lost::Resend);
                    }
                    continue;
                }
            };
            let why = match event {
                Some(ServerEvent::Action(action)) => {
                    session.take(action)?;
                    continue;
                }
                Some(ServerEvent::End(why)) => why,
                None => ConnectionError::Lost,
            };
            return Ok(Lost::After { synced: session.synced, why });
        }
    }

    async fn connect(&self, server: &str) -> Result<BoxStream, ConnectionError> {
        let connecting = async {
            let stream = TcpStream::connect(server).await?;
            stream.set_nodelay(true)?;
            Ok::<BoxStream, io::Error>(match &self.tls {
                None => plain(stream),
                Some(tls) => tls.connect(server.rsplit_once(':').map_or(server, |(host, _)| host), stream).await?,
            })
        };
        let connected = timeout(self.options.connect_timeout, connecting).await;
        Ok(connected.map_err(|_| ConnectionError::ConnectTimeout)??)
    }
}

/// Connection with the progress of its server.
struct Session<'s> {
    source: &'s TyphaSource,
    server: &'s str,
    feed: &'s Feed,
    objects: &'s mut UpdateReader,
    /// Whether this is the source's first attempt to connect.
    is_first: bool,
    /// Whether the snapshot is complete.
    synced: bool,
    /// The time at which the snapshot counts as complete, and the latest such time; `None` before
    /// the server reports that it is in sync.
    settles: Option<(Instant, Instant)>,
}

impl Session<'_> {
    /// Waits until the snapshot counts as complete.
    async fn settled(&self) {
        match self.settles {
            Some((at, _)) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Ends the resync: the snapshot is complete.
    fn settle(&mut self) -> Result<(), Closed> {
        self.settles = None;
        self.objects.end();
        if let Some(problems) = self.objects.changed_problems() {
            self.feed.problems(problems)?;
        }
        self.feed.end_resync()?;
        self.feed.available()?;
        self.synced = true;
        Ok(())
    }

    fn take(&mut self, action: ClientAction) -> Result<(), Closed> {
        let Self { source: TyphaSource { options, discovery, versions, .. }, server, feed, objects, .. } = self;
        match action {
            ClientAction::Welcome(welcome) => {
                tracing::info!(server, version = welcome.version, "connected to Typha");
                if let Some(discovery) = discovery {
                    discovery.connected();
                }
                // The server's snapshot answers all earlier requests for a resend.
                feed.take_resend()?;
                feed.begin_resync()?;
                objects.begin();
            }
            ClientAction::Updates(updates) => {
                let now = Instant::now();
                let read = objects.read(&updates).into_iter();
                feed.send_at(read.map(|(update, version)| (update, version.filter(|_| *versions))), now)?;
                self.settles = self.settles.map(|(_, latest)| (latest.min(now + options.settle), latest));
                if self.synced
                    && let Some(problems) = objects.changed_problems()
                {
                    feed.problems(problems)?;
                }
            }
            ClientAction::Status(SyncStatus::InSync) => {
                let now = Instant::now();
                // At the first attempt no object is known, so none can be lost.
                let at = if self.is_first { now } else { now + options.settle };
                self.settles = self.settles.or(Some((at, now + options.settle * 10)));
            }
            // A server that resyncs with its datastore still sends only changes.
            ClientAction::Status(_) | ClientAction::Send(_) => {}
        }
        Ok(())
    }
}

impl Source for TyphaSource {
    fn name(&self) -> &'static str {
        "typha"
    }

    fn run(self: Box<Self>, feed: &Feed) -> Closed {
        loop {
            match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
                Ok(runtime) => return runtime.block_on(feed.show_life_during(sleep, self.watch(feed))),
                Err(error) => {
                    if let Err(closed) = feed.unavailable(format!("the client cannot be started: {error}")) {
                        return closed;
                    }
                    feed.show_life();
                    std::thread::sleep(self.options.max_pause);
                }
            }
        }
    }
}

/// Reason for the end of a connection.
enum Lost {
    /// The consumer wants all objects again, which a new connection provides.
    Resend,
    After {
        /// Whether the snapshot was complete.
        synced: bool,
        why: ConnectionError,
    },
}

/// Error of a search for a server, or of a connection to one.
#[derive(Debug, thiserror::Error)]
enum NoConnection {
    #[error("there is no server to connect to")]
    NoServer,
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error("{server}")]
    Server { server: String, source: ConnectionError },
}

#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("it does not answer in time")]
    ConnectTimeout,
    #[error("the connection is lost")]
    Lost,
    #[error("the server has hung up")]
    HungUp,
    #[error("the server is silent")]
    Silent,
    #[error("the server reads nothing")]
    TakesNothing,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ClientEnd),
}

enum ServerEvent {
    Action(ClientAction),
    End(ConnectionError),
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads the server's messages, answers those that need an answer, and passes the others to
/// `sender`.
async fn read(
    mut stream: BoxStream,
    hello: ClientHello,
    sender: mpsc::Sender<ServerEvent>,
    read_timeout: Duration,
    write_timeout: Duration,
) {
    let (mut session, bytes) = ClientSession::new(hello, ClientSession::limits());
    let why = match send(&mut stream, &bytes, write_timeout).await {
        Err(why) => why,
        Ok(()) => loop {
            match step(&mut stream, &mut session, &sender, read_timeout, write_timeout).await {
                Ok(true) => {}
                // The receiver is gone.
                Ok(false) => return,
                Err(why) => break why,
            }
        },
    };
    let _ = sender.send(ServerEvent::End(why)).await;
}

/// Reads once and processes the messages; `false` if the receiver is gone.
async fn step(
    stream: &mut BoxStream,
    session: &mut ClientSession,
    sender: &mpsc::Sender<ServerEvent>,
    read_timeout: Duration,
    write_timeout: Duration,
) -> Result<bool, ConnectionError> {
    let mut buffer = vec![0; 64 * 1024];
    let count = match timeout(read_timeout, stream.read(&mut buffer)).await.map_err(|_| ConnectionError::Silent)?? {
        0 => return Err(ConnectionError::HungUp),
        count => count,
    };
    let mut actions = Vec::new();
    let end: Result<(), ClientEnd> = session.received(buffer.get(..count).unwrap_or_default(), &mut actions);
    for action in actions {
        if let ClientAction::Send(bytes) = &action {
            send(stream, bytes, write_timeout).await?;
        } else if sender.send(ServerEvent::Action(action)).await.is_err() {
            return Ok(false);
        }
    }
    Ok(end.map(|()| true)?)
}

async fn send(stream: &mut BoxStream, bytes: &[u8], write_timeout: Duration) -> Result<(), ConnectionError> {
    let writing = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    Ok(timeout(write_timeout, writing).await.map_err(|_| ConnectionError::TakesNothing)??)
}

#[cfg(test)]
mod tests;
