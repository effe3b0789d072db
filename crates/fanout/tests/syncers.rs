//! Clients of Typha's protocol that use a syncer other than Felix's.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs a server and talks to it")]

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tortie_datastore::{Feed, channel};
use tortie_fanout::server::{Server, ServerConfig, SyncerSources};
use tortie_fanout::typha::messages::{
    ClientMessage, Hello, SerializedUpdate, ServerMessage, UpdateType, Welcome, client_definitions,
};
use tortie_fanout::typha::{ClientAction, ClientHello, ClientSession};
use tortie_model::{SyncStatus, SyncerObject, Update};
use tortie_resources::syncer::SyncerType;

use support::{Client, Upstream, config, quick, workload};

const OTHERS: [SyncerType; 3] = [SyncerType::Bgp, SyncerType::TunnelIpAllocation, SyncerType::NodeStatus];
const SOON: Duration = Duration::from_secs(120);

fn object(path: &str, text: &str, version: &str) -> Update {
    let object = SyncerObject { text: text.into(), resource_version: version.into() };
    Update::SyncerObject(path.into(), Some(object.into()))
}

fn node(name: &str) -> String {
    format!("/calico/resources/v3/projectcalico.org/nodes/{name}")
}

/// Datastore of the other syncers.
#[derive(Clone, Default)]
struct Store {
    shared: Arc<Mutex<BTreeMap<SyncerType, OfSyncer>>>,
}

#[derive(Default)]
struct OfSyncer {
    objects: BTreeMap<String, (String, String)>,
    feed: Option<Feed>,
    opened: usize,
    broken: bool,
}

impl Store {
    fn sources(&self) -> SyncerSources {
        let store = self.clone();
        SyncerSources::all(move |syncer| {
            let mut all = store.shared.lock().unwrap();
            let of_syncer = all.entry(syncer).or_default();
            of_syncer.opened += 1;
            if of_syncer.broken {
                return Err("out of threads".into());
            }
            let (feed, watching) = channel();
            feed.begin_resync().unwrap();
            let objects = of_syncer.objects.iter().map(|(path, (text, version))| object(path, text, version));
            feed.send(objects, Instant::now()).unwrap();
            feed.end_resync().unwrap();
            of_syncer.feed = Some(feed);
            Ok(watching)
        })
    }

    fn with<T>(&self, syncer: SyncerType, change: impl FnOnce(&mut OfSyncer) -> T) -> T {
        change(self.shared.lock().unwrap().entry(syncer).or_default())
    }

    fn put(&self, syncer: SyncerType, path: &str, text: &str, version: &str) {
        self.with(syncer, |of_syncer| {
            of_syncer.objects.insert(path.into(), (text.into(), version.into()));
            of_syncer.send(object(path, text, version));
        });
    }

    fn delete(&self, syncer: SyncerType, path: &str) {
        self.with(syncer, |of_syncer| {
            if of_syncer.objects.remove(path).is_some() {
                of_syncer.send(Update::SyncerObject(path.into(), None));
            }
        });
    }

    fn opened(&self, syncer: SyncerType) -> usize {
        self.with(syncer, |of_syncer| of_syncer.opened)
    }

    /// Whether the source that was opened last is still read.
    fn is_read(&self, syncer: SyncerType) -> bool {
        self.with(syncer, |of_syncer| of_syncer.feed.as_ref().is_some_and(|feed| !feed.is_closed()))
    }

    fn objects(&self, syncer: SyncerType) -> BTreeMap<String, String> {
        let texts = |of_syncer: &mut OfSyncer| {
            of_syncer.objects.iter().map(|(path, (text, _))| (path.clone(), text.clone())).collect()
        };
        self.with(syncer, texts)
    }
}

impl OfSyncer {
    fn send(&self, update: Update) {
        // A source that is no longer read has no receiver.
        let _ = self.feed.as_ref().map(|feed| feed.send([update], Instant::now()));
    }
}

/// Client that records the received objects and statuses.
struct Reader {
    stream: TcpStream,
    session: ClientSession,
    welcome: Option<Welcome>,
    statuses: Vec<SyncStatus>,
    objects: BTreeMap<String, SerializedUpdate>,
    updates: usize,
}

impl Reader {
    fn new(server: SocketAddr, syncer: SyncerType) -> Self {
        let mut stream = TcpStream::connect(server).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let hello = ClientHello { hostname: "n1".into(), syncer, ..ClientHello::default() };
        let (session, bytes) = ClientSession::new(hello, ClientSession::limits());
        stream.write_all(&bytes).unwrap();
        Self { stream, session, welcome: None, statuses: Vec::new(), objects: BTreeMap::new(), updates: 0 }
    }

    fn in_sync(server: SocketAddr, syncer: SyncerType) -> Self {
        let mut reader = Self::new(server, syncer);
        reader.until("in sync", |reader| reader.statuses.last() == Some(&SyncStatus::InSync));
        reader
    }

