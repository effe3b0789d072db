//! Server: one watch of the datastore, any number of clients.
//!
//! The cost of serving a change does not depend on the number of objects. Apart from sending, it
//! does not depend on the number of clients either, because each change is encoded once.

mod accept;
mod connection;
mod life;
mod registry;
mod stats;
mod syncers;
mod wire;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tortie_datastore::{Events, Watching};
use tortie_resources::syncer::SyncerType;

pub(crate) use self::connection::MISSING;
pub use self::life::Part;
pub use self::registry::fair_share;
pub use self::stats::ServerStats;
pub use self::syncers::SyncerSources;
pub use crate::counters::SyncerStats;

use self::life::Life;
use self::registry::{Limits, Order, Registry};
use self::stats::Counters;
use self::syncers::Syncers;
use crate::cache::{Cache, CacheLimits, Hub, Instance};
use crate::protocol::frame::MAX_TO_SERVER;
use crate::tls::{Acceptor, TlsError, TlsSettings};

/// Length of the listen backlog.
const BACKLOG: u32 = 4096;
/// Maximum buffered input of a client in bytes.
const INPUT: usize = MAX_TO_SERVER + 12;
/// Memory of a connection in bytes: its input in a buffer that grows by doubling, a read buffer of
/// 4 KiB, three times the type definitions of Typha's protocol (8 KiB), and 16 KiB for the task.
const CONNECTION_BYTES: usize = 2 * INPUT + (4 + 3 * 8 + 16) * 1024;
/// Memory of a TLS connection in bytes: a handshake of 64 KiB, a send buffer of 64 KiB, a received
/// record of 16 KiB and a decrypted one.
const TLS_BYTES: usize = (64 + 64 + 2 * 16) * 1024;
/// Maximum time that a client has to leave for another server.
const GO_WITHIN: Duration = Duration::from_secs(5);

/// Configuration of a server. Parameters that Typha also has take its defaults
/// (`typha/pkg/config/config_params.go`).
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Addresses on which it listens.
    pub listen: Vec<SocketAddr>,
    /// TLS settings; `None` accepts any client, without TLS.
    pub tls: Option<TlsSettings>,
    /// Limits of the cache.
    pub limits: CacheLimits,
    /// Time after a change within which further changes are sent together; 20 ms by default.
    pub pace: Duration,
    /// Maximum time from the connection to the end of the client's hello; 10 s by default.
    pub handshake_timeout: Duration,
    /// Maximum time of one write; 60 s by default.
    pub write_timeout: Duration,
    /// Interval between heartbeats; 10 s by default.
    pub heartbeat: Duration,
    /// Maximum time between the oldest change that a client lacks and the newest one; 300 s by
    /// default.
    pub max_behind: Duration,
    /// Maximum size of the changes that a client lacks, in bytes; 64 MiB by default.
    pub max_bytes_behind: u64,
    /// Time after its snapshot for which a client may be further behind than that; 300 s by
    /// default.
    pub grace: Duration,
    /// Maximum number of connections, 10,000 by default. Further clients are rejected with that
    /// reason.
    pub max_connections: usize,
    /// Maximum number of connections per address, 512 by default. At most an eighth of them, but at
    /// least one, may be without a complete hello.
    pub max_per_address: usize,
    /// Number of servers that share the nodes. A server with more than its share of connections
    /// sends some to the others. With one server there is no rebalancing.
    pub servers: usize,
    /// Minimum share in connections; 400 by default.
    pub least_share: usize,
    /// Interval between two clients that are sent to other servers; 1 s by default.
    pub drop_interval: Duration,
    /// Time for which a syncer other than Felix's is still read after its last client has left
    /// ([`SyncerSources`]); 60 s by default.
    pub syncer_linger: Duration,
    /// Number of threads that serve; 0 for one per processor, but at most four.
    pub threads: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            tls: None,
            limits: CacheLimits::default(),
            pace: Duration::from_millis(20),
            handshake_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(60),
            heartbeat: Duration::from_secs(10),
            max_behind: Duration::from_secs(300),
            max_bytes_behind: 64 * 1024 * 1024,
            grace: Duration::from_secs(300),
            max_connections: 10_000,
            max_per_address: 512,
            servers: 1,
            least_share: 400,
            drop_interval: Duration::from_secs(1),
            syncer_linger: Duration::from_secs(60),
            threads: 0,
        }
    }
}

