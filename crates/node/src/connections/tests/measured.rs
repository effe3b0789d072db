//! Time of a pass over 100,000 connections.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tortie_lab::netns::Namespace;
use tortie_linux::netlink::{Conntrack, Flow};

use super::fixture::{self, evaluator, policy, tcp, updates};
use crate::connections::SharedCutCounts;
use crate::connections::evaluation::Exceptions;
use crate::connections::tracking::KernelTracking;
use crate::connections::worker::{CutterMessage, State, Worker};

const CONNECTIONS: u32 = 100_000;
/// One in so many is denied by the change.
const DENIED: u32 = 100;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Run with `cargo test --profile bench -p tortie-node --lib -- --ignored --nocapture
/// a_hundred_thousand`.
#[test]
#[ignore = "prints a time that only an optimized build on a quiet machine has; tests of the same code assert the cut connections"]
fn a_hundred_thousand_connections() {
    let tracked: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let port = if n % DENIED == 0 { 9090 } else { 8080 };
            let client = format!("10.1.{}.{}", n / 250 % 250, n % 250 + 1);
            let mut connection = tcp(&client, ("10.0.0.2", port));
            let from = u16::try_from(10_000 + n / 62_500).unwrap();
            connection.original.flow = Flow::Ports { source: from, destination: port };
            connection.reply.flow = Flow::Ports { source: port, destination: from };
            connection
        })
        .collect();
    let namespace = Namespace::new().unwrap();
    let (took, again, left) = namespace
        .run(|| {
            let mut conntrack = Conntrack::open(TIMEOUT).unwrap();
            conntrack.insert(&tracked).unwrap();
            let (sender, messages) = channel();
            let mut worker = Worker {
                messages,
                tracking: KernelTracking::new(TIMEOUT),
                evaluator: evaluator(&updates()),
                exceptions: Exceptions::default(),
                counts: SharedCutCounts::default(),
                state: State::default(),
            };
            let mut pass = |port| {
                sender.send(fixture::desired(policy("server", &[8080, port]))).unwrap();
                sender.send(CutterMessage::InForce(true)).unwrap();
                worker.drain().unwrap();
                let begin = Instant::now();
                let cut = worker.pass().unwrap().unwrap();
                (begin.elapsed(), cut)
            };
            let (idle, none) = pass(9090);
            let (took, cut) = pass(8080);
            assert_eq!((none, cut), (0, u64::from(CONNECTIONS / DENIED)));
            let left = conntrack.connections(|_| true).unwrap().len();
            (took, idle, left)
        })
        .unwrap();
    assert_eq!(left, usize::try_from(CONNECTIONS - CONNECTIONS / DENIED).unwrap());
    println!("{CONNECTIONS} connections: {again:?} if none is denied, {took:?} if {} are", CONNECTIONS / DENIED);
}
