//! Load for `tortie fanout`: a thousand clients, a hundred thousand endpoints, five hundred updates a second.
//!
//! Run by `cargo xtask fanout-bench`. This program is the datastore (a server of its own, that the server under test
//! follows) and all the clients; the server under test is a process of its own.
//!
//! All clients read everything that they are sent. To leave processor time to the server on a small machine, all but a few
//! skip the contents of the snapshot; every client decodes every change.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark starts programs and reads clocks")]

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tortie_datastore::channel;
use tortie_fanout::protocol::frame::{self, Compression, MAX_TO_CLIENT};
use tortie_fanout::protocol::{Batch, ClientHello, Heartbeat, MAGIC, ToClient, ToServer, VERSION, client, server};
use tortie_fanout::server::{Server, ServerConfig};
use tortie_model::{
    EndpointPort, Labels, Mac, NamedProtocol, Protocol, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};

/// One client of so many decodes its snapshot.
const DECODES: usize = 50;
/// Latencies are counted in steps of this many microseconds.
const STEP: u64 = 50;
const STEPS: usize = 400_000;

struct Settings {
    agent: PathBuf,
    clients: usize,
    endpoints: usize,
    rate: u32,
    seconds: u64,
}

fn main() {
    let mut settings = Settings { agent: PathBuf::new(), clients: 1000, endpoints: 100_000, rate: 500, seconds: 20 };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().unwrap().parse::<u64>().unwrap();
        match arg.as_str() {
            "--clients" => settings.clients = usize::try_from(number()).unwrap(),
            "--endpoints" => settings.endpoints = usize::try_from(number()).unwrap(),
            "--rate" => settings.rate = u32::try_from(number()).unwrap(),
            "--seconds" => settings.seconds = number(),
            "--agent" => settings.agent = args.next().unwrap().into(),
            // What cargo passes to benchmarks.
            _ => {}
        }
    }
    if settings.agent.as_os_str().is_empty() {
        println!("--agent PATH is needed; cargo xtask fanout-bench knows it");
        return;
    }
    run(&settings);
}

/// What all clients share.
struct Tally {
    started: Instant,
    have_snapshot: AtomicUsize,
    decoded: AtomicUsize,
    bytes: AtomicU64,
    changes: AtomicU64,
    /// Connections that were lost before anything came over them.
    knocked_again: AtomicUsize,
    /// How many changes took so many steps from the datastore to a client.
    latency: Vec<AtomicU32>,
}

