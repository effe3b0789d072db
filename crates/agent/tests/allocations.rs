//! Frequent reads allocate nothing for each item that is read.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "the test sends packets")]

use std::alloc::System;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_linux::netlink::{ConnectionEvents, Conntrack, Nflog, Read};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PATIENCE: Duration = Duration::from_secs(20);
const CONNECTIONS: u16 = 2000;
/// Bound above the allocations of the test harness beside this test.
const FEW: usize = 100;

fn allocations<T>(body: impl FnOnce() -> T) -> (usize, T) {
    let region = Region::new(GLOBAL);
    let result = body();
    let change = region.change();
    (change.allocations + change.reallocations, result)
}

/// Reads until there are as many messages as connections.
fn read_all(mut read: impl FnMut() -> Read) {
    let (begin, mut messages) = (Instant::now(), 0);
    while messages < usize::from(CONNECTIONS) {
        assert!(begin.elapsed() < PATIENCE, "{messages}");
        let read = read();
        assert_eq!((read.lost, read.unreadable), (0, 0));
        messages += read.messages;
        thread::yield_now();
    }
}

fn open_connections() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for port in 20_000..20_000 + CONNECTIONS {
        socket.send_to(&[0; 100], ("127.0.0.1", port)).unwrap();
    }
}

kernel_test! {
    fn reading_allocates_nothing_for_each_packet_event_and_connection() {
        let namespace = Namespace::new().unwrap();
        namespace.sysctl(&[("netfilter/nf_conntrack_acct".to_owned(), "1")]).unwrap();
        namespace
            .shell("iptables -w -A OUTPUT -p udp -m conntrack --ctstate NEW -j NFLOG --nflog-group 1 --nflog-prefix x")
            .unwrap();
        namespace.run(|| {
            let mut nflog = Nflog::open(&[1]).unwrap();
            let mut events = ConnectionEvents::open().unwrap();
            let mut conntrack = Conntrack::open(PATIENCE).unwrap();
            open_connections();
            let (count, ()) = allocations(|| read_all(|| nflog.read(|_| {}).unwrap()));
            assert!(count < FEW, "logged packets: {count}");
            let (count, ()) = allocations(|| read_all(|| events.read(|_| {}).unwrap()));
            assert!(count < FEW, "events: {count}");
            let mut listed = 0;
            let (count, ()) = allocations(|| conntrack.traffic(|_, traffic| {
                assert_eq!(traffic.expect("they are counted").original.packets, 1);
                listed += 1;
            }).unwrap());
            assert_eq!(listed, CONNECTIONS);
            assert!(count < FEW, "traffic: {count}");
        }).unwrap();
    }
}
