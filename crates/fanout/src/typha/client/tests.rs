use std::collections::BTreeSet;

use serde_json::Value as Json;
use tortie_model::Interner;
use tortie_resources::v1::{self, Decoded};

use super::super::server::{encoded, restart, stream_begin};
use super::*;

const SESSION: &[u8] = include_bytes!("../../../testdata/typha/session.bytes");

fn session() -> ClientSession {
    let (session, hello) = ClientSession::new(ClientHello::default(), ClientSession::limits());
    assert!(hello.starts_with(messages::client_definitions()));
    session
}

fn welcome() -> Vec<u8> {
    let welcome = Welcome { supports_node_resource_updates: true, ..Welcome::default() };
    [messages::server_definitions(), &ServerMessage::Welcome(welcome).encode()].concat()
}

/// A complete connection of Typha: after each restart the server waits for the client's
/// confirmation.
#[test]
fn a_session_with_typha() {
    for step in [1, 10, 5000] {
        let mut session = session();
        let (mut objects, mut confirmed, mut in_sync, mut pongs) = (0, 0, false, 0);
        let mut rest = SESSION;
        let parts = [428, 15_675, 845];
        for (number, part) in parts.into_iter().enumerate() {
            let (part, more) = rest.split_at(part);
            rest = more;
            for bytes in part.chunks(step) {
                let mut actions = Vec::new();
                session.received(bytes, &mut actions).unwrap();
                for action in actions {
                    match action {
                        ClientAction::Welcome(welcome) => assert_eq!(welcome.version, "v3.34.0"),
                        ClientAction::Updates(updates) => objects += updates.len(),
                        ClientAction::Status(SyncStatus::InSync) => in_sync = true,
                        ClientAction::Send(bytes) if bytes == ClientMessage::Ack.encode() => confirmed += 1,
                        ClientAction::Send(_) => pongs += 1,
                        ClientAction::Status(status) => panic!("{status:?}"),
                    }
                }
            }
            assert_eq!(confirmed, [1, 2, 2][number]);
        }
        assert_eq!((objects, in_sync, pongs, rest.len()), (503, true, 1, 0));
    }
}

/// Returns the error of a client that receives these bytes at once.
fn end(bytes: &[u8]) -> ClientEnd {
    session().received(bytes, &mut Vec::new()).unwrap_err()
}

#[test]
fn servers_that_are_of_no_use() {
    let introduced =
        |welcome| end(&[messages::server_definitions(), &ServerMessage::Welcome(welcome).encode()].concat());
    assert_eq!(introduced(Welcome::default()), ClientEnd::TooOld);
    let bgp = Welcome { syncer_type: "bgp".into(), supports_node_resource_updates: true, ..Welcome::default() };
    assert_eq!(introduced(bgp), ClientEnd::SyncerType { wanted: SyncerType::Felix, syncer_type: "bgp".into() });
    let status = ServerMessage::SyncStatus(SyncStatus::InSync).encode();
    assert_eq!(end(&[messages::server_definitions(), &status].concat()), ClientEnd::OutOfTurn);
    let again = ServerMessage::Welcome(Welcome::default()).encode();
    assert_eq!(end(&[welcome(), again].concat()), ClientEnd::OutOfTurn);
    let unknown = ServerMessage::DecoderRestart { message: String::new(), compression: "lz4".into() };
    assert_eq!(end(&[welcome(), unknown.encode()].concat()), ClientEnd::Compression { compression: "lz4".into() });
    assert!(matches!(end(&b"HTTP/1.1 400 Bad Request\r\n".repeat(3)), ClientEnd::Wire(_)));
}

#[test]
fn a_stream_that_begins_before_it_may() {
    let early = [welcome(), restart("now").encode(), stream_begin().to_vec()].concat();
    assert!(matches!(end(&early), ClientEnd::Wire(WireError::TooEarly { .. })));
    // The same with a pause in which the client confirms.
    let mut session = session();
    let mut actions = Vec::new();
    session.received(&[welcome(), restart("now").encode()].concat(), &mut actions).unwrap();
    assert!(matches!(&actions[1], ClientAction::Send(bytes) if *bytes == ClientMessage::Ack.encode()));
    let mut actions = Vec::new();
    let status = ServerMessage::SyncStatus(SyncStatus::InSync);
    session.received(&[&stream_begin()[..], &encoded(&status, true)].concat(), &mut actions).unwrap();
    assert_eq!(actions, [ClientAction::Status(SyncStatus::InSync)]);
    // And back again.
    let plain = ServerMessage::DecoderRestart { message: String::new(), compression: String::new() };
    session.received(&encoded(&plain, true), &mut actions).unwrap();
    session.received(&[messages::server_definitions(), &status.encode()].concat(), &mut actions).unwrap();
    assert_eq!(actions.len(), 3);
}

