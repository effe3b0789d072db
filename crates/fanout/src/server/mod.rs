//! The server: one watch upstream, any number of clients.
//!
//! What it costs to serve a change does not depend on how many objects there are, and not on how many clients, but for
//! sending it: the bytes are made once.

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

/// How many connections may wait to be taken.
const BACKLOG: u32 = 4096;
/// The longest input that is kept of a client.
const INPUT: usize = MAX_TO_SERVER + 12;
/// The memory of a connection: its input in a buffer that grows by doubling, a buffer of 4 KiB to read into, three times
/// the definitions of types in Typha's protocol (8 KiB), and 16 KiB for the task.
const CONNECTION_BYTES: usize = 2 * INPUT + (4 + 3 * 8 + 16) * 1024;
/// The memory of TLS: a handshake of 64 KiB, 64 KiB to send, and a record of 16 KiB received and another decrypted.
const TLS_BYTES: usize = (64 + 64 + 2 * 16) * 1024;
/// How long a client that is told to go has for it, at the most.
const GO_WITHIN: Duration = Duration::from_secs(5);

/// How a server serves. The defaults are Typha's where it has the same parameter (`typha/pkg/config/config_params.go`).
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// TLS; `None` to let anybody in who reaches it.
    pub tls: Option<TlsSettings>,
    /// What the cache keeps.
    pub limits: CacheLimits,
    /// Changes that come within this time after another one go out together.
    pub pace: Duration,
    /// How long a client has from the connection to the end of its hello.
    pub handshake_timeout: Duration,
    /// How long one write may take.
    pub write_timeout: Duration,
    /// How often to show signs of life.
    pub heartbeat: Duration,
    /// How much older than the newest change the last one may be that a client was sent.
    pub max_behind: Duration,
    /// How many bytes of changes may wait for a client.
    pub max_bytes_behind: u64,
    /// For how long after its snapshot a client may be further behind than that.
    pub grace: Duration,
    /// How many connections there may be; further clients are told that there are too many.
    pub max_connections: usize,
    /// The number of connections that one address may have, 512 by default. An eighth of them, at least one, may be
    /// before the end of their hello.
    pub max_per_address: usize,
    /// How many servers share the nodes: one that has more than its share of connections sends some elsewhere. Not if
    /// there is one.
    pub servers: usize,
    /// A share is not less than this.
    pub least_share: usize,
    /// How much time there is between two clients that are sent elsewhere.
    pub drop_interval: Duration,
    /// For how long another syncer than Felix's is read on that has no client any more ([`SyncerSources`]).
    pub syncer_linger: Duration,
    /// How many threads serve; 0 for one for each processor, but not more than four.
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
    /// The memory that the connections may take together, in bytes: 76 KiB each, 236 KiB with TLS. The objects, the changes
    /// that [`CacheLimits`] keeps and the snapshots come on top, and are shared by all connections.
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

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("{address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
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

/// What all connections share.
pub(crate) struct Context {
    pub(crate) hub: Hub,
    pub(crate) syncers: Arc<Syncers>,
    pub(crate) config: ServerConfig,
    pub(crate) counters: Counters,
    registry: Registry,
    /// Permits to tell a client why it is refused.
    refusals: Arc<Semaphore>,
    /// How many servers share the nodes.
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

/// A server at work. It ends when this is dropped.
pub struct Server {
    context: Arc<Context>,
    addresses: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    /// Listeners end when this says so.
    closed: watch::Sender<bool>,
    runtime: Option<Runtime>,
    filler: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens, and serves what `upstream` tells, to readers of Felix's syncer only.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: ServerConfig, upstream: Watching) -> Result<Self, StartError> {
        Self::start_with(config, upstream, SyncerSources::none())
    }

    /// As [`Server::start`], and serves other syncers to who asks for them.
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

    /// The number of servers that share the nodes has become known, or another one ([`ServerConfig::servers`]).
    pub fn set_servers(&self, servers: usize) {
        self.context.servers.store(servers, Ordering::Relaxed);
    }

    /// Where it listens, in the order of [`ServerConfig::listen`].
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What it serves.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.context.hub
    }

    /// What it serves of a syncer; `None` if that is not read, because nobody asks for it.
    #[must_use]
    pub fn hub_of(&self, syncer: SyncerType) -> Option<Hub> {
        self.context.syncers.hub(syncer)
    }

    /// Parts without a sign of life for longer than `patience`, which a part gives at least once a second while it works.
    #[must_use]
    pub fn silent(&self, patience: Duration) -> Vec<Part> {
        self.context.life.silent(patience, Instant::now())
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.context.counters.read(self.context.registry.len() as u64)
    }

    /// What it has done for the clients of a syncer.
    #[must_use]
    pub fn stats_of(&self, syncer: SyncerType) -> SyncerStats {
        self.context.syncers.stats(syncer)
    }

    /// Takes no more connections and sends all clients elsewhere, one after the other, so that other servers are not
    /// overrun. Returns when all are gone, or after this time.
    pub fn drain(&self, within: Duration) {
        let deadline = Instant::now() + within;
        self.closed.send_replace(true);
        // So many connections would have a pause of no time either way.
        let count = u32::try_from(self.context.registry.staying()).unwrap_or(u32::MAX);
        // As Typha: most of the time, but no more than a second for each.
        let pause = (within.mul_f64(0.95) / count.max(1)).min(self.context.config.drop_interval);
        tracing::info!(clients = count, "sending all clients elsewhere");
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

/// Sends clients elsewhere while there are more than this server's share, one at a time.
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

/// Ends syncers that nobody has asked for in a while.
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

/// Listens with room for all agents of a large cluster to knock at once, as they do when a server ends.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
