use super::super::client::{ClientAction, ClientHello, ClientSession};
use super::super::messages::{ClientMessage, Hello, client_definitions};
use super::*;

fn felix() -> Hello {
    Hello {
        hostname: "node-1".into(),
        syncer_type: "felix".into(),
        supports_decoder_restart: true,
        compressions: vec!["lz4".into(), SNAPPY.into()],
        supports_modern_policy_keys: true,
        ..Hello::default()
    }
}

fn wall() -> GoTime {
    GoTime { seconds: 1, nanoseconds: 2, offset: None }
}

struct Bench {
    session: ServerSession,
    begun: bool,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        Self { session: ServerSession::new(7, ServerSettings::default(), now), begun: false, now }
    }

    fn send(&mut self, message: &ClientMessage) -> Vec<ServerAction> {
        let mut bytes =
            if std::mem::replace(&mut self.begun, true) { Vec::new() } else { client_definitions().to_vec() };
        bytes.extend(message.encode());
        let (most, last) = bytes.split_at(bytes.len() - 1);
        assert_eq!(self.session.received(most, self.now), []);
        self.session.received(last, self.now)
    }

    fn after(&mut self, seconds: u64) -> Vec<ServerAction> {
        self.now += Duration::from_secs(seconds);
        self.session.tick(self.now, wall())
    }

    /// As far as the end of the second restart.
    fn following() -> Self {
        let mut bench = Self::new();
        bench.send(&ClientMessage::Hello(felix()));
        bench.send(&ClientMessage::Ack);
        assert_eq!(bench.session.snapshot_sent(bench.now), []);
        let [ServerAction::Send(begin), ServerAction::Follow { compressed: true }] =
            &bench.send(&ClientMessage::Ack)[..]
        else {
            panic!()
        };
        assert!(begin.starts_with(snappy::STREAM_BEGIN));
        bench
    }
}

fn close(end: ServerEnd) -> Vec<ServerAction> {
    vec![ServerAction::Close(end)]
}

const PONG: ClientMessage = ClientMessage::Pong { ping: None, pong: None };

#[test]
fn nothing_compressed_before_it_is_confirmed() {
    let mut bench = Bench::new();
    let [ServerAction::Send(greeting)] = &bench.send(&ClientMessage::Hello(felix()))[..] else { panic!() };
    assert!(greeting.starts_with(messages::server_definitions()));
    assert!(!greeting.windows(4).any(|bytes| bytes == b"sNaP"));
    assert_eq!(bench.send(&ClientMessage::Ack), [ServerAction::Snapshot { compressed: true }]);
    assert_eq!(bench.session.snapshot_sent(bench.now), []);
    assert_eq!(bench.send(&ClientMessage::Ack).len(), 2);
    assert_eq!(bench.session.hello().map(|hello| &*hello.hostname), Some("node-1"));
}

#[test]
fn a_client_may_confirm_before_we_know_that_all_is_sent() {
    let mut bench = Bench::new();
    bench.send(&ClientMessage::Hello(felix()));
    bench.send(&ClientMessage::Ack);
    assert_eq!(bench.send(&ClientMessage::Ack), []);
    assert!(matches!(bench.session.snapshot_sent(bench.now)[..], [_, ServerAction::Follow { compressed: true }]));
}

#[test]
fn clients_without_restart_or_compression() {
    for (supports_decoder_restart, compressions) in [(false, vec![SNAPPY.into()]), (true, Vec::new())] {
        let mut bench = Bench::new();
        let hello = Hello { supports_decoder_restart, compressions, syncer_type: String::new(), ..felix() };
        let actions = bench.send(&ClientMessage::Hello(hello));
        assert!(matches!(actions[..], [ServerAction::Send(_), ServerAction::Snapshot { compressed: false }]));
        assert_eq!(bench.session.snapshot_sent(bench.now), [ServerAction::Follow { compressed: false }]);
    }
}

#[test]
fn clients_that_are_turned_away() {
    for syncer_type in ["bgp", "tunnel-ip-allocation", "node-status", "Felix"] {
        let mut bench = Bench::new();
        let hello = Hello { syncer_type: syncer_type.into(), ..felix() };
        let end = ServerEnd::SyncerType { syncer_type: syncer_type.into() };
        refuses(&bench.send(&ClientMessage::Hello(hello)), &end);
        assert_eq!(bench.session.received(b"more", bench.now), [], "it is closed");
    }
    let mut bench = Bench::new();
    let hello = Hello { supports_modern_policy_keys: false, ..felix() };
    refuses(&bench.send(&ClientMessage::Hello(hello)), &ServerEnd::OldPolicyKeys);
    let mut bench = Bench::new();
    bench.session = bench.session.over_limit();
    refuses(&bench.send(&ClientMessage::Hello(felix())), &ServerEnd::TooManyConnections);
}

