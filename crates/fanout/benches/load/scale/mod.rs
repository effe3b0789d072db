//! A large cluster on one machine: the fan-out in levels, some nodes with engines, the rest as
//! counted connections.
//!
//! Two phases with the same changes: first only engines are connected, which shows the cost of a
//! change in a server and a node; then all nodes, which shows the additional cost of each client.

pub(crate) mod connections;
pub(crate) mod engine;
mod report;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cluster::{Churn, Cluster, marker, node_name};
use crate::latency::{Latencies, now};
use crate::process::{Fanout, Figures, Worker};
use crate::wire::Datastore;

/// File descriptors for other purposes than connections.
const OTHER_FILES: u64 = 256;
/// Memory reserved for each connection, including its sockets, and memory left to other programs.
const CONNECTION_KB: u64 = 150;
const SPARE_KB: u64 = 1024 * 1024;
/// A server that has sent a snapshot keeps it for some seconds.
const SETTLES: Duration = Duration::from_secs(7);

/// Measure a cluster of `tortie fanout`s and nodes as processes.
///
/// The nodes are spread over the servers of the last level. Some have an engine, a process with the
/// calculation behind a client of the fan-out. The others are connections that are counted and
/// answer heartbeats. If the machine cannot hold all of them, their number is reduced and reported.
/// Pods come, go and change, a third each.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent's program.
    #[arg(long, hide = true)]
    agent: PathBuf,
    /// Nodes.
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// Pods.
    #[arg(long, default_value_t = 250_000)]
    pods: usize,
    /// Policies, each for the pods of a service.
    #[arg(long, default_value_t = 5000)]
    policies: usize,
    /// Changes of pods a second.
    #[arg(long, default_value_t = 2000)]
    rate: u32,
    /// Seconds of each of the two phases.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Nodes with an engine.
    #[arg(long, default_value_t = 8)]
    engines: usize,
    /// Levels of servers. One server is in each but the last.
    #[arg(long, default_value_t = 2)]
    levels: usize,
    /// Servers of the last level.
    #[arg(long, default_value_t = 2)]
    fanouts: usize,
    /// The size of the cluster to extrapolate to, in nodes.
    #[arg(long, default_value_t = 100_000)]
    paper: usize,
}

/// All processes, ended from the clients up.
struct Load {
    connections: Option<Connections>,
    engines: Vec<Worker>,
    levels: Vec<Vec<Fanout>>,
    datastore: Datastore,
    churn: Churn,
    markers: u64,
}

struct Connections {
    worker: Worker,
    count: usize,
}

/// Measurements of a phase.
struct Phase {
    /// Connections that are counted.
    connections: usize,
    changes: f64,
    /// Seconds until all changes were sent, and until they had arrived everywhere.
    sending: f64,
    seconds: f64,
    /// Of the servers of each level together.
    levels: Vec<Level>,
    /// Of all engines together.
    engine: Engines,
    latency: [f64; 2],
    /// Bytes that a counted connection got.
    egress: f64,
    /// Processor time of this program, which is the datastore, and of the counted connections.
    load_cpu: f64,
    /// Time of a single change until the last node has it, in milliseconds.
    alone: f64,
}

#[derive(Clone, Copy, Default)]
struct Level {
    cpu: f64,
    bytes: f64,
    writes: f64,
    objects: f64,
    breadcrumbs: f64,
}

#[derive(Default)]
struct Engines {
    cpu: f64,
    updates: f64,
    flushes: f64,
    flushing: f64,
    messages: f64,
}

/// Megabytes of one server of each level, and of an engine.
#[derive(Clone, Default)]
struct Memory {
    levels: Vec<f64>,
    engine: f64,
}

