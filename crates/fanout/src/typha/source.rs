//! An existing Typha, or our own fan-out, as a source of updates.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};
use tortie_datastore::{Closed, Feed, Source, chance};
use tortie_model::SyncStatus;
use tortie_resources::syncer::SyncerType;

use super::TORTIE;
use super::client::{ClientAction, ClientEnd, ClientHello, ClientSession};
use super::update_reader::UpdateReader;
use crate::attempts::Attempts;
use crate::discovery::{ServerDiscovery, find};
use crate::tls::{BoxStream, Connector, TlsError, TlsSettings};

/// Where a Typha is, and how to talk to it. The defaults are those of Typha's own client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TyphaOptions {
    /// The servers, each as host and port. They are tried one after the other. None if they are found by
    /// [`ServerDiscovery`].
    pub servers: Vec<String>,
    /// The name of this node.
    pub hostname: String,
    /// TLS, if it is used.
    pub tls: Option<TlsSettings>,
    /// Whether blocks of addresses are wanted ([`tortie_model::Key::Block`]).
    pub blocks: bool,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// For how long a server may be silent. It sends pings more often than that.
    pub read_timeout: Duration,
    /// For how long a server may fail to take what little we send.
    pub write_timeout: Duration,
    /// How long to wait before the next server is tried; longer after each failure.
    pub min_pause: Duration,
    /// How long to wait at the most.
    pub max_pause: Duration,
    /// How long to wait for more before a server is believed that has told everything; ten times that at the most. A
    /// Typha says so after a snapshot that it shares between clients, before it tells what is newer; a client that comes
    /// back and believed it would delete that, for a moment.
    pub settle: Duration,
}

impl TyphaOptions {
    /// Options for these servers, each as host and port.
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

/// A Typha as a source of updates.
///
/// After a connection is lost, another one is made, to the next server. What was told stays true until the new server
/// has told everything and says that this is so; what it did not tell is then gone.
#[derive(Debug)]
pub struct TyphaSource {
    options: TyphaOptions,
    discovery: Option<Arc<dyn ServerDiscovery>>,
    tls: Option<Arc<Connector>>,
    versions: bool,
}

impl TyphaSource {
    /// A source that has not connected yet.
    ///
    /// # Errors
    /// If the files of TLS cannot be used.
    pub fn new(options: TyphaOptions) -> Result<Self, TlsError> {
        let tls = options.tls.clone().map(Connector::new).transpose()?.map(Arc::new);
        Ok(Self { options, discovery: None, tls, versions: false })
    }

    /// Finds the servers again before each connection, in place of [`TyphaOptions::servers`].
    #[must_use]
    pub fn with_discovery(mut self, discovery: Arc<dyn ServerDiscovery>) -> Self {
        self.discovery = Some(discovery);
        self
    }

    /// The same, which also tells at which version each object is, as far as the server says.
    #[must_use]
    pub fn with_versions(mut self) -> Self {
        self.versions = true;
        self
    }

    /// The server to connect to next (`typha/pkg/discovery`, `ConnectionAttemptTracker`).
    async fn next_server(&self, attempts: &mut Attempts<String>) -> Result<String, String> {
        let servers = match &self.discovery {
            None => self.options.servers.clone(),
            Some(discovery) => find(discovery).await.map_err(|error| error.to_string())?,
        };
        attempts.next(&servers).map(|(server, _)| server).ok_or_else(|| "there is no server to connect to".to_owned())
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
                    Ok(Lost::After { synced, why }) => (synced, format!("{server}: {why}")),
                    Err(closed) => return closed,
                },
            };
            failures = if synced { 0 } else { failures.saturating_add(1) };
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

