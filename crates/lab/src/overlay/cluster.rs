//! Nodes of a laboratory, an agent on each, and a directory that all of them read.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::objects::{Encapsulation, blocks, node, pool, tunnel_addresses};
use crate::{
    cases::Cluster,
    manifests::{ManifestDir, ManifestError},
    netns::{Namespace, NetnsError},
    pods::{Lab, LabOptions, node_addresses, node_name},
    program::{Program, ProgramError},
};

/// Error of building or changing a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// A namespace or a command in it failed.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// An agent could not be started, or ended unexpectedly.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The directory could not be updated.
    #[error(transparent)]
    Manifests(#[from] ManifestError),
    /// The folder of a node could not be created.
    #[error("the folder of a node: {0}")]
    Folder(#[from] io::Error),
}

/// A node, and its state in the datastore.
#[derive(Debug)]
struct Member {
    addresses: [IpAddr; 2],
    folder: PathBuf,
    agent: Option<Program>,
    /// Whether the datastore contains the node.
    in_datastore: bool,
}

/// Nodes with agents. The agents end first when dropped.
#[derive(Debug)]
pub struct OverlayCluster {
    members: Vec<Member>,
    /// The nodes and their pods.
    pub lab: Lab,
    /// Pods in the datastore.
    pub cluster: Cluster,
    /// Other objects in the datastore.
    pub others: Vec<Value>,
    /// Networks of the pools.
    pub pools: Vec<String>,
    /// Encapsulation of all pools.
    pub encapsulation: Encapsulation,
    /// Environment of agents started from now on.
    pub environment: Vec<(String, String)>,
    program: PathBuf,
    directory: PathBuf,
    manifests: ManifestDir,
    _folder: TempDir,
}

impl OverlayCluster {
    /// Creates a node in each of these subnets, without pods and agents.
    ///
    /// # Errors
    /// If a namespace or a folder cannot be created.
    pub fn new(
        program: impl Into<PathBuf>,
        subnets: &[u8],
        encapsulation: Encapsulation,
    ) -> Result<Self, OverlayError> {
        let lab = Lab::new(&[], &LabOptions::for_agent().subnets(subnets))?;
        let folder = TempDir::new()?;
        let manifests = ManifestDir::create(&folder.path().join("manifests"))?;
        let mut members = Vec::with_capacity(subnets.len());
        for (number, subnet) in subnets.iter().enumerate() {
            let folder = folder.path().join(node_name(number));
            fs::create_dir(&folder)?;
            let addresses = node_addresses(*subnet, number);
            members.push(Member { addresses, folder, agent: None, in_datastore: true });
        }
        Ok(Self {
            members,
            lab,
            cluster: Cluster::default(),
            others: Vec::new(),
            pools: ["10.66.0.0/16", "fd00:66::/32"].map(str::to_owned).to_vec(),
            encapsulation,
            environment: vec![("FELIX_IPTABLESBACKEND".to_owned(), "nft".to_owned())],
            program: program.into(),
            directory: manifests.path().to_owned(),
            manifests,
            _folder: folder,
        })
    }

    /// Makes agents started from now on read another directory.
    pub fn read_from(&mut self, directory: &Path) {
        self.directory = directory.to_owned();
    }

    /// Updates the pods and the datastore to the state of this struct.
    ///
    /// # Errors
    /// If a pod or a file cannot be made.
    pub fn apply(&mut self) -> Result<(), OverlayError> {
        self.lab.set_pods(&self.cluster.lab_pods())?;
        let mut objects = Vec::new();
        for (number, member) in self.members.iter().enumerate().filter(|(_, member)| member.in_datastore) {
            objects.push(node(&node_name(number), member.addresses, tunnel_addresses(number)));
        }
        for (number, cidr) in self.pools.iter().enumerate() {
            objects.push(pool(&format!("pool{number}"), cidr, self.encapsulation));
        }
        objects.extend(blocks(&self.cluster));
        objects.extend(self.cluster.objects());
        objects.extend(self.others.iter().cloned());
        self.manifests.replace(&objects)?;
        Ok(())
    }

    /// Returns the namespace of a node, by its number from 0.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn node(&self, number: usize) -> &Namespace {
        self.lab.node_at(number).unwrap_or_else(|| panic!("no node {number}"))
    }

    /// Returns the output of a shell line on a node, or the reason of its failure.
    #[must_use]
    pub fn shell(&self, number: usize, line: &str) -> String {
        self.node(number).shell(line).unwrap_or_else(|error| error.to_string())
    }

    /// Starts a node's agent.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&mut self, number: usize) -> Result<(), OverlayError> {
        let folder = &self.members[number].folder;
        let mut command = Command::new(&self.program);
        command
            .args(["run", "--node", &node_name(number), "--datastore"])
            .arg(format!("file:{}", self.directory.display()))
            .arg("--state-dir")
            .arg(folder.join("state"))
            .arg("--mtu-file")
            .arg(folder.join("mtu"))
            .args(["--file-settle-ms", "50", "--empty-file-settle-ms", "50"])
            .env("XTABLES_LOCKFILE", folder.join("xtables.lock"))
            .env("FELIX_ENDPOINTSTATUSPATHPREFIX", "none")
            .env("TORTIE_SOCKET", "")
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        let agent = Program::start("agent", self.node(number), folder, &mut command)?;
        self.members[number].agent = Some(agent);
        Ok(())
    }

    /// Starts all agents.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start_all(&mut self) -> Result<(), OverlayError> {
        (0..self.members.len()).try_for_each(|number| self.start(number))
    }

    /// Ends a node's agent, if it runs.
    ///
    /// # Errors
    /// If its process cannot be waited for.
    pub fn stop(&mut self, number: usize, signal: Signal) -> Result<(), OverlayError> {
        self.members[number].agent.take().map_or(Ok(()), |agent| Ok(agent.stop_by(signal).map(drop)?))
    }

    /// Fails if an agent has ended unexpectedly.
    ///
    /// # Errors
    /// The way it ended.
    pub fn check(&mut self) -> Result<(), OverlayError> {
        let mut agents = self.members.iter_mut().filter_map(|member| member.agent.as_mut());
        Ok(agents.try_for_each(Program::check)?)
    }

    /// Gives a node other addresses in its first subnet, and updates the datastore.
    ///
    /// # Errors
    /// If an address cannot be changed, or a file not be written.
    pub fn readdress(&mut self, number: usize, last: u8) -> Result<(), OverlayError> {
        let new = node_addresses(0, usize::from(last - 1));
        let line = |verb: &str, address: IpAddr| {
            let (length, nodad) = if address.is_ipv4() { (24, "") } else { (64, " nodad") };
            format!("addr {verb} {address}/{length} dev eth0{nodad}")
        };
        let old = self.members[number].addresses.map(|address| line("del", address));
        self.node(number).ip(old)?;
        self.node(number).ip(new.map(|address| line("add", address)))?;
        // The kernel deletes routes whose source address is removed.
        let [v4, v6] = crate::pods::OUTSIDE_ADDRESSES;
        self.node(number).ip([format!("route replace default via {v4}"), format!("route replace default via {v6}")])?;
        self.members[number].addresses = new;
        self.apply()
    }

    /// Removes a node from the cluster, with its agent and its pods.
    ///
    /// # Errors
    /// If the agent cannot be stopped, or a file cannot be written.
    pub fn remove(&mut self, number: usize) -> Result<(), OverlayError> {
        self.stop(number, Signal::TERM)?;
        self.members[number].in_datastore = false;
        self.cluster.pods.retain(|pod| pod.node != number);
        self.apply()
    }

    /// Returns the network state of all nodes' kernels, and the ends of the agents' logs.
    #[must_use]
    pub fn describe(&self) -> String {
        let describe = |(number, member): (usize, &Member)| {
            let lines = "ip -d addr show type vxlan; ip route; ip -6 route; bridge fdb; ip neigh; ip -6 neigh";
            let log = member.agent.as_ref().map(Program::log_tail).unwrap_or_default();
            format!("{}:\n{}{log}\n", node_name(number), self.shell(number, lines))
        };
        self.members.iter().enumerate().map(describe).collect()
    }
}
