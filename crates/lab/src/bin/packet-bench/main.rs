//! Measures the cost of a packet by the rules that it traverses: `cargo xtask packet-bench --help`.
#![allow(clippy::disallowed_methods, reason = "a program that runs the agent on the machine's kernel")]

mod forms;
mod node;
mod policy;
mod straight_line;
mod table;
mod test_run;
mod traffic;
mod traversed_rules;
mod updates;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tortie_lab::kernel::again_in_user_namespace;
use tortie_lab::netns::NetnsError;
use tortie_model::Family;

use node::Node;
use policy::{Peers, Policy};
use table::{Row, Table, TestRunRow};
use test_run::PacketPath;
use traffic::{Case, Traffic};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measure the cost per packet of a policy with many rules
///
/// Runs the agent in a private network namespace, with a policy of many rules for one pod, and
/// sends packets to that pod from another namespace.
///
/// Prints nanoseconds per packet and packets per second (in thousands) of one processor: from the
/// sending system call, through the node, to the pod or to the drop. The sending processor does all
/// of this work. Rules differ in network, or IP set, and port, so that a packet matches at most one
/// rule. The first row is the cost without any policy.
///
/// Then prints the cost of the eBPF programs of three hooks by the kernel's test runs, for the same
/// rules in the other direction, with IPv4 and IPv6, next to the cost of entering a program; the
/// ratio between the most and the fewest rules; and the cost of the same rules as sequential
/// instructions, as other eBPF dataplanes compile them.
#[derive(Debug, Parser)]
struct Args {
    /// Path of the agent
    #[arg(long)]
    agent: PathBuf,
    /// Numbers of rules, measured in turn
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000, 10_000], value_parser = clap::value_parser!(u16).range(1..=20_000))]
    rules: Vec<u16>,
    /// Back ends, measured in turn
    #[arg(long, value_delimiter = ',', default_values_t = [Backend::Legacy, Backend::Nft, Backend::NftablesFelix, Backend::NftablesFast, Backend::Ebpf])]
    backends: Vec<Backend>,
    /// Match of workload interfaces, measured in turn
    ///
    /// Only iptables can match by address; other back ends are skipped then.
    #[arg(long, value_delimiter = ',', default_values_t = [Workloads::ByName])]
    workloads: Vec<Workloads>,
    /// Put each rule into a separate policy for the pod
    #[arg(long)]
    policies: bool,
    /// Enable flow logs: each rule logs its name
    #[arg(long)]
    flow_logs: bool,
    /// Measure the rules in other nftables forms only, without an agent
    ///
    /// The forms are a sequence of rules, and hash or range maps by address, alone or with protocol
    /// and port.
    #[arg(long, conflicts_with_all = ["test_runs_only", "no_test_runs"])]
    forms: bool,
    /// Measure packets through namespaces only, without test runs
    #[arg(long, conflicts_with = "test_runs_only")]
    no_test_runs: bool,
    /// Measure test runs only
    #[arg(long)]
    test_runs_only: bool,
    /// Matches of the rules; `sets-port-range` needs `--no-test-runs`
    #[arg(long, value_delimiter = ',', default_values_t = [Peers::Networks, Peers::Sets])]
    peers: Vec<Peers>,
    /// Packets per measurement, fewer with more than 100 rules
    #[arg(long, default_value_t = 20_000)]
    packets: u32,
    /// Repetitions; the best one counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
}

/// Match of workload interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workloads {
    /// By interface name
    ByName,
    /// By address
    ByAddress,
}

impl std::fmt::Display for Workloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ByName => "by-name",
            Self::ByAddress => "by-address",
        })
    }
}

/// Back end of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// iptables-legacy
    Legacy,
    /// iptables-nft
    Nft,
    /// nftables tables in Felix's layout
    NftablesFelix,
    /// nftables tables in the fast layout
    NftablesFast,
    /// eBPF programs
    Ebpf,
    /// eBPF programs, called by nftables rules
    EbpfRules,
}

