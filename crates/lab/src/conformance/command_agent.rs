//! A program as the agent under test.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::agent::{Agent, AgentError, NodeUnderTest, RunningAgent, State};
use super::datastore::{NodeDatastore, SETTLED, Source, absolute};
use super::feed::FlowFeed;
use super::flows::ReportedFlow;
use super::problems::StatusClient;
use crate::{
    overlay,
    pods::{NodeSide, node_addresses, node_name},
    program::{self, Program},
};

/// A program that enforces the policies of a datastore. In its arguments `{datastore}` stands for
/// the datastore's URL, `{node}` for the node's name, `{state}` for a dedicated directory.
#[derive(Debug, Clone)]
pub struct CommandAgent {
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    source: Source,
    driven: bool,
    flows: bool,
    has_socket: bool,
    is_alone: bool,
    has_pins: bool,
}

impl CommandAgent {
    /// A program with its arguments, and a directory of manifests.
    #[must_use]
    pub fn new<S: Into<String>>(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = S>) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            source: Source::File,
            driven: false,
            flows: false,
            has_socket: false,
            is_alone: false,
            has_pins: false,
        }
    }

    /// `tortie run`.
    #[must_use]
    pub fn tortie(program: impl Into<PathBuf>) -> Self {
        let flags = [
            "run",
            "--datastore",
            "{datastore}",
            "--node",
            "{node}",
            "--state-dir",
            "{state}",
            "--mtu-file",
            "{state}/mtu",
            "--socket",
            "{state}/agent.sock",
        ];
        Self { has_socket: true, ..Self::new(program, flags.into_iter().chain(SETTLED)) }
    }

    /// Adds a variable to its environment.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets a second process of the program enforce the results of the first, over the driver
    /// protocol.
    #[must_use]
    pub fn driven(mut self) -> Self {
        self.driven = true;
        self.arguments.extend(["--dataplane".to_owned(), "exec:{driver}".to_owned()]);
        self
    }

    /// Lets it report flows. It must have been made by [`CommandAgent::tortie`].
    #[must_use]
    pub fn flows(mut self) -> Self {
        self.flows = true;
        self.environment("FELIX_FLOWLOGSLOCALREPORTER", "Enabled")
    }

    /// Lets eBPF programs enforce policy on a node on which neither iptables, ip6tables, ipset nor
    /// nft can be run. Pinned objects disappear with the agent.
    #[must_use]
    pub fn by_programs(mut self) -> Self {
        (self.is_alone, self.has_pins) = (true, true);
        self.environment("FELIX_BPFENABLED", "true")
    }

    /// Lets nftables tables enforce policy on a node on which neither iptables, ip6tables, ipset
    /// nor nft can be run.
    #[must_use]
    pub fn by_nftables(mut self) -> Self {
        self.is_alone = true;
        self.environment("FELIX_NFTABLESMODE", "Enabled")
    }

    /// Lets it read from another kind of datastore. A fan-out that this needs is a process of the
    /// same program.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }
}

impl Agent for CommandAgent {
    fn node_side(&self) -> NodeSide {
        NodeSide::ByAgent
    }

    fn reports_flows(&self) -> bool {
        self.flows
    }

    fn start(&self, node: &NodeUnderTest<'_>) -> Result<Box<dyn RunningAgent>, AgentError> {
        let program = absolute(&self.program);
        let datastore = NodeDatastore::start(self.source, &program, node)?;
        let driver = node.folder.join("driver");
        if self.driven {
            write_driver(&driver, &program)?;
        }
        let driver = driver.display().to_string();
        let state = node.folder.join("state").display().to_string();
        let expanded = |text: &String| {
            let text = text.replace("{datastore}", &datastore.url).replace("{node}", node.name);
            text.replace("{driver}", &driver).replace("{state}", &state)
        };
        let mut command =
            if self.is_alone { alone(node.folder, &program, self.has_pins)? } else { Command::new(&program) };
        command
            .args(self.arguments.iter().map(expanded))
            // One lock for all nodes of this machine would serialize their writes.
            .env("XTABLES_LOCKFILE", node.folder.join("xtables.lock"))
            // Nodes of one machine share its files.
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", node.folder)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        let status_client = self.has_socket.then(|| StatusClient::new(Path::new(&state).join("agent.sock")));
        let feed = self.flows.then(|| FlowFeed::new(&program, node.folder));
        let program = Program::start("agent", node.namespace, node.folder, &mut command)?;
        Ok(Box::new(RunningCommand { status_client, feed, program, datastore }))
    }
}

/// Returns a command with a private BPF file system if it pins objects. It finds no program.
fn alone(folder: &Path, program: &Path, has_pins: bool) -> Result<Command, AgentError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| AgentError::Driver { path, source }
    };
    let programs = folder.join("programs");
    std::fs::create_dir_all(&programs).map_err(failed(&programs))?;
    let mut command = program::without_packet_filters(program, has_pins).map_err(failed(program))?;
    command.env("PATH", programs);
    Ok(command)
}

/// Writes a script that executes the program's dataplane, since drivers are started without
/// arguments.
fn write_driver(path: &Path, program: &Path) -> Result<(), AgentError> {
    use std::os::unix::fs::PermissionsExt;
    let mtu_file = path.with_extension("mtu");
    let script = format!("#!/bin/sh\nexec '{}' dataplane --mtu-file '{}'\n", program.display(), mtu_file.display());
    std::fs::write(path, script)
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)))
        .map_err(|source| AgentError::Driver { path: path.to_owned(), source })
}

/// A running agent. It stops before the servers that it uses.
#[derive(Debug)]
struct RunningCommand {
    status_client: Option<StatusClient>,
    feed: Option<FlowFeed>,
    program: Program,
    datastore: NodeDatastore,
}

/// Returns the objects that configure the overlay network between nodes.
fn overlay_objects(state: &State<'_>) -> Vec<Value> {
    // The pools of the cases, the same as IPv6, and the canary's.
    let pools = ["192.168.0.0/16", "2001:db8:64::/96", "172.30.0.0/24", "fd00:ca::/64"];
    let pools = pools
        .iter()
        .zip(0..)
        .map(|(cidr, number)| overlay::pool(&format!("pool{number}"), cidr, overlay::Encapsulation::Always));
    let nodes = (0..state.nodes)
        .map(|number| overlay::node(&node_name(number), node_addresses(0, number), overlay::tunnel_addresses(number)));
    nodes.chain(pools).chain(overlay::blocks(state.cluster)).collect()
}

impl RunningAgent for RunningCommand {
    fn apply(&mut self, node: &NodeUnderTest<'_>, state: &State<'_>) -> Result<(), AgentError> {
        let mut objects = if state.nodes > 1 { overlay_objects(state) } else { Vec::new() };
        objects.extend(state.objects());
        self.datastore.replace(node, &objects)
    }

    fn check(&mut self) -> Result<(), AgentError> {
        self.datastore.check()?;
        Ok(self.program.check()?)
    }

    fn problems(&mut self) -> Result<Option<Vec<String>>, AgentError> {
        self.status_client.as_ref().map_or_else(|| Ok(Some(Vec::new())), StatusClient::fetch)
    }

    fn flows(&mut self, node: &NodeUnderTest<'_>) -> Result<Vec<ReportedFlow>, AgentError> {
        self.feed.as_mut().map_or_else(|| Ok(Vec::new()), |feed| feed.take(node))
    }
}
