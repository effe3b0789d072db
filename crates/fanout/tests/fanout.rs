//! Servers and clients of our protocol, over real connections.
#![allow(clippy::disallowed_methods, reason = "tests wait and look at clocks")]

mod support;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tortie_datastore::{Fallback, watch};
use tortie_fanout::cache::CacheLimits;
use tortie_fanout::client::{ClientConfig, FanoutSource};
use tortie_fanout::protocol::frame::{self, Compression};
use tortie_fanout::protocol::{ClientHello, MAGIC, ToServer, VERSION, client};
use tortie_fanout::server::{Server, ServerConfig};
use tortie_fanout::typha::{self, ClientAction, ClientSession, TyphaOptions, TyphaSource};
use tortie_fanout::{DiscoveryError, ServerDiscovery};
use tortie_lab::etcd::Proxy;
use tortie_model::{Key, SyncStatus, Update};
use tortie_resources::syncer::SyncerType;

use support::{Client, Upstream, block, client_config, config, eventually, host_config, quick, serve, workload};

fn greeting(version: u8, node: &str) -> Vec<u8> {
    let hello = ClientHello { version: VERSION, node: node.into(), software: "test".into(), ..ClientHello::default() };
    let hello = ToServer { message: Some(client::Message::Hello(hello)) };
    let mut bytes = MAGIC.to_vec();
    bytes[7] = version;
    bytes.extend_from_slice(&frame::encode(&hello, Compression::None));
    bytes
}

#[test]
fn clients_have_the_upstream_state() {
    let (mut upstream, server) = serve(quick());
    let mut early = Client::of(server.addresses(), None);
    early.until("a resync has begun", |client| client.statuses.contains(&SyncStatus::Resync));
    upstream.send((0..3000).map(|number| config(&format!("P{number}"), "1")));
    upstream.resync();
    early.knows(&upstream.truth);
    let mut late = Client::of(server.addresses(), None);
    late.knows(&upstream.truth);
    upstream.send((0..500).map(|number| config(&format!("P{number}"), "2")));
    upstream.send((200..400).map(|number| Update::delete(Key::GlobalConfig(format!("P{number}").as_str().into()))));
    early.knows(&upstream.truth);
    late.knows(&upstream.truth);
    assert_eq!(early.statuses, [SyncStatus::WaitForDatastore, SyncStatus::Resync, SyncStatus::InSync]);
    let stats = server.stats();
    assert_eq!((stats.accepted, stats.active, stats.resumed), (2, 2, 0));
    assert_eq!(server.stats_of(SyncerType::Felix).streaming, 2);
    drop(early);
    eventually("a connection less", || server.stats().active == 1);
}

#[test]
fn an_idle_server_gives_signs_of_life() {
    let patience = Duration::from_secs(2);
    let begin = Instant::now();
    let (_upstream, server) = serve(quick());
    eventually("heartbeats after a while", || begin.elapsed() > 2 * patience && server.silent(patience).is_empty());
    assert!(!server.silent(Duration::ZERO).is_empty(), "a sign of life is an instant");
}

