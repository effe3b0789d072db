//! Injection of errors and kills into the agent's system calls.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{Stage, StageError, StageResult, ensure};

/// Maximum time until all traced threads are released.
const PATIENCE: Duration = Duration::from_secs(3);

/// `strace`, which injects into the agent until it is dropped, or the agent ends.
#[derive(Debug)]
pub(crate) struct Tracer {
    process: Child,
    log: PathBuf,
}

impl Tracer {
    /// Returns the injected calls.
    pub(crate) fn injected(&self) -> Vec<String> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().filter(|line| line.contains("INJECTED") || line.contains("killed by")).map(str::to_owned).collect()
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // After SIGTERM, strace first detaches from the agent. It never ends if it waits for a
        // thread that is starting a program, while that thread waits for the new process, which
        // strace has stopped.
        if let Some(pid) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let end = Instant::now() + PATIENCE;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        // The kernel then releases all traced threads.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Stage {
    /// Treats calls of these sorts (`bpf`, or `sendto,recvfrom`) of the agent in this way from now
    /// on: `error=ENOMEM:when=3` fails the third of them in each thread, `signal=KILL:when=3+`
    /// kills the agent before it.
    pub(crate) fn inject(&mut self, calls: &str, how: &str) -> Result<Tracer, StageError> {
        let agent = self.agent_pid()?;
        let log = self.folder().join("calls");
        let stderr = self.folder().join("strace");
        let process = Command::new("strace")
            .args(["-f", "-qq", "-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:{how}"), "-o"])
            .arg(&log)
            .args(["-p", &agent.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&stderr)?)
            .spawn()?;
        let mut tracer = Tracer { process, log };
        // A busy agent may make the fatal call while strace still attaches to its other threads.
        let is_fatal = how.starts_with("signal=KILL");
        self.until("strace is attached to every thread of the agent", |stage| {
            if is_fatal && matches!(stage.check(), Err(StageError::AgentEnded(_))) {
                return Ok(true);
            }
            if let Some(status) = tracer.process.try_wait()? {
                if is_fatal && status.success() {
                    return Ok(true);
                }
                let stderr = fs::read_to_string(&stderr).unwrap_or_default();
                return Err(StageError::Unexpected(format!("strace ended ({status}): {stderr}")));
            }
            stage.check()?;
            Ok(traced(agent))
        })?;
        Ok(tracer)
    }

    /// Starts the agent and stops it before its first call. [`Stage::go_on`] continues it.
    pub(crate) fn spawn_stopped(&mut self) -> StageResult {
        self.prelude = "kill -STOP $$".to_owned();
        let spawned = self.spawn();
        self.prelude.clear();
        spawned?;
        let agent = self.agent_pid()?;
        self.until("the agent has stopped", |_| Ok(status(&format!("/proc/{agent}/status"), "State:").starts_with('T')))
    }

    /// Continues an agent that was [stopped](Stage::spawn_stopped).
    pub(crate) fn go_on(&mut self) -> StageResult {
        self.signal(Signal::CONT)
    }

    /// Checks that there is a link for each hook and family.
    pub(crate) fn has_all_links(&self) -> StageResult {
        let links = self.links();
        ensure(links.len() == 8, || format!("there is not one link for each hook and family: {links:?}"))
    }
}

/// Reports whether all threads of a process are traced.
fn traced(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let tracers: Vec<String> =
        threads.map(|thread| status(&thread.path().join("status").display().to_string(), "TracerPid:")).collect();
    !tracers.is_empty() && tracers.iter().all(|tracer| !tracer.is_empty() && tracer != "0")
}

/// Returns the value of a field of a `/proc/PID/status` file.
fn status(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
}
