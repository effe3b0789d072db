//! Programs that run beside a laboratory.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::agent::{AgentError, NodeUnderTest};

/// A program in the node's namespace that is asked to end, and then made to, when this is dropped.
#[derive(Debug)]
pub(super) struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program whose output goes into `NAME.log` of the node's folder.
    pub(super) fn start(
        name: &'static str,
        node: &NodeUnderTest<'_>,
        command: &mut Command,
    ) -> Result<Self, AgentError> {
        let log = node.folder.join(format!("{name}.log"));
        let failed = |source| AgentError::Log { path: log.clone(), source };
        let output = File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        command.current_dir(node.folder).stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = node.namespace.spawn(command)?;
        Ok(Self { name, child, log })
    }

    /// Whether it still runs; the end of its log if not.
    pub(super) fn check(&mut self) -> Result<(), AgentError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                Err(AgentError::Died { program: self.name, status: status.to_string(), log: tail(&self.log) })
            }
            Err(source) => Err(AgentError::Log { path: self.log.clone(), source }),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let patience = Instant::now() + Duration::from_secs(3);
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of a log, for an error message.
fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
