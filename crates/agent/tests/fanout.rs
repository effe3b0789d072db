//! `tortie fanout` as its users meet it.
#![cfg(feature = "fanout")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const MANIFESTS: &str = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples/demo");

struct Fanout {
    child: Child,
    agents: SocketAddr,
    http: SocketAddr,
}

impl Fanout {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["fanout", "--datastore", MANIFESTS, "--log-format", "json"])
            .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut address = |message: &str| -> SocketAddr {
            let line = lines.find(|line| line.contains(message)).unwrap();
            line.split_once("\"address\":\"").unwrap().1.split('"').next().unwrap().parse().unwrap()
        };
        let (agents, http) = (address("listening for agents"), address("listening for HTTP"));
        thread::spawn(move || lines.for_each(drop));
        Self { child, agents, http }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Fanout {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn render(datastore: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(["render", "--datastore", datastore, "--node", "demo-node"])
        .output()
        .unwrap()
}

#[test]
fn an_agent_behind_it_enforces_what_one_beside_it_does() {
    let mut fanout = Fanout::start();
    let until = Instant::now() + Duration::from_secs(20);
    while !fanout.get("/readiness").starts_with("HTTP/1.1 200") {
        assert!(Instant::now() < until, "{}", fanout.get("/readiness"));
        thread::sleep(Duration::from_millis(20));
    }
    assert!(fanout.get("/liveness").starts_with("HTTP/1.1 200"));
    let direct = render(MANIFESTS);
    for scheme in ["fanout", "typha"] {
        let behind = render(&format!("{scheme}://{}", fanout.agents));
        assert!(behind.status.success(), "{}", String::from_utf8_lossy(&behind.stderr));
        assert!(behind.stdout.len() > 1000 && behind.stdout == direct.stdout, "{scheme}");
    }
    let metrics = fanout.get("/metrics");
    for expected in ["typha_connections_accepted 2\n", "typha_cache_size ", "process_resident_memory_bytes "] {
        assert!(metrics.contains(expected), "{expected} is missing in\n{metrics}");
    }
    kill_process(Pid::from_child(&fanout.child), Signal::TERM).unwrap();
    assert!(fanout.child.wait().unwrap().success());
}