    /// Waits before the next attempt, longer after each failure, and not the same time on all nodes.
    async fn pause(&self, failures: u32, feed: &Feed, woken: &Notify) -> Result<(), Closed> {
        let pause = self.options.min_pause.saturating_mul(1 << failures.min(10)).min(self.options.max_pause);
        let until = tokio::time::Instant::now() + pause.mul_f64(0.5 + chance() / 2.0);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return Ok(()),
                // Everything is going to be told again anyhow.
                () = woken.notified() => drop(feed.take_resend()?),
            }
        }
    }

    /// Connects, and tells what the server tells until it ends.
    async fn connection(
        &self,
        server: &str,
        attempt: u64,
        feed: &Feed,
        woken: &Notify,
        objects: &mut UpdateReader,
    ) -> Result<Lost, Closed> {
        let mut synced = false;
        let hello = ClientHello {
            hostname: self.options.hostname.clone(),
            version: concat!("tortie-", env!("CARGO_PKG_VERSION")).into(),
            info: TORTIE.into(),
            syncer: SyncerType::Felix,
            connection: u64::from(std::process::id()) << 32 | attempt & 0xffff_ffff,
        };
        let connecting = async {
            let stream = TcpStream::connect(server).await?;
            stream.set_nodelay(true)?;
            Ok::<BoxStream, io::Error>(match &self.tls {
                None => Box::new(stream),
                Some(tls) => tls.connect(server.rsplit_once(':').map_or(server, |(host, _)| host), stream).await?,
            })
        };
        let stream = match timeout(self.options.connect_timeout, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Ok(Lost::After { synced, why: error.to_string() }),
            Err(_) => return Ok(Lost::After { synced, why: "it does not answer in time".into() }),
        };
        // Pings are answered while the consumer takes its time.
        let (tell, mut told) = mpsc::channel(4);
        let reading = tokio::spawn(read(stream, hello, tell, self.options.read_timeout, self.options.write_timeout));
        let _reading = AbortOnDrop(reading.abort_handle());
        // When to believe that everything has been told, and when at the latest.
        let mut settles = None::<(Instant, Instant)>;
        loop {
            let settled = async {
                match settles {
                    Some((at, _)) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let action = tokio::select! {
                action = told.recv() => action,
                () = settled => {
                    settles = None;
                    objects.end();
                    if let Some(problems) = objects.changed_problems() {
                        feed.problems(problems)?;
                    }
                    feed.end_resync()?;
                    feed.available()?;
                    synced = true;
                    continue;
                }
                () = woken.notified() => {
                    if feed.take_resend()? {
                        return Ok(Lost::Resend);
                    }
                    continue;
                }
            };
            match action {
                Some(ServerEvent::Action(ClientAction::Welcome(welcome))) => {
                    tracing::info!(server, version = welcome.version, "connected to Typha");
                    if let Some(discovery) = &self.discovery {
                        discovery.connected();
                    }
                    // What was asked for until now is about to be done.
                    feed.take_resend()?;
                    feed.begin_resync()?;
                    objects.begin();
                }
                Some(ServerEvent::Action(ClientAction::Updates(updates))) => {
                    let now = Instant::now();
                    let told = objects.read(&updates).into_iter();
                    feed.tell_at(told.map(|(update, version)| (update, version.filter(|_| self.versions))), now)?;
                    settles = settles.map(|(_, latest)| (latest.min(now + self.options.settle), latest));
                    if synced && let Some(problems) = objects.changed_problems() {
                        feed.problems(problems)?;
                    }
                }
                Some(ServerEvent::Action(ClientAction::Status(SyncStatus::InSync))) => {
                    let now = Instant::now();
                    // Who knows nothing yet has nothing to lose.
                    let at = if attempt == 0 { now } else { now + self.options.settle };
                    settles = settles.or(Some((at, now + self.options.settle * 10)));
                }
                // A server that reads its datastore again still tells what changes, and nothing else.
                Some(ServerEvent::Action(ClientAction::Status(_) | ClientAction::Send(_))) => {}
                Some(ServerEvent::End(why)) => return Ok(Lost::After { synced, why }),
                None => return Ok(Lost::After { synced, why: "the connection is lost".into() }),
            }
        }
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

/// Why there is no connection any more.
enum Lost {
    /// The consumer wants to hear everything again, which a new connection gives.
    Resend,
    After {
        /// Whether the connection was of use.
        synced: bool,
        why: String,
    },
}

enum ServerEvent {
    Action(ClientAction),
    End(String),
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads what the server says and answers what is to be answered.
async fn read(
    mut stream: BoxStream,
    hello: ClientHello,
    tell: mpsc::Sender<ServerEvent>,
    read_timeout: Duration,
    write_timeout: Duration,
) {
    let (mut session, bytes) = ClientSession::new(hello, ClientSession::limits());
    let why = match send(&mut stream, &bytes, write_timeout).await {
        Err(why) => why,
        Ok(()) => loop {
            match step(&mut stream, &mut session, &tell, read_timeout, write_timeout).await {
                Ok(true) => {}
                // Nobody wants to know any more.
                Ok(false) => return,
                Err(why) => break why,
            }
        },
    };
    let _ = tell.send(ServerEvent::End(why)).await;
}

/// Whether anybody still wants to know.
async fn step(
    stream: &mut BoxStream,
    session: &mut ClientSession,
    tell: &mpsc::Sender<ServerEvent>,
    read_timeout: Duration,
    write_timeout: Duration,
) -> Result<bool, String> {
    let mut buffer = vec![0; 64 * 1024];
    let count = match timeout(read_timeout, stream.read(&mut buffer)).await {
        Ok(Ok(0)) => return Err("the server has hung up".into()),
        Ok(Ok(count)) => count,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("the server is silent".into()),
    };
    let mut actions = Vec::new();
    let end: Result<(), ClientEnd> = session.received(buffer.get(..count).unwrap_or_default(), &mut actions);
    for action in actions {
        if let ClientAction::Send(bytes) = &action {
            send(stream, bytes, write_timeout).await?;
        } else if tell.send(ServerEvent::Action(action)).await.is_err() {
            return Ok(false);
        }
    }
    end.map(|()| true).map_err(|end| end.to_string())
}

async fn send(stream: &mut BoxStream, bytes: &[u8], write_timeout: Duration) -> Result<(), String> {
    let writing = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    match timeout(write_timeout, writing).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the server takes nothing".into()),
    }
}

#[cfg(test)]
mod tests;
