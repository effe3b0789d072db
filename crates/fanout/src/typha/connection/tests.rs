use tortie_datastore::Event;
use tortie_model::{IpamBlock, Update};

use super::*;
use crate::cache::{Cache, CacheLimits, Instance};
use crate::typha::client::{ClientAction, ClientHello, ClientSession};
use crate::typha::messages::{ClientMessage, Hello, SerializedUpdate, client_definitions};

fn hub() -> Hub {
    Hub::new(Cache::new(Instance(1), CacheLimits::default(), Instant::now()))
}

impl AsRef<Hub> for Hub {
    fn as_ref(&self) -> &Hub {
        self
    }
}

/// A hub of Felix's alone.
impl Hubs for Hub {
    type Lease = Hub;

    fn lease(&self, _: SyncerType) -> Result<Hub, BoxError> {
        Ok(self.clone())
    }
}

/// Returns the numbers of snapshots that were written, and that were given to a further client.
fn snapshot_counts(hub: &Hub) -> (u64, u64) {
    let stats = hub.counters().read(None);
    (stats.snapshots_written, stats.snapshots_shared)
}

fn config(name: &str, value: Option<&str>) -> Update {
    Update::GlobalConfig(name.into(), value.map(Into::into))
}

fn send(hub: &Hub, updates: Vec<Update>) {
    let now = Instant::now();
    hub.take(Event::Updates { updates, noticed: now });
    hub.publish(now);
}

fn status(hub: &Hub, status: SyncStatus) {
    hub.take(Event::Status(status));
    hub.publish(Instant::now());
}

/// Client that records the received objects and statuses.
struct Client<S> {
    stream: S,
    session: ClientSession,
    objects: std::collections::BTreeMap<String, Vec<u8>>,
    statuses: Vec<SyncStatus>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn new(mut stream: S) -> Self {
        let (session, hello) = ClientSession::new(ClientHello::default(), ClientSession::limits());
        stream.write_all(&hello).await.unwrap();
        Self { stream, session, objects: Default::default(), statuses: Vec::new() }
    }

    async fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let mut buffer = vec![0; 10_000];
        while !done(self) {
            let count = self.stream.read(&mut buffer).await.unwrap_or_default();
            assert!(count > 0, "the server has hung up");
            let mut actions = Vec::new();
            self.session.received(&buffer[..count], &mut actions).unwrap();
            for action in actions {
                match action {
                    ClientAction::Send(bytes) => drop(self.stream.write_all(&bytes).await),
                    ClientAction::Status(status) => self.statuses.push(status),
                    ClientAction::Updates(updates) => {
                        for SerializedUpdate { key, value, .. } in updates {
                            if value.is_empty() {
                                self.objects.remove(&key)
                            } else {
                                self.objects.insert(key, value)
                            };
                        }
                    }
                    ClientAction::Welcome(_) => {}
                }
            }
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { tokio::time::timeout(Duration::from_secs(20), future).await.expect("in time") })
}

#[test]
fn a_snapshot_and_later_changes_are_sent() {
    block_on(async {
        let hub = hub();
        let many = (0..2500).map(|n| config(&format!("Parameter{n}"), Some("x"))).collect();
        send(&hub, many);
        status(&hub, SyncStatus::InSync);
        let (here, there) = tokio::io::duplex(4096);
        let settings = ServeSettings::default();
        let serving = serve((there, ()), b"", 1, &hub, &settings, std::future::pending());
        let client = async {
            let mut client = Client::new(here).await;
            client.until(|client| client.statuses == [SyncStatus::InSync]).await;
            assert_eq!(client.objects.len(), 2500);
            send(&hub, vec![config("Parameter7", None), config("Parameter8", Some("y"))]);
            client.until(|client| client.objects.len() == 2499).await;
            assert_eq!(client.objects["/calico/v1/config/Parameter8"], b"y");
            // A server that has lost its datastore reports that, and later sends the changes that
            // it finds.
            status(&hub, SyncStatus::Resync);
            client.until(|client| client.statuses.len() == 2).await;
            send(&hub, vec![config("Parameter8", Some("z"))]);
            status(&hub, SyncStatus::InSync);
            client.until(|client| client.statuses.len() == 3).await;
            assert_eq!(client.objects["/calico/v1/config/Parameter8"], b"z");
        };
        tokio::select! {
            end = serving => panic!("{end}"),
            () = client => {}
        }
        assert_eq!(snapshot_counts(&hub), (1, 0));
    });
}

