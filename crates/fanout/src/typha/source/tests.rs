use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tortie_datastore::{Event, Watching, channel, watch};
use tortie_model::Update;

use crate::DiscoveryError;
use crate::server::{Server, ServerConfig};
use crate::tls::PeerNames;
use crate::tls::tests::issue;
use crate::typha::messages::{self, SerializedUpdate, ServerMessage, Welcome};
use tortie_lab::certificates::Authority;

use super::*;

fn ready() -> Update {
    Update::Ready(Some(true))
}

fn serve(tls: Option<TlsSettings>) -> (Feed, Server) {
    let (feed, upstream) = channel();
    let config =
        ServerConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], tls, threads: 1, ..ServerConfig::default() };
    let server = Server::start(config, upstream).unwrap();
    feed.begin_resync().unwrap();
    feed.send([ready()], Instant::now()).unwrap();
    feed.end_resync().unwrap();
    (feed, server)
}

fn options(servers: &[String]) -> TyphaOptions {
    let mut options = TyphaOptions::new(servers.to_vec(), "node-1");
    options.read_timeout = Duration::from_millis(300);
    options.min_pause = Duration::from_millis(10);
    options.max_pause = Duration::from_millis(50);
    options
}

/// Returns the updates until the source is in sync, and the reasons why it was unavailable.
fn until_in_sync(watching: &Watching) -> (Vec<Update>, Vec<String>) {
    let (mut received, mut failures) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        match watching.events.recv_timeout(Duration::from_millis(100)) {
            Some(Event::Updates { updates, .. }) => received.extend(updates),
            Some(Event::Unavailable { why, .. }) => failures.push(why),
            Some(Event::Status(SyncStatus::InSync)) => return (received, failures),
            _ => {}
        }
    }
    panic!("not in sync: {received:?} {failures:?}");
}

#[test]
fn servers_that_are_of_no_use_are_passed_over() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let rude = TcpListener::bind("127.0.0.1:0").unwrap();
    let rude_address = rude.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in rude.incoming().map_while(Result::ok) {
            let _ = stream.write_all(&[0x80; 200]);
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let (_feed, server) = serve(None);
    let addresses = [closed, silent.local_addr().unwrap(), rude_address, server.addresses()[0]];
    let watching = watch(TyphaSource::new(options(&addresses.map(|address| address.to_string()))).unwrap()).unwrap();
    let (updates, failures) = until_in_sync(&watching);
    assert_eq!(updates, [ready()]);
    // Of several consecutive reasons, at least the newest is received.
    assert!(failures.last().is_some_and(|why| why.starts_with(&rude_address.to_string())), "{failures:?}");
}

#[derive(Debug)]
struct ServerLists {
    servers: Mutex<VecDeque<Vec<String>>>,
    connected: AtomicUsize,
}

impl ServerDiscovery for ServerLists {
    fn servers(&self) -> Result<Vec<String>, DiscoveryError> {
        let mut servers = self.servers.lock().unwrap();
        servers.pop_front().ok_or_else(|| DiscoveryError::NoServer { place: "the list".to_owned() })
    }

    fn connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn servers_are_discovered_before_each_connection_and_success_is_reported() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (_feed, server) = serve(None);
    let lists = Arc::new(ServerLists {
        servers: Mutex::new([vec![closed.to_string()], vec![server.addresses()[0].to_string()]].into()),
        connected: AtomicUsize::new(0),
    });
    let discovery = Arc::clone(&lists) as Arc<dyn ServerDiscovery>;
    let watching = watch(TyphaSource::new(options(&[])).unwrap().with_discovery(discovery)).unwrap();
    assert_eq!(until_in_sync(&watching).0, [ready()]);
    assert_eq!((lists.servers.lock().unwrap().len(), lists.connected.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn both_sides_ask_for_a_name() {
    let folder = tempfile::TempDir::new().unwrap();
    let authority = Authority::new().unwrap();
    let settings = |who: &str, peer: &str| TlsSettings {
        files: issue(&authority, folder.path(), who, who, None),
        peer: PeerNames::new(Some(peer.into()), None).unwrap(),
    };
    let (_feed, server) = serve(Some(settings("typha-server", "typha-client")));
    let address = [server.addresses()[0].to_string()];
    let with = |tls| TyphaSource::new(TyphaOptions { tls, ..options(&address) }).unwrap();
    let good = watch(with(Some(settings("typha-client", "typha-server")))).unwrap();
    assert_eq!(until_in_sync(&good).0, [ready()]);
    for tls in
        [None, Some(settings("another-client", "typha-server")), Some(settings("typha-client", "another-server"))]
    {
        let watching = watch(with(tls)).unwrap();
        let events: Vec<Event> =
            (0..10).filter_map(|_| watching.events.recv_timeout(Duration::from_millis(50))).collect();
        assert!(events.iter().all(|event| matches!(event, Event::Unavailable { .. })), "{events:?}");
        assert!(!events.is_empty());
    }
}

/// The second connection begins with a snapshot from before the object existed. The server sends
/// the object only after it has reported to be in sync.
#[test]
fn a_server_that_is_in_sync_too_early_deletes_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = [listener.local_addr().unwrap().to_string()];
    let (hang_up, told_to) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let welcome = Welcome { supports_node_resource_updates: true, ..Welcome::default() };
        let begin = [messages::server_definitions(), &ServerMessage::Welcome(welcome).encode()].concat();
        let in_sync = ServerMessage::SyncStatus(SyncStatus::InSync).encode();
        let object =
            SerializedUpdate { key: "/calico/v1/Ready".into(), value: "true".into(), ..SerializedUpdate::default() };
        let object = ServerMessage::Kvs(vec![object]).encode();
        for (mut stream, late) in listener.incoming().map_while(Result::ok).zip([false, true]) {
            let [first, second] = if late { [&in_sync, &object] } else { [&object, &in_sync] };
            stream.write_all(&[&begin, first].map(Vec::as_slice).concat()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            stream.write_all(second).unwrap();
            let _ = told_to.recv();
        }
    });
    // It sends no pings, and may take its time on a busy machine.
    let options =
        TyphaOptions { read_timeout: Duration::from_secs(10), settle: Duration::from_secs(1), ..options(&address) };
    let watching = watch(TyphaSource::new(options).unwrap()).unwrap();
    assert_eq!(until_in_sync(&watching).0, [ready()]);
    hang_up.send(()).unwrap();
    let (updates, _) = until_in_sync(&watching);
    assert!(updates.iter().all(Update::exists), "{updates:?}");
}
