//! Faults that happen to a node while packets are sent all the time.
//!
//! The real agent runs on a node of namespaces. A prober sends packets that policy allows and packets that it denies, each
//! as a new connection, while something goes wrong: programs fail, hang or lie, others change the kernel, files are torn,
//! processes are killed. Afterwards every packet is held against what policy said when it was sent.
//!
//! - Between the writing of an edit and its confirmed enforcement either outcome is right. At all other times the last
//!   confirmed state must hold.
//! - A packet that came through though it was denied fails the fault. Where somebody with root opens the kernel himself, the
//!   fault announces for how long it may stay open.
//! - A packet that was lost though it was allowed fails it, too, unless the fault announces that traffic may be cut.
//! - At the end the kernel holds what an agent writes that finds nothing, and after `tortie cleanup` nothing of it.
//!
//! A fault is an entry of a family's list: data, and a function that is given a node with the agent and the prober.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "faults happen to processes and files, for durations of a clock, and packets are sent by threads"
)]

mod catalogue;
mod helpers;
mod judge;
mod prober;
mod report;
mod stage;
mod world;

use std::{
    fmt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use report::FaultReport;
pub use world::Families;

use stage::{Done, Stage, Trouble};
use tortie_lab::kernel::{self, Unavailable};
use tortie_lab::shard::Shard;

/// What enforces policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Chains, by nftables behind the interface of iptables.
    Nft,
    /// Chains, by the old iptables.
    Legacy,
    /// Tables of nftables as Felix lays them out, without iptables and IP sets.
    Nftables,
    /// The same laid out to be fast.
    NftablesFast,
    /// eBPF programs. What is left to iptables is nftables'.
    Ebpf,
    /// The same, attached by rules of nftables as where the kernel has no links for it.
    EbpfRules,
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Nft, Self::Legacy, Self::Nftables, Self::NftablesFast, Self::Ebpf, Self::EbpfRules];
    /// The implementations of iptables.
    const IPTABLES: [Self; 2] = [Self::Nft, Self::Legacy];

    /// Its name; for the implementations of iptables that in `FELIX_IPTABLESBACKEND` and in the names of programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
            Self::Nftables => "nftables",
            Self::NftablesFast => "nftables-fast",
            Self::Ebpf => "ebpf",
            Self::EbpfRules => "ebpf-rules",
        }
    }

    /// Of tables of nftables, how they are laid out, `NFTablesLayout`.
    fn layout(self) -> Option<&'static str> {
        match self {
            Self::Nftables => Some("Felix"),
            Self::NftablesFast => Some("Fast"),
            Self::Nft | Self::Legacy | Self::Ebpf | Self::EbpfRules => None,
        }
    }

    /// The implementation of iptables that the agent is told to use.
    fn iptables(self) -> Self {
        if self == Self::Legacy { self } else { Self::Nft }
    }

    /// The other implementation of iptables.
    fn other(self) -> Self {
        if self == Self::Legacy { Self::Nft } else { Self::Legacy }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that goes wrong.
struct Fault {
    /// The families to which it belongs, and a word.
    name: &'static str,
    /// What goes wrong and what must hold, a line.
    about: &'static str,
    /// The implementations of iptables with which it means anything.
    iptables: &'static [Backend],
    /// Whether it means anything with eBPF programs, however they are attached.
    ebpf: bool,
    /// Whether it means anything with nftables tables, in either layout.
    nftables: bool,
    /// Lets it happen. The agent has not been started when it begins.
    run: fn(&mut Stage) -> Done,
    /// Whether it makes a hole that the judge must find.
    is_self_check: bool,
    /// On how many nodes, with VXLAN between them. The agent that it happens to is that of the first.
    nodes: usize,
}

impl Fault {
    const fn new(name: &'static str, about: &'static str, run: fn(&mut Stage) -> Done) -> Self {
        let iptables = &Backend::IPTABLES;
        Self { name, about, iptables, ebpf: false, nftables: false, run, is_self_check: false, nodes: 1 }
    }

    /// The back ends it is run with.
    fn backends(&self) -> impl Iterator<Item = Backend> {
        let of = |runs: bool, backends: [Backend; 2]| backends.into_iter().filter(move |_| runs);
        let nftables = of(self.nftables, [Backend::Nftables, Backend::NftablesFast]);
        self.iptables.iter().copied().chain(nftables).chain(of(self.ebpf, [Backend::Ebpf, Backend::EbpfRules]))
    }

    const fn only(mut self, iptables: &'static [Backend]) -> Self {
        self.iptables = iptables;
        self
    }

    const fn ebpf(mut self) -> Self {
        self.ebpf = true;
        self
    }

    const fn nftables(mut self) -> Self {
        self.nftables = true;
        self
    }

    const fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    const fn self_check(mut self) -> Self {
        self.is_self_check = true;
        self
    }
}

/// What to run and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The agent's program.
    pub agent: PathBuf,
    /// Only faults with one of these in their names, if there are any.
    pub only: Vec<String>,
    /// What enforces policy.
    pub backends: Vec<Backend>,
    /// The address families of the pods.
    pub families: Families,
    /// Only this part of the faults, each counted once for each back end.
    pub shard: Shard,
    /// Where to keep manifests and logs of faults that failed.
    pub keep: Option<PathBuf>,
}

