//! Start, queries, signals and end of the agent.

use std::{
    fs,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, Stage, StageError, StageResult, ensure};
use crate::helpers::REAL_PATH;
use tortie_lab::program::{Answer, hiding_packet_filters};

/// Environment variable that marks all processes of a stage.
const MARK: &str = "TORTIE_FAULTS_STAGE";

impl Stage {
    /// Starts the agent and waits until it is ready.
    pub(crate) fn start(&mut self) -> StageResult {
        self.spawn()?;
        self.until_ready()
    }

    /// Starts the agent. It dies with this thread.
    pub(crate) fn spawn(&mut self) -> StageResult {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path())?;
        // Hidden under all their names.
        let hiding = if self.has_packet_filters { String::new() } else { hiding_packet_filters() };
        // The agent dies with the thread that starts it, so it is started by this thread, not by
        // one inside the node.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "nsenter"])
            .arg(format!("--net={}", self.lab.node().path().display()))
            .args(if self.has_packet_filters { &[][..] } else { &["unshare", "--mount", "--propagation", "private"] })
            .args([
                "/bin/sh",
                "-c",
                &format!("{hiding}\n{}\nPATH={} exec \"$0\" \"$@\"", self.prelude, self.helpers.path().display()),
            ])
            .arg(&self.program)
            .args(["run", "--node", &self.node_name, "--datastore"])
            .arg(format!("file:{}", self.manifests().display()))
            .arg("--state-dir")
            .arg(self.state_dir())
            .arg("--mtu-file")
            .arg(self.folder.join("mtu"))
            .args(&self.arguments)
            .env("PATH", REAL_PATH)
            .env(MARK, &self.folder)
            .env("XTABLES_LOCKFILE", self.folder.join("xtables.lock"))
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", &self.folder)
            .env("TORTIE_SOCKET", "")
            .envs(&self.environment)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.agent = Some(command.spawn()?);
        Ok(())
    }

    /// Waits until the agent is ready.
    pub(crate) fn until_ready(&mut self) -> StageResult {
        self.until("the agent is ready", |stage| {
            stage.check()?;
            Ok(stage.is_ready())
        })
    }

    /// Reports whether the agent is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.get(9099, "/readiness").is_some_and(|answer| answer.status == 200)
    }

    /// Reports whether the agent is live.
    pub(crate) fn is_live(&self) -> bool {
        self.get(9099, "/liveness").is_some_and(|answer| answer.status == 200)
    }

    /// Returns the agent's HTTP answer, with a timeout of a second.
    pub(crate) fn get(&self, port: u16, path: &str) -> Option<Answer> {
        Answer::get(self.lab.node(), port, path, Duration::from_secs(1)).ok()
    }

    /// Returns a metric of the agent.
    pub(crate) fn metric(&self, name: &str) -> Result<f64, StageError> {
        let value = self.get(9091, "/metrics").and_then(|metrics| metrics.metric(name));
        value.ok_or_else(|| StageError::Unexpected(format!("the agent has no metric {name}")))
    }

    /// Checks that the agent is alive.
    pub(crate) fn check(&mut self) -> StageResult {
        match &mut self.agent {
            None => Err(StageError::AgentEnded("it does not run".to_owned())),
            Some(agent) => match agent.try_wait()? {
                None => Ok(()),
                Some(status) => Err(StageError::AgentEnded(status.to_string())),
            },
        }
    }

    /// Returns the exit status if the agent's process has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, StageError> {
        let ended = match &mut self.agent {
            None => None,
            Some(agent) => agent.try_wait()?,
        };
        if ended.is_some() {
            self.agent = None;
        }
        Ok(ended)
    }

    /// Sends the agent a signal.
    pub(crate) fn signal(&mut self, signal: Signal) -> StageResult {
        let agent = self.agent.as_ref().and_then(|agent| Pid::from_raw(i32::try_from(agent.id()).ok()?));
        let agent = agent.ok_or_else(|| StageError::AgentEnded("it does not run".to_owned()))?;
        kill_process(agent, signal).map_err(|errno| StageError::Files(errno.into()))
    }

    /// Returns the agent's process id.
    pub(crate) fn agent_pid(&self) -> Result<u32, StageError> {
        self.agent
            .as_ref()
            .map(std::process::Child::id)
            .ok_or_else(|| StageError::AgentEnded("it does not run".to_owned()))
    }

    /// Kills the agent.
    pub(crate) fn kill(&mut self) -> StageResult {
        self.signal(Signal::KILL)?;
        if let Some(mut agent) = self.agent.take() {
            agent.wait()?;
        }
        Ok(())
    }

    /// Ends the agent by SIGTERM, as a service manager does. It must succeed, and leave no process
    /// behind.
    pub(crate) fn stop(&mut self) -> StageResult {
        self.stop_within(PATIENCE)
    }

    /// As [`Stage::stop`], with another timeout.
    pub(crate) fn stop_within(&mut self, patience: Duration) -> StageResult {
        self.signal(Signal::TERM)?;
        let mut status = None;
        self.until_within(patience, "the agent ends after SIGTERM", |stage| {
            status = stage.ended()?;
            Ok(status.is_some())
        })?;
        ensure(status.is_some_and(|status| status.success()), || format!("the agent ended badly: {status:?}"))?;
        self.until_within(Duration::from_secs(2), "no process of the agent is left", |stage| {
            Ok(stage.processes().is_empty())
        })
    }

    /// Returns the processes of this stage: the agent and its descendants.
    pub(crate) fn processes(&self) -> Vec<String> {
        let mark = format!("{MARK}={}", self.folder.display());
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter(|process| {
                let variables = fs::read(process.path().join("environ")).unwrap_or_default();
                variables.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
            })
            .map(|process| process.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Returns the agent's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Returns the agent's state directory.
    pub(crate) fn state_dir(&self) -> std::path::PathBuf {
        self.folder.join("state")
    }

    fn log_path(&self) -> std::path::PathBuf {
        self.folder.join("agent.log")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        // Processes that hang because of a fault, and that the agent has not killed.
        for process in self.processes() {
            if let Some(pid) = process.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if self.pins().exists() {
            // Pinned objects would keep the node's namespace alive.
            let _ = self.clean_up();
        }
    }
}
