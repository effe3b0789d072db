//! Connections of nodes without an engine: received data is counted, heartbeats are answered.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message as _;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tortie_fanout::protocol::frame::{self, Compression};
use tortie_fanout::protocol::{Heartbeat, ToClient, ToServer, client, server};

use crate::cluster::{MARKER, node_name};
use crate::latency::now;
use crate::wire::greet;

/// Maximum number of connections that get their snapshots at the same time.
const AT_ONCE: usize = 256;
/// Size of the read buffer in bytes.
const READ: usize = 16 * 1024;
/// Maximum length in bytes of the uncompressed frames that are decoded.
const SHORT: usize = 4096;
/// Number of distinct markers.
pub(crate) const MARKERS: usize = 512;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The servers, in turn.
    #[arg(long)]
    server: Vec<SocketAddr>,
    /// The number of the first node.
    #[arg(long)]
    first: usize,
    /// Number of nodes.
    #[arg(long)]
    count: usize,
}

/// Counters of all connections.
#[derive(Default)]
struct Tally {
    bytes: AtomicU64,
    frames: AtomicU64,
    snapshots: AtomicUsize,
    lost: AtomicUsize,
    /// Number of connections that got each marker.
    markers: Vec<AtomicUsize>,
    /// Time at which the last connection got its last marker.
    marked_at: AtomicU64,
}

pub(crate) fn run(args: &Args) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let markers = (0..MARKERS).map(|_| AtomicUsize::new(0)).collect();
    let tally = Arc::new(Tally { markers, ..Tally::default() });
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    for number in args.first..args.first + args.count {
        let server = args.server[number % args.server.len()];
        let (tally, turns) = (Arc::clone(&tally), Arc::clone(&turns));
        runtime.spawn(async move {
            let Err(error) = follow(server, number, &tally, &turns).await;
            eprintln!("a connection of {} is lost: {error}", node_name(number));
            tally.lost.fetch_add(1, Ordering::Relaxed);
        });
    }
    println!("{{}}");
    // Each line is a question.
    for _ in io::stdin().lines().map_while(Result::ok) {
        println!("{}", tally.answer());
    }
    runtime.shutdown_timeout(Duration::ZERO);
}

impl Tally {
    fn answer(&self) -> serde_json::Value {
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        json!({
            "bytes": self.bytes.load(Ordering::Relaxed),
            "frames": self.frames.load(Ordering::Relaxed),
            "snapshots": count(&self.snapshots),
            "lost": count(&self.lost),
            "markers": self.markers.iter().map(count).collect::<Vec<_>>(),
            "marked_at": self.marked_at.load(Ordering::Relaxed),
        })
    }

    fn marker(&self, number: &[u8]) {
        let number: Option<usize> = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
        if let Some(marker) = number.and_then(|number| self.markers.get(number)) {
            marker.fetch_add(1, Ordering::Relaxed);
            self.marked_at.fetch_max(now(), Ordering::Relaxed);
        }
    }
}

async fn follow(
    server: SocketAddr,
    number: usize,
    tally: &Tally,
    turns: &Semaphore,
) -> io::Result<std::convert::Infallible> {
    let mut turn = Some(turns.acquire().await.map_err(io::Error::other)?);
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    greet(&mut stream, node_name(number)).await?;
    let mut frames = Frames::default();
    let mut buffer = vec![0; READ];
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        tally.bytes.fetch_add(read as u64, Ordering::Relaxed);
        tally.frames.fetch_add(frames.count(&buffer[..read]), Ordering::Relaxed);
        for message in frames.short.drain(..) {
            match ToClient::decode(&*message)?.message {
                Some(server::Message::Batch(batch)) => {
                    if batch.settled.is_some() && turn.take().is_some() {
                        tally.snapshots.fetch_add(1, Ordering::Relaxed);
                    }
                    let markers = batch.entries.iter().filter(|entry| entry.path.ends_with(MARKER));
                    markers.filter_map(|entry| entry.value.as_deref()).for_each(|value| tally.marker(value));
                }
                Some(server::Message::Heartbeat(Heartbeat { stamp, .. })) => {
                    let beat = ToServer { message: Some(client::Message::Heartbeat(Heartbeat { stamp, sequence: 0 })) };
                    stream.write_all(&frame::encode(&beat, Compression::None)).await?;
                }
                Some(server::Message::Refusal(refusal)) => return Err(io::Error::other(refusal.reason)),
                _ => {}
            }
        }
    }
}

/// Splits the received bytes into frames.
#[derive(Default)]
struct Frames {
    /// Received part of the next frame's length and encoding.
    head: Vec<u8>,
    /// Missing bytes of the current frame, and whether it is kept.
    rest: usize,
    keep: bool,
    body: Vec<u8>,
    /// Messages of short frames that are not compressed.
    short: Vec<Vec<u8>>,
}

impl Frames {
    /// Processes bytes and returns the number of frames that begin in them.
    fn count(&mut self, mut bytes: &[u8]) -> u64 {
        let mut frames = 0;
        while !bytes.is_empty() {
            let wanted = if self.rest > 0 { self.rest } else { 5 - self.head.len() };
            let (taken, later) = bytes.split_at(wanted.min(bytes.len()));
            bytes = later;
            if self.rest > 0 {
                self.rest -= taken.len();
                if self.keep {
                    self.body.extend_from_slice(taken);
                }
            } else {
                self.head.extend_from_slice(taken);
                let &[a, b, c, d, kind] = &*self.head else { continue };
                self.rest = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap().saturating_sub(1);
                self.keep = kind == 0 && self.rest <= SHORT;
                self.head.clear();
                frames += 1;
            }
            if self.rest == 0 && std::mem::take(&mut self.keep) {
                self.short.push(std::mem::take(&mut self.body));
            }
        }
        frames
    }
}
