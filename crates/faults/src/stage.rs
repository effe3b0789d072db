//! Stage of a fault: a node with pods, the agent on it, and the prober.

mod agent;
mod ending;
mod kernel;
mod peers;
mod tracer;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Child,
    time::{Duration, Instant},
};

use super::{
    Backend,
    evaluation::{Expect, Violation},
    helpers::Helpers,
    prober::{Channel, Kind, Prober},
    world::{BASE, Families, Pair, World},
};
use tortie_lab::{
    netns::NetnsError,
    pods::{Family, Lab, LabHost, LabOptions, NODE_ADDRESSES},
    program::{Program, ProgramError},
};

/// Maximum wait for any expected event, since machines may be busy. A fault that requires less
/// measures that itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(40);

/// Failure of a fault other than wrong packets.
#[derive(Debug, thiserror::Error)]
pub(super) enum StageError {
    #[error(transparent)]
    Node(#[from] NetnsError),
    #[error(transparent)]
    Peer(#[from] ProgramError),
    #[error("files of the stage: {0}")]
    Files(#[from] io::Error),
    #[error("not in time: {0}")]
    Timeout(String),
    #[error("the agent ended ({0})")]
    AgentEnded(String),
    #[error("{0}")]
    Unexpected(String),
}

/// Result of a step of a fault.
pub(super) type StageResult = Result<(), StageError>;

/// Fails with this text unless the condition holds.
pub(super) fn ensure(so: bool, message: impl FnOnce() -> String) -> StageResult {
    if so { Ok(()) } else { Err(StageError::Unexpected(message())) }
}

/// Returns the agent's initial environment. A parameter that is off is absent: a fault may set it
/// by other means, which the environment would override.
fn environment(backend: Backend) -> BTreeMap<String, String> {
    let common = [
        ("FELIX_IPTABLESBACKEND", backend.iptables().name()),
        ("FELIX_IPTABLESPOSTWRITECHECKINTERVALSECS", "0.5"),
        ("FELIX_IPTABLESREFRESHINTERVAL", "1"),
        ("FELIX_IPSETSREFRESHINTERVAL", "1"),
        ("FELIX_ROUTEREFRESHINTERVAL", "1"),
        ("FELIX_INTERFACEREFRESHINTERVAL", "1"),
        ("FELIX_HEALTHENABLED", "true"),
        ("FELIX_PROMETHEUSMETRICSENABLED", "true"),
    ];
    let of_backend = match backend {
        Backend::Nft | Backend::Legacy => vec![],
        Backend::Nftables | Backend::NftablesFast => vec![("FELIX_NFTABLESMODE", "Enabled")],
        Backend::Ebpf => vec![("FELIX_BPFENABLED", "true")],
        Backend::EbpfRules => vec![("FELIX_BPFENABLED", "true"), ("FELIX_BPFHOOKATTACHMENT", "Rule")],
    };
    let layout = backend.layout().map(|layout| ("FELIX_NFTABLESLAYOUT", layout));
    let all = common.into_iter().chain(of_backend).chain(layout);
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Stage of a fault.
#[derive(Debug)]
pub(super) struct Stage {
    /// Implementation of iptables that the agent uses, unless the fault sets another.
    pub(super) backend: Backend,
    /// Whether eBPF programs enforce policy, unless the fault sets otherwise.
    pub(super) by_programs: bool,
    pub(super) families: Families,
    /// Desired contents of the datastore; [`Stage::write`] writes them.
    pub(super) world: World,
    pub(super) helpers: Helpers,
    /// Environment of the agent, from the next start on.
    pub(super) environment: BTreeMap<String, String>,
    /// Arguments of the agent besides datastore and node, from the next start on.
    pub(super) arguments: Vec<String>,
    /// Shell text before the execution of the agent, from the next start on.
    pub(super) prelude: String,
    /// Whether the agent can run iptables, ipset and nft.
    pub(super) has_packet_filters: bool,
    /// Node name that is passed to the agent.
    pub(super) node_name: String,
    pub(super) prober: Prober,
    pub(super) lab: Lab,
    folder: PathBuf,
    program: PathBuf,
    agent: Option<Child>,
    /// Agents of the nodes after the first one.
    peers: Vec<Program>,
    /// Contents written to the datastore's directory.
    written: BTreeMap<String, String>,
}

impl Stage {
    /// Creates a node with the initial pods, without an agent. Packets are sent from now on. Denial
    /// is expected already for the denied pairs, since no route leads to a pod yet.
    pub(super) fn new(
        program: &Path,
        folder: &Path,
        backend: Backend,
        families: Families,
        nodes: usize,
    ) -> Result<Self, StageError> {
        let mut world = World::new(families, nodes);
        world.many_rules = backend == Backend::NftablesFast;
        fs::create_dir_all(folder.join("manifests"))?;
        let folder = folder.canonicalize()?;
        let lab = Lab::new(&world.lab_pods(), &LabOptions::for_agent().nodes(nodes))?;
        for node in (0..lab.nodes()).filter_map(|number| lab.node_at(number)) {
            // So that a source port can be reused soon. `conntrack -C` loads the module with this
            // setting.
            let _ = node.shell("conntrack -C");
            node.sysctl(&[("netfilter/nf_conntrack_udp_timeout".to_owned(), "5")])?;
        }
        let has_packet_filters = backend.layout().is_none();
        let mut stage = Self {
            backend: backend.iptables(),
            by_programs: matches!(backend, Backend::Ebpf | Backend::EbpfRules),
            families,
            world,
            helpers: Helpers::create(&folder, has_packet_filters)?,
            has_packet_filters,
            environment: environment(backend),
            arguments: Vec::new(),
            prelude: String::new(),
            node_name: super::world::NODE.to_owned(),
            prober: Prober::new(),
            lab,
            folder,
            program: program.to_owned(),
            agent: None,
            peers: Vec::new(),
            written: BTreeMap::new(),
        };
        for (from, to, _) in BASE {
            stage.probe(from, to)?;
        }
        for (from, to, allowed) in BASE {
            if !allowed {
                stage.prober.expect(Expect::Denied, between(from, to));
            }
        }
        stage.write_files()?;
        Ok(stage)
    }

    /// Sends between two places from now on, in all families; to `web` also by connects.
    pub(super) fn probe(&mut self, from: &str, to: &str) -> StageResult {
        self.probe_by(from, to, Kind::Datagrams)?;
        if to == "web" { self.probe_by(from, to, Kind::Connects) } else { Ok(()) }
    }

    /// Sends this sort of packets between two places from now on, in all families.
    pub(super) fn probe_by(&mut self, from: &str, to: &str, kind: Kind) -> StageResult {
        let of_pod = self.world.pods.get(to).map(|pod| pod.addresses.clone());
        let of_node = NODE_ADDRESSES.into_iter().filter(|address| match self.families {
            Families::V4 => address.is_ipv4(),
            Families::V6 => address.is_ipv6(),
            Families::Dual => true,
        });
        for address in of_pod.unwrap_or_else(|| of_node.collect()) {
            let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
            let channel = Channel { from: place(from), to: place(to), family, kind };
            let namespace = |place: &LabHost| {
                self.lab.namespace(place).ok_or_else(|| StageError::Unexpected(format!("no {place} in the laboratory")))
            };
            let ends = [namespace(&channel.from)?, namespace(&channel.to)?];
            self.prober.add(&channel, ends, address)?;
        }
        Ok(())
    }

    /// Starts the agent and waits until the initial pairs are as expected.
    pub(super) fn begin(&mut self) -> StageResult {
        self.start_peers()?;
        self.start()?;
        self.confirm(&BASE)
    }

    /// Returns the directory of the datastore's manifests.
    pub(super) fn manifests(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    /// Returns a folder for files of the fault.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Edits the datastore and waits until packets show that the edit is in force.
    pub(super) fn change(&mut self, edit: impl FnOnce(&mut World), effect: &[Pair]) -> StageResult {
        self.write(edit, effect)?;
        self.confirm(effect)
    }

    /// Edits the datastore. Until [`Stage::confirm`], both outcomes are correct for the affected
    /// pairs.
    pub(super) fn write(&mut self, edit: impl FnOnce(&mut World), effect: &[Pair]) -> StageResult {
        self.announce(effect);
        edit(&mut self.world);
        self.write_files()
    }

    /// Accepts both outcomes from now on, for those of these pairs that are to change.
    pub(super) fn announce(&self, effect: &[Pair]) {
        for &(from, to, allowed) in effect {
            let of = between(from, to);
            if self.prober.current(&of) != vec![expect(allowed); self.prober.current(&of).len()] {
                self.prober.expect(Expect::Either, of);
            }
        }
    }

    /// Waits until these pairs are as given, and expects them to stay so.
    pub(super) fn confirm(&mut self, pairs: &[Pair]) -> StageResult {
        self.confirm_within(PATIENCE, pairs)
    }

    /// As [`Stage::confirm`], with another timeout.
    pub(super) fn confirm_within(&mut self, patience: Duration, pairs: &[Pair]) -> StageResult {
        let since = self.prober.now();
        let deadline = Instant::now() + patience;
        loop {
            let unsettled: Vec<String> = pairs
                .iter()
                .flat_map(|&(from, to, allowed)| {
                    let channels = self.prober.unsettled(expect(allowed), since, between(from, to));
                    channels
                        .into_iter()
                        .map(move |channel| format!("{channel} is not {}", if allowed { "allowed" } else { "denied" }))
                })
                .collect();
            if unsettled.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                return Err(StageError::Timeout(unsettled.join(", ")));
            }
            if self.agent.is_some() {
                self.check()?;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        for &(from, to, allowed) in pairs {
            self.prober.expect(expect(allowed), between(from, to));
        }
        Ok(())
    }

    /// Waits until the condition holds.
    pub(super) fn until(
        &mut self,
        description: &str,
        so: impl FnMut(&mut Self) -> Result<bool, StageError>,
    ) -> StageResult {
        self.until_within(PATIENCE, description, so)
    }

    /// As [`Stage::until`], with another timeout.
    pub(super) fn until_within(
        &mut self,
        patience: Duration,
        description: &str,
        mut so: impl FnMut(&mut Self) -> Result<bool, StageError>,
    ) -> StageResult {
        let deadline = Instant::now() + patience;
        while !so(self)? {
            if Instant::now() > deadline {
                return Err(StageError::Timeout(description.to_owned()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Lets packets be sent for this time. The agent must stay alive, if it runs.
    pub(super) fn watch(&mut self, time: Duration) -> StageResult {
        std::thread::sleep(time);
        if self.agent.is_some() { self.check() } else { Ok(()) }
    }

    /// Announces that denied packets may arrive from now on for this time, because the fault opens
    /// the kernel.
    pub(super) fn may_be_open(&self, bound: Duration) {
        self.prober.announce_effect(Violation::Allowed, bound, |_| true);
    }

    /// Announces that allowed packets may be lost from now on for this time.
    pub(super) fn may_be_cut(&self, bound: Duration) {
        self.prober.announce_effect(Violation::Denied, bound, |_| true);
    }

    /// Announces that packets of one pair may be lost from now on for this time.
    pub(super) fn may_be_cut_between(&self, from: &str, to: &str, bound: Duration) {
        self.prober.announce_effect(Violation::Denied, bound, between(from, to));
    }

    /// Expects denial for this pair from now on, since it never was allowed.
    pub(super) fn expect_denied(&self, from: &str, to: &str) {
        self.prober.expect(Expect::Denied, between(from, to));
    }

    /// Removes all expectations for packets to these pods.
    pub(super) fn clear_expectations(&self, pods: &[&str]) {
        let removed: Vec<LabHost> = pods.iter().map(|pod| place(pod)).collect();
        self.prober.expect(Expect::Either, |channel| removed.contains(&channel.to));
    }

    /// Reports whether a wrapper has recorded a refusal.
    pub(super) fn refused(&self) -> bool {
        self.folder.join("faults/notes/refused").exists()
    }

    /// Passes a line to `ip` inside a pod.
    pub(super) fn pod_ip(&self, pod: &str, line: &str) -> StageResult {
        let namespace = self.lab.namespace(&place(pod));
        namespace.map_or_else(|| Err(StageError::Unexpected(format!("no pod {pod}"))), |pod| Ok(pod.ip([line])?))
    }

    /// Records that the fault itself has written a file with the contents of [`Stage::world`].
    pub(super) fn record_written_file(&mut self, name: &str) {
        if let Some(text) = self.world.files().remove(name) {
            self.written.insert(name.to_owned(), text);
        }
    }

    /// Runs a shell line on the node, with the real programs.
    pub(super) fn shell(&self, line: &str) -> Result<String, StageError> {
        let lock = self.folder.join("xtables.lock");
        Ok(self.lab.node().shell(&format!("export XTABLES_LOCKFILE={}; {line}", lock.display()))?)
    }

    /// Returns the iptables program for one family of the pods.
    pub(super) fn iptables_program(&self) -> String {
        let program = if self.families == Families::V6 { "ip6tables" } else { "iptables" };
        format!("{program}-{}", self.backend.name())
    }

    /// Runs `iptables` with these arguments on the node, for every family of the pods.
    pub(super) fn iptables(&self, args: &str) -> StageResult {
        let programs: &[&str] = match self.families {
            Families::V4 => &["iptables"],
            Families::V6 => &["ip6tables"],
            Families::Dual => &["iptables", "ip6tables"],
        };
        let backend = self.backend.name();
        let lines: Vec<String> = programs.iter().map(|program| format!("{program}-{backend} -w {args}")).collect();
        self.shell(&lines.join("; ")).map(drop)
    }

    /// Updates the directory to [`Stage::world`], replacing files by rename as an editor does.
    fn write_files(&mut self) -> StageResult {
        let desired = self.world.files();
        for (name, text) in &desired {
            if self.written.get(name) != Some(text) {
                let new = self.folder.join("new");
                fs::write(&new, text)?;
                fs::rename(new, self.manifests().join(name))?;
            }
        }
        for name in self.written.keys().filter(|name| !desired.contains_key(*name)) {
            match fs::remove_file(self.manifests().join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        self.written = desired;
        Ok(())
    }
}

/// Returns the place of this name.
pub(super) fn place(name: &str) -> LabHost {
    match name {
        "outside" => LabHost::Outside,
        "node" => LabHost::Node,
        pod => LabHost::pod("shop", pod),
    }
}

fn expect(allowed: bool) -> Expect {
    if allowed { Expect::Allowed } else { Expect::Denied }
}

fn between(from: &str, to: &str) -> impl Fn(&Channel) -> bool + use<> {
    let (from, to) = (place(from), place(to));
    move |channel| channel.from == from && channel.to == to
}