/// Asserts that a client gets the reason before the server closes the connection. A client of
/// another syncer compares the syncer type, and all clients log the server's version.
#[track_caller]
fn refuses(actions: &[ServerAction], end: &ServerEnd) {
    let [ServerAction::Send(bytes), ServerAction::Close(found)] = actions else { panic!("{actions:?}") };
    assert_eq!(found, end);
    let (mut client, _) = ClientSession::new(ClientHello::default(), ClientSession::limits());
    let mut actions = Vec::new();
    client.received(bytes, &mut actions).unwrap();
    let [ClientAction::Welcome(welcome)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(welcome.syncer_type, "felix");
    assert!(welcome.version.contains(&end.to_string()), "{}", welcome.version);
}

#[test]
fn messages_out_of_turn_are_refused() {
    for message in [ClientMessage::Ack, PONG] {
        assert_eq!(Bench::new().send(&message), close(ServerEnd::OutOfTurn));
    }
    for message in [ClientMessage::Hello(felix()), PONG] {
        let mut bench = Bench::new();
        bench.send(&ClientMessage::Hello(felix()));
        assert_eq!(bench.send(&message), close(ServerEnd::OutOfTurn));
    }
    for message in [ClientMessage::Hello(felix()), ClientMessage::Ack] {
        assert_eq!(Bench::following().send(&message), close(ServerEnd::OutOfTurn));
    }
    let mut bench = Bench::new();
    let now = bench.now;
    assert!(matches!(
        bench.session.received(
            b"GET / HTTP/1.1\r\nHost: a server that is not of this kind at all, whatever it may be\r\n\r\n",
            now
        )[..],
        [ServerAction::Close(ServerEnd::Wire(_))]
    ));
    // More than a message may have.
    let mut bench = Bench::new();
    assert!(matches!(
        bench.session.received(&[0xfc, 0x7f, 0xff, 0xff, 0xff], now)[..],
        [ServerAction::Close(ServerEnd::Wire(_))]
    ));
}

#[test]
fn time_runs_out() {
    let mut bench = Bench::new();
    assert_eq!(bench.after(9), []);
    assert_eq!(bench.after(1), close(ServerEnd::NoHello));
    assert_eq!(bench.session.deadline(), None);

    let mut bench = Bench::new();
    bench.send(&ClientMessage::Hello(felix()));
    assert_eq!(bench.after(59), []);
    assert_eq!(bench.after(1), close(ServerEnd::NoAck));

    // The session sets no time limit for a snapshot. The sender checks whether the client reads it.
    let mut bench = Bench::new();
    bench.send(&ClientMessage::Hello(felix()));
    bench.send(&ClientMessage::Ack);
    assert_eq!(bench.after(500), []);
    assert_eq!(bench.session.snapshot_sent(bench.now), []);
    assert_eq!(bench.after(60), close(ServerEnd::NoAck));
}

#[test]
fn pings() {
    let mut bench = Bench::following();
    let mut pings = 0;
    for _ in 0..100 {
        let actions = bench.after(1);
        if let [ServerAction::Send(_)] = actions[..] {
            pings += 1;
            assert_eq!(bench.send(&PONG), []);
        } else {
            assert_eq!(actions, []);
        }
    }
    assert!((8..=10).contains(&pings), "{pings}");
    // No more pongs.
    let last = bench.now;
    while bench.session.deadline().is_some() {
        let now = bench.session.deadline().unwrap();
        let actions = bench.session.tick(now, wall());
        if actions == close(ServerEnd::NoPong) {
            let patience = now - last;
            assert!(patience <= Duration::from_secs(60) && patience > Duration::from_secs(45), "{patience:?}");
        } else {
            assert!(matches!(actions[..], [ServerAction::Send(_)]), "{actions:?}");
        }
    }
}

#[test]
fn round_trip_times_of_a_client_are_measured() {
    let mut bench = Bench::following();
    bench.send(&PONG);
    assert_eq!(bench.session.take_round_trip(), None, "nothing was asked");
    while bench.after(1).is_empty() {}
    assert_eq!(bench.after(3), []);
    bench.send(&PONG);
    assert_eq!(bench.session.take_round_trip(), Some(Duration::from_secs(3)));
    bench.send(&PONG);
    assert_eq!(bench.session.take_round_trip(), None, "that was answered already");
}

#[test]
fn recorded_sessions() {
    for (bytes, compressed) in [
        (&include_bytes!("../../../testdata/typha/recorded-restart.c2s")[..], true),
        (include_bytes!("../../../testdata/typha/recorded-plain.c2s"), false),
        (include_bytes!("../../../testdata/typha/recorded-our-client.c2s"), true),
        (include_bytes!("../../../testdata/typha/recorded-our-server.c2s"), true),
    ] {
        let mut bench = Bench::new();
        let mut follows = 0;
        for byte in bytes {
            let mut actions = bench.session.received(&[*byte], bench.now);
            if matches!(actions.last(), Some(ServerAction::Snapshot { .. })) {
                actions.extend(bench.session.snapshot_sent(bench.now));
            }
            for action in actions {
                match action {
                    ServerAction::Follow { compressed: found } => {
                        assert_eq!(found, compressed);
                        follows += 1;
                    }
                    ServerAction::Close(end) => panic!("{end}"),
                    ServerAction::Send(_) | ServerAction::Snapshot { .. } => {}
                }
            }
        }
        assert_eq!(follows, 1);
        assert!(bench.session.hello().is_some());
    }
}

/// Each message is valid, but together they never become a hello.
#[test]
fn a_client_that_defines_types_without_end_is_cut_off_after_16_kib() {
    let limits = Limits { types: 4096, definition_bytes: 1 << 20, ..ServerSession::limits() };
    let mut session = ServerSession::new(7, ServerSettings { limits, ..ServerSettings::default() }, Instant::now());
    let mut schema = crate::gob::Schema::default();
    for _ in 0..1000 {
        schema.slice(&"x".repeat(100), crate::gob::TypeId::BOOL);
    }
    let mut sent = 0;
    let mut actions = Vec::new();
    for part in schema.definitions().chunks(7) {
        sent += part.len();
        actions = session.received(part, Instant::now());
        if !actions.is_empty() {
            break;
        }
    }
    assert_eq!(actions, close(ServerEnd::LongHello { limit: 16 * 1024 }));
    assert!(sent < 16 * 1024 + 7, "{sent} bytes were read");
}
