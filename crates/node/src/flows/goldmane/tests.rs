//! Flows that a server built from the same definition receives.

mod server;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tortie_lab::certificates::Authority;
use tortie_model::with_causes;

use super::proto::Flow;
use super::*;
use server::{Behaviour, Fake, Listening};

const PACE: Pace = Pace {
    first_pause: Duration::from_millis(5),
    longest_pause: Duration::from_millis(20),
    patience: Duration::from_secs(20),
    looks: Duration::from_millis(5),
};

fn flows(numbers: std::ops::Range<i64>) -> Vec<Arc<Flow>> {
    numbers.map(|number| Arc::new(Flow { start_time: number, ..Flow::default() })).collect()
}

/// Waits for something that is bound to happen.
fn until(condition: &str, mut happens: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happens() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{condition}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn server_at(address: SocketAddr) -> Receiver {
    Receiver::Server { address: address.to_string(), tls: None }
}

fn senders(receiver: Receiver, pace: Pace) -> Senders {
    Senders::start_at(&[receiver], pace).unwrap()
}

impl Senders {
    fn push(&self, flows: Vec<Arc<Flow>>) {
        self.outboxes[0].1.push(flows.into_iter());
    }

    fn metric(&self) -> ReceiverMetrics {
        self.metrics().remove(0)
    }
}

fn free_port() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

#[test]
fn flows_arrive_in_order_and_are_confirmed() {
    let server = Fake::start(Listening::any(), Behaviour::Confirms);
    let senders = senders(server_at(server.address()), PACE);
    senders.push(flows(0..300));
    until("all are received", || senders.metric().received == 300);
    assert_eq!(server.received(), [(0..300).collect::<Vec<i64>>()]);
    let metric = senders.metric();
    assert!(metric.is_connected && metric.waiting == 0 && metric.received_again == 0 && metric.dropped == 0);
}

#[test]
fn a_restarted_server_receives_late_flows() {
    let server = Fake::start(Listening::any(), Behaviour::Confirms);
    let address = server.address();
    let senders = senders(server_at(address), PACE);
    senders.push(flows(0..3));
    until("they are received", || senders.metric().received == 3);
    drop(server);
    until("the end is heard", || !senders.metric().is_connected);
    senders.push(flows(3..4));
    let server = Fake::start(Listening::At(address), Behaviour::Confirms);
    until("all are received", || senders.metric().received == 4);
    assert_eq!(server.received(), [[0, 1, 2, 3]]);
    assert_eq!(senders.metric().received_again, 3);
}

#[test]
fn a_hanging_server_delays_no_other() {
    let server = Fake::start(Listening::any(), Behaviour::Hangs);
    let pace = Pace { patience: Duration::from_millis(50), ..PACE };
    let senders = senders(server_at(server.address()), pace);
    for _ in 0..3 {
        senders.push(flows(0..10_000));
    }
    until("it is tried again", || server.received().len() > 2);
    let metric = senders.metric();
    assert!(!metric.is_connected && metric.received == 0 && metric.dropped >= 19_999, "{metric:?}");
    server.behave(Behaviour::Confirms);
    until("some are received", || senders.metric().received > 10);
}

#[test]
fn a_server_that_breaks_off_gets_the_same_again() {
    let server = Fake::start(Listening::any(), Behaviour::BreaksOff { after: 2 });
    let senders = senders(server_at(server.address()), PACE);
    senders.push(flows(0..4));
    until("it is tried again", || server.received().len() > 2);
    // Two are confirmed; the next connection begins with these, and so gets no further.
    assert!(server.received().iter().all(|flows| flows.is_empty() || flows[0] == 0), "{:?}", server.received());
    server.behave(Behaviour::Confirms);
    until("all are received", || senders.metric().received == 4);
    assert_eq!(server.received().last(), Some(&vec![0, 1, 2, 3]));
}

#[test]
fn unexpected_receipts_end_the_connection() {
    let server = Fake::start(Listening::any(), Behaviour::ConfirmsTwice);
    let senders = senders(server_at(server.address()), PACE);
    senders.push(flows(0..1));
    until("it is tried again", || server.received().len() > 1);
    server.behave(Behaviour::Confirms);
    until("it is received again", || {
        let metric = senders.metric();
        metric.is_connected && metric.received_again > 0
    });
}

#[test]
fn garbage_is_no_answer() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let garbage = std::thread::spawn(move || {
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n\0\x01\x02");
        }
    });
    let senders = senders(server_at(address), PACE);
    senders.push(flows(0..2));
    garbage.join().unwrap();
    let server = Fake::start(Listening::At(address), Behaviour::Confirms);
    until("all are received", || senders.metric().received == 2);
    assert_eq!(server.received(), [[0, 1]]);
}