#[test]
fn clients_without_a_node_receive_versions_through_any_number_of_servers() {
    let (mut upstream, server) = serve(quick());
    upstream.send_at(config("A", "1"), "41");
    upstream.send_at(host_config("n", "B", "1"), "42");
    upstream.send([config("C", "1")]);
    upstream.resync_at(|key| (*key != config("C", "1").key()).then_some("43"));
    let first = FanoutSource::new(client_config(server.addresses(), None)).unwrap();
    let second = Server::start(quick(), watch(first).unwrap()).unwrap();
    let typha = TyphaSource::new(TyphaOptions::new(vec![server.addresses()[0].to_string()], "tool")).unwrap();
    let mut tool = Client::of(second.addresses(), None);
    let mut typhas = Client::from(typha.with_versions());
    let mut node = Client::of(server.addresses(), Some("n"));
    let versions_of = |client: &Client| client.versions.values().map(ToString::to_string).collect::<Vec<_>>();
    for client in [&mut tool, &mut typhas] {
        client.knows(&upstream.truth);
        // A server that read the values before they were sent again keeps their first versions.
        let versions = versions_of(client);
        let is_told =
            matches!(&versions.iter().map(String::as_str).collect::<Vec<_>>()[..], ["41" | "43", "42" | "43"]);
        assert!(is_told, "{:?}", client.versions);
    }
    // Another value has another version; a new version of the same value causes no update.
    upstream.send_at(config("A", "2"), "50");
    upstream.send_at(host_config("n", "B", "1"), "51");
    for client in [&mut tool, &mut typhas] {
        let unchanged = client.versions[&host_config("n", "B", "1").key()].clone();
        client.knows(&upstream.truth);
        assert_eq!(client.versions[&config("A", "2").key()].as_ref(), "50");
        assert_eq!(client.versions[&host_config("n", "B", "1").key()], unchanged);
    }
    node.knows(&upstream.truth);
    assert!(node.versions.is_empty(), "{:?}", node.versions);
    for server in [&server, &second] {
        let mut late = Client::of(server.addresses(), None);
        late.knows(&upstream.truth);
        let versions = versions_of(&late);
        let is_told = matches!(&versions.iter().map(String::as_str).collect::<Vec<_>>()[..], ["50", "42" | "43"]);
        assert!(is_told, "{versions:?}");
    }
}

/// Returns one list of servers after the other.
#[derive(Debug)]
struct ServerLists {
    servers: Mutex<VecDeque<Vec<String>>>,
    connected: AtomicUsize,
}

impl ServerDiscovery for ServerLists {
    fn servers(&self) -> Result<Vec<String>, DiscoveryError> {
        let mut servers = self.servers.lock().expect("no panic");
        servers.pop_front().ok_or_else(|| DiscoveryError::NoServer { place: "the list".to_owned() })
    }

    fn connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn servers_are_discovered_before_each_connection_and_success_is_reported() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (upstream, server) = serve(quick());
    upstream.resync();
    let lists = Arc::new(ServerLists {
        servers: Mutex::new([vec![closed.to_string()], vec![server.addresses()[0].to_string()]].into()),
        connected: AtomicUsize::new(0),
    });
    let source = FanoutSource::new(client_config(&[], None)).unwrap();
    let mut client = Client::from(source.with_discovery(Arc::clone(&lists) as Arc<dyn ServerDiscovery>));
    client.knows(&upstream.truth);
    assert_eq!(lists.servers.lock().unwrap().len(), 0);
    eventually("the success is reported", || lists.connected.load(Ordering::Relaxed) == 1);
}

#[test]
fn an_unsendable_object_is_a_problem_of_the_clients() {
    let limits = CacheLimits { value_bytes: 100, ..CacheLimits::default() };
    let (mut upstream, server) = serve(ServerConfig { limits, ..quick() });
    upstream.send([config("A", "1")]);
    upstream.resync();
    let mut client = Client::of(server.addresses(), None);
    client.knows(&upstream.truth);
    upstream.send([config("A", &"x".repeat(101))]);
    let about = |description: &str| {
        let description = description.to_owned();
        move |client: &Client| client.problems.iter().any(|problem| problem.to_string() == description)
    };
    client.until(
        "the problem is reported",
        about("parameter A: has 101 bytes, more than the 100 that the fan-out sends"),
    );
    assert_eq!(client.problems[0].fallback, Fallback::LastGood);
    // A later client gets the problem as well.
    let mut late = Client::of(server.addresses(), None);
    late.until("the problem is reported", |client| client.problems.len() == 1);
    upstream.send([config("A", "2")]);
    client.until("it is over", |client| client.problems.is_empty());
    client.knows(&upstream.truth);
}