fn run(settings: &Settings) {
    let Settings { clients, endpoints, rate, seconds, .. } = *settings;
    let (feed, watching) = channel();
    let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let upstream =
        Server::start(ServerConfig { listen, pace: Duration::ZERO, threads: 1, ..ServerConfig::default() }, watching);
    let upstream = upstream.unwrap();
    feed.begin_resync().unwrap();
    for number in 0..endpoints {
        feed.tell([endpoint(number, clients, 0)], Instant::now()).unwrap();
    }
    feed.end_resync().unwrap();

    let started = Instant::now();
    let server = UnderTest::start(settings, upstream.addresses()[0]);
    server.await_ready();
    println!("server under test: everything read after {:.2} s", started.elapsed().as_secs_f64());
    let idle = server.figures();
    println!("  {:.1} MB resident, {:.2} s of processor time", idle.resident_mb, idle.cpu);

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let tally = Arc::new(Tally {
        started: Instant::now(),
        have_snapshot: AtomicUsize::new(0),
        decoded: AtomicUsize::new(0),
        bytes: AtomicU64::new(0),
        changes: AtomicU64::new(0),
        knocked_again: AtomicUsize::new(0),
        latency: (0..STEPS).map(|_| AtomicU32::new(0)).collect(),
    });
    let address = server.address;
    let connect = |number: usize| runtime.spawn(follow(address, number, Arc::clone(&tally)));

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

    thread::sleep(Duration::from_secs(8));
    let quiet = server.figures();
    println!("with all clients connected and nothing to do: {:.1} MB resident", quiet.resident_mb);
    println!(
        "  {:.1} kB more for each client than without any",
        (quiet.resident_mb - idle.resident_mb) * 1e3 / clients as f64
    );

    let begun = Instant::now();
    let pause = Duration::from_secs(1) / rate;
    let total = u64::from(rate) * seconds;
    for number in 0..total {
        let due = begun + pause * u32::try_from(number).unwrap();
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let which = usize::try_from(number * 7919).unwrap() % endpoints;
        let stamp = u64::try_from(tally.started.elapsed().as_micros()).unwrap();
        feed.tell([endpoint(which, clients, stamp)], Instant::now()).unwrap();
    }
    let sent = begun.elapsed();
    let expected = total * clients as u64;
    let until = Instant::now() + Duration::from_secs(60);
    while tally.changes.load(Ordering::Relaxed) < expected && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    let took = begun.elapsed().as_secs_f64();
    let busy = server.figures();
    let cpu = busy.cpu - quiet.cpu;
    let changes = tally.changes.load(Ordering::Relaxed);
    println!(
        "{total} updates in {:.1} s to {clients} clients: {changes} of {expected} arrived, the last after {took:.1} s",
        sent.as_secs_f64()
    );
    let [p50, p90, p99, most] = tally.quantiles();
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
    let driver = figures(std::process::id());
    println!(
        "this program (datastore and clients): {:.1} s of processor time, {:.1} MB resident",
        driver.cpu, driver.resident_mb
    );
    let missing = tally.decoded.load(Ordering::Relaxed);
    assert_eq!(missing, clients.div_ceil(DECODES) * endpoints, "a snapshot was not whole");
    assert_eq!(changes, expected, "changes got lost");
    runtime.shutdown_background();
}

/// An endpoint as Kubernetes makes them, with a label that says when it was last changed.
fn endpoint(number: usize, nodes: usize, stamp: u64) -> Update {
    let node = format!("node-{:04}", number % nodes);
    let pod = format!("service-{}-7d4b9c6f{:02x}-{number:05x}", number % 500, number % 256);
    let namespace = format!("team-{}", number % 100);
    let key = WorkloadEndpointKey::new(&node, "k8s", &format!("{namespace}/{pod}"), "eth0");
    let [_, a, b, c] = u32::try_from(number).unwrap().to_be_bytes();
    let labels = [
        ("app", format!("service-{}", number % 500)),
        ("changed", stamp.to_string()),
        ("pod-template-hash", format!("7d4b9c6f{:02x}", number % 256)),
        ("projectcalico.org/namespace", namespace.clone()),
        ("projectcalico.org/orchestrator", "k8s".to_owned()),
        ("projectcalico.org/serviceaccount", "default".to_owned()),
        ("tier", ["web", "api", "data", "batch"][number % 4].to_owned()),
    ];
    let endpoint = WorkloadEndpoint {
        iface: Some(format!("cali{number:011x}").as_str().into()),
        mac: Some(Mac([0xee; 6])),
        profiles: [format!("kns.{namespace}"), format!("ksa.{namespace}.default")]
            .iter()
            .map(|p| p.as_str().into())
            .collect(),
        ipv4_nets: [format!("10.{a}.{b}.{c}/32").parse().unwrap()].into_iter().collect(),
        labels: Labels::from_pairs(labels.iter().map(|(k, v)| (*k, v.as_str()))).unwrap(),
        ports: [EndpointPort { name: "http".into(), protocol: Protocol::Named(NamedProtocol::Tcp), port: 8080 }].into(),
        ..WorkloadEndpoint::default()
    };
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
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
        let now = u64::try_from(self.started.elapsed().as_micros()).unwrap();
        let step = usize::try_from(now.saturating_sub(stamp) / STEP).unwrap().min(STEPS - 1);
        self.latency[step].fetch_add(1, Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// The medium latency, that of nine tenths, of all but a hundredth, and the longest, in milliseconds.
    fn quantiles(&self) -> [f64; 4] {
        let counts: Vec<u64> = self.latency.iter().map(|count| count.load(Ordering::Relaxed).into()).collect();
        let total: u64 = counts.iter().sum();
        [0.5, 0.9, 0.99, 1.0].map(|share| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
            let wanted = (total as f64 * share) as u64;
            let mut so_far = 0;
            let step = counts.iter().position(|count| {
                so_far += count;
                so_far >= wanted
            });
            (step.unwrap_or(0) as u64 * STEP) as f64 / 1e3
        })
    }
}