    fn until(&mut self, description: &str, holds: impl Fn(&Self) -> bool) {
        let until = Instant::now() + SOON;
        let mut buffer = vec![0; 64 * 1024];
        while !holds(self) {
            assert!(Instant::now() < until, "{description}: {:?} {:?}", self.statuses, self.texts());
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("{description}: the server has hung up"),
                Ok(count) => self.take(&buffer[..count]),
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                }
                Err(error) => panic!("{description}: {error}"),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut actions = Vec::new();
        self.session.received(bytes, &mut actions).unwrap();
        for action in actions {
            match action {
                ClientAction::Send(bytes) => self.stream.write_all(&bytes).unwrap(),
                ClientAction::Welcome(welcome) => self.welcome = Some(welcome),
                ClientAction::Status(status) => self.statuses.push(status),
                ClientAction::Updates(updates) => {
                    for update in updates {
                        self.updates += 1;
                        if update.value.is_empty() {
                            self.objects.remove(&update.key);
                        } else {
                            self.objects.insert(update.key.clone(), update);
                        }
                    }
                }
            }
        }
    }

    fn texts(&self) -> BTreeMap<String, String> {
        let text = |update: &SerializedUpdate| String::from_utf8(update.value.clone()).unwrap();
        self.objects.iter().map(|(path, update)| (path.clone(), text(update))).collect()
    }
}

fn serve(config: ServerConfig, store: &Store) -> (Upstream, Server) {
    let (upstream, watching) = Upstream::new();
    let server = Server::start_with(config, watching, store.sources()).unwrap();
    upstream.resync();
    (upstream, server)
}

