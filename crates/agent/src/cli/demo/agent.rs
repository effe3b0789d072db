//! The agent at work: this very program, running in the node's namespace.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::manifests::NODE;
use super::namespace::Namespace;
use super::{Backend, Interrupt};
use crate::cli::Failure;

/// Where the agent listens in the node's namespace, in which nothing else does.
const HEALTH: u16 = 9099;
const METRICS: u16 = 9091;
/// How long it may take to get ready, or to put a change into the kernel.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is asked.
const ASK: Duration = Duration::from_millis(10);
/// How long nothing must happen before all is believed to be done.
const QUIET: Duration = Duration::from_millis(250);
/// How many lines of its log are shown when something is wrong.
const LOG_TAIL: usize = 20;

/// The agent; it is stopped when dropped.
#[derive(Debug)]
pub(super) struct Agent<'n> {
    child: Child,
    started: Instant,
    network: &'n Namespace,
    log: PathBuf,
}

/// The changes that the agent has put into the kernel: how many, and the seconds that this took in total.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Enforced {
    /// How many.
    pub(super) count: f64,
    /// Seconds from the arrival of the change to the kernel.
    pub(super) seconds: f64,
}

impl Enforced {
    /// The mean time per change since `before`.
    pub(super) fn mean_since(self, before: Self) -> Duration {
        let mean = (self.seconds - before.seconds) / (self.count - before.count);
        Duration::try_from_secs_f64(mean).unwrap_or_default()
    }
}

impl<'n> Agent<'n> {
    /// Starts it on the manifests in `folder`/manifests; its log is `folder`/agent.log.
    pub(super) fn start(network: &'n Namespace, folder: &Path, backend: Backend) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(Failure::io("the path of this program"))?;
        let log = folder.join("agent.log");
        let failed = |error| Failure::io(log.display().to_string())(error);
        let output = File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let mut command = Command::new(program);
        // Parameters of this shell are meant for another agent.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"FELIX_")) {
            command.env_remove(name);
        }
        command
            .args(["run", "--node", NODE, "--datastore"])
            .arg(format!("file:{}", manifests_in(folder).display()))
            .arg("--state-dir")
            .arg(folder.join("state"))
            .env("FELIX_IPTABLESBACKEND", backend.word())
            .env("FELIX_HEALTHENABLED", "true")
            .env("FELIX_HEALTHHOST", "127.0.0.1")
            .env("FELIX_HEALTHPORT", HEALTH.to_string())
            .env("FELIX_PROMETHEUSMETRICSENABLED", "true")
            .env("FELIX_PROMETHEUSMETRICSHOST", "127.0.0.1")
            .env("FELIX_PROMETHEUSMETRICSPORT", METRICS.to_string())
            // The usual lock belongs to the host's own namespace, and not everybody may take it.
            .env("XTABLES_LOCKFILE", folder.join("xtables.lock"))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        let started = Instant::now();
        let child = network.run(|| command.spawn()).map_err(Failure::io("starting the agent"))?;
        Ok(Self { child, started, network, log })
    }

    /// Waits until all manifests are enforced; tells how long that took from the start.
    pub(super) fn await_ready(&mut self, interrupt: &Interrupt) -> Result<Duration, Failure> {
        while !matches!(self.get(HEALTH, "/readiness"), Ok((200, _))) {
            self.wait(self.started, "get ready", interrupt)?;
        }
        Ok(self.started.elapsed())
    }

    /// What the agent says it has put into the kernel so far, once it has had nothing to do for a while.
    pub(super) fn await_quiet(&mut self, interrupt: &Interrupt) -> Result<Enforced, Failure> {
        let start = Instant::now();
        let mut last = (Instant::now(), None);
        loop {
            let now = self.enforced();
            if now != last.1 {
                last = (Instant::now(), now);
            } else if let Some(enforced) = now
                && last.0.elapsed() > QUIET
            {
                return Ok(enforced);
            }
            self.wait(start, "come to rest", interrupt)?;
        }
    }

    /// Waits until the agent has put more into the kernel than `before`, and is done with it.
    pub(super) fn await_more(&mut self, before: Enforced, interrupt: &Interrupt) -> Result<Enforced, Failure> {
        let start = Instant::now();
        while self.enforced().is_none_or(|now| now.count <= before.count) {
            self.wait(start, "enforce the change", interrupt)?;
        }
        self.await_quiet(interrupt)
    }

    fn enforced(&self) -> Option<Enforced> {
        let (200, body) = self.get(METRICS, "/metrics").ok()? else { return None };
        enforced(&body)
    }

    /// Sleeps a little, or fails if the agent is gone, time is up, or the user wants no more.
    fn wait(&mut self, since: Instant, aim: &str, interrupt: &Interrupt) -> Result<(), Failure> {
        interrupt.check()?;
        let trouble = match self.child.try_wait() {
            Ok(None) if since.elapsed() < PATIENCE => {
                thread::sleep(ASK);
                return Ok(());
            }
            Ok(None) => format!("the agent did not {aim} in {} s", PATIENCE.as_secs()),
            Ok(Some(status)) => format!("the agent ended ({status})"),
            Err(error) => format!("the agent cannot be watched: {error}"),
        };
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(LOG_TAIL)..).unwrap_or_default().join("\n");
        Err(Failure::Failed(format!("{trouble}; the end of its log:\n{tail}")))
    }

    fn get(&self, port: u16, path: &str) -> io::Result<(u16, String)> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let answer = self.network.run(|| {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split_ascii_whitespace().nth(1).and_then(|status| status.parse().ok());
        Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended already.
            let _ = kill_process(pid, Signal::TERM);
        }
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < STOP_PATIENCE {
            thread::sleep(ASK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the agent's manifests are.
pub(super) fn manifests_in(folder: &Path) -> PathBuf {
    folder.join("manifests")
}

/// Reads what is needed from the metrics.
fn enforced(metrics: &str) -> Option<Enforced> {
    let sample = |name| {
        metrics.lines().find_map(|line| {
            let (found, value) = line.split_once(' ')?;
            (found == name).then(|| value.trim().parse().ok()).flatten()
        })
    };
    Some(Enforced {
        count: sample("tortie_event_to_kernel_seconds_count")?,
        seconds: sample("tortie_event_to_kernel_seconds_sum")?,
    })
}

#[cfg(test)]
mod tests;