/// Names of the faults, and a line about each.
pub fn list() -> impl Iterator<Item = (&'static str, &'static str)> {
    catalogue::all().map(|fault| (fault.name, fault.about))
}

/// Runs the faults one after the other, and hands on what came of each as soon as it is known.
///
/// # Errors
/// If kernel tests cannot run here.
pub fn run(options: &Options, mut told: impl FnMut(&FaultReport)) -> Result<Vec<FaultReport>, Unavailable> {
    kernel::require()?;
    let wanted =
        |fault: &&Fault| options.only.is_empty() || options.only.iter().any(|word| fault.name.contains(word.as_str()));
    let mut reports = Vec::new();
    let runs = catalogue::all().filter(wanted).flat_map(|fault| fault.backends().map(move |backend| (fault, backend)));
    let runs = runs.filter(|(_, backend)| options.backends.contains(backend)).enumerate();
    for (_, (fault, backend)) in runs.filter(|(position, _)| options.shard.contains(*position)) {
        let report = run_one(fault, backend, options);
        told(&report);
        reports.push(report);
    }
    Ok(reports)
}

fn run_one(fault: &Fault, backend: Backend, options: &Options) -> FaultReport {
    let begun = Instant::now();
    let mut report = FaultReport::new(fault, backend);
    let scratch = match tempfile::TempDir::new() {
        Ok(scratch) => scratch,
        Err(error) => {
            report.trouble = Some(format!("no folder: {error}"));
            return report;
        }
    };
    let result = happen(fault, backend, options, scratch.path(), &mut report);
    if let Err(trouble) = result {
        report.trouble = Some(trouble.to_string());
    }
    report.took = begun.elapsed();
    if !report.passed()
        && let Some(keep) = &options.keep
    {
        let folder = keep.join(format!("{}-{backend}", fault.name));
        report.kept = keep_files(scratch.path(), &folder).map(|()| folder).ok();
    }
    report
}

/// Lets a fault happen and judges.
fn happen(
    fault: &Fault,
    backend: Backend,
    options: &Options,
    folder: &Path,
    report: &mut FaultReport,
) -> Result<(), Trouble> {
    let mut stage = Stage::new(&options.agent, folder, backend, options.families, fault.nodes)?;
    let happened = (fault.run)(&mut stage);
    if happened.is_err() {
        report.log = tail(&stage.log());
    }
    let (settled, judged) = if happened.is_ok() {
        stage.end_probing()
    } else {
        (Ok(()), std::mem::replace(&mut stage.prober, prober::Prober::new()).finish())
    };
    report.judged(judged);
    happened?;
    let ended = settled.and_then(|()| stage.end());
    if ended.is_err() {
        report.log = tail(&stage.log());
    }
    ended
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

fn keep_files(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to.join("manifests"))?;
    std::fs::copy(from.join("agent.log"), to.join("agent.log"))?;
    for file in std::fs::read_dir(from.join("manifests"))? {
        let file = file?;
        std::fs::copy(file.path(), to.join("manifests").join(file.file_name()))?;
    }
    Ok(())
}

/// All that were run, in one number each.
#[must_use]
pub fn totals(reports: &[FaultReport]) -> (usize, usize) {
    let passed = reports.iter().filter(|report| report.passed()).count();
    (passed, reports.len() - passed)
}

/// How long something took, for people.
fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
