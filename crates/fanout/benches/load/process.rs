//! Processes of the benchmark, and their use of processor and memory.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A server under test; killed at the end.
#[derive(Debug)]
pub(crate) struct Fanout {
    child: Child,
    /// Address on which it listens for agents.
    pub(crate) address: SocketAddr,
    http: SocketAddr,
}

/// Processor time and memory of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// Seconds of processor time.
    pub(crate) cpu: f64,
    /// Megabytes.
    pub(crate) resident_mb: f64,
}

impl Fanout {
    /// `tortie fanout` that follows another one.
    pub(crate) fn start(agent: &Path, upstream: SocketAddr) -> Self {
        let mut child = Command::new(agent)
            .args(["fanout", "--datastore", &format!("fanout://{upstream}")])
            .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json"])
            // All clients have the same address.
            .args(["--max-connections-per-address", "1000000"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It logs where it listens.
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut address = |message: &str| -> SocketAddr {
            let line = lines.find(|line| line.contains(message)).expect("the server logs its address");
            let (_, rest) = line.split_once("\"address\":\"").unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let (address, http) = (address("listening for agents"), address("listening for HTTP"));
        thread::spawn(move || lines.for_each(drop));
        Self { child, address, http }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits until it has read everything.
    pub(crate) fn await_ready(&self) {
        let until = Instant::now() + Duration::from_secs(300);
        while !self.get("/readiness").starts_with("HTTP/1.1 200") {
            assert!(Instant::now() < until, "the server does not become ready");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// One of its metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics");
        let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let value = text.lines().find(is_it).and_then(|line| line.rsplit(' ').next());
        value.and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
    }

    pub(crate) fn figures(&self) -> Figures {
        Figures::of(self.child.id())
    }
}

impl Drop for Fanout {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Another process of this program, as a part of the load. It prints a first line of JSON, then one
/// for each line of its input. It ends with its input.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(args: &[String]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (questions, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, questions, answers }
    }

    /// Waits for an answer.
    pub(crate) fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).expect("a worker that lives answers in JSON")
    }

    pub(crate) fn ask(&mut self, question: &str) -> Value {
        writeln!(self.questions, "{question}").unwrap();
        self.answer()
    }

    pub(crate) fn figures(&self) -> Figures {
        Figures::of(self.child.id())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Figures {
    /// Those of a process.
    pub(crate) fn of(pid: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let ticks: f64 =
            fields.split_ascii_whitespace().skip(11).take(2).map(|field| field.parse::<f64>().unwrap()).sum();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: f64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        Self { cpu: ticks / 100.0, resident_mb: kilobytes * 1024.0 / 1e6 }
    }

    /// Those of this program.
    pub(crate) fn own() -> Self {
        Self::of(std::process::id())
    }
}