#[test]
fn a_node_receives_the_objects_that_it_needs() {
    let (mut upstream, server) = serve(quick());
    upstream.send([
        config("All", "1"),
        host_config("here", "Mine", "1"),
        host_config("there", "Theirs", "1"),
        workload("here", "w1", "10.0.0.1/32"),
        workload("there", "w2", "10.0.0.2/32"),
        block("10.0.0.0/26", "here"),
    ]);
    upstream.resync();
    let expected = |upstream: &Upstream, blocks: bool| {
        let reduced = |(key, update): (&Key, &Update)| match update {
            Update::HostConfig(key, _) if key.host.as_str() != "here" && !key.name.as_str().contains("VXLANTunnel") => {
                None
            }
            Update::Block(..) if !blocks => None,
            Update::WorkloadEndpoint(id, Some(endpoint)) if id.host() != "here" => {
                let endpoint = endpoint.clone().for_other_node();
                Some((key.clone(), Update::WorkloadEndpoint(id.clone(), Some(endpoint))))
            }
            _ => Some((key.clone(), update.clone())),
        };
        upstream.truth.iter().filter_map(reduced).collect()
    };
    let mut node = Client::of(server.addresses(), Some("here"));
    let mut all = Client::of(server.addresses(), None);
    let mut router = Client::with(ClientConfig { blocks: true, ..client_config(server.addresses(), Some("here")) });
    node.knows(&expected(&upstream, false));
    router.knows(&expected(&upstream, true));
    all.knows(&upstream.truth);
    // Changes of the node's own objects, of other nodes' objects, of objects that only other nodes
    // need, and of several at once.
    let edits = [
        vec![workload("here", "w1", "10.0.0.3/32")],
        vec![workload("there", "w2", "10.0.0.4/32")],
        vec![host_config("there", "Theirs", "2"), host_config("there", "IPv4VXLANTunnelAddr", "10.0.0.6")],
        vec![host_config("there", "VXLANTunnelMACAddr", "66:00:00:00:00:01")],
        vec![
            host_config("there", "IPv4VXLANTunnelAddr", "10.0.0.7"),
            host_config("here", "IPv4VXLANTunnelAddr", "10.0.0.1"),
        ],
        vec![Update::delete(host_config("there", "VXLANTunnelMACAddr", "").key())],
        vec![block("10.0.0.0/26", "there"), block("10.0.0.64/26", "there")],
        vec![Update::delete(block("10.0.0.0/26", "").key())],
        vec![host_config("here", "Mine", "2"), host_config("there", "Theirs", "3"), config("All", "2")],
        vec![
            Update::delete(workload("here", "w1", "10.0.0.3/32").key()),
            Update::delete(workload("there", "w2", "10.0.0.3/32").key()),
            Update::delete(host_config("there", "Theirs", "").key()),
        ],
    ];
    for edit in edits {
        upstream.send(edit);
        node.knows(&expected(&upstream, false));
        router.knows(&expected(&upstream, true));
        all.knows(&upstream.truth);
    }
    assert_eq!((node.deleted, router.deleted), (3, 4));
}

#[test]
fn a_returning_client_receives_only_missed_changes() {
    let (mut upstream, server) = serve(quick());
    let proxy = Proxy::to(server.addresses()[0]).unwrap();
    upstream.send((0..100).map(|number| config(&format!("P{number}"), "1")));
    upstream.resync();
    let mut client = Client::of(&[proxy.address()], Some("here"));
    client.knows(&upstream.truth);
    let sent = server.stats_of(SyncerType::Felix).bytes_sent;
    proxy.cut();
    eventually("the connection is gone", || server.stats().active == 0);
    upstream.send([config("P1", "2"), Update::delete(Key::GlobalConfig("P2".into()))]);
    proxy.heal();
    client.knows(&upstream.truth);
    assert_eq!((client.resyncs(), client.deleted, server.stats().resumed), (1, 1, 1));
    assert!(
        server.stats_of(SyncerType::Felix).bytes_sent - sent < 500,
        "{}",
        server.stats_of(SyncerType::Felix).bytes_sent - sent
    );
    assert!(!client.unavailable.is_empty(), "the loss is reported");
    // Silence is noticed, too.
    proxy.hold_data();
    upstream.send([config("P3", "3")]);
    eventually("the silent client is disconnected", || server.stats().silent == 1);
    proxy.heal();
    client.knows(&upstream.truth);
    assert_eq!((client.resyncs(), server.stats_of(SyncerType::Felix).snapshots_written), (1, 1));
}

