//! Client: a source that reads from a server of the fan-out.

mod session;
mod view;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tortie_datastore::{Backoff, Closed, Feed, Source, chance};
use tortie_model::{Hostname, with_causes};

use self::session::{Lost, SessionError};
use self::view::View;
use crate::attempts::Attempts;
use crate::cache::OwnPrefix;
use crate::discovery::{DiscoveryError, ServerDiscovery, find};
use crate::tls::{Connector, TlsError, TlsSettings};

/// Timeout of an address lookup, of connecting (including TLS), and of the exchange of hellos,
/// each.
const CONNECT: Duration = Duration::from_secs(10);

/// Servers of a client, and the view that it requests.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Servers as `HOST:PORT`; a name may stand for several addresses. Empty if [`ServerDiscovery`]
    /// finds them.
    pub servers: Vec<String>,
    /// Node whose view is requested; `None` for all objects.
    pub node: Option<Hostname>,
    /// Whether a node also requests IPAM blocks, from which routes are calculated.
    pub blocks: bool,
    /// TLS settings; `None` connects to any server, without TLS.
    pub tls: Option<TlsSettings>,
    /// Minimum pause after a failure; 200 ms by default.
    pub min_pause: Duration,
    /// Maximum pause between attempts; 15 s by default.
    pub max_pause: Duration,
}

impl ClientConfig {
    /// Requests the view of `node`, without IPAM blocks, from these servers, without TLS.
    #[must_use]
    pub fn new(servers: Vec<String>, node: Option<Hostname>) -> Self {
        Self {
            servers,
            node,
            blocks: false,
            tls: None,
            min_pause: Duration::from_millis(200),
            max_pause: Duration::from_secs(15),
        }
    }
}

/// Source that reads from a server of the fan-out.
///
/// When the connection is lost, all objects stay as last received. The client reconnects, to the
/// same server first, and gets the changes that it has missed. If no server has these any more, it
/// gets all objects in a resync.
#[derive(Debug)]
pub struct FanoutSource {
    config: ClientConfig,
    discovery: Option<Arc<dyn ServerDiscovery>>,
    connector: Option<Connector>,
}

impl FanoutSource {
    /// Creates a client of these servers. It does nothing before it runs.
    ///
    /// # Errors
    /// [`TlsError`] if the certificates cannot be used.
    pub fn new(config: ClientConfig) -> Result<Self, TlsError> {
        let connector = config.tls.clone().map(Connector::new).transpose()?;
        Ok(Self { config, discovery: None, connector })
    }

    /// Finds the servers before each connection instead of using [`ClientConfig::servers`].
    #[must_use]
    pub fn with_discovery(mut self, discovery: Arc<dyn ServerDiscovery>) -> Self {
        self.discovery = Some(discovery);
        self
    }

    async fn servers(&self) -> Result<Vec<String>, DiscoveryError> {
        match &self.discovery {
            None => Ok(self.config.servers.clone()),
            Some(discovery) => find(discovery).await,
        }
    }

    fn connected(&self) {
        if let Some(discovery) = &self.discovery {
            discovery.connected();
        }
    }
}

/// Reason why there is no connection to a server.
#[derive(Debug, thiserror::Error)]
enum NoConnection {
    #[error("there is no server to connect to")]
    NoServer,
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error("{server}")]
    Lookup { server: String, source: io::Error },
    #[error("{server}: address lookup timed out")]
    NoAddress { server: String },
    #[error("{server}")]
    Session { server: SocketAddr, source: SessionError },
}

impl Source for FanoutSource {
    fn name(&self) -> &'static str {
        "fanout"
    }

    fn run(self: Box<Self>, feed: &Feed) -> Closed {
        // The worker reads and writes while this thread waits for the consumer.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fanout-client")
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => {
                let closed = runtime.block_on(feed.show_life_during(sleep, keep_connected(&self, feed)));
                runtime.shutdown_background();
                closed
            }
            Err(error) => {
                tracing::error!(%error, "the client of the fan-out cannot start");
                let _ = feed.unavailable(format!("a thread cannot be started: {error}"));
                Closed
            }
        }
    }
}

async fn keep_connected(source: &FanoutSource, feed: &Feed) -> Closed {
    let wake = Arc::new(Notify::new());
    let waker = Arc::clone(&wake);
    feed.wake_with(move || waker.notify_one());
    let own = source.config.node.as_ref().and_then(OwnPrefix::new);
    let mut view = View::new(feed, own);
    match connect_again_and_again(source, feed, &wake, &mut view).await {
        Ok(never) => match never {},
        Err(closed) => closed,
    }
}

async fn connect_again_and_again(
    source: &FanoutSource,
    feed: &Feed,
    wake: &Notify,
    view: &mut View<'_>,
) -> Result<std::convert::Infallible, Closed> {
    let mut backoff = Backoff::new(source.config.min_pause, source.config.max_pause);
    let mut attempts = Attempts::default();
    // So that clients do not all begin with the same server.
    let turn = chance();
    feed.waiting()?;
    loop {
        if feed.take_resend()? {
            view.clear_token();
            feed.waiting()?;
        }
        let (servers, why) = match source.servers().await {
            Ok(servers) => addresses(&servers, turn).await,
            Err(error) => (Vec::new(), error.into()),
        };
        let lost = match attempts.next(&servers) {
            None => Lost::Failed(why),
            Some((server, _)) => {
                let session = session::run(source, server, feed, wake, view, || {
                    attempts.serves(server);
                    backoff.succeed();
                    source.connected();
                });
                let lost = session.await?;
                if let Lost::Drained(reason) = &lost {
                    tracing::info!(%server, reason, "the server of the fan-out sends the client to another server");
                    attempts.leave(server);
                }
                lost
            }
        };
        let pause = match lost {
            // No pause: the server already spreads these over time.
            Lost::Drained(_) if servers.len() > 1 => continue,
            Lost::Resend => continue,
            Lost::Drained(reason) => {
                feed.unavailable(reason)?;
                backoff.fail(chance())
            }
            Lost::Failed(why) => {
                let why = with_causes(&why);
                tracing::warn!(why, "no connection to the fan-out");
                feed.unavailable(why)?;
                backoff.fail(chance())
            }
        };
        // A closed feed ends the pause at once.
        tokio::select! {
            () = sleep(pause) => {}
            () = closed(feed, wake) => {}
        }
    }
}

/// Waits until the feed is closed. A resend requested meanwhile is handled later.
async fn closed(feed: &Feed, wake: &Notify) {
    while !feed.is_closed() {
        wake.notified().await;
    }
}

/// Returns the addresses of all servers, rotated by `turn`, and the reason if there are none.
async fn addresses(servers: &[String], turn: f64) -> (Vec<SocketAddr>, NoConnection) {
    let mut addresses = Vec::new();
    let mut why = NoConnection::NoServer;
    for server in servers {
        match timeout(CONNECT, lookup_host(server.as_str())).await {
            Ok(Ok(found)) => addresses.extend(found),
            Ok(Err(source)) => why = NoConnection::Lookup { server: server.clone(), source },
            Err(_) => why = NoConnection::NoAddress { server: server.clone() },
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "between 0 and a number of addresses"
    )]
    let first = (turn * addresses.len() as f64) as usize;
    let length = addresses.len();
    addresses.rotate_left(if length == 0 { 0 } else { first % length });
    (addresses, why)
}
