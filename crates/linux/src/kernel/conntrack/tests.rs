//! Against the kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::time::{ClockId, clock_gettime};
use tortie_dataplane::KernelError;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_model::with_causes;

use super::{SLICE, STEP, flush};
use crate::exec::Runner;
use crate::netlink::{Connection, Conntrack, Flow, Tuple};
use crate::stop::Stop;

const TIMEOUT: Duration = Duration::from_secs(60);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn flush_all(addresses: &[IpAddr]) {
    let outcomes = flush(addresses, TIMEOUT, &Runner::default());
    assert_eq!(outcomes, vec![Ok(()); addresses.len()]);
}

/// Returns the tracked connections, without the ids that the kernel assigns.
fn tracked(conntrack: &mut Conntrack) -> BTreeSet<Connection> {
    let all = conntrack.connections(|_| true).unwrap();
    all.into_iter().map(|connection| Connection { id: 0, ..connection }).collect()
}

/// Returns both directions of a protocol, with a number that distinguishes connections.
fn flows(protocol: u8, number: u16) -> (Flow, Flow) {
    let echo = |icmp_type| Flow::Icmp { id: number, icmp_type, code: 0 };
    match protocol {
        1 => (echo(8), echo(0)),
        58 => (echo(128), echo(129)),
        _ => (Flow::Ports { source: number, destination: 80 }, Flow::Ports { source: 80, destination: number }),
    }
}

/// A connection from an address to another one; address translation replaces the destination and
/// the source by those of the replies.
fn connection(ends: [IpAddr; 4], protocol: u8, number: u16, zone: u16) -> Connection {
    let [source, destination, server, client] = ends;
    let (there, back) = flows(protocol, number);
    Connection {
        original: Tuple { source, destination, protocol, flow: there },
        reply: Tuple { source: server, destination: client, protocol, flow: back },
        id: 0,
        zone,
    }
}

fn plain(source: IpAddr, destination: IpAddr, number: u16) -> Connection {
    connection([source, destination, destination, source], 6, number, 0)
}

fn address(is_ipv4: bool, number: u8) -> IpAddr {
    ip(&if is_ipv4 { format!("10.0.0.{number}") } else { format!("fd00::{number}") })
}

/// Connections among few addresses, each with another number: two of one original direction, or of
/// one reply, cannot be in the kernel.
fn connections() -> impl Strategy<Value = Vec<Connection>> {
    let numbers =
        any::<[prop::sample::Index; 4]>().prop_map(|numbers| numbers.map(|n| u8::try_from(n.index(6)).unwrap()));
    let one = (any::<bool>(), numbers, any::<bool>(), 0..4_usize, prop_oneof![4 => Just(0), 1 => Just(5_u16)]);
    prop::collection::vec(one, 0..60).prop_map(|all| {
        let one =
            |(number, (is_ipv4, ends, is_translated, protocol, zone)): (usize, (bool, [u8; 4], bool, usize, u16))| {
                let [source, destination, server, client] = ends.map(|end| address(is_ipv4, end));
                let ends = if is_translated {
                    [source, destination, server, client]
                } else {
                    [source, destination, destination, source]
                };
                let protocol = [6, 17, 132, if is_ipv4 { 1 } else { 58 }][protocol];
                connection(ends, protocol, 1000 + u16::try_from(number).unwrap(), zone)
            };
        all.into_iter().enumerate().map(one).collect()
    })
}

fn addresses() -> impl Strategy<Value = Vec<IpAddr>> {
    let one = (any::<bool>(), 0..8_u8).prop_map(|(is_ipv4, number)| address(is_ipv4, number));
    prop::collection::vec(one, 0..6)
}