fn until(description: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < until, "{description}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn each_syncer_is_served_its_own_objects() {
    let store = Store::default();
    for syncer in OTHERS {
        store.put(syncer, &node(syncer.as_str()), &format!(r#"{{"of":"{syncer}"}}"#), "7");
    }
    let pool = "/calico/v1/ipam/v4/pool/10.0.0.0-16";
    store.put(SyncerType::Bgp, pool, r#"{"cidr":"10.0.0.0/16"}"#, "9");
    let (mut upstream, server) = serve(quick(), &store);
    let address = server.addresses()[0];
    upstream.send([config("LogSeverityScreen", "Info"), workload("n1", "web", "10.0.0.1/32")]);
    for syncer in OTHERS {
        let mut reader = Reader::in_sync(address, syncer);
        assert_eq!(reader.welcome.as_ref().unwrap().syncer_type, syncer.as_str());
        assert_eq!(reader.texts(), store.objects(syncer));
        let update = &reader.objects[&node(syncer.as_str())];
        // A client that writes a resource back must send its version.
        assert_eq!((&*update.revision, &*update.v3_resource_version), ("7", "7"));
        assert_eq!(update.update_type, UpdateType::New);
        store.put(syncer, &node("late"), "{}", "8");
        store.delete(syncer, &node(syncer.as_str()));
        reader.until("changes", |reader| reader.texts() == store.objects(syncer));
        assert_eq!(reader.objects[&node("late")].v3_resource_version, "8");
        if syncer == SyncerType::Bgp {
            let pool = &reader.objects[pool];
            assert_eq!((&*pool.revision, &*pool.v3_resource_version), ("9", ""), "no resource");
        }
    }
    // Felix's clients do not see these objects, in either protocol.
    let mut felix = Reader::in_sync(address, SyncerType::Felix);
    felix.until("both objects", |felix| felix.objects.len() == 2);
    assert!(felix.objects.keys().all(|path| !path.contains("/nodes/")), "{:?}", felix.objects.keys());
    let mut agent = Client::of(&[address], None);
    agent.until("the same", |agent| agent.known == upstream.truth);
    assert_eq!(server.hub().stats().entries, 2);
}

/// A new version of an unchanged value causes no update (`WouldBeNoOp` of
/// `typha/pkg/syncproto/sync_proto.go`).
#[test]
fn another_version_of_an_equal_value_is_not_sent() {
    let store = Store::default();
    store.put(SyncerType::Bgp, &node("n1"), "{}", "1");
    let (_upstream, server) = serve(quick(), &store);
    let mut reader = Reader::in_sync(server.addresses()[0], SyncerType::Bgp);
    store.put(SyncerType::Bgp, &node("n1"), "{}", "2");
    store.put(SyncerType::Bgp, &node("n2"), "{}", "3");
    reader.until("the other node", |reader| reader.objects.len() == 2);
    assert_eq!((reader.updates, &*reader.objects[&node("n1")].v3_resource_version), (2, "1"));
    store.put(SyncerType::Bgp, &node("n1"), r#"{"a":1}"#, "4");
    reader.until("a change", |reader| reader.updates == 3);
    assert_eq!(reader.objects[&node("n1")].v3_resource_version, "4");
}

#[test]
fn a_syncer_is_read_for_as_long_as_it_has_clients() {
    let store = Store::default();
    store.put(SyncerType::Bgp, &node("n1"), "{}", "1");
    let config = ServerConfig { syncer_linger: Duration::from_millis(100), ..quick() };
    let (_upstream, server) = serve(config, &store);
    let address = server.addresses()[0];
    let _felix = Reader::in_sync(address, SyncerType::Felix);
    assert!(OTHERS.iter().all(|syncer| store.opened(*syncer) == 0 && server.hub_of(*syncer).is_none()));
    let first = Reader::in_sync(address, SyncerType::Bgp);
    let second = Reader::in_sync(address, SyncerType::Bgp);
    assert_eq!((store.opened(SyncerType::Bgp), store.opened(SyncerType::NodeStatus)), (1, 0), "they share a source");
    assert_eq!(server.hub_of(SyncerType::Bgp).unwrap().stats().entries, 1);
    drop(first);
    let third = Reader::in_sync(address, SyncerType::Bgp);
    assert_eq!(store.opened(SyncerType::Bgp), 1);
    drop((second, third));
    until("no client reads", || !store.is_read(SyncerType::Bgp) && server.hub_of(SyncerType::Bgp).is_none());
    // It begins again with the present objects.
    store.put(SyncerType::Bgp, &node("n2"), "{}", "2");
    let again = Reader::in_sync(address, SyncerType::Bgp);
    assert_eq!((again.texts(), store.opened(SyncerType::Bgp)), (store.objects(SyncerType::Bgp), 2));
    assert!(store.is_read(SyncerType::Bgp));
    drop(server);
    until("it ends with the server", || !store.is_read(SyncerType::Bgp));
}

/// Each syncer has separate statistics, and its totals never decrease, even if the syncer ends in
/// between.
#[test]
fn each_syncer_has_figures_of_its_own() {
    let store = Store::default();
    store.put(SyncerType::Bgp, &node("n1"), "{}", "1");
    let config = ServerConfig { syncer_linger: Duration::from_millis(100), ..quick() };
    let (mut upstream, server) = serve(config, &store);
    let address = server.addresses()[0];
    upstream.send([support::config("A", "1"), support::config("B", "1")]);
    let mut felix = Reader::in_sync(address, SyncerType::Felix);
    felix.until("both parameters", |felix| felix.objects.len() == 2);
    let mut bgp = Reader::in_sync(address, SyncerType::Bgp);
    let mut other = Reader::in_sync(address, SyncerType::Bgp);
    store.put(SyncerType::Bgp, &node("n2"), "{}", "2");
    store.put(SyncerType::Bgp, &node("n2"), "{}", "3");
    store.put(SyncerType::Bgp, &node("n3"), "{}", "4");
    for reader in [&mut bgp, &mut other] {
        reader.until("all nodes", |reader| reader.objects.len() == 3);
    }
    upstream.send([support::config("A", "2")]);
    felix.until("a change", |felix| felix.texts().values().any(|text| text.contains('2')));

    let of = |syncer| server.stats_of(syncer);
    let streaming = || SyncerType::ALL.map(|syncer| of(syncer).streaming);
    assert_eq!(SyncerType::ALL[..2], [SyncerType::Felix, SyncerType::Bgp]);
    assert_eq!(streaming(), [1, 2, 0, 0]);
    assert_eq!(SyncerType::ALL.map(|syncer| of(syncer).entries), [2, 3, 0, 0]);
    // The buffer before the cache may have merged two changes of a node.
    assert!((3..=4).contains(&of(SyncerType::Bgp).updates), "{:?}", of(SyncerType::Bgp));
    // The second is shared only if the first was written when the syncer was in sync.
    let snapshots = SyncerType::ALL.map(|syncer| of(syncer).snapshots_written + of(syncer).snapshots_shared);
    assert_eq!(snapshots, [1, 2, 0, 0]);
    // Both received at least two nodes after the snapshot.
    let objects = of(SyncerType::Bgp).objects;
    assert!(objects.count() >= 2 && objects.sum() >= 4.0, "{objects:?}");
    assert!(of(SyncerType::Felix).bytes_sent > 0 && of(SyncerType::NodeStatus).bytes_sent == 0);
    // These values are counted after the bytes were sent, or when a client answers.
    let answered = |reader: &mut Reader, syncer| {
        let is_counted = |_: &Reader| {
            let stats = of(syncer);
            let spread =
                [&stats.snapshot_send, &stats.write, &stats.latency, &stats.round_trip, &stats.breadcrumb_sizes];
            spread.iter().all(|values| values.count() > 0 && values.sum() > 0.0)
                && stats.breadcrumbs_ready + stats.breadcrumbs_awaited > 0
                && stats.breadcrumbs_ready == stats.next_breadcrumb.count()
        };
        reader.until(&format!("{syncer}: {:?}", of(syncer)), is_counted);
    };
    answered(&mut felix, SyncerType::Felix);
    answered(&mut bgp, SyncerType::Bgp);

    let before = of(SyncerType::Bgp);
    drop((bgp, other));
    until("no client reads", || server.hub_of(SyncerType::Bgp).is_none());
    let after = of(SyncerType::Bgp);
    assert_eq!((after.streaming, after.entries, after.sequence), (0, 0, 0));
    assert!(after.updates == before.updates && after.bytes_sent >= before.bytes_sent);
    let _again = Reader::in_sync(address, SyncerType::Bgp);
    assert!(of(SyncerType::Bgp).updates >= before.updates + 3, "{:?}", of(SyncerType::Bgp));
}

/// Returns the version that a server sends to a client that it refuses, with the reason.
fn refusal(server: SocketAddr, syncer_type: &str) -> String {
    let hello = Hello { syncer_type: syncer_type.into(), supports_modern_policy_keys: true, ..Hello::default() };
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(&[client_definitions(), &ClientMessage::Hello(hello).encode()].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let mut decoder = tortie_fanout::gob::Decoder::new(ClientSession::limits());
    decoder.push(&answer);
    let value = decoder.read().unwrap().unwrap();
    let ServerMessage::Welcome(welcome) = ServerMessage::decode(&value).unwrap() else { panic!("{value:?}") };
    assert_eq!(welcome.syncer_type, "felix");
    welcome.version
}

#[test]
fn clients_of_an_unserved_syncer_are_refused() {
    let store = Store::default();
    let (_upstream, server) = serve(quick(), &store);
    for unknown in ["Felix", "bpg", "confd"] {
        let why = refusal(server.addresses()[0], unknown);
        assert!(
            why.ends_with(&format!(": the client asks for syncer type `{unknown}`, which is not served here")),
            "{why}"
        );
    }
    let (upstream, alone) = support::serve(quick());
    upstream.resync();
    for syncer in OTHERS {
        let why = refusal(alone.addresses()[0], syncer.as_str());
        assert!(why.contains(&format!("`{syncer}`, which is not served here")), "{why}");
    }
}

/// If a source cannot be opened, its client is disconnected and can retry.
#[test]
fn a_source_that_cannot_be_begun() {
    let store = Store::default();
    store.with(SyncerType::NodeStatus, |of_syncer| of_syncer.broken = true);
    let (_upstream, server) = serve(quick(), &store);
    let mut reader = Reader::new(server.addresses()[0], SyncerType::NodeStatus);
    reader.stream.set_read_timeout(Some(SOON)).unwrap();
    let mut buffer = vec![0; 4096];
    loop {
        match reader.stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => reader.take(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((reader.statuses.len(), store.opened(SyncerType::NodeStatus)), (0, 1));
    store.with(SyncerType::NodeStatus, |of_syncer| of_syncer.broken = false);
    Reader::in_sync(server.addresses()[0], SyncerType::NodeStatus);
}

/// Numbers that look random.
struct PseudoRandom(u64);

impl PseudoRandom {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

#[test]
fn clients_match_the_store_after_any_history() {
    for seed in 0..4 {
        let store = Store::default();
        let config = ServerConfig { syncer_linger: Duration::from_millis(20), ..quick() };
        let (mut upstream, server) = serve(config, &store);
        let address = server.addresses()[0];
        let mut random = PseudoRandom(seed);
        let mut readers: Vec<(SyncerType, Reader)> = Vec::new();
        for step in 0..400 {
            let syncer = OTHERS[random.below(OTHERS.len())];
            let path = node(&format!("n{}", random.below(12)));
            match random.below(20) {
                0 if readers.len() < 6 => readers.push((syncer, Reader::new(address, syncer))),
                1 if !readers.is_empty() => drop(readers.swap_remove(random.below(readers.len()))),
                2..=7 => store.delete(syncer, &path),
                8 => upstream.send([support::config("P", &step.to_string())]),
                _ => store.put(syncer, &path, &format!(r#"{{"step":{}}}"#, random.below(5)), &step.to_string()),
            }
        }
        for (syncer, reader) in &mut readers {
            let expected = store.objects(*syncer);
            reader.until(&format!("seed {seed}, {syncer}: {expected:?}"), |reader| {
                reader.statuses.last() == Some(&SyncStatus::InSync) && reader.texts() == expected
            });
        }
        let mut felix = Reader::in_sync(address, SyncerType::Felix);
        felix.until("Felix's", |felix| felix.objects.len() == upstream.truth.len());
        assert!(felix.objects.keys().all(|path| path == "/calico/v1/config/P"), "{:?}", felix.objects.keys());
    }
}
