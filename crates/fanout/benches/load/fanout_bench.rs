//! A thousand clients, a hundred thousand endpoints, five hundred updates a second.
//!
//! This program also runs all the clients. They read everything that they receive. To leave
//! processor time to the server on a small machine, all but a few skip the contents of the
//! snapshot; every client decodes every change.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tortie_fanout::protocol::frame::{self, Compression, MAX_TO_CLIENT};
use tortie_fanout::protocol::{Batch, Heartbeat, ToClient, ToServer, client, server};

use super::cluster::{Cluster, node_name};
use super::latency::{self, Latencies};
use super::process::{Fanout, Figures};
use super::wire::{Datastore, greet};

/// One of this many clients decodes its snapshot.
const DECODES: usize = 50;

/// Measure one `tortie fanout` with many clients.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent's program.
    #[arg(long, hide = true)]
    agent: PathBuf,
    /// Clients, each of a different node.
    #[arg(long, default_value_t = 1000)]
    clients: usize,
    /// Endpoints.
    #[arg(long, default_value_t = 100_000)]
    endpoints: usize,
    /// Updates a second.
    #[arg(long, default_value_t = 500)]
    rate: u32,
    /// For how long.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// Counters shared by all clients.
#[derive(Default)]
struct Tally {
    have_snapshot: AtomicUsize,
    decoded: AtomicUsize,
    bytes: AtomicU64,
    changes: AtomicU64,
    /// Connections that were lost before anything came over them.
    knocked_again: AtomicUsize,
    /// From the datastore to a client.
    latency: Latencies,
}

pub(crate) fn run(args: &Args) {
    let Args { clients, endpoints, rate, seconds, .. } = *args;
    let cluster = Cluster { nodes: clients, pods: endpoints, services: 500, namespaces: 100 };
    let datastore = Datastore::start((0..endpoints).map(|number| cluster.pod(number, 0)));

    let started = Instant::now();
    let server = Fanout::start(&args.agent, datastore.address());
    server.await_ready();
    println!("server under test: everything read after {:.2} s", started.elapsed().as_secs_f64());
    let idle = server.figures();
    println!("  {:.1} MB resident, {:.2} s of processor time", idle.resident_mb, idle.cpu);

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let tally = Arc::new(Tally::default());
    let address = server.address;
    let connect = |number: usize| drop(runtime.spawn(follow(address, number, Arc::clone(&tally))));
    take_snapshots(&server, &tally, clients, connect);

    thread::sleep(Duration::from_secs(8));
    let quiet = server.figures();
    println!("with all clients connected and nothing to do: {:.1} MB resident", quiet.resident_mb);
    println!(
        "  {:.1} kB more for each client than without any",
        (quiet.resident_mb - idle.resident_mb) * 1e3 / clients as f64
    );

    let total = u64::from(rate) * seconds;
    let begun = Instant::now();
    send_changes(&cluster, &datastore, endpoints, rate, total);
    let sent = begun.elapsed();
    let expected = total * clients as u64;
    let until = Instant::now() + Duration::from_secs(60);
    while tally.changes.load(Ordering::Relaxed) < expected && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    let took = begun.elapsed().as_secs_f64();
    let changes = tally.changes.load(Ordering::Relaxed);
    println!(
        "{total} updates in {:.1} s to {clients} clients: {changes} of {expected} arrived, the last after {took:.1} s",
        sent.as_secs_f64()
    );
    report_changes(&server, &tally, &quiet, took);
    let driver = Figures::own();
    println!(
        "this program (datastore and clients): {:.1} s of processor time, {:.1} MB resident",
        driver.cpu, driver.resident_mb
    );
    let missing = tally.decoded.load(Ordering::Relaxed);
    assert_eq!(missing, clients.div_ceil(DECODES) * endpoints, "a snapshot was not whole");
    assert_eq!(changes, expected, "changes got lost");
    runtime.shutdown_background();
}

/// Connects one client, then all others, and prints the cost of their snapshots.
fn take_snapshots(server: &Fanout, tally: &Tally, clients: usize, connect: impl Fn(usize)) {
    let asked = Instant::now();
    connect(0);
    tally.await_snapshots(1);
    println!("snapshot, first client alone: {:.0} ms", asked.elapsed().as_secs_f64() * 1e3);
    println!("  {:.1} MB on the wire", tally.bytes.load(Ordering::Relaxed) as f64 / 1e6);
    let before = server.figures();
    let asked = Instant::now();
    for number in 1..clients {
        connect(number);
    }
    tally.await_snapshots(clients);
    let took = asked.elapsed().as_secs_f64();
    let after = server.figures();
    println!("snapshot, until all {clients} clients have it: {took:.2} s");
    println!(
        "  server: {:.2} s of processor time, {:.2} ms for each client; {:.1} MB resident; {} snapshots written",
        after.cpu - before.cpu,
        (after.cpu - before.cpu) * 1e3 / (clients - 1) as f64,
        after.resident_mb,
        server.metric("typha_snapshots_generated"),
    );
}