impl ServerConfig {
    /// Returns the maximum memory of all connections together, in bytes: 76 KiB each, 236 KiB with
    /// TLS. The objects, the changes that [`CacheLimits`] keeps and the snapshots need additional
    /// memory, which all connections share.
    ///
    /// ```
    /// # use tortie_fanout::server::ServerConfig;
    /// let config = ServerConfig { max_connections: 1000, ..ServerConfig::default() };
    /// assert_eq!(config.connection_memory(), 1000 * 76 * 1024);
    /// ```
    #[must_use]
    pub fn connection_memory(&self) -> usize {
        let tls = if self.tls.is_some() { TLS_BYTES } else { 0 };
        self.max_connections.saturating_mul(CONNECTION_BYTES + tls)
    }

    fn connection_limits(&self) -> Limits {
        let per_address = self.max_per_address;
        Limits { total: self.max_connections, per_address, before_hello: (per_address / 8).max(1) }
    }
}

/// Error at the start of a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The server cannot listen on an address.
    #[error("{address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// TLS cannot be set up as configured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A thread cannot be started.
    #[error("a thread cannot be started")]
    Thread(#[source] io::Error),
}

/// State shared by all connections.
pub(crate) struct Context {
    pub(crate) hub: Hub,
    pub(crate) syncers: Arc<Syncers>,
    pub(crate) config: ServerConfig,
    pub(crate) counters: Counters,
    registry: Registry,
    /// Permits for rejections with a reason.
    refusals: Arc<Semaphore>,
    /// Number of servers that share the nodes.
    servers: AtomicUsize,
    acceptor: Option<Acceptor>,
    started: Instant,
    life: Arc<Life>,
}

impl Context {
    /// Microseconds since the start, for heartbeats; never 0.
    pub(crate) fn stamp(&self) -> u64 {
        // After 584,000 years, heartbeats no longer measure round trips.
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
    }
}

