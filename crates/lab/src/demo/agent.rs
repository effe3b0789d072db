//! The agent at work.

use std::{
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::{DemoError, Options, manifests::NODE, manifests_in};
use crate::{
    netns::Namespace,
    pods::Lab,
    program::{Answer, Program, with_own_pins, without_packet_filters},
};

/// Where the agent listens in the node's namespace, in which nothing else does.
const HEALTH: u16 = 9099;
const METRICS: u16 = 9091;
/// How long it may take to get ready, or to put a change into the kernel.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often it is asked, and how long it has to answer.
const ASK: Duration = Duration::from_millis(10);
const ANSWER: Duration = Duration::from_secs(5);
/// How long nothing must happen before all is believed to be done.
const QUIET: Duration = Duration::from_millis(250);

/// The agent; it is stopped when dropped.
#[derive(Debug)]
pub(super) struct Agent<'n> {
    program: Program,
    started: Instant,
    node: &'n Namespace,
    interrupted: fn() -> bool,
}

/// The changes that the agent has put into the kernel: how many, and the seconds that this took in total.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Enforced {
    count: f64,
    seconds: f64,
}

impl Enforced {
    /// Reads it from the metrics.
    pub(super) fn of(metrics: &Answer) -> Option<Self> {
        Some(Self {
            count: metrics.metric("tortie_event_to_kernel_seconds_count")?,
            seconds: metrics.metric("tortie_event_to_kernel_seconds_sum")?,
        })
    }

    /// The mean time per change since `before`.
    pub(super) fn mean_since(self, before: Self) -> Duration {
        let mean = (self.seconds - before.seconds) / (self.count - before.count);
        Duration::try_from_secs_f64(mean).unwrap_or_default()
    }
}

impl<'n> Agent<'n> {
    /// Starts it on the manifests in `folder`/manifests; its log is `folder`/agent.log.
    pub(super) fn start(lab: &'n Lab, folder: &Path, options: &Options) -> Result<Self, DemoError> {
        let path = std::fs::canonicalize(&options.agent);
        let path = path.map_err(DemoError::io(options.agent.display().to_string()))?;
        let mut command = match options.backend.as_str() {
            "nftables" => without_packet_filters(&path, false).map_err(DemoError::io("a node without iptables"))?,
            "ebpf" => with_own_pins(&path).map_err(DemoError::io("a BPF file system"))?,
            _ => Command::new(path),
        };
        // Parameters of this shell are meant for another agent.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"FELIX_")) {
            command.env_remove(name);
        }
        command
            .args(["run", "--node", NODE, "--datastore"])
            .arg(format!("file:{}", manifests_in(folder).display()))
            .arg("--state-dir")
            .arg(folder.join("state"))
            .arg("--mtu-file")
            .arg(folder.join("mtu"))
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", folder)
            .env("TORTIE_SOCKET", folder.join("agent.sock"))
            .env("FELIX_HEALTHENABLED", "true")
            .env("FELIX_HEALTHHOST", "127.0.0.1")
            .env("FELIX_HEALTHPORT", HEALTH.to_string())
            .env("FELIX_PROMETHEUSMETRICSENABLED", "true")
            .env("FELIX_PROMETHEUSMETRICSHOST", "127.0.0.1")
            .env("FELIX_PROMETHEUSMETRICSPORT", METRICS.to_string())
            // The usual lock belongs to the host's own namespace, and not everybody may take it.
            .env("XTABLES_LOCKFILE", folder.join("xtables.lock"));
        match options.backend.as_str() {
            "ebpf" => command.env("FELIX_BPFENABLED", "true"),
            "nftables" => command.env("FELIX_NFTABLESMODE", "Enabled"),
            iptables => command.env("FELIX_IPTABLESBACKEND", iptables),
        };
        let started = Instant::now();
        let program = Program::start("agent", lab.node(), folder, &mut command)?;
        Ok(Self { program, started, node: lab.node(), interrupted: options.interrupted })
    }

    /// Waits until all manifests are enforced; tells how long that took from the start.
    pub(super) fn await_ready(&mut self) -> Result<Duration, DemoError> {
        while self.get(HEALTH, "/readiness").is_none_or(|answer| answer.status != 200) {
            self.wait(self.started, "get ready")?;
        }
        Ok(self.started.elapsed())
    }

    /// What the agent says it has put into the kernel so far, once it has had nothing to do for a while.
    pub(super) fn await_quiet(&mut self) -> Result<Enforced, DemoError> {
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
            self.wait(start, "come to rest")?;
        }
    }

    /// Waits until the agent has put more into the kernel than `before`, and is done with it.
    pub(super) fn await_more(&mut self, before: Enforced) -> Result<Enforced, DemoError> {
        let start = Instant::now();
        while self.enforced().is_none_or(|now| now.count <= before.count) {
            self.wait(start, "enforce the change")?;
        }
        self.await_quiet()
    }

    fn enforced(&self) -> Option<Enforced> {
        Enforced::of(&self.get(METRICS, "/metrics").filter(|answer| answer.status == 200)?)
    }

    fn get(&self, port: u16, path: &str) -> Option<Answer> {
        Answer::get(self.node, port, path, ANSWER).ok()
    }

    /// Sleeps a little, or fails if the agent is gone, time is up, or the user wants no more.
    fn wait(&mut self, since: Instant, aim: &'static str) -> Result<(), DemoError> {
        if (self.interrupted)() {
            return Err(DemoError::Interrupted);
        }
        self.program.check()?;
        if since.elapsed() > PATIENCE {
            return Err(DemoError::TooSlow { aim, seconds: PATIENCE.as_secs(), log: self.program.log_tail() });
        }
        thread::sleep(ASK);
        Ok(())
    }
}
