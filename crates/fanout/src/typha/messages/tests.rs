use super::super::wire::Incoming;
use super::*;
use crate::gob::Limits;

macro_rules! stream {
    ($name:literal) => {
        include_bytes!(concat!("../../../testdata/typha/", $name))
    };
}

fn incoming(compressed: bool, bytes: &[u8]) -> Incoming {
    let mut incoming = Incoming::new(Limits { values: 1 << 20, ..Limits::default() });
    incoming.restart(compressed).unwrap();
    incoming.push(bytes).unwrap();
    incoming
}

fn server(compressed: bool, bytes: &[u8]) -> Vec<Result<ServerMessage, MessageError>> {
    let mut incoming = incoming(compressed, bytes);
    let mut messages = Vec::new();
    while let Some(value) = incoming.read().unwrap() {
        messages.push(ServerMessage::decode(&value));
    }
    incoming.restart(false).expect("nothing is left");
    messages
}

fn client(bytes: &[u8]) -> Vec<ClientMessage> {
    let mut incoming = incoming(false, bytes);
    let mut messages = Vec::new();
    while let Some(value) = incoming.read().unwrap() {
        messages.push(ClientMessage::decode(&value).unwrap());
    }
    messages
}

fn sound(messages: Vec<Result<ServerMessage, MessageError>>) -> Vec<ServerMessage> {
    messages.into_iter().map(Result::unwrap).collect()
}

fn hello() -> Hello {
    Hello {
        hostname: "node-1".into(),
        info: "test".into(),
        version: "v3.34.0".into(),
        syncer_type: "felix".into(),
        supports_decoder_restart: true,
        compressions: vec!["snappy".into()],
        supports_modern_policy_keys: true,
        connection: u64::MAX,
    }
}

fn welcome() -> ServerMessage {
    ServerMessage::Welcome(Welcome {
        version: "v3.34.0".into(),
        syncer_type: "felix".into(),
        supports_node_resource_updates: true,
        connection: 0x1234_5678_90ab_cdef,
    })
}

const UTC: GoTime = GoTime { seconds: 62_135_596_800 + 1_787_405_600, nanoseconds: 123_456_789, offset: None };

#[test]
fn messages_of_clients() {
    assert_eq!(client(stream!("client-hello.gob")), [ClientMessage::Hello(hello())]);
    assert_eq!(client(stream!("client-hello-empty.gob")), [ClientMessage::Hello(Hello::default())]);
    let [ClientMessage::Hello(old)] = &client(stream!("client-hello-old.gob"))[..] else { panic!() };
    assert!(!old.supports_decoder_restart && !old.supports_modern_policy_keys && old.compressions.is_empty());
    let [ClientMessage::Hello(bgp)] = &client(stream!("client-hello-bgp.gob"))[..] else { panic!() };
    assert_eq!(bgp.syncer_type, "bgp");
    assert_eq!(client(stream!("ack.gob")), [ClientMessage::Ack, ClientMessage::Ack]);
    let pongs = client(stream!("pong.gob"));
    let [
        ClientMessage::Pong { ping: Some(ping), pong: Some(pong) },
        ClientMessage::Pong { ping: None, pong: Some(_) },
        last,
    ] = &pongs[..]
    else {
        panic!("{pongs:?}")
    };
    assert_eq!((ping.nanoseconds, ping.offset), (123_456_789, None));
    assert!(pong.offset.is_some());
    assert_eq!(*last, ClientMessage::Pong { ping: None, pong: None });
    let all = client(stream!("all-client.gob"));
    assert_eq!(all[..3], [ClientMessage::Hello(hello()), ClientMessage::Ack, ClientMessage::Ack]);
    assert_eq!(all.len(), 5);
    assert_eq!(client(stream!("all-client-reordered.gob"))[2], ClientMessage::Hello(hello()));
}

#[test]
fn messages_of_servers() {
    assert_eq!(sound(server(false, stream!("server-hello.gob"))), [welcome()]);
    assert_eq!(sound(server(false, stream!("server-hello-empty.gob"))), [ServerMessage::Welcome(Welcome::default())]);
    let restart = |message: &str, compression: &str| ServerMessage::DecoderRestart {
        message: message.into(),
        compression: compression.into(),
    };
    assert_eq!(
        sound(server(false, stream!("decoder-restart.gob"))),
        [restart("Restart with new compression algorithm.", "snappy"), restart("plain", "")]
    );
    assert_eq!(
        sound(server(false, stream!("sync-status.gob"))),
        [SyncStatus::WaitForDatastore, SyncStatus::WaitForDatastore, SyncStatus::Resync, SyncStatus::InSync]
            .map(ServerMessage::SyncStatus)
    );
    let pings = sound(server(false, stream!("ping.gob")));
    assert_eq!(pings[0], ServerMessage::Ping(Some(UTC)));
    assert_eq!(pings[3], ServerMessage::Ping(None));
    for ping in &pings[1..3] {
        assert!(matches!(ping, ServerMessage::Ping(Some(time)) if time.offset.is_some()), "{ping:?}");
    }
}

fn kv(key: &str, value: &[u8], revision: &str, v3: &str, ttl: i64, update_type: UpdateType) -> SerializedUpdate {
    SerializedUpdate {
        key: key.into(),
        value: value.into(),
        revision: revision.into(),
        v3_resource_version: v3.into(),
        ttl,
        update_type,
    }
}