pub(crate) fn run(args: &Args) {
    let cluster = Cluster {
        nodes: args.nodes,
        pods: args.pods,
        services: args.policies.max(1),
        namespaces: args.policies.div_ceil(10).max(1),
    };
    let engines = args.engines.clamp(1, args.nodes);
    let files = raise_file_limit();
    println!("{} nodes, {} pods, {} policies, {} changes a second", args.nodes, args.pods, args.policies, args.rate);

    let datastore = Datastore::start(cluster.rest().chain((0..cluster.pods).map(|number| cluster.pod(number, 0))));
    let mut levels: Vec<Vec<Fanout>> = Vec::new();
    let began = Instant::now();
    for level in 1..=args.levels.max(1) {
        let above = levels.last().map_or(datastore.address(), |servers| servers[0].address);
        let count = if level == args.levels.max(1) { args.fanouts.max(1) } else { 1 };
        let servers: Vec<Fanout> = (0..count).map(|_| Fanout::start(&args.agent, above)).collect();
        servers.iter().for_each(Fanout::await_ready);
        println!(
            "level {level}: {count} of `tortie fanout`, everything read after {:.1} s",
            began.elapsed().as_secs_f64()
        );
        levels.push(servers);
    }
    let mut load =
        Load { churn: Churn::new(cluster), datastore, levels, engines: Vec::new(), connections: None, markers: 0 };
    let empty = load.memory();
    let began = Instant::now();
    for number in 0..engines {
        load.start_engine(number);
    }
    println!("{engines} engines, one after the other, in sync after {:.1} s", began.elapsed().as_secs_f64());

    thread::sleep(SETTLES);
    let engines_alone = load.phase(args.rate, args.seconds);
    // Includes the trail of these changes, which the clients that connect now do not use.
    let without = load.memory();
    let wanted = args.nodes - engines;
    let (held, factor) = fit(wanted, files);
    println!("{held} counted connections of {wanted} nodes without an engine: {factor}");
    let snapshots = load.connect(engines, held);
    thread::sleep(SETTLES);
    let with = load.memory();
    let all_nodes = load.phase(args.rate, args.seconds);
    let after = load.memory();
    load.assert_all_connected();
    let report = report::Report {
        cluster,
        engines,
        rate: args.rate.into(),
        fanouts: load.levels.last().map_or(1, Vec::len),
        snapshots,
        engines_alone,
        all_nodes,
        memory: [empty, without, with, after],
    };
    println!("\n{}\n{}\n{}", report.costs(), report.memory(), report.paper(args.paper));
}

/// Cost of the snapshots of all counted connections.
struct Snapshots {
    seconds: f64,
    /// Of the servers of the last level together.
    cpu: f64,
    /// For each.
    bytes: f64,
}

impl Load {
    fn start_engine(&mut self, number: usize) {
        let servers = self.levels.last().unwrap();
        let server = servers[number % servers.len()].address.to_string();
        let words = ["engine", "--server", &server, "--node", &node_name(number)].map(str::to_owned);
        let mut engine = Worker::start(&words);
        engine.answer();
        self.engines.push(engine);
    }

    fn connect(&mut self, first: usize, count: usize) -> Snapshots {
        let cpu_before = self.last_level_cpu();
        let began = Instant::now();
        let mut words = vec!["connections".to_owned()];
        for server in self.levels.last().unwrap() {
            words.extend(["--server".to_owned(), server.address.to_string()]);
        }
        words.extend(["--first".to_owned(), first.to_string(), "--count".to_owned(), count.to_string()]);
        let mut worker = Worker::start(&words);
        worker.answer();
        let bytes = loop {
            let answer = worker.ask("progress");
            assert_eq!(answer["lost"], 0, "a connection is lost");
            if answer["snapshots"] == count {
                break answer["bytes"].as_f64().unwrap();
            }
            assert!(began.elapsed() < Duration::from_secs(900), "not all have a snapshot: {answer}");
            thread::sleep(Duration::from_millis(50));
        };
        self.connections = Some(Connections { worker, count });
        let each = count.max(1) as f64;
        Snapshots {
            seconds: began.elapsed().as_secs_f64(),
            cpu: self.last_level_cpu() - cpu_before,
            bytes: bytes / each,
        }
    }

    /// Changes pods for some time, and waits until all nodes have the changes.
    fn phase(&mut self, rate: u32, seconds: u32) -> Phase {
        for engine in &mut self.engines {
            engine.ask("begin");
        }
        let (levels_before, engines_before, load_before) = (self.level_counts(), self.engine_cpu(), self.load_cpu());
        let bytes_before = self.received();
        let changes = rate * seconds;
        let (began, pause) = (Instant::now(), Duration::from_secs(1) / rate.max(1));
        for number in 0..changes {
            thread::sleep((began + pause * number).saturating_duration_since(Instant::now()));
            self.datastore.send(self.churn.next(now()));
        }
        let sending = began.elapsed().as_secs_f64();
        let arrived = self.until_all_have_a_marker();
        let seconds = began.elapsed().as_secs_f64() - arrived.since;
        let levels = self.level_counts().iter().zip(&levels_before).map(|(after, before)| after.less(before)).collect();
        let (engine_cpu, load_cpu) = (self.engine_cpu() - engines_before, self.load_cpu() - load_before);
        let egress = (self.received() - bytes_before) / self.connections.as_ref().map_or(1, |c| c.count.max(1)) as f64;
        let (mut engine, latencies) = (Engines { cpu: engine_cpu, ..Engines::default() }, Latencies::default());
        for worker in &mut self.engines {
            let answer = worker.ask("end");
            let number = |name: &str| answer[name].as_f64().unwrap();
            engine.updates += number("updates");
            engine.flushes += number("flushes");
            engine.flushing += number("flush_seconds");
            engine.messages += number("messages");
            latencies.merge(&serde_json::from_value::<Vec<(usize, u32)>>(answer["latencies"].clone()).unwrap());
        }
        thread::sleep(Duration::from_secs(1));
        let alone = self.until_all_have_a_marker().took * 1e3;
        Phase {
            connections: self.connections.as_ref().map_or(0, |connections| connections.count),
            changes: changes.into(),
            sending,
            seconds,
            levels,
            engine,
            latency: latencies.quantiles([0.5, 0.99]),
            egress,
            load_cpu,
            alone,
        }
    }

