//! Output of `tortie flows --follow`.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    agent::{AgentError, NodeUnderTest},
    flows::ReportedFlow,
};
use crate::program::Program;

/// Name of the program, and of the log with its output.
const FOLLOWER: &str = "flows";

/// Follows the flows of an agent as soon as the agent reports some.
#[derive(Debug)]
pub(super) struct FlowFeed {
    tortie: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    follower: Option<Program>,
    /// Offset up to which the log has been read.
    read: u64,
    has_reported: bool,
}

impl FlowFeed {
    /// Creates the feed of the agent with its state in this folder, without starting a process.
    pub(super) fn new(tortie: &Path, folder: &Path) -> Self {
        Self {
            tortie: tortie.to_owned(),
            socket: folder.join("state/agent.sock"),
            log: folder.join(FOLLOWER).with_extension("log"),
            follower: None,
            read: 0,
            has_reported: false,
        }
    }

    /// Returns the flows reported since the previous call.
    pub(super) fn take(&mut self, node: &NodeUnderTest<'_>) -> Result<Vec<ReportedFlow>, AgentError> {
        let is_over = match &mut self.follower {
            None => true,
            Some(follower) => match follower.check() {
                Ok(()) => false,
                // A starting agent does not answer yet.
                Err(_) if !self.has_reported => true,
                Err(error) => return Err(error.into()),
            },
        };
        if is_over {
            let mut command = Command::new(&self.tortie);
            command.args(["flows", "--follow", "-o", "json", "--socket"]).arg(&self.socket);
            self.follower = Some(Program::start(FOLLOWER, node.namespace, node.folder, &mut command)?);
        }
        let text = self.unread_lines();
        let failed = |source| AgentError::Flows { path: self.log.clone(), source };
        let text = text.map_err(failed)?;
        // Other lines of the log are error messages.
        let lines = text.lines().filter(|line| line.starts_with('{'));
        let flows: Result<Vec<ReportedFlow>, serde_json::Error> = lines.map(serde_json::from_str).collect();
        let flows = flows.map_err(|error| failed(error.into()))?;
        self.has_reported |= !flows.is_empty();
        Ok(flows)
    }

    /// Returns the complete lines that have not been read before.
    fn unread_lines(&mut self) -> std::io::Result<String> {
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let length = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes.truncate(length);
        self.read += length as u64;
        String::from_utf8(bytes).map_err(std::io::Error::other)
    }
}
