//! The running agent.

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

/// Ports of the agent in the node's namespace, in which no other process listens.
const HEALTH: u16 = 9099;
const METRICS: u16 = 9091;
/// Maximum time to become ready, or to apply a change.
const PATIENCE: Duration = Duration::from_secs(90);
/// Interval between requests to the agent, and timeout of a request.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without changes after which the agent counts as idle.
const QUIET: Duration = Duration::from_millis(250);

/// The agent. It stops when dropped.
#[derive(Debug)]
pub(super) struct Agent<'n> {
    program: Program,
    started: Instant,
    node: &'n Namespace,
    interrupted: fn() -> bool,
}

/// Number of changes that the agent has applied, and the total seconds that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AppliedChanges {
    count: f64,
    seconds: f64,
}

impl AppliedChanges {
    /// Reads both from the metrics.
    pub(super) fn of(metrics: &Answer) -> Option<Self> {
        Some(Self {
            count: metrics.metric("tortie_event_to_kernel_seconds_count")?,
            seconds: metrics.metric("tortie_event_to_kernel_seconds_sum")?,
        })
    }

    /// Returns the mean time per change since `before`.
    pub(super) fn mean_since(self, before: Self) -> Duration {
        let mean = (self.seconds - before.seconds) / (self.count - before.count);
        Duration::try_from_secs_f64(mean).unwrap_or_default()
    }
}

impl<'n> Agent<'n> {
    /// Starts the agent with the manifests in `folder`/manifests and the log `folder`/agent.log.
    pub(super) fn start(lab: &'n Lab, folder: &Path, options: &Options) -> Result<Self, DemoError> {
        let path = std::fs::canonicalize(&options.agent);
        let path = path.map_err(DemoError::io(options.agent.display().to_string()))?;
        let mut command = match options.backend.as_str() {
            "nftables" => without_packet_filters(&path, false).map_err(DemoError::io("a node without iptables"))?,
            "ebpf" => with_own_pins(&path).map_err(DemoError::io("a BPF file system"))?,
            _ => Command::new(path),
        };
        // Parameters in this shell's environment are not for this agent.
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
            // The default lock file belongs to the host, and an unprivileged user may not be able
            // to take it.
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

    /// Waits until all manifests are enforced, and returns the time since the start.
    pub(super) fn await_ready(&mut self) -> Result<Duration, DemoError> {
        while self.get(HEALTH, "/readiness").is_none_or(|answer| answer.status != 200) {
            self.wait(self.started, "get ready")?;
        }
        Ok(self.started.elapsed())
    }

    /// Waits until the agent is idle, and returns its applied changes so far.
    pub(super) fn await_quiet(&mut self) -> Result<AppliedChanges, DemoError> {
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

    /// Waits until the agent has applied more changes than `before` and is idle again.
    pub(super) fn await_more(&mut self, before: AppliedChanges) -> Result<AppliedChanges, DemoError> {
        let start = Instant::now();
        while self.enforced().is_none_or(|now| now.count <= before.count) {
            self.wait(start, "enforce the change")?;
        }
        self.await_quiet()
    }

    fn enforced(&self) -> Option<AppliedChanges> {
        AppliedChanges::of(&self.get(METRICS, "/metrics").filter(|answer| answer.status == 200)?)
    }

    fn get(&self, port: u16, path: &str) -> Option<Answer> {
        Answer::get(self.node, port, path, REQUEST_TIMEOUT).ok()
    }

    /// Sleeps briefly. Fails if the agent has ended, time is up, or the user has interrupted the
    /// demo.
    fn wait(&mut self, since: Instant, aim: &'static str) -> Result<(), DemoError> {
        if (self.interrupted)() {
            return Err(DemoError::Interrupted);
        }
        self.program.check()?;
        if since.elapsed() > PATIENCE {
            return Err(DemoError::TooSlow { aim, seconds: PATIENCE.as_secs(), log: self.program.log_tail() });
        }
        thread::sleep(POLL_INTERVAL);
        Ok(())
    }
}
