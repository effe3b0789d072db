//! Processor time for reading the input of flow logs.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::time::{ClockId, clock_gettime};
use tortie_lab::netns::Namespace;

use crate::stop::poll_for;

use super::conntrack::tests::both_ways;
use super::{Connection, ConnectionEvent, ConnectionEvents, Conntrack, Flow, Nflog};

const PACKETS: usize = 10_000;
const EVENTS: usize = 20_000;
const CONNECTIONS: usize = 100_000;
const TIMEOUT: Duration = Duration::from_secs(60);
const REASON: &str = "net.netfilter.nf_conntrack_acct=1";

/// Measures the processor time of this thread, including the kernel's.
fn spent<T>(body: impl FnOnce() -> T) -> (Duration, T) {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let begin = now();
    let result = body();
    (now() - begin, result)
}

fn print(subject: &str, count: usize, took: Duration) {
    println!("{count} {subject}: {took:?}, {:.2} µs each", took.as_secs_f64() * 1e6 / count as f64);
}

fn connections(count: usize) -> Vec<Connection> {
    let ports = |source, destination| Flow::Ports { source, destination };
    let one = |n: usize| {
        let client = format!("10.1.{}.{}", n / 250 % 250, n % 250 + 1);
        let port = u16::try_from(10_000 + n / 62_500).unwrap();
        both_ways(&client, "10.0.0.2", 6, ports(port, 80), ports(80, port), 0)
    };
    (0..count).map(one).collect()
}

fn read_packets(namespace: &Namespace) {
    namespace.shell("iptables -w -A OUTPUT -p udp -j NFLOG --nflog-group 1 --nflog-prefix 'APE0|default/db'").unwrap();
    let mut nflog = Nflog::open(&[1]).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut took, mut packets, mut calls) = (Duration::ZERO, 0, 0);
    while packets < PACKETS {
        for port in 1000..1500 {
            socket.send_to(&[0; 100], ("127.0.0.1", port)).unwrap();
        }
        let (time, read) = spent(|| nflog.read(|packet| assert_eq!(packet.packet.length, 128)).unwrap());
        assert_eq!((read.lost, read.unreadable), (0, 0));
        (took, packets, calls) = (took + time, packets + read.messages, calls + 1);
    }
    print(&format!("logged packets in {calls} calls"), packets, took);
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        // Remaining packets of the previous rounds.
        let mut left = 1;
        while left > 0 {
            poll_for(&mut [PollFd::new(&nflog, PollFlags::IN)], Duration::from_millis(200)).unwrap();
            left = nflog.read(|_| {}).unwrap().messages;
        }
        let begin = Instant::now();
        socket.send_to(&[0; 100], "127.0.0.1:1000").unwrap();
        poll_for(&mut [PollFd::new(&nflog, PollFlags::IN)], TIMEOUT).unwrap();
        longest = longest.max(begin.elapsed());
    }
    println!("a single packet arrives after {longest:?}, at most");
}

/// Reads all waiting events; returns the number of lost ones.
fn drain(events: &mut ConnectionEvents, mut each: impl FnMut(ConnectionEvent)) -> u64 {
    let mut lost = 0;
    loop {
        let read = events.read(&mut each).unwrap();
        lost += read.lost;
        if !read.more {
            return lost;
        }
    }
}

fn read_events() {
    let mut events = ConnectionEvents::open().unwrap();
    let mut conntrack = Conntrack::open(TIMEOUT).unwrap();
    let (mut took, mut count) = (Duration::ZERO, 0);
    for some in connections(EVENTS / 2).chunks(1000) {
        conntrack.insert(some).unwrap();
        let mut begun = Vec::with_capacity(some.len());
        let (begin, read) = spent(|| drain(&mut events, |event| begun.push(event.connection)));
        assert_eq!((read, begun.len()), (0, some.len()), "none is lost");
        conntrack.delete(&begun).unwrap();
        let mut counted = 0;
        let (end, read) = spent(|| drain(&mut events, |event| counted += usize::from(event.traffic.is_some())));
        assert_eq!((read, counted), (0, some.len()), "none is lost, {REASON}");
        (took, count) = (took + begin + end, count + 2 * some.len());
    }
    print("events of connections", count, took);
}

fn list_traffic() {
    let mut conntrack = Conntrack::open(TIMEOUT).unwrap();
    conntrack.insert(&connections(CONNECTIONS)).unwrap();
    for _ in 0..3 {
        let (mut count, begin) = (0, Instant::now());
        let (took, ()) = spent(|| {
            conntrack.traffic(|_, traffic| count += usize::from(traffic.is_some())).expect(REASON);
        });
        print("connections listed with their traffic", count, took);
        println!("  in {:?}", begin.elapsed());
        let (took, listed) = spent(|| conntrack.connections(|_| true).unwrap().len());
        print("connections listed", listed, took);
        assert_eq!((count, listed), (CONNECTIONS, CONNECTIONS));
    }
}

/// Run with `cargo test --profile bench -p tortie-linux --lib -- --ignored --nocapture
/// cost_of_flow_log_reads`.
#[test]
#[ignore = "prints times that only an optimized build on a quiet machine has; tests of the same code assert the results"]
fn cost_of_flow_log_reads() {
    let namespace = Namespace::new().unwrap();
    namespace.sysctl(&[("netfilter/nf_conntrack_acct".to_owned(), "1")]).unwrap();
    namespace
        .run(|| {
            read_packets(&namespace);
            read_events();
            list_traffic();
        })
        .unwrap();
}