impl Backend {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nft => "nft",
            Self::NftablesFelix => "nftables-felix",
            Self::NftablesFast => "nftables-fast",
            Self::Ebpf => "ebpf",
            Self::EbpfRules => "ebpf-rules",
        }
    }

    /// Returns the agent's parameters for this back end.
    const fn parameters(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Legacy => &[("FELIX_IPTABLESBACKEND", "legacy")],
            Self::Nft => &[("FELIX_IPTABLESBACKEND", "nft")],
            Self::NftablesFelix => &[("FELIX_NFTABLESMODE", "Enabled"), ("FELIX_NFTABLESLAYOUT", "Felix")],
            Self::NftablesFast => &[("FELIX_NFTABLESMODE", "Enabled"), ("FELIX_NFTABLESLAYOUT", "Fast")],
            Self::Ebpf => &[("FELIX_BPFENABLED", "true")],
            Self::EbpfRules => &[("FELIX_BPFENABLED", "true"), ("FELIX_BPFHOOKATTACHMENT", "Rule")],
        }
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    match measure(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without privileges: start again as root of a user namespace.
            let in_vain = matches!(error.downcast_ref(), Some(NetnsError::Create(_)));
            if in_vain {
                return again_in_user_namespace();
            }
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> Result<()> {
    if args.peers.contains(&Peers::SetsPortRange) && (args.forms || !args.no_test_runs) {
        return Err("sets-port-range needs --no-test-runs and excludes --forms".into());
    }
    if args.forms && args.peers.contains(&Peers::Subnets) {
        return Err("--forms supports addresses and sets, not subnets".into());
    }
    if args.forms {
        return forms::measure(&args.peers, &args.rules, args.packets, args.times);
    }
    if !args.test_runs_only {
        measure_traffic(args)?;
        println!();
    }
    if args.no_test_runs {
        return Ok(());
    }
    TestRunRow::print_head();
    let of_family = |family| PacketPath::ALL.map(|path| (family, path));
    let mut rows = Vec::new();
    for (family, path) in Family::ALL.into_iter().flat_map(of_family) {
        for peers in &args.peers {
            for rules in &args.rules {
                let policy = Policy { peers: *peers, rules: *rules, are_policies: args.policies };
                let row = test_run::measure(policy, family, path, args.times)?;
                row.print();
                rows.push(row);
            }
        }
    }
    table::print_ratios(&rows);
    Ok(())
}

fn measure_traffic(args: &Args) -> Result<()> {
    let bare = Traffic::new(&Node::new()?)?.measure(Case::Open, args.packets, args.times)?;
    let table = Table::new(bare);
    table.print_head();
    let backends = |workloads: Workloads| {
        let is_supported = move |backend: &Backend| {
            workloads == Workloads::ByName || matches!(backend, Backend::Legacy | Backend::Nft)
        };
        let (supported, unsupported): (Vec<_>, Vec<_>) = args.backends.iter().copied().partition(is_supported);
        unsupported.iter().for_each(|backend| eprintln!("skipping {backend}: it cannot find workloads {workloads}"));
        supported.into_iter().map(move |backend| (workloads, backend))
    };
    let backends: Vec<(Workloads, Backend)> = args.workloads.iter().copied().flat_map(backends).collect();
    for peers in &args.peers {
        for (workloads, backend) in &backends {
            for rules in &args.rules {
                let policy = Policy { peers: *peers, rules: *rules, are_policies: args.policies };
                let mut node = Node::new()?;
                let in_force = node.start(&args.agent, (*backend, *workloads), policy, args.flow_logs)?;
                let traffic = Traffic::new(&node)?;
                let packets = (args.packets / u32::from(rules.div_ceil(100))).max(500);
                let of = |case| traffic.measure(case, packets, args.times);
                let row = Row {
                    peers: *peers,
                    backend: *backend,
                    workloads: *workloads,
                    rules: *rules,
                    first: of(Case::First(policy))?,
                    last: of(Case::Last(policy))?,
                    none: of(Case::NoMatch)?,
                    established: of(Case::Established(policy))?,
                    traversed: traversed_rules::count(&node, &traffic, *backend, policy)?,
                    in_force,
                };
                table.print(&row);
                node.stop()?;
            }
        }
    }
    Ok(())
}