kernel_test! {
    fn exactly_the_connections_from_the_addresses_and_those_that_they_answer_go() {
        let check = |given: &[Connection], flushed: &[IpAddr]| {
            let mut conntrack = Conntrack::open(TIMEOUT).unwrap();
            conntrack.insert(given).unwrap();
            assert_eq!(tracked(&mut conntrack), given.iter().copied().collect());
            flush_all(flushed);
            let stays = |one: &&Connection| ![one.original.source, one.reply.source].iter().any(|end| flushed.contains(end));
            assert_eq!(tracked(&mut conntrack), given.iter().filter(stays).copied().collect());
        };
        TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(32) })
            .run(&(connections(), addresses()), |(given, flushed)| {
                Namespace::new().unwrap().run(|| check(&given, &flushed)).unwrap();
                Ok(())
            })
            .unwrap();
    }

    fn a_connection_whose_replies_or_packets_alone_have_a_zone_goes() {
        for zone in ["--zone-orig 5", "--zone-reply 6", "--zone 7"] {
            let namespace = Namespace::new().unwrap();
            let rule = format!("iptables -w -t raw -A OUTPUT -p udp -j CT {zone}");
            let track = "iptables -w -A INPUT -m conntrack --ctstate INVALID -j DROP";
            namespace.shell(&format!("{track}; {rule}")).unwrap();
            namespace
                .run(|| {
                    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                    let server = std::net::UdpSocket::bind("127.0.0.2:0").unwrap();
                    socket.send_to(&[0], server.local_addr().unwrap()).unwrap();
                    let mut conntrack = Conntrack::open(TIMEOUT).unwrap();
                    let zones: Vec<u16> = tracked(&mut conntrack).iter().map(|one| one.zone).collect();
                    assert!(!zones.is_empty() && !zones.contains(&0), "{zone}: {zones:?}");
                    flush_all(&[ip("127.0.0.1"), ip("127.0.0.2")]);
                    assert_eq!(tracked(&mut conntrack), BTreeSet::new(), "{zone}");
                })
                .unwrap();
        }
    }

    fn more_connections_than_fit_into_a_slice_go_in_one_walk_and_report_progress() {
        let count = u16::try_from(5 * SLICE / 2).unwrap();
        let all: Vec<Connection> = (1..=count).map(|n| plain(ip("10.0.0.1"), ip("10.0.0.2"), n)).collect();
        let progress = Arc::new(AtomicUsize::new(0));
        let noted = Arc::clone(&progress);
        let runner = Runner::default().with_progress(move || {
            noted.fetch_add(1, Ordering::Relaxed);
        });
        Namespace::new().unwrap().run(|| {
            let mut conntrack = Conntrack::open(TIMEOUT).unwrap();
            conntrack.insert(&all).unwrap();
            assert_eq!(flush(&[ip("10.0.0.2"), ip("10.0.0.3")], TIMEOUT, &runner), [Ok(()), Ok(())]);
            assert_eq!(tracked(&mut conntrack).len(), 0);
        }).unwrap();
        assert_eq!(progress.load(Ordering::Relaxed), 3, "two full slices, and the end");
    }

    fn a_walk_over_entries_of_other_addresses_reports_progress_and_can_be_stopped() {
        let count = u16::try_from(5 * STEP / 2).unwrap();
        let all: Vec<Connection> = (1..=count).map(|n| plain(ip("10.0.0.1"), ip("10.0.0.2"), n)).collect();
        let progress = Arc::new(AtomicUsize::new(0));
        let noted = Arc::clone(&progress);
        let stop = Stop::new().unwrap();
        let runner = Runner::new(stop.clone()).with_progress(move || {
            noted.fetch_add(1, Ordering::Relaxed);
        });
        let flush = || flush(&[ip("10.0.0.3")], TIMEOUT, &runner);
        Namespace::new().unwrap().run(|| {
            let mut conntrack = Conntrack::open(TIMEOUT).unwrap();
            conntrack.insert(&all).unwrap();
            assert_eq!(flush(), [Ok(())]);
            assert_eq!(progress.swap(0, Ordering::Relaxed), 3, "two full steps, and the end");
            stop.set();
            let outcomes = flush();
            let Err(KernelError::Failed(cause)) = &outcomes[0] else { panic!("{outcomes:?}") };
            assert_eq!(with_causes(cause), "this program is ending");
            assert_eq!(progress.load(Ordering::Relaxed), 1, "the first step");
            assert_eq!(tracked(&mut conntrack).len(), all.len());
        }).unwrap();
    }

    fn a_stop_ends_the_walk_at_the_next_slice() {
        let count = u16::try_from(SLICE + 1).unwrap();
        let all: Vec<Connection> = (1..=count).map(|n| plain(ip("10.0.0.1"), ip("10.0.0.2"), n)).collect();
        let stop = Stop::new().unwrap();
        stop.set();
        let runner = Runner::new(stop);
        Namespace::new().unwrap().run(|| {
            let mut conntrack = Conntrack::open(TIMEOUT).unwrap();
            conntrack.insert(&all).unwrap();
            let outcomes = flush(&[ip("fd00::1"), ip("10.0.0.1")], TIMEOUT, &runner);
            assert_eq!(outcomes[0], Ok(()), "it has no connections");
            let Err(KernelError::Failed(cause)) = &outcomes[1] else { panic!("{outcomes:?}") };
            assert_eq!(with_causes(cause), "this program is ending");
            assert_eq!(tracked(&mut conntrack).len(), all.len());
        }).unwrap();
    }
}

/// Measures the processor time of this thread, including the kernel's, and the time that passes.
fn spent(body: impl FnOnce()) -> (Duration, Duration) {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let (begin, started) = (now(), Instant::now());
    body();
    (now() - begin, started.elapsed())
}

/// Run with `cargo test --profile bench -p tortie-linux --lib -- --ignored --nocapture
/// cost_of_a_drain`.
#[test]
#[ignore = "prints times that only an optimized build on a quiet machine has; tests of the same code assert the results"]
fn cost_of_a_drain() {
    for (entries, removed) in [(10_000_u32, 200_u32), (10_000, 1), (262_144, 1), (262_144, 200), (262_144, 10_000)] {
        Namespace::new()
            .unwrap()
            .run(|| {
                let pod = |n: u32| IpAddr::from((0x0a41_0000 + n % 20_000).to_be_bytes());
                let number = |n: u32| 1000 + u16::try_from(n / 20_000).unwrap();
                let all: Vec<Connection> = (0..entries).map(|n| plain(pod(n), ip("10.0.0.1"), number(n))).collect();
                Conntrack::open(TIMEOUT).unwrap().insert(&all).unwrap();
                let addresses: Vec<IpAddr> = (0..removed).map(pod).collect();
                let (processor, passed) = spent(|| flush_all(&addresses));
                println!("{removed} addresses among {entries} entries: {processor:?} of processor time in {passed:?}");
            })
            .unwrap();
    }
}