fn kvs() -> ServerMessage {
    use UpdateType::{Deleted, New, Unknown, Updated};
    ServerMessage::Kvs(vec![
        kv("/calico/v1/config/LogSeverityScreen", b"info", "1234", "", 0, New),
        kv("/calico/v1/config/Nil", b"", "1235", "", 0, Deleted),
        kv("/calico/v1/config/EmptyNotNil", b"", "", "", 0, Updated),
        kv("/calico/v1/config/Int", b"\x00\xff\x80\n", "-77", "", -1, Updated),
        kv("/calico/v1/config/Uint64", b"x", "18446744073709551615", "999", 90_000_000_000, New),
        kv("/calico/v1/config/Int64", "é漢".as_bytes(), "-9223372036854775808", "", i64::MAX, Unknown),
    ])
}

#[test]
fn updates() {
    let messages = sound(server(false, stream!("kvs.gob")));
    assert_eq!(messages[0], kvs());
    assert_eq!(messages[1], ServerMessage::Kvs(Vec::new()));
    assert_eq!(messages[2], ServerMessage::Kvs(vec![SerializedUpdate::default()]));
    let ServerMessage::Kvs(real) = &sound(server(false, stream!("kvs-real.gob")))[0] else { panic!() };
    assert_eq!(real[0].v3_resource_version, "4711");
    assert!(real[4].value.starts_with(br#"{"namespace":"ns-1","tier":"default""#));
}

#[test]
fn streams_of_all_messages() {
    let all = server(false, stream!("all-server.gob"));
    assert_eq!(all.len(), 16);
    assert_eq!(all[0], Ok(welcome()));
    // The file holds a message of clients among those of servers.
    let other = Err(MessageError::Unexpected { name: "MsgACK".into() });
    assert_eq!((&all[7], &all[15]), (&other, &other));
    assert_eq!(all[4], Ok(kvs()));
    let messages = sound(server(true, stream!("kvs-snappy.gob.snappy")));
    assert_eq!(messages[1..], [kvs(), ServerMessage::SyncStatus(SyncStatus::InSync)]);
    let messages = sound(server(true, stream!("kvs-snappy-flushed.gob.snappy")));
    assert_eq!(messages[1..], [ServerMessage::SyncStatus(SyncStatus::InSync), ServerMessage::Ping(Some(UTC))]);
    let snapshot = sound(server(true, stream!("snapshot-500.gob.snappy")));
    let [ServerMessage::Kvs(objects), ServerMessage::SyncStatus(_), ServerMessage::DecoderRestart { .. }] =
        &snapshot[..]
    else {
        panic!()
    };
    assert_eq!(objects.len(), 500);
}

/// The encoded messages equal the recorded ones, which a Go program has decoded to these values.
#[test]
fn written_messages_are_read_again() {
    let server_messages = [
        welcome(),
        ServerMessage::DecoderRestart { message: "m".into(), compression: SNAPPY.into() },
        ServerMessage::DecoderRestart { message: String::new(), compression: String::new() },
        kvs_with_texts(),
        ServerMessage::Kvs(Vec::new()),
        ServerMessage::SyncStatus(SyncStatus::WaitForDatastore),
        ServerMessage::SyncStatus(SyncStatus::Resync),
        ServerMessage::SyncStatus(SyncStatus::InSync),
        ServerMessage::Ping(Some(UTC)),
        ServerMessage::Ping(None),
    ];
    let mut stream = server_definitions().to_vec();
    stream.extend(server_messages.iter().flat_map(ServerMessage::encode));
    assert_eq!(sound(server(false, &stream)), server_messages);
    assert_eq!(stream, stream!("accepted-server.gob"));

    let client_messages = [
        ClientMessage::Hello(hello()),
        ClientMessage::Hello(Hello::default()),
        ClientMessage::Ack,
        ClientMessage::Pong { ping: Some(UTC), pong: None },
        ClientMessage::Pong {
            ping: Some(GoTime { offset: Some(19_800), ..UTC }),
            pong: Some(GoTime { offset: Some(-3600), ..UTC }),
        },
        ClientMessage::Pong { ping: None, pong: None },
    ];
    let mut stream = client_definitions().to_vec();
    stream.extend(client_messages.iter().flat_map(ClientMessage::encode));
    assert_eq!(client(&stream), client_messages);
    assert_eq!(stream, stream!("accepted-client.gob"));
}

/// As [`kvs`], but a revision is text whatever it was.
fn kvs_with_texts() -> ServerMessage {
    let mut message = kvs();
    if let ServerMessage::Kvs(updates) = &mut message {
        updates.truncate(5);
    }
    message
}

#[test]
fn invalid_messages_are_refused() {
    let no = |value: &Value<'_>| ServerMessage::decode(value).unwrap_err();
    assert_eq!(no(&Value::Int(1)), MessageError::NoMessage);
    assert_eq!(no(&Value::Nil), MessageError::NoMessage);
    let [ack, ..] = &server(false, stream!("ack.gob"))[..] else { panic!() };
    assert_eq!(ack, &Err(MessageError::Unexpected { name: "MsgACK".into() }));
    // A status that does not exist.
    let mut stream = server_definitions().to_vec();
    stream.extend(ServerMessage::SyncStatus(SyncStatus::InSync).encode());
    let at = stream.len() - 3;
    assert_eq!(stream[at], 2);
    stream[at] = 9;
    assert_eq!(server(false, &stream), [Err(MessageError::Field { field: "SyncStatus" })]);
}
