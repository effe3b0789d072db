use std::io::{Read as _, Write as _};
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::time::Instant;

use rustix::process::Uid;
use serde_json::{Map, Value};
use tortie_evaluate::{Packet, Settings};
use tortie_flows::{Collector, Decision, Event, FlowId, Limits, LoggedPacket};
use tortie_linux::exec::Runner;
use tortie_model::Direction;
use tortie_rules::no_profile_prefix;

use super::*;
use crate::flows::SharedFlows;
use crate::local_api::{Client, ClientError, Facts, Status, StatusSources};

fn facts() -> Facts {
    Facts {
        node: "n1".into(),
        datastore: "file:/etc/tortie".into(),
        dataplane: "internal".into(),
        started: Instant::now(),
    }
}

/// That a connection is new.
fn event() -> Event {
    let packet = Packet::tcp(("10.0.0.1".parse().unwrap(), 40000), ("10.0.0.2".parse().unwrap(), 80)).unwrap();
    let id = FlowId { packet, icmp_id: 0 };
    let mut collector = Collector::new(Settings::default(), false, Limits::default());
    let prefix = no_profile_prefix(Direction::Ingress);
    collector.on_packet(&LoggedPacket { id, length: 60, by: Decision::Prefix(&prefix) }, Duration::ZERO);
    collector.take_events(Duration::from_secs(1)).remove(0)
}

fn service() -> Service {
    Service::new(facts(), StatusSources::default(), |_| false, Runner::default())
}

fn ask(path: &Path) -> Result<Status, ClientError> {
    Client::connect(path)?.call("Status", Map::new())
}

#[test]
fn it_answers_again_and_again_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("below").join("agent.sock");
    let server = Server::start(&path, service()).unwrap();
    let mut client = Client::connect(&path).unwrap();
    for _ in 0..3 {
        let status: Status = client.call("Status", Map::new()).unwrap();
        assert_eq!(status.node, "n1");
    }
    assert!(matches!(client.call::<Value>("Nothing", Map::new()), Err(ClientError::Refused(_))));
    assert!(matches!(client.call::<Value>("Policies", Map::new()), Err(ClientError::Busy)));
    drop(server);
    assert!(!path.exists());
    assert!(matches!(ask(&path), Err(ClientError::NoAgent { .. })));
}

#[test]
fn flows_are_streamed_until_collection_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let flows = SharedFlows::default();
    let sources = StatusSources { flows: flows.clone(), ..StatusSources::default() };
    let _server = Server::start(&path, Service::new(facts(), sources, |_| false, Runner::default())).unwrap();
    let connect = || Client::connect(&path).unwrap();
    assert!(matches!(connect().call::<Value>("Flows", Map::new()), Err(ClientError::NotCollected)));
    let nothing = connect().follow("Flows", |_: Value| ControlFlow::Break(()));
    assert!(matches!(nothing, Err(ClientError::NotCollected)));

    flows.begin();
    let (received, answers) = channel();
    let client = connect();
    let follower = thread::spawn(move || {
        client.follow("Flows", |answer: Value| {
            received.send(answer).unwrap();
            ControlFlow::<()>::Continue(())
        })
    });
    // The client follows once it receives an event.
    let answer = loop {
        flows.publish(&[event()]);
        if let Ok(answer) = answers.recv_timeout(Duration::from_millis(10)) {
            break answer;
        }
    };
    assert_eq!(answer["flows"][0]["destination"]["address"], "10.0.0.2");
    let recent: Value = connect().call("Flows", Map::new()).unwrap();
    assert_eq!(recent["flows"][0], answer["flows"][0]);
    flows.end();
    assert!(matches!(follower.join().unwrap(), Ok(None)));
}

#[test]
fn only_the_socket_of_a_dead_agent_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    // As a killed process leaves it.
    drop(UnixListener::bind(&path).unwrap());
    let server = Server::start(&path, service()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let second = Server::start(&path, service()).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::AddrInUse);
    assert!(ask(&path).is_ok(), "the first goes on");
    drop(server);
    fs::write(&path, "precious").unwrap();
    assert_eq!(Server::start(&path, service()).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn invalid_or_silent_clients_are_disconnected_and_others_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let _server = Server::start(&path, service()).unwrap();
    let _silent: Vec<UnixStream> = (0..MAX_CLIENTS - 2).map(|_| UnixStream::connect(&path).unwrap()).collect();
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n\0"[..], b"\0", b"{}\0", &vec![b'x'; 70_000]] {
        let mut stream = UnixStream::connect(&path).unwrap();
        // The rest of an overlong message may meet a closed connection.
        let _ = stream.write_all(nonsense);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    assert!(ask(&path).is_ok());
}

#[test]
fn too_many_clients_are_turned_away_until_one_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let _server = Server::start(&path, service()).unwrap();
    let mut clients: Vec<UnixStream> = (0..MAX_CLIENTS).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert!(matches!(ask(&path), Err(ClientError::Broken { .. })));
    clients.pop();
    let patience = Instant::now() + Duration::from_secs(20);
    while ask(&path).is_err() {
        assert!(Instant::now() < patience);
    }
}

#[test]
fn only_root_and_the_owner_may_ask() {
    if !geteuid().is_root() {
        eprintln!("not run: only root can switch to another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let _server = Server::start(&path, service()).unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let nobody = Uid::from_raw(65_534);
    let as_nobody = |path: &Path| {
        let path = path.to_owned();
        // Of this thread alone.
        thread::spawn(move || {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            ask(&path)
        })
        .join()
        .unwrap()
    };
    assert!(matches!(as_nobody(&path), Err(ClientError::Denied { .. })), "by its permissions");
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(as_nobody(&path), Err(ClientError::Denied { .. })), "by the server");
    assert!(ask(&path).is_ok());
}
