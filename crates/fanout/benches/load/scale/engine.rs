//! A node's engine: the calculation behind a real client of the fan-out.

use std::io::BufRead;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tortie_calc::{Graph, GraphConfig};
use tortie_datastore::{Event, Events, watch};
use tortie_fanout::client::{ClientConfig, FanoutSource};
use tortie_model::{Hostname, SyncStatus};

use crate::cluster::{changed, marker_number};
use crate::latency::{Latencies, now};

/// Maximum number of events before a flush, as in the agent.
const MAX_EVENTS: usize = 100;

/// Question about the progress of changes. Any other question is about the activity since the last
/// such question.
pub(crate) const PROGRESS: &str = "progress";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    server: String,
    #[arg(long)]
    node: String,
}

/// Activity since the last question about it.
#[derive(Default)]
struct Window {
    updates: usize,
    flushes: usize,
    messages: usize,
    flushing: Duration,
    latencies: Latencies,
}

struct Engine {
    events: Events,
    graph: Graph,
    in_sync: bool,
    marker: u64,
    /// Time at which the marker was flushed.
    marked_at: u64,
    window: Window,
}

pub(crate) fn run(args: Args) {
    let (asked, questions) = channel();
    thread::spawn(move || std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| asked.send(line)));
    let node = Hostname::new(args.node);
    let source = FanoutSource::new(ClientConfig::new(vec![args.server], Some(node.clone()))).unwrap();
    let watching = watch(source).unwrap();
    let graph = Graph::new(&GraphConfig::new(node));
    let mut engine =
        Engine { events: watching.events, graph, in_sync: false, marker: 0, marked_at: 0, window: Window::default() };
    while !engine.in_sync {
        engine.turn();
    }
    engine.answer();
    while engine.answer_if_asked(&questions) {
        engine.turn();
    }
}

impl Engine {
    fn turn(&mut self) {
        let Some(event) = self.events.recv_timeout(Duration::from_millis(50)) else { return };
        let (mut began, mut marker) = (Vec::new(), None);
        let mut event = Some(event);
        for _ in 0..MAX_EVENTS {
            match event {
                Some(Event::Updates { updates, .. }) => {
                    self.window.updates += updates.len();
                    for update in updates {
                        began.extend(changed(&update));
                        marker = marker_number(&update).or(marker);
                        self.graph.on_update(update);
                    }
                }
                Some(Event::Status(status)) => {
                    self.graph.on_status(status);
                    self.in_sync = status == SyncStatus::InSync;
                }
                Some(Event::Unavailable { why, .. }) => eprintln!("an engine: {why}"),
                Some(Event::Problems(problems)) => assert!(problems.is_empty(), "{problems:?}"),
                Some(Event::Available | Event::Versions(_)) => {}
                None => break,
            }
            event = self.events.try_recv().ok();
        }
        let started = Instant::now();
        let mut messages = Vec::new();
        self.graph.flush(&mut messages);
        self.window.flushing += started.elapsed();
        self.window.flushes += 1;
        self.window.messages += messages.len();
        began.into_iter().for_each(|began| self.window.latencies.add(began));
        if let Some(marker) = marker {
            (self.marker, self.marked_at) = (marker, now());
        }
    }

    /// Answers a pending question; `false` if the process that asks is gone.
    fn answer_if_asked(&mut self, questions: &Receiver<String>) -> bool {
        match questions.try_recv() {
            Ok(question) if question == PROGRESS => {
                println!("{}", json!({ "marker": self.marker, "marked_at": self.marked_at }));
            }
            Ok(_) => self.answer(),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return false,
        }
        true
    }

    /// Prints the activity since the last call.
    fn answer(&mut self) {
        let window = &mut self.window;
        let answer = json!({
            "updates": window.updates,
            "flushes": window.flushes,
            "messages": window.messages,
            "flush_seconds": window.flushing.as_secs_f64(),
            "latencies": window.latencies.take(),
        });
        println!("{answer}");
        (window.updates, window.flushes, window.messages, window.flushing) = (0, 0, 0, Duration::ZERO);
    }
}
