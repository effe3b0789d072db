//! Nodes after the first one, and agents other than the one under test.

use std::process::Command;

use super::{Stage, StageError, StageResult};
use tortie_lab::{
    netns::Namespace,
    pods::node_name,
    program::{Program, with_own_pins},
};

impl Stage {
    /// Starts the agents of the other nodes.
    pub(super) fn start_peers(&mut self) -> StageResult {
        for number in self.peers.len() + 1..self.lab.nodes() {
            let peer = self.one_more_agent(number, &node_name(number))?;
            self.peers.push(peer);
        }
        Ok(())
    }

    /// Starts an agent on a node, with a folder of this name and without ports. It ends when
    /// dropped.
    pub(crate) fn one_more_agent(&self, number: usize, folder: &str) -> Result<Program, StageError> {
        let folder = self.folder.join(folder);
        std::fs::create_dir_all(&folder)?;
        let mut command = if self.by_programs && number > 0 {
            // Its pinned objects disappear with it: only the first node is cleaned up.
            with_own_pins(&self.program)?
        } else {
            Command::new(&self.program)
        };
        command
            .args(["run", "--node", &node_name(number), "--datastore"])
            .arg(format!("file:{}", self.manifests().display()))
            .arg("--state-dir")
            .arg(folder.join("state"))
            .arg("--mtu-file")
            .arg(folder.join("mtu"))
            .args(&self.arguments)
            .env("XTABLES_LOCKFILE", folder.join("xtables.lock"))
            .envs(&self.environment)
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", "none")
            .env("TORTIE_SOCKET", "")
            .env("FELIX_HEALTHENABLED", "false")
            .env("FELIX_PROMETHEUSMETRICSENABLED", "false");
        Ok(Program::start("agent", self.node(number)?, &folder, &mut command)?)
    }

    /// Returns the namespace of the node of this number, from 0.
    pub(crate) fn node(&self, number: usize) -> Result<&Namespace, StageError> {
        self.lab.node_at(number).ok_or_else(|| StageError::Unexpected(format!("no {}", node_name(number))))
    }
}
