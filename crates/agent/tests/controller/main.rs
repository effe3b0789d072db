//! `tortie controller` as a program.
#![cfg(all(feature = "etcd", feature = "kubernetes"))]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program")]

mod etcd;
mod kubernetes;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tortie_lab::apiserver::ApiServer;
use tortie_model::Interner;
use tortie_resources::manifest::{Format, Options, read_written};

const PATIENCE: Duration = Duration::from_secs(90);

/// A running controller.
struct Controller {
    process: Child,
    address: String,
}

impl Controller {
    fn start(api: &ApiServer, datastore: &str, more: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["controller", "--datastore", datastore, "--http", "127.0.0.1:0", "--kubeconfig"])
            .arg(api.kubeconfig())
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .inspect(|line| eprintln!("{line}"))
            .find_map(|line| Some(line.split_once("address=")?.1.trim().to_owned()))
            .expect("it logs its address");
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Self { process, address }
    }

    fn ask(&self, path: &str) -> String {
        let mut answer = String::new();
        if let Ok(mut stream) = TcpStream::connect(&self.address) {
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).unwrap();
            // A partial answer is good enough.
            let _ = stream.read_to_string(&mut answer);
        }
        answer
    }

    /// Returns the value of a metric; `None` if it does not exist yet.
    fn sample(&self, name: &str) -> Option<f64> {
        let metrics = self.ask("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        Some(line.parse().unwrap())
    }

    fn metric(&self, name: &str) -> f64 {
        self.sample(name).expect(name)
    }

    fn leads(&self) -> bool {
        self.metric("tortie_controller_leads") > 0.0
    }

    fn is_ready(&self) -> bool {
        self.ask("/readiness").starts_with("HTTP/1.1 200")
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn eventually(condition: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "not in time: {condition}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the permissions of the role of this kind in a manifest.
fn rules(manifest: &str, kind: &str) -> Vec<String> {
    let file = format!("{}/../../deploy/{manifest}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).unwrap();
    let (_, documents) = read_written(&text, Format::Yaml, &Options::default(), &mut Interner::new());
    let role = documents.iter().find(|object| object["kind"] == kind).unwrap();
    let mut allowed = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in rule["apiGroups"].as_array().unwrap() {
            for resource in rule["resources"].as_array().unwrap() {
                for verb in rule["verbs"].as_array().unwrap() {
                    let [group, resource, verb] = [group, resource, verb].map(|text| text.as_str().unwrap());
                    allowed.push(format!("{verb} {group}/{resource} {}", rule["resourceNames"]));
                }
            }
        }
    }
    allowed.sort();
    allowed
}