/// Client without support of compression, like an old one.
#[test]
fn without_compression() {
    block_on(async {
        let hub = hub();
        send(&hub, (0..250).map(|n| config(&format!("Parameter{n}"), Some("x"))).collect());
        status(&hub, SyncStatus::InSync);
        let (mut here, there) = tokio::io::duplex(4096);
        let hello = Hello { supports_modern_policy_keys: true, ..Hello::default() };
        let bytes = [client_definitions(), &ClientMessage::Hello(hello).encode()].concat();
        let (first, rest) = bytes.split_at(1);
        here.write_all(rest).await.unwrap();
        let settings = ServeSettings::default();
        // The caller has read the first byte to identify the protocol.
        let serving = serve((there, ()), first, 1, &hub, &settings, std::future::pending());
        let (session, _) = ClientSession::new(ClientHello::default(), ClientSession::limits());
        let mut client = Client { stream: here, session, objects: Default::default(), statuses: Vec::new() };
        let client = async {
            client.until(|client| client.statuses == [SyncStatus::InSync]).await;
            assert_eq!(client.objects.len(), 250);
            send(&hub, vec![config("Parameter7", None)]);
            client.until(|client| client.objects.len() == 249).await;
        };
        tokio::select! {
            end = serving => panic!("{end}"),
            () = client => {}
        }
    });
}

#[test]
fn clients_share_a_snapshot_and_changes() {
    block_on(async {
        let hub = hub();
        send(&hub, (0..1000).map(|n| config(&format!("Parameter{n}"), Some("x"))).collect());
        status(&hub, SyncStatus::InSync);
        let mut clients = Vec::new();
        for connection in 0..20 {
            let (here, there) = tokio::io::duplex(4096);
            let hub = hub.clone();
            tokio::spawn(async move {
                serve((there, ()), b"", connection, &hub, &ServeSettings::default(), std::future::pending()).await
            });
            clients.push(Client::new(here).await);
        }
        for client in &mut clients {
            client.until(|client| client.statuses == [SyncStatus::InSync]).await;
        }
        for n in 0..300 {
            send(&hub, vec![config(&format!("Parameter{n}"), None)]);
        }
        for client in &mut clients {
            client.until(|client| client.objects.len() == 700).await;
        }
        assert_eq!(snapshot_counts(&hub), (1, 19));
    });
}

/// The second client of a shared snapshot is reported in sync only after it has received the newer
/// changes.
#[test]
fn a_shared_snapshot_is_completed_by_later_changes() {
    block_on(async {
        let hub = hub();
        status(&hub, SyncStatus::InSync);
        for connection in 0..2 {
            let (here, there) = tokio::io::duplex(4096);
            let settings = ServeSettings::default();
            let serving = serve((there, ()), b"", connection, &hub, &settings, std::future::pending());
            let client = async {
                let mut client = Client::new(here).await;
                client.until(|client| client.statuses == [SyncStatus::InSync]).await;
                client.objects.len()
            };
            let known = tokio::select! {
                end = serving => panic!("{end}"),
                known = client => known,
            };
            assert_eq!(known as u64, connection);
            send(&hub, vec![config("Parameter", Some("x"))]);
        }
        assert_eq!(snapshot_counts(&hub), (1, 1), "one is shared");
    });
}

/// Serves a client that sends its hello, confirms once, and then reads nothing.
async fn stuck(settings: ServeSettings, changes: bool) -> ServeEnd {
    let hub = hub();
    send(&hub, (0..3000).map(|n| config(&format!("Parameter{n}"), Some(&n.to_string().repeat(20)))).collect());
    let (mut here, there) = tokio::io::duplex(1024);
    let hello = Hello {
        supports_modern_policy_keys: true,
        supports_decoder_restart: changes,
        compressions: if changes { Vec::new() } else { vec!["snappy".into()] },
        ..Hello::default()
    };
    here.write_all(&[client_definitions(), &ClientMessage::Hello(hello).encode()].concat()).await.unwrap();
    serve((there, ()), b"", 1, &hub, &settings, std::future::pending()).await
}

#[test]
fn slow_clients_are_cut_off() {
    block_on(async {
        let settings = ServeSettings { write_timeout: Duration::from_millis(50), ..ServeSettings::default() };
        for changes in [false, true] {
            let end = stuck(settings.clone(), changes).await;
            assert!(matches!(end, ServeEnd::Stuck), "{end}");
        }
    });
}