    /// Makes one change and waits until all nodes have it, and thus all earlier ones.
    fn until_all_have_a_marker(&mut self) -> Arrived {
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            // A counted connection does not see a marker that is sent together with other changes;
            // another one follows then.
            self.markers += 1;
            assert!(self.markers < connections::MARKERS as u64 && Instant::now() < deadline, "changes do not arrive");
            thread::sleep(Duration::from_millis(100));
            let (sent, patience) = (now(), Instant::now() + Duration::from_secs(2));
            self.datastore.send(marker(self.markers));
            while Instant::now() < patience {
                if let Some(arrived) = self.marked_at() {
                    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
                    return Arrived { took: seconds(sent, arrived), since: seconds(arrived, now()) };
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Returns the time at which the last node got the last marker, if all have it.
    fn marked_at(&mut self) -> Option<u64> {
        for server in self.levels.iter().flatten() {
            assert!(server.metric("tortie_fanout_connections_too_slow") == 0.0, "a client was cut off");
        }
        let mut last = 0;
        for engine in &mut self.engines {
            let answer = engine.ask(engine::PROGRESS);
            if answer["marker"] != self.markers {
                return None;
            }
            last = answer["marked_at"].as_u64().unwrap().max(last);
        }
        let Some(Connections { worker, count }) = &mut self.connections else { return Some(last) };
        let answer = worker.ask("progress");
        let marker = usize::try_from(self.markers).unwrap();
        let all = answer["markers"][marker] == *count;
        all.then(|| answer["marked_at"].as_u64().unwrap().max(last))
    }

    fn received(&mut self) -> f64 {
        self.connections.as_mut().map_or(0.0, |c| c.worker.ask("progress")["bytes"].as_f64().unwrap())
    }

    fn level_counts(&self) -> Vec<Level> {
        let of = |servers: &Vec<Fanout>| {
            let metric = |name: &str| servers.iter().map(|server| server.metric(name)).sum();
            Level {
                cpu: servers.iter().map(|server| server.figures().cpu).sum(),
                bytes: metric("tortie_fanout_sent_bytes"),
                writes: metric("typha_kvs_per_msg_count"),
                objects: metric("typha_kvs_per_msg_sum"),
                breadcrumbs: metric("typha_breadcrumb_size_count"),
            }
        };
        self.levels.iter().map(of).collect()
    }

    fn last_level_cpu(&self) -> f64 {
        self.levels.last().unwrap().iter().map(|server| server.figures().cpu).sum()
    }

    fn engine_cpu(&self) -> f64 {
        self.engines.iter().map(|engine| engine.figures().cpu).sum()
    }

    fn load_cpu(&self) -> f64 {
        Figures::own().cpu + self.connections.as_ref().map_or(0.0, |c| c.worker.figures().cpu)
    }

    fn memory(&self) -> Memory {
        let average = |sizes: Vec<f64>| sizes.iter().sum::<f64>() / sizes.len().max(1) as f64;
        let server = |servers: &Vec<Fanout>| average(servers.iter().map(|s| s.figures().resident_mb).collect());
        Memory {
            levels: self.levels.iter().map(server).collect(),
            engine: average(self.engines.iter().map(|e| e.figures().resident_mb).collect()),
        }
    }

    fn assert_all_connected(&mut self) {
        if let Some(Connections { worker, .. }) = &mut self.connections {
            assert_eq!(worker.ask("progress")["lost"], 0, "a connection is lost");
        }
    }
}

/// Arrival of a change at all nodes; times in seconds.
struct Arrived {
    took: f64,
    /// Time since the arrival.
    since: f64,
}

impl Level {
    fn less(&self, before: &Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            bytes: self.bytes - before.bytes,
            writes: self.writes - before.writes,
            objects: self.objects - before.objects,
            breadcrumbs: self.breadcrumbs - before.breadcrumbs,
        }
    }
}

/// Raises the limit of open files to its maximum, for this program and the ones that it starts.
fn raise_file_limit() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // Absent is unlimited.
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the number of the wanted connections that the machine can hold, and a remark about it.
fn fit(wanted: usize, files: u64) -> (usize, String) {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let available: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    let by_memory = available.saturating_sub(SPARE_KB) / CONNECTION_KB;
    let by_files = files.saturating_sub(OTHER_FILES);
    let most = usize::try_from(by_memory.min(by_files)).unwrap();
    if wanted <= most {
        return (wanted, "the machine holds all".into());
    }
    let lack = if by_files < by_memory { "file descriptors" } else { "memory" };
    (most, format!("scaled down by a factor of {:.3} for want of {lack}", most as f64 / wanted as f64))
}