fn send_changes(cluster: &Cluster, datastore: &Datastore, endpoints: usize, rate: u32, total: u64) {
    let begun = Instant::now();
    let pause = Duration::from_secs(1) / rate;
    for number in 0..total {
        let due = begun + pause * u32::try_from(number).unwrap();
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let which = usize::try_from(number * 7919).unwrap() % endpoints;
        datastore.send(cluster.pod(which, latency::now()));
    }
}

/// Prints the cost of the changes, which took `took` seconds to arrive.
fn report_changes(server: &Fanout, tally: &Tally, quiet: &Figures, took: f64) {
    let busy = server.figures();
    let cpu = busy.cpu - quiet.cpu;
    let changes = tally.changes.load(Ordering::Relaxed);
    let [p50, p90, p99, most] = tally.latency.quantiles([0.5, 0.9, 0.99, 1.0]);
    println!(
        "latency from the datastore to a client: p50 {p50:.1} ms, p90 {p90:.1} ms, p99 {p99:.1} ms, max {most:.1} ms"
    );
    println!(
        "  server: {:.0} % of a processor; {:.2} µs for each change and client; {:.1} MB resident",
        cpu / took * 100.0,
        cpu * 1e6 / changes.max(1) as f64,
        busy.resident_mb
    );
    println!(
        "  {} breadcrumbs, {} writes of {:.1} changes each, {:.1} MB sent",
        server.metric("typha_breadcrumb_size_count"),
        server.metric("typha_kvs_per_msg_count"),
        server.metric("typha_kvs_per_msg_sum") / server.metric("typha_kvs_per_msg_count").max(1.0),
        server.metric("tortie_fanout_sent_bytes") / 1e6
    );
    println!("  connections lost in the crowd: {}", tally.knocked_again.load(Ordering::Relaxed));
    println!("  clients cut off: {}", server.metric("tortie_fanout_connections_too_slow"));
}

impl Tally {
    fn await_snapshots(&self, count: usize) {
        let until = Instant::now() + Duration::from_secs(300);
        while self.have_snapshot.load(Ordering::Relaxed) < count {
            assert!(Instant::now() < until, "{} of {count} snapshots", self.have_snapshot.load(Ordering::Relaxed));
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn changed(&self, stamp: u64) {
        self.latency.add(stamp);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs a client of one node, which reconnects if the rush of connections breaks its own.
async fn follow(address: SocketAddr, number: usize, tally: Arc<Tally>) {
    loop {
        let Err(error) = listen(address, number, &tally).await;
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "client {number}");
        tally.knocked_again.fetch_add(1, Ordering::Relaxed);
    }
}

/// Follows the changes. An error means that the connection failed before any data.
async fn listen(address: SocketAddr, number: usize, tally: &Tally) -> std::io::Result<Infallible> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true).unwrap();
    let (mut reader, mut writer) = stream.into_split();
    greet(&mut writer, node_name(number)).await?;
    let own = format!("/calico/v1/host/{}/", node_name(number));
    let mut buffer = BytesMut::new();
    let mut whole = BTreeSet::new();
    let mut has_snapshot = false;
    loop {
        buffer.reserve(64 * 1024);
        let read = match reader.read_buf(&mut buffer).await {
            Err(error) if !has_snapshot && whole.is_empty() => return Err(error),
            read => read.unwrap(),
        };
        assert!(read > 0, "client {number} was cut off");
        tally.bytes.fetch_add(read as u64, Ordering::Relaxed);
        loop {
            if !has_snapshot && !number.is_multiple_of(DECODES) && skip(&mut buffer) {
                continue;
            }
            let Some(ToClient { message }) = frame::take(&mut buffer, MAX_TO_CLIENT).unwrap() else { break };
            match message {
                Some(server::Message::Batch(Batch { entries, own: is_own, settled })) => {
                    for entry in entries.into_iter().filter(|entry| entry.path.starts_with(&own) == is_own) {
                        if has_snapshot {
                            tally.changed(stamp_of(&entry.value.unwrap()));
                        } else {
                            whole.insert(entry.path);
                        }
                    }
                    if settled.is_some() && !has_snapshot {
                        has_snapshot = true;
                        if number.is_multiple_of(DECODES) {
                            tally.decoded.fetch_add(whole.len(), Ordering::Relaxed);
                        }
                        whole = BTreeSet::new();
                        tally.have_snapshot.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Some(server::Message::Heartbeat(Heartbeat { stamp, .. })) => {
                    let beat = ToServer { message: Some(client::Message::Heartbeat(Heartbeat { stamp, sequence: 0 })) };
                    writer.write_all(&frame::encode(&beat, Compression::None)).await.unwrap();
                }
                _ => {}
            }
        }
    }
}

/// Removes a complete compressed frame from the front, if there is one.
fn skip(buffer: &mut BytesMut) -> bool {
    let Some(&[a, b, c, d, kind]) = buffer.first_chunk::<5>() else { return false };
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let whole = kind == 1 && buffer.len() >= 4 + length;
    if whole {
        buffer.advance(4 + length);
    }
    whole
}

/// Returns the time of an endpoint's change, from its label.
fn stamp_of(value: &[u8]) -> u64 {
    let name = b"\"changed\":\"";
    let at = value.windows(name.len()).position(|window| window == name).unwrap() + name.len();
    value[at..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |so_far, digit| so_far * 10 + u64::from(digit - b'0'))
}