#[test]
fn a_gap_that_the_server_does_not_know_is_closed_by_a_resync() {
    let limits = CacheLimits { log_bytes: 50, ..Default::default() };
    let (mut upstream, server) = serve(ServerConfig { limits, ..quick() });
    let proxy = Proxy::to(server.addresses()[0]).unwrap();
    upstream.send([config("A", "1"), config("B", "1")]);
    upstream.resync();
    let mut client = Client::of(&[proxy.address()], Some("here"));
    client.knows(&upstream.truth);
    proxy.cut();
    eventually("the connection is gone", || server.stats().active == 0);
    upstream.send([Update::delete(Key::GlobalConfig("A".into())), config("C", &"x".repeat(100)), config("D", "1")]);
    eventually("all is published", || server.hub().stats().entries == 3);
    proxy.heal();
    client.knows(&upstream.truth);
    assert_eq!((client.resyncs(), client.deleted, server.stats().resumed), (2, 1, 0));
}

#[test]
fn a_restarted_server_deletes_nothing_before_it_is_in_sync() {
    let (mut upstream, server) = serve(quick());
    upstream.send([config("A", "1"), config("B", "1")]);
    upstream.resync();
    let address = server.addresses()[0];
    let mut client = Client::of(&[address], Some("here"));
    client.knows(&upstream.truth);
    drop(server);
    let (mut again, watching) = Upstream::new();
    let server = Server::start(ServerConfig { listen: vec![address], ..quick() }, watching);
    let server = server.unwrap();
    client.until("it is connected again", |client| client.resyncs() == 2);
    // The new server does not know anything yet.
    for _ in 0..10 {
        client.listen(Duration::from_millis(10));
    }
    assert_eq!((client.deleted, client.known.len()), (0, 2));
    again.send([config("B", "1"), config("C", "1")]);
    again.resync();
    client.knows(&again.truth);
    assert_eq!((client.deleted, server.stats().accepted), (1, 1));
}

#[test]
fn everything_is_resent_on_request() {
    let (mut upstream, server) = serve(quick());
    upstream.send([config("A", "1"), config("B", "1")]);
    upstream.resync();
    let mut client = Client::of(server.addresses(), Some("here"));
    client.knows(&upstream.truth);
    for _ in 0..3 {
        client.restart();
        upstream.send([config("A", "2")]);
        client.knows(&upstream.truth);
    }
    // A restart works while no server is running, too.
    let address = server.addresses()[0];
    drop(server);
    client.until("the loss is reported", |client| !client.unavailable.is_empty());
    client.restart();
    let (mut upstream, watching) = Upstream::new();
    let server = Server::start(ServerConfig { listen: vec![address], ..quick() }, watching);
    upstream.send([config("C", "1")]);
    upstream.resync();
    client.knows(&upstream.truth);
    drop(server);
}

#[test]
fn a_slow_client_is_disconnected_and_delays_no_other_client() {
    let behind = ServerConfig { max_bytes_behind: 8_000_000, grace: Duration::ZERO, ..quick() };
    let stuck = ServerConfig { write_timeout: Duration::from_millis(700), ..quick() };
    // One client reads almost nothing, the other nothing at all.
    for (server_config, trickles) in [(behind, true), (stuck, false)] {
        let (mut upstream, server) = serve(ServerConfig { heartbeat: Duration::from_secs(10), ..server_config });
        upstream.send([config("A", "1")]);
        upstream.resync();
        let mut quick = Client::of(server.addresses(), None);
        quick.knows(&upstream.truth);
        let mut slow = TcpStream::connect(server.addresses()[0]).unwrap();
        slow.write_all(&greeting(1, "")).unwrap();
        eventually("both are served", || server.stats_of(SyncerType::Felix).streaming == 2);
        let mut state = 1_u64;
        let noise = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            format!("{state:016x}")
        };
        let noise: String = (0..8000).map(noise).collect();
        let until = Instant::now() + support::SOON;
        for number in 0.. {
            if server.stats().too_slow > 0 {
                break;
            }
            assert!(Instant::now() < until, "{:?}", server.stats());
            upstream.send([config("A", &format!("{number}{noise}"))]);
            if trickles {
                let _ = slow.read(&mut [0; 1024]);
            }
            quick.listen(Duration::from_millis(5));
        }
        quick.knows(&upstream.truth);
        assert_eq!((quick.resyncs(), server.stats().too_slow), (1, 1));
    }
}

