//! Interfaces, by running `ip` programs, so that starting one delays nothing.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};

use tortie_lab::netns::Namespace;

use crate::Result;
use crate::cluster::interface_of;

pub(crate) struct Links {
    on_node: Batch,
    on_peers: Batch,
    node: String,
    peers: String,
}

/// A running `ip -batch`, which executes a line on arrival.
struct Batch {
    child: Child,
    input: ChildStdin,
}

impl Links {
    /// The other ends of pairs are in `peers`.
    pub(crate) fn of(node: &Namespace, peers: &Namespace) -> Result<Self> {
        let path = |namespace: &Namespace| namespace.path().display().to_string();
        Ok(Self { on_node: Batch::start(node)?, on_peers: Batch::start(peers)?, node: path(node), peers: path(peers) })
    }

    /// Executes a command on the node.
    pub(crate) fn run(&mut self, line: &str) -> Result<()> {
        self.on_node.run(line)
    }

    /// Creates the interface of a pod as Calico's CNI plugin does: beside the pod's end, and then
    /// moved to the node.
    pub(crate) fn add_pod(&mut self, number: usize) -> Result<()> {
        let (interface, node) = (interface_of(number), &self.node);
        self.on_peers.run(&format!("link add eth{number} up type veth peer name {interface}"))?;
        self.on_peers.run(&format!("link set {interface} netns {node} up"))
    }

    pub(crate) fn remove_pod(&mut self, number: usize) -> Result<()> {
        self.on_peers.run(&format!("link del eth{number}"))
    }

    /// Creates a pair that belongs to no workload.
    pub(crate) fn add_other(&mut self, name: &str) -> Result<()> {
        self.on_node.run(&format!("link add {name} type veth peer name {name} netns {}", self.peers))
    }

    /// Waits until all commands are executed.
    pub(crate) fn finish(self) -> Result<()> {
        self.on_peers.finish()?;
        self.on_node.finish()
    }
}

impl Batch {
    fn start(namespace: &Namespace) -> Result<Self> {
        let mut command = Command::new("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = namespace.spawn(&mut command)?;
        let input = child.stdin.take().ok_or("no pipe")?;
        Ok(Self { child, input })
    }

    fn run(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.input, "{line}")?)
    }

    fn finish(self) -> Result<()> {
        let Self { mut child, input } = self;
        drop(input);
        let mut errors = String::new();
        child.stderr.take().ok_or("no pipe")?.read_to_string(&mut errors)?;
        if child.wait()?.success() { Ok(()) } else { Err(format!("ip -batch: {}", errors.trim()).into()) }
    }
}