/// Running server. Dropping it ends it.
pub struct Server {
    context: Arc<Context>,
    addresses: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    /// Listeners end when this becomes true.
    closed: watch::Sender<bool>,
    runtime: Option<Runtime>,
    filler: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens and serves the objects of `upstream`, to clients of Felix's syncer only.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: ServerConfig, upstream: Watching) -> Result<Self, StartError> {
        Self::start_with(config, upstream, SyncerSources::none())
    }

    /// Like [`Server::start`], and serves other syncers on request.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(config: ServerConfig, upstream: Watching, sources: SyncerSources) -> Result<Self, StartError> {
        let now = Instant::now();
        let instance = Instance(RandomState::new().hash_one(std::process::id()));
        let hub = Hub::new(Cache::new(instance, config.limits, now));
        let acceptor = config.tls.clone().map(Acceptor::new).transpose()?;
        let threads = match config.threads {
            0 => thread::available_parallelism().map_or(1, |threads| threads.get().min(4)),
            threads => threads,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("fanout")
            .enable_all()
            .build()
            .map_err(StartError::Thread)?;
        let context = Context {
            hub: hub.clone(),
            syncers: Arc::new(Syncers::new(hub.clone(), sources, config.limits, config.pace)),
            servers: AtomicUsize::new(config.servers),
            config,
            counters: Counters::default(),
            registry: Registry::default(),
            refusals: Arc::new(Semaphore::new(accept::REFUSED_AT_ONCE)),
            acceptor,
            started: now,
            life: Arc::new(Life::new(now)),
        };
        let context = Arc::new(context);
        let (closed, closing) = watch::channel(false);
        let mut addresses = Vec::new();
        for &address in &context.config.listen {
            let failed = |error| StartError::Listen { address, error };
            let listener = runtime.block_on(async { listen(address) }).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            runtime.spawn(accept::run(listener, Arc::clone(&context), closing.clone()));
        }
        runtime.spawn(tidy_syncers(Arc::clone(&context), closing.clone()));
        runtime.spawn(rebalance(Arc::clone(&context), closing));
        runtime.spawn(beat(Arc::clone(&context.life)));
        let stop = Arc::new(AtomicBool::new(false));
        let pace = context.config.pace;
        let go_on = {
            let (stop, life) = (Arc::clone(&stop), Arc::clone(&context.life));
            move || {
                life.beat(Part::Cache, Instant::now());
                !stop.load(Ordering::Acquire)
            }
        };
        let fill = move || {
            let Watching { events, resend: _ } = upstream;
            let events: Events = events;
            hub.fill(&events, pace, go_on);
        };
        let filler = thread::Builder::new().name("cache".into()).spawn(fill).map_err(StartError::Thread)?;
        Ok(Self { context, addresses, stop, closed, runtime: Some(runtime), filler: Some(filler) })
    }

    /// Sets the number of servers that share the nodes ([`ServerConfig::servers`]).
    pub fn set_servers(&self, servers: usize) {
        self.context.servers.store(servers, Ordering::Relaxed);
    }

    /// Returns the addresses on which it listens, in the order of [`ServerConfig::listen`].
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the hub of Felix's syncer.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.context.hub
    }

    /// Returns the hub of a syncer; `None` if the syncer is not read, because it has no clients.
    #[must_use]
    pub fn hub_of(&self, syncer: SyncerType) -> Option<Hub> {
        self.context.syncers.hub(syncer)
    }

    /// Returns the parts without a sign of life for longer than `patience`. A working part gives
    /// one at least once a second.
    #[must_use]
    pub fn silent(&self, patience: Duration) -> Vec<Part> {
        self.context.life.silent(patience, Instant::now())
    }

    /// Returns the statistics of the server.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.context.counters.read(self.context.registry.len() as u64)
    }

    /// Returns the statistics of a syncer.
    #[must_use]
    pub fn stats_of(&self, syncer: SyncerType) -> SyncerStats {
        self.context.syncers.stats(syncer)
    }

    /// Accepts no more connections and sends all clients to other servers, one after the other, so
    /// that these are not overloaded. Returns when all have left, or after `within`.
    pub fn drain(&self, within: Duration) {
        let deadline = Instant::now() + within;
        self.closed.send_replace(true);
        // With so many connections, the pause is zero either way.
        let count = u32::try_from(self.context.registry.staying()).unwrap_or(u32::MAX);
        // As Typha: spread over most of the time, with a pause of at most a second.
        let pause = (within.mul_f64(0.95) / count.max(1)).min(self.context.config.drop_interval);
        tracing::info!(clients = count, "sending all clients to other servers");
        while self.context.registry.len() > 0 && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let order = Order { within: left.min(GO_WITHIN), reason: "the server ends" };
            let more = self.context.registry.send_away(order);
            thread::sleep(if more { pause } else { Duration::from_millis(10) }.min(left));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.closed.send_replace(true);
        self.context.syncers.end();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        if let Some(filler) = self.filler.take() {
            let _ = filler.join();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).field("stats", &self.stats()).finish()
    }
}

/// Sends clients to other servers, one at a time, while this server has more than its share.
async fn rebalance(context: Arc<Context>, mut closing: watch::Receiver<bool>) {
    let config = &context.config;
    loop {
        let pause = config.drop_interval.mul_f64(1.0 + tortie_datastore::chance() / 10.0);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = closing.changed() => return,
        }
        let servers = context.servers.load(Ordering::Relaxed);
        if context.registry.staying() <= config.least_share || servers < 2 {
            continue;
        }
        let nodes = context.hub.snapshot().entries.below("/calico/resources/v3/projectcalico.org/nodes/").count();
        let syncers = context.syncers.in_use();
        let share = fair_share(nodes, syncers, servers, config.least_share, config.max_connections);
        let order = Order { within: GO_WITHIN, reason: "this server has more than its share of clients" };
        if context.registry.staying() > share && context.registry.send_away(order) {
            context.counters.rebalanced.add(1);
        }
    }
}

/// Gives signs of life of the threads that serve connections, until the runtime ends.
async fn beat(life: Arc<Life>) {
    loop {
        life.beat(Part::Connections, Instant::now());
        tokio::time::sleep(life::INTERVAL).await;
    }
}

/// Ends syncers that have had no clients for `syncer_linger`.
async fn tidy_syncers(context: Arc<Context>, mut closing: watch::Receiver<bool>) {
    let linger = context.config.syncer_linger;
    let pause = (linger / 4).clamp(Duration::from_millis(10), Duration::from_secs(5));
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => context.syncers.tidy(linger),
            _ = closing.changed() => return,
        }
    }
}

/// Listens with a long backlog: all agents of a large cluster reconnect at once when a server ends.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