#[test]
fn a_server_that_ends_sends_its_clients_elsewhere() {
    let (mut upstream, first) = serve(quick());
    let (mut upstream2, second) = serve(quick());
    for upstream in [&mut upstream, &mut upstream2] {
        upstream.send([config("A", "1")]);
        upstream.resync();
    }
    let servers = [first.addresses()[0], second.addresses()[0]];
    let mut clients: Vec<Client> = (0..6).map(|_| Client::of(&servers, Some("here"))).collect();
    for client in &mut clients {
        client.knows(&upstream.truth);
    }
    let started = Instant::now();
    first.drain(Duration::from_secs(60));
    assert!(started.elapsed() < Duration::from_secs(30), "every client left before the time limit");
    assert_eq!(first.stats().active, 0);
    drop(first);
    upstream2.send([config("A", "2")]);
    for client in &mut clients {
        client.knows(&upstream2.truth);
        assert_eq!(client.deleted, 0);
        assert!(client.unavailable.is_empty(), "{:?}", client.unavailable);
    }
    eventually("all are there", || second.stats_of(SyncerType::Felix).streaming == 6);
}

#[test]
fn more_than_a_share_are_sent_elsewhere_and_too_many_refused() {
    let share = ServerConfig { servers: 2, least_share: 2, ..quick() };
    let (mut upstream, first) = serve(share);
    let (mut upstream2, second) = serve(ServerConfig { max_connections: 3, ..quick() });
    for upstream in [&mut upstream, &mut upstream2] {
        upstream.send([config("A", "1")]);
        upstream.resync();
    }
    let servers = [first.addresses()[0], second.addresses()[0]];
    let mut clients: Vec<Client> = (0..5).map(|_| Client::of(&servers, Some("here"))).collect();
    for client in &mut clients {
        client.knows(&upstream.truth);
    }
    eventually("two here, three there", || first.stats().active == 2 && second.stats().active == 3);
    let mut refused = TcpStream::connect(servers[1]).unwrap();
    assert!(matches!(refused.read(&mut [0]), Ok(0) | Err(_)));
    assert!(second.stats().refused > 0);
    for client in &mut clients {
        client.knows(&upstream.truth);
    }
}

/// Returns the server's answer to these bytes, until it closes the connection.
fn answer(server: SocketAddr, greeting: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(support::SOON))?;
    stream.write_all(greeting)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_client_over_the_limit_receives_the_reason() {
    let (mut upstream, server) = serve(ServerConfig { max_connections: 1, ..quick() });
    upstream.send([config("A", "1")]);
    upstream.resync();
    let mut first = Client::of(server.addresses(), None);
    first.knows(&upstream.truth);

    let mut second = Client::of(server.addresses(), None);
    second.until("the client reports the reason", |client| {
        client.unavailable.iter().any(|why| why.contains("too many connections"))
    });

    let (mut felix, greeting) = ClientSession::new(typha::ClientHello::default(), ClientSession::limits());
    let mut actions = Vec::new();
    felix.received(&answer(server.addresses()[0], &greeting).unwrap(), &mut actions).unwrap();
    let [ClientAction::Welcome(welcome)] = &actions[..] else { panic!("{actions:?}") };
    assert!(welcome.version.contains("too many connections"), "{}", welcome.version);
    assert_eq!(server.stats().active, 1);
    drop(first);
    second.knows(&upstream.truth);
}