#[test]
fn clients_that_fall_behind_are_cut_off() {
    block_on(async {
        let hub = hub();
        status(&hub, SyncStatus::InSync);
        let settings = ServeSettings {
            max_fall_behind: Duration::from_millis(50),
            grace: Duration::from_millis(100),
            ..ServeSettings::default()
        };
        let (here, there) = tokio::io::duplex(256);
        let serving = serve((there, ()), b"", 1, &hub, &settings, std::future::pending());
        let client = async {
            let mut client = Client::new(here).await;
            client.until(|client| client.statuses == [SyncStatus::InSync]).await;
            // It reads very little at a time while the datastore changes.
            let mut byte = [0; 64];
            for n in 0.. {
                let noise: String =
                    (0..2000u32).map(|k| char::from(b'a' + ((n * 7919 + k * k * 31 + k) % 23) as u8)).collect();
                send(
                    &hub,
                    (0..20).map(|k| config(&format!("Parameter{n}-{k}"), Some(&format!("{noise}{k}")))).collect(),
                );
                tokio::time::sleep(Duration::from_millis(2)).await;
                if client.stream.read(&mut byte).await.unwrap_or(0) == 0 {
                    break;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            end = serving => assert!(matches!(end, ServeEnd::FellBehind), "{end}"),
            () = client => {}
        }
    });
}

#[test]
fn silence_garbage_and_hanging_up() {
    block_on(async {
        let hub = hub();
        let mut settings = ServeSettings::default();
        settings.session.handshake_timeout = Duration::from_millis(50);
        let (_here, there) = tokio::io::duplex(64);
        let end = serve((there, ()), b"", 1, &hub, &settings, std::future::pending()).await;
        assert!(matches!(end, ServeEnd::Rule(ServerEnd::NoHello)), "{end}");
        let (mut here, there) = tokio::io::duplex(64);
        here.write_all(&[0x80; 10]).await.unwrap();
        let end = serve((there, ()), b"", 1, &hub, &settings, std::future::pending()).await;
        assert!(matches!(end, ServeEnd::Rule(ServerEnd::Wire(_))), "{end}");
        let (here, there) = tokio::io::duplex(64);
        drop(here);
        assert!(matches!(serve((there, ()), b"", 1, &hub, &settings, std::future::pending()).await, ServeEnd::Left));
        let (_here, there) = tokio::io::duplex(64);
        let end = serve((there, ()), b"", 1, &hub, &settings, std::future::ready(())).await;
        assert!(matches!(end, ServeEnd::Closed), "{end}");
    });
}

fn block(third: u8, value: Option<&str>) -> Update {
    let cidr = format!("10.0.{third}.0/26").parse().unwrap();
    let block = |text: &str| IpamBlock { text: text.into(), affinity: None, borrowed: [].into() };
    Update::Block(cidr, value.map(|text| block(text).into()))
}

/// IPAM blocks, from which a Felix programs routes between nodes, are sent, updated and deleted.
#[test]
fn blocks_are_sent_removed_and_in_later_snapshots() {
    block_on(async {
        let hub = hub();
        let text = |third: u8, node: &str| format!(r#"{{"cidr":"10.0.{third}.0/26","affinity":"host:{node}"}}"#);
        send(&hub, (0..=255).map(|third| block(third, Some(&text(third, "a")))).collect());
        status(&hub, SyncStatus::InSync);
        let path = |third: u8| format!("/calico/ipam/v2/assignment/ipv4/block/10.0.{third}.0-26");
        let connect = || {
            let (here, there) = tokio::io::duplex(4096);
            let hub = hub.clone();
            let serving = tokio::spawn(async move {
                serve((there, ()), b"", 1, &hub, &ServeSettings::default(), std::future::pending()).await
            });
            (Client::new(here), serving)
        };
        let (client, _serving) = connect();
        let mut client = client.await;
        client.until(|client| client.statuses == [SyncStatus::InSync]).await;
        assert_eq!(client.objects.len(), 256);
        assert_eq!(client.objects[&path(7)], text(7, "a").as_bytes());
        send(&hub, vec![block(7, Some(&text(7, "b"))), block(8, None)]);
        client.until(|client| client.objects.len() == 255).await;
        assert_eq!(client.objects[&path(7)], text(7, "b").as_bytes());
        // The source restarts, and has found one block less.
        status(&hub, SyncStatus::Resync);
        send(&hub, vec![block(7, Some(&text(7, "b"))), block(9, None)]);
        status(&hub, SyncStatus::InSync);
        client.until(|client| client.statuses.len() == 3).await;
        let (late, _serving) = connect();
        let mut late = late.await;
        late.until(|client| client.statuses.last() == Some(&SyncStatus::InSync)).await;
        assert_eq!(late.objects, client.objects);
        assert_eq!((late.objects.len(), late.objects.get(&path(9))), (254, None));
    });
}
