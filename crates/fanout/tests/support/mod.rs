//! In-memory cluster, its servers and clients, and connections that can be interrupted.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it, and fails where something is missing")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_datastore::{Event, Feed, InputProblem, Source, Watching, channel, watch};
use tortie_fanout::client::{ClientConfig, FanoutSource};
use tortie_fanout::server::{Server, ServerConfig};
use tortie_model::{
    Cidr, HostConfigKey, Hostname, IpamBlock, Key, Labels, SyncStatus, Update, Valid, WorkloadEndpoint,
    WorkloadEndpointKey,
};

/// Timeout of all waits.
pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) fn config(name: &str, value: &str) -> Update {
    Update::GlobalConfig(name.into(), Some(value.into()))
}

pub(crate) fn host_config(host: &str, name: &str, value: &str) -> Update {
    Update::HostConfig(HostConfigKey { host: host.into(), name: name.into() }, Some(value.into()))
}

pub(crate) fn workload(host: &str, name: &str, address: &str) -> Update {
    let key = WorkloadEndpointKey::new(host, "k8s", &format!("default/{name}"), "eth0");
    let endpoint = WorkloadEndpoint {
        iface: Some(format!("cali{name}").parse().unwrap()),
        ipv4_nets: [address.parse::<Cidr>().unwrap()].into_iter().collect(),
        labels: Labels::from_pairs([("app", name)]).unwrap(),
        ..WorkloadEndpoint::default()
    };
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
}

pub(crate) fn block(cidr: &str, node: &str) -> Update {
    let text = format!(r#"{{"cidr":"{cidr}","affinity":"host:{node}"}}"#);
    let block = IpamBlock { text: text.into(), affinity: Some(node.into()), borrowed: [].into() };
    Update::Block(cidr.parse().unwrap(), Some(block.into()))
}

/// A datastore in memory that a server reads.
pub(crate) struct Upstream {
    feed: Feed,
    pub(crate) truth: BTreeMap<Key, Update>,
}

impl Upstream {
    pub(crate) fn new() -> (Self, Watching) {
        let (feed, watching) = channel();
        (Self { feed, truth: BTreeMap::new() }, watching)
    }

    /// Sends one object with this version.
    pub(crate) fn send_at(&mut self, update: Update, version: &str) {
        update.clone().apply_to(&mut self.truth);
        self.feed.send_at([(update, Some(version.into()))], Instant::now()).unwrap();
    }

    /// Sends all objects in a resync.
    pub(crate) fn resync(&self) {
        self.resync_at(|_| None);
    }

    /// The same, of objects at these versions.
    pub(crate) fn resync_at(&self, version: impl Fn(&Key) -> Option<&'static str>) {
        self.feed.begin_resync().unwrap();
        let at = |update: &Update| (update.clone(), version(&update.key()).map(Arc::from));
        self.feed.send_at(self.truth.values().map(at), Instant::now()).unwrap();
        self.feed.end_resync().unwrap();
    }

    pub(crate) fn send(&mut self, updates: impl IntoIterator<Item = Update>) {
        for update in updates {
            update.clone().apply_to(&mut self.truth);
            self.feed.send([update], Instant::now()).unwrap();
        }
    }
}

/// Settings with short intervals and without a grace period.
pub(crate) fn quick() -> ServerConfig {
    ServerConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        pace: Duration::from_millis(1),
        handshake_timeout: Duration::from_secs(2),
        heartbeat: Duration::from_millis(200),
        drop_interval: Duration::from_millis(20),
        threads: 2,
        ..ServerConfig::default()
    }
}

pub(crate) fn serve(config: ServerConfig) -> (Upstream, Server) {
    let (upstream, watching) = Upstream::new();
    (upstream, Server::start(config, watching).unwrap())
}

/// Client with all that it has received.
pub(crate) struct Client {
    watching: Watching,
    pub(crate) known: BTreeMap<Key, Update>,
    pub(crate) versions: BTreeMap<Key, Arc<str>>,
    pub(crate) statuses: Vec<SyncStatus>,
    pub(crate) unavailable: Vec<String>,
    pub(crate) problems: Vec<InputProblem>,
    pub(crate) deleted: usize,
}

pub(crate) fn client_config(servers: &[SocketAddr], node: Option<&str>) -> ClientConfig {
    let mut config = ClientConfig::new(servers.iter().map(ToString::to_string).collect(), node.map(Hostname::from));
    config.min_pause = Duration::from_millis(20);
    config.max_pause = Duration::from_millis(100);
    config
}

impl Client {
    pub(crate) fn of(servers: &[SocketAddr], node: Option<&str>) -> Self {
        Self::with(client_config(servers, node))
    }

    pub(crate) fn with(config: ClientConfig) -> Self {
        Self::from(FanoutSource::new(config).unwrap())
    }

    pub(crate) fn from(source: impl Source) -> Self {
        Self {
            watching: watch(source).unwrap(),
            known: BTreeMap::new(),
            versions: BTreeMap::new(),
            statuses: Vec::new(),
            unavailable: Vec::new(),
            problems: Vec::new(),
            deleted: 0,
        }
    }

    pub(crate) fn restart(&mut self) {
        self.watching.resend.ask();
        self.known.clear();
        self.statuses.clear();
    }

    pub(crate) fn in_sync(&self) -> bool {
        self.statuses.last() == Some(&SyncStatus::InSync)
    }

    pub(crate) fn resyncs(&self) -> usize {
        self.statuses.iter().filter(|status| **status == SyncStatus::Resync).count()
    }

    /// Processes events until a condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, description: &str, is: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + SOON;
        while !is(self) {
            assert!(
                Instant::now() < deadline,
                "not within {SOON:?}: {description}; {} objects, {:?}, {:?}",
                self.known.len(),
                self.statuses,
                self.unavailable.last()
            );
            self.listen(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub(crate) fn knows(&mut self, truth: &BTreeMap<Key, Update>) {
        self.until("all is known", |client| client.in_sync() && client.known == *truth);
    }

    /// Waits for an event for this time at most, and processes it.
    pub(crate) fn listen(&mut self, patience: Duration) {
        match self.watching.events.recv_timeout(patience) {
            Some(Event::Available) | None => {}
            Some(Event::Versions(versions)) => self.versions.extend(versions),
            Some(Event::Status(status)) => self.statuses.push(status),
            Some(Event::Unavailable { why, .. }) => self.unavailable.push(why),
            Some(Event::Problems(problems)) => self.problems = problems,
            Some(Event::Updates { updates, .. }) => {
                for update in updates {
                    let exists = update.exists();
                    let was_known = update.apply_to(&mut self.known).is_some();
                    self.deleted += usize::from(was_known && !exists);
                }
            }
        }
    }
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn eventually(description: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is() {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {description}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