#[test]
fn silent_clients_over_the_limit_take_no_more_than_their_share() {
    let patience = Duration::from_secs(1);
    let (_upstream, server) = serve(ServerConfig { max_connections: 0, handshake_timeout: patience, ..quick() });
    let connect = || {
        let stream = TcpStream::connect(server.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(support::SOON)).unwrap();
        stream
    };
    let silent: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    eventually("all connections are refused", || server.stats().refused == 200);
    let ends = |mut stream: TcpStream| matches!(stream.read(&mut [0]), Ok(0) | Err(_));
    let at_once = silent.iter().filter(|stream| {
        stream.set_nonblocking(true).unwrap();
        let open = matches!((&mut &**stream).read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
        !open
    });
    assert!(at_once.count() >= 100, "most are not even listened to");
    let started = Instant::now();
    assert!(silent.into_iter().all(ends));
    assert!(started.elapsed() < patience + support::SOON);
    let text = String::from_utf8_lossy(&answer(server.addresses()[0], &greeting(1, "")).unwrap()).into_owned();
    assert!(text.contains("too many connections"), "there is room to answer others: {text}");
}

/// Three silent connections of one address take its share of connections before the hello. They
/// take none of another address.
#[test]
fn an_address_with_silent_connections_gets_no_more_and_others_do() {
    let (mut upstream, server) =
        serve(ServerConfig { max_per_address: 24, handshake_timeout: Duration::from_secs(30), ..quick() });
    upstream.send([config("A", "1")]);
    upstream.resync();
    let server_address = server.addresses()[0];
    let mut silent: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(server_address).unwrap()).collect();
    eventually("all are taken", || server.stats().active == 3);
    let mut further = TcpStream::connect(server_address).unwrap();
    further.set_read_timeout(Some(support::SOON)).unwrap();
    assert!(matches!(further.read(&mut [0]), Ok(0) | Err(_)), "a fourth is closed");
    eventually("it is counted", || server.stats().refused == 1);
    // A complete hello makes room for the next connection, in both protocols.
    silent[0].write_all(&greeting(1, "")).unwrap();
    silent[1].write_all(&ClientSession::new(typha::ClientHello::default(), ClientSession::limits()).1).unwrap();
    for stream in &mut silent[..2] {
        stream.set_read_timeout(Some(support::SOON)).unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
    }
    let mut client = Client::of(server.addresses(), None);
    client.knows(&upstream.truth);
}

#[test]
fn a_peer_without_the_protocol_is_disconnected_in_time() {
    let (mut upstream, server) = serve(quick());
    upstream.send([config("A", "1")]);
    upstream.resync();
    let hello = greeting(1, "");
    let mut huge = MAGIC.to_vec();
    huge.extend_from_slice(&[0xff; 64]);
    let mut twice = hello.clone();
    twice.extend_from_slice(&hello[8..]);
    let mut chatty = hello.clone();
    let beat = ToServer { message: Some(client::Message::Heartbeat(Default::default())) };
    for _ in 0..1000 {
        chatty.extend_from_slice(&frame::encode(&beat, Compression::None));
    }
    let bad: [(&str, &[u8]); 9] = [
        ("nothing", b""),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("the half of a greeting", &hello[..20]),
        ("a frame that is too long", &huge),
        ("noise", b"\xb7TORTIE\x01\x05\0\0\0\0\xff\xff\xff\xff"),
        ("no hello", &[&MAGIC[..], &frame::encode(&beat, Compression::None)].concat()),
        ("two hellos", &twice),
        ("too many messages", &chatty),
        ("a version to come", &greeting(2, "")),
    ];
    for (description, bytes) in bad {
        let mut stream = TcpStream::connect(server.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(support::SOON)).unwrap();
        let started = Instant::now();
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        assert!(!matches!(&end, Err(error) if error.kind() == ErrorKind::WouldBlock), "{description}");
        assert!(started.elapsed() < Duration::from_secs(15), "{description}: {:?}", started.elapsed());
        if description == "a version to come" {
            assert!(String::from_utf8_lossy(&answer).contains("version of the protocol"), "{description}");
        }
    }
    eventually("all are gone", || server.stats().active == 0);
    let mut client = Client::of(server.addresses(), None);
    client.knows(&upstream.truth);
}