#[test]
fn the_last_flows_are_sent_at_the_end_without_waiting_for_dead_servers() {
    let server = Fake::start(Listening::any(), Behaviour::Confirms);
    let connected = senders(server_at(server.address()), PACE);
    connected.push(flows(0..1));
    until("it is received", || connected.metric().received == 1);
    connected.push(flows(1..50));
    drop(connected);
    assert_eq!(server.received(), [(0..50).collect::<Vec<i64>>()]);

    let alone = senders(server_at(free_port()), PACE);
    alone.push(flows(0..1));
    drop(alone);
}

#[test]
fn a_socket_gets_flows_while_it_exists() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flows.sock");
    let senders = senders(Receiver::Socket(path.clone()), PACE);
    let outbox = Arc::clone(&senders.outboxes[0].1);
    until("it is missed", || !outbox.is_wanted());
    senders.push(flows(0..5));
    assert_eq!(senders.metric().waiting, 0);
    let server = Fake::start(Listening::Socket(path.clone()), Behaviour::Confirms);
    until("it is found", || outbox.is_wanted());
    senders.push(flows(5..7));
    until("they are received", || senders.metric().received == 2);
    assert_eq!(server.received(), [[5, 6]]);
    std::fs::remove_file(&path).unwrap();
    drop(server);
    until("it is missed", || !outbox.is_wanted());
    senders.push(flows(7..8));
    let metric = senders.metric();
    assert_eq!((metric.waiting, metric.dropped), (0, 0));
}

#[test]
fn tls_is_spoken_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new().unwrap();
    let issue = |authority: &Authority, who| authority.issue(folder.path(), who, who, None).unwrap();
    let (server, client) = (issue(&authority, "server"), issue(&authority, "client"));
    let stranger = issue(&Authority::new().unwrap(), "stranger");
    let server = Fake::start(Listening::Tls(server), Behaviour::Confirms);
    let address = format!("localhost:{}", server.address().port());
    let files =
        TlsFiles { authority: client.authority.clone(), certificate: client.certificate.clone(), key: client.key };
    let receiver = |tls| Receiver::Server { address: address.clone(), tls: Some(tls) };
    let welcome = senders(receiver(files.clone()), PACE);
    welcome.push(flows(0..2));
    until("they are received", || welcome.metric().received == 2);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = |tls| with_causes(&runtime.block_on(receiver(tls).connect(Duration::from_secs(20))).unwrap_err());
    // Of another authority, the server is not believed.
    refused(TlsFiles { authority: stranger.authority, ..files.clone() });
    let missing = refused(TlsFiles { key: "".into(), ..files.clone() });
    assert_eq!(missing, "TLS needs TyphaKeyFile, which is not set");
    let gone = refused(TlsFiles { certificate: "/nowhere/cert.pem".into(), ..files.clone() });
    assert!(gone.starts_with("/nowhere/cert.pem: "), "{gone}");

    // Of another authority, the client is not believed; it learns of that after it believes to be
    // connected.
    let unwelcome = TlsFiles { certificate: stranger.certificate, key: stranger.key, ..files };
    let sender = senders(receiver(unwelcome), PACE);
    sender.push(flows(2..3));
    let before = server.refused();
    until("it is refused more than once", || server.refused() > before + 1);
    assert_eq!(server.received(), [[0, 1]]);
    assert_eq!(sender.metric().received, 0);
}
