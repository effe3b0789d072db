//! Fault injection on a node under continuous traffic.
//!
//! The real agent runs on a node of network namespaces. A prober sends packets that policy allows
//! and packets that it denies, each as a new connection, during a fault: programs fail, hang or
//! give wrong output, other processes change the kernel, files are torn, processes are killed.
//! Afterwards every packet's outcome is compared with policy at its sending time.
//!
//! - Between the writing of an edit and its confirmed enforcement, both outcomes are correct. At
//!   all other times the last confirmed state must hold.
//! - A denied packet that arrived fails the fault. If the fault itself opens the kernel, as another
//!   process with root could, it announces the maximum time of that hole.
//! - An allowed packet that was lost fails it too, unless the fault announces that traffic may be
//!   cut.
//! - At the end, the kernel's state equals that written by a new agent on an empty node, and
//!   `tortie cleanup` removes all of it.
//!
//! A fault is an entry of a family's list: its description, and a function that operates on a node
//! with agent and prober.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "faults affect processes and files for measured times, and threads send packets"
)]

mod catalogue;
mod evaluation;
mod helpers;
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

use stage::{Stage, StageError, StageResult};
use tortie_lab::kernel::{self, Unavailable};
use tortie_lab::shard::Shard;

/// Back end under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// iptables-nft.
    Nft,
    /// iptables-legacy.
    Legacy,
    /// nftables tables in Felix's layout, without iptables and IP sets.
    Nftables,
    /// nftables tables in the fast layout.
    NftablesFast,
    /// eBPF programs. iptables-nft does the remaining tasks of iptables.
    Ebpf,
    /// eBPF programs that are attached by nftables rules, as on kernels without netfilter links.
    EbpfRules,
}

impl Backend {
    /// All back ends.
    pub const ALL: [Self; 6] =
        [Self::Nft, Self::Legacy, Self::Nftables, Self::NftablesFast, Self::Ebpf, Self::EbpfRules];
    /// Implementations of iptables.
    const IPTABLES: [Self; 2] = [Self::Nft, Self::Legacy];

    /// Returns its name. For implementations of iptables, `FELIX_IPTABLESBACKEND` and the names of
    /// programs use the same.
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

    /// Returns the `NFTablesLayout` of nftables tables.
    fn layout(self) -> Option<&'static str> {
        match self {
            Self::Nftables => Some("Felix"),
            Self::NftablesFast => Some("Fast"),
            Self::Nft | Self::Legacy | Self::Ebpf | Self::EbpfRules => None,
        }
    }

    /// Returns the implementation of iptables that the agent uses.
    fn iptables(self) -> Self {
        if self == Self::Legacy { self } else { Self::Nft }
    }

    /// Returns the other implementation of iptables.
    fn other(self) -> Self {
        if self == Self::Legacy { Self::Nft } else { Self::Legacy }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A fault.
struct Fault {
    /// The families to which it belongs, and a word.
    name: &'static str,
    /// Failure and required behaviour, in a line.
    about: &'static str,
    /// Implementations of iptables for which it is meaningful.
    iptables: &'static [Backend],
    /// Whether it is meaningful for eBPF programs, however they are attached.
    ebpf: bool,
    /// Whether it is meaningful for nftables tables, in either layout.
    nftables: bool,
    /// Executes the fault. The agent has not been started at its beginning.
    run: fn(&mut Stage) -> StageResult,
    /// Whether it opens a hole that the evaluation must detect.
    is_self_check: bool,
    /// Number of nodes, connected by VXLAN. The fault affects the agent of the first.
    nodes: usize,
}

impl Fault {
    const fn new(name: &'static str, about: &'static str, run: fn(&mut Stage) -> StageResult) -> Self {
        let iptables = &Backend::IPTABLES;
        Self { name, about, iptables, ebpf: false, nftables: false, run, is_self_check: false, nodes: 1 }
    }

    /// Returns the back ends with which it runs.
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

/// Faults to run, agent, and conditions.
#[derive(Debug, Clone)]
pub struct Options {
    /// Path of the agent.
    pub agent: PathBuf,
    /// Run only faults with one of these texts in their names; all if empty.
    pub only: Vec<String>,
    /// Back ends.
    pub backends: Vec<Backend>,
    /// Address families of the pods.
    pub families: Families,
    /// Run only this part of the faults, each counted once per back end.
    pub shard: Shard,
    /// Directory in which to keep manifests and logs of failed faults.
    pub keep: Option<PathBuf>,
}

/// Returns the names of the faults with their descriptions.
pub fn list() -> impl Iterator<Item = (&'static str, &'static str)> {
    catalogue::all().map(|fault| (fault.name, fault.about))
}

/// Runs the faults one after the other, and passes each result to `on_report` as soon as it is
/// known.
///
/// # Errors
/// If kernel tests cannot run here.
pub fn run(options: &Options, mut on_report: impl FnMut(&FaultReport)) -> Result<Vec<FaultReport>, Unavailable> {
    kernel::require()?;
    let is_selected =
        |fault: &&Fault| options.only.is_empty() || options.only.iter().any(|word| fault.name.contains(word.as_str()));
    let mut reports = Vec::new();
    let runs =
        catalogue::all().filter(is_selected).flat_map(|fault| fault.backends().map(move |backend| (fault, backend)));
    let runs = runs.filter(|(_, backend)| options.backends.contains(backend)).enumerate();
    for (_, (fault, backend)) in runs.filter(|(position, _)| options.shard.contains(*position)) {
        let report = run_one(fault, backend, options);
        on_report(&report);
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
            report.error = Some(format!("no folder: {error}"));
            return report;
        }
    };
    let result = execute(fault, backend, options, scratch.path(), &mut report);
    if let Err(error) = result {
        report.error = Some(error.to_string());
    }
    report.took = begun.elapsed();
    if !report.passed()
        && let Some(keep) = &options.keep
    {
        let folder = keep.join(format!("{}-{backend}", fault.name));
        report.kept_files = keep_files(scratch.path(), &folder).map(|()| folder).ok();
    }
    report
}

/// Executes a fault and evaluates the outcomes.
fn execute(
    fault: &Fault,
    backend: Backend,
    options: &Options,
    folder: &Path,
    report: &mut FaultReport,
) -> Result<(), StageError> {
    let mut stage = Stage::new(&options.agent, folder, backend, options.families, fault.nodes)?;
    let executed = (fault.run)(&mut stage);
    if executed.is_err() {
        report.log = tail(&stage.log());
    }
    let (settled, outcomes) = if executed.is_ok() {
        stage.end_probing()
    } else {
        (Ok(()), std::mem::replace(&mut stage.prober, prober::Prober::new()).finish())
    };
    report.add_outcomes(outcomes);
    executed?;
    let ended = settled.and_then(|()| stage.end());
    if ended.is_err() {
        report.log = tail(&stage.log());
    }
    ended
}

/// Returns the last lines of a log.
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

/// Returns the numbers of passed and failed reports.
#[must_use]
pub fn totals(reports: &[FaultReport]) -> (usize, usize) {
    let passed = reports.iter().filter(|report| report.passed()).count();
    (passed, reports.len() - passed)
}

/// Formats a duration for display.
fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
