//! Ends of learned addresses: lifetimes, restarts, removed rules. A reader that does not run.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tortie_lab::netns::Namespace;

use super::super::connections::{Open, until};
use super::super::heartbeats::{Stopped, until_silent};
use super::messages::{A, Record, question};
use super::world::{By, POLICY, SERVER, World, ask_once, client, receive};

const LIFETIME: Duration = Duration::from_secs(3);
const QUEUE_LENGTH: usize = 8;
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn end_as_they_should(by: By) {
    let mut world = World::prepare(by);
    world.node.set("FELIX_DNSMINTTL", &LIFETIME.as_secs().to_string());
    world.node.set("FELIX_DNSPACKETSNFQUEUESIZE", &QUEUE_LENGTH.to_string());
    world.node.set("FELIX_CUTDENIEDCONNECTIONS", "true");
    world.node.set("FELIX_HEALTHTIMEOUTOVERRIDES", "DnsReader=2s");
    world.node.start();
    let (short, mut open) = an_expired_address_is_closed_for_new_connections(&world);
    a_stopped_reader_fails_liveness_and_delays_answers(&world);
    a_killed_agent_closes_nothing(&mut world);
    assert!(open.answers(PATIENCE), "{}", world.node.log());
    world.assert_connects(&world.pods[0], short, false);
    // The end of the rule is the end of its connections.
    world.node.write("policy.yaml", &POLICY.replace("ports: [7, 80]", "ports: [80]"));
    until("the connection is cut", &world.node, || (!open.answers(Duration::from_millis(200))).then_some(()));
}

/// Returns the address, and a connection that outlives it.
fn an_expired_address_is_closed_for_new_connections(world: &World) -> (Ipv4Addr, Open) {
    let web = &world.pods[0];
    let [short, long] = [(); 2].map(|()| world.address());
    for (name, address, ttl) in [("short.example.com", short, 0), ("long.example.com", long, 300)] {
        world.zone.set(name, A, [Record { ttl, ..Record::v4(name, address) }]);
        world.look_up(web, name);
        world.assert_connects(web, address, true);
    }
    let begin = Instant::now();
    let mut open = Open::tcp(web, &short.to_string(), 7).unwrap();
    assert!(open.answers(PATIENCE));
    // The lifetime is at least that of the parameter.
    while begin.elapsed() < LIFETIME / 2 {
        world.assert_connects(web, short, true);
    }
    world.until_connects(web, short, false);
    assert!(begin.elapsed() < LIFETIME + Duration::from_secs(10), "{:?}", begin.elapsed());
    world.assert_connects(web, long, true);
    // A change of another rule has connections checked again.
    let checked = || world.node.metric("tortie_connections_check_timestamp_seconds");
    let before = checked();
    world.node.write("policy.yaml", &POLICY.replace("5353", "5354"));
    until("connections are checked", &world.node, || (checked() > before).then_some(()));
    assert!(open.answers(PATIENCE), "{}", world.node.log());
    (short, open)
}

/// Asks until an answer comes within 200 ms, and returns the sockets that wait.
fn ask_until_answered(web: &Namespace) -> Vec<std::net::UdpSocket> {
    let mut waiting = Vec::new();
    while waiting.len() < 10 * QUEUE_LENGTH {
        let socket = client(web, (SERVER, 53).into());
        socket.send(&question("late.example.com", A)).unwrap();
        if receive(&socket, Duration::from_millis(200)).is_some() {
            return waiting;
        }
        waiting.push(socket);
    }
    panic!("a full queue still holds answers");
}

fn a_stopped_reader_fails_liveness_and_delays_answers(world: &World) {
    let web = &world.pods[0];
    let late = world.address();
    world.zone.name("late.example.com", late);
    let stopped = Stopped::new(world.node.process(), "dns");
    let waiting = ask_until_answered(web);
    assert!(!waiting.is_empty() && waiting.len() <= 2 * QUEUE_LENGTH, "{}", waiting.len());
    // The answer that passed was not read.
    world.assert_connects(web, late, false);
    until_silent(&world.node, &["DnsReader"]);
    drop(stopped);
    for socket in waiting {
        assert!(receive(&socket, PATIENCE).is_some(), "a held answer is lost");
    }
    world.assert_connects(web, late, true);
    until_silent(&world.node, &[]);
}

fn a_killed_agent_closes_nothing(world: &mut World) {
    let known = world.assert_opens(&world.pods[0], "known.example.com");
    world.node.stop(Signal::KILL);
    world.assert_connects(&world.pods[0], known, true);
    // Answers pass, and open nothing.
    let unknown = world.address();
    world.zone.name("unknown.example.com", unknown);
    assert!(ask_once(&client(&world.pods[0], (SERVER, 53).into()), "unknown.example.com", A).is_some());
    world.assert_connects(&world.pods[0], unknown, false);
    world.node.start();
    world.assert_connects(&world.pods[0], known, true);
    world.look_up(&world.pods[0], "unknown.example.com");
    world.assert_connects(&world.pods[0], unknown, true);
}