/// From the same bytes, Tortie's client reads the same updates and statuses as Typha's client.
#[test]
fn recorded_sessions() {
    for (bytes, expected_text, restarts) in [
        (
            &include_bytes!("../../../testdata/typha/recorded-restart.s2c")[..],
            include_str!("../../../testdata/typha/recorded-restart.told"),
            2,
        ),
        (
            include_bytes!("../../../testdata/typha/recorded-plain.s2c"),
            include_str!("../../../testdata/typha/recorded-plain.told"),
            0,
        ),
    ] {
        let mut session = session();
        let (mut found, mut confirmed) = (Vec::new(), 0);
        let mut labels = Interner::new();
        let mut decode = |key: &str, value: &str| {
            v1::decode_text(key, (!value.is_empty()).then_some(value), &mut labels).expect("valid")
        };
        // Byte by byte, as no byte may follow a restart before it is confirmed.
        for byte in bytes {
            let mut actions = Vec::new();
            session.received(&[*byte], &mut actions).unwrap();
            for action in actions {
                match action {
                    ClientAction::Updates(updates) => {
                        for SerializedUpdate { key, value, revision, update_type, .. } in updates {
                            let value = decode(&key, std::str::from_utf8(&value).unwrap());
                            found.push(ServerOutput::Update(key, revision, update_type as u64, value));
                        }
                    }
                    ClientAction::Status(status) => found.push(ServerOutput::Status(status)),
                    ClientAction::Send(bytes) if bytes == ClientMessage::Ack.encode() => confirmed += 1,
                    ClientAction::Send(_) | ClientAction::Welcome(_) => {}
                }
            }
        }
        let text = |json: &Json, name: &str| json[name].as_str().unwrap_or_default().to_owned();
        let expected: Vec<ServerOutput> = expected_text
            .lines()
            .map(|line| serde_json::from_str::<Json>(line).unwrap())
            // The first line is from the client itself, which begins.
            .skip(1)
            .filter_map(|line| match (&line["key"], &line["status"]) {
                (Json::String(key), _) => {
                    let value = decode(key, &text(&line, "value"));
                    Some(ServerOutput::Update(key.clone(), text(&line, "rev"), line["type"].as_u64().unwrap(), value))
                }
                (_, Json::String(status)) => Some(ServerOutput::Status(match &**status {
                    "in-sync" => SyncStatus::InSync,
                    "resync" => SyncStatus::Resync,
                    _ => SyncStatus::WaitForDatastore,
                })),
                _ => None,
            })
            .collect();
        assert_eq!(found, expected);
        assert_eq!(confirmed, restarts);
    }
}

#[derive(Debug, PartialEq)]
enum ServerOutput {
    Update(String, String, u64, Decoded),
    Status(SyncStatus),
}

/// Tortie's client reads the recorded streams of Typha's server and of Tortie's server.
#[test]
fn recorded_with_us_on_one_side() {
    for (bytes, objects) in [
        (&include_bytes!("../../../testdata/typha/recorded-our-client.s2c")[..], 17),
        (include_bytes!("../../../testdata/typha/recorded-our-server.s2c"), 15),
    ] {
        let mut session = session();
        let (mut known, mut at_sync, mut confirmed) = (BTreeSet::new(), None, 0);
        for byte in bytes {
            let mut actions = Vec::new();
            session.received(&[*byte], &mut actions).unwrap();
            for action in actions {
                match action {
                    ClientAction::Updates(updates) => {
                        for SerializedUpdate { key, value, .. } in updates {
                            if value.is_empty() {
                                known.remove(&key)
                            } else {
                                known.insert(key)
                            };
                        }
                    }
                    ClientAction::Status(SyncStatus::InSync) => at_sync = Some(known.len()),
                    ClientAction::Send(bytes) if bytes == ClientMessage::Ack.encode() => confirmed += 1,
                    ClientAction::Send(_) | ClientAction::Welcome(_) | ClientAction::Status(_) => {}
                }
            }
        }
        assert_eq!((at_sync, confirmed), (Some(objects), 2));
        assert!(!known.contains("/calico/v1/policy/GlobalNetworkPolicy//deny-all"), "deleted later");
    }
}