/// A client of one node, which comes back if it is lost in the crowd that knocks at once.
async fn follow(address: SocketAddr, number: usize, tally: Arc<Tally>) {
    loop {
        let Err(error) = listen(address, number, &tally).await;
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "client {number}");
        tally.knocked_again.fetch_add(1, Ordering::Relaxed);
    }
}

/// Follows the changes. An error means that there was no connection to speak of.
async fn listen(address: SocketAddr, number: usize, tally: &Tally) -> std::io::Result<Infallible> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true).unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let hello =
        ClientHello { version: VERSION, node: format!("node-{number:04}"), software: "load".into(), resume: None };
    let hello = ToServer { message: Some(client::Message::Hello(hello)) };
    writer.write_all(&MAGIC).await?;
    writer.write_all(&frame::encode(&hello, Compression::None)).await?;
    let own = format!("/calico/v1/host/node-{number:04}/");
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

/// Drops a compressed frame from the front, if there is a whole one.
fn skip(buffer: &mut BytesMut) -> bool {
    let Some(&[a, b, c, d, kind]) = buffer.first_chunk::<5>() else { return false };
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let whole = kind == 1 && buffer.len() >= 4 + length;
    if whole {
        buffer.advance(4 + length);
    }
    whole
}

/// When an endpoint was changed, by its label.
fn stamp_of(value: &[u8]) -> u64 {
    let name = b"\"changed\":\"";
    let at = value.windows(name.len()).position(|window| window == name).unwrap() + name.len();
    value[at..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |so_far, digit| so_far * 10 + u64::from(digit - b'0'))
}

/// The server under test; killed at the end.
struct UnderTest {
    child: Child,
    address: SocketAddr,
    http: SocketAddr,
}

/// What a process has taken of the machine.
struct Figures {
    cpu: f64,
    resident_mb: f64,
}

impl UnderTest {
    fn start(settings: &Settings, upstream: SocketAddr) -> Self {
        let mut child = Command::new(&settings.agent)
            .args(["fanout", "--datastore", &format!("fanout://{upstream}")])
            .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It logs where it listens.
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut address = |message: &str| -> SocketAddr {
            let line = lines.find(|line| line.contains(message)).expect("the server tells where it listens");
            let (_, rest) = line.split_once("\"address\":\"").unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let (address, http) = (address("listening for agents"), address("listening for HTTP"));
        thread::spawn(move || lines.for_each(drop));
        Self { child, address, http }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = StdStream::connect(self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn await_ready(&self) {
        let until = Instant::now() + Duration::from_secs(120);
        while !self.get("/readiness").starts_with("HTTP/1.1 200") {
            assert!(Instant::now() < until, "the server does not become ready");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
    }

    fn figures(&self) -> Figures {
        figures(self.child.id())
    }
}

fn figures(pid: u32) -> Figures {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: f64 = fields.split_ascii_whitespace().skip(11).take(2).map(|field| field.parse::<f64>().unwrap()).sum();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: f64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    Figures { cpu: ticks / 100.0, resident_mb: kilobytes * 1024.0 / 1e6 }
}

impl Drop for UnderTest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
