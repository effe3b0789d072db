//! What a packet costs by the rules that it meets: `cargo xtask packet-bench --help`.
#![allow(clippy::disallowed_methods, reason = "a program that runs the agent on the machine's kernel")]

mod forms;
mod node;
mod policy;
mod straight;
mod table;
mod test_run;
mod traffic;
mod updates;
mod walked;

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
use test_run::Place;
use traffic::{Case, Traffic};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Runs the agent on a node of its own, in a private network namespace, with a policy of one pod that has many rules, and sends
/// packets to that pod from another namespace.
///
/// Prints nanoseconds per packet, and how many thousands of such packets one processor sends in a second: from the system call that sends it, through the node, to the pod or to where it is dropped.
/// All of that happens on the processor that sends. Rules differ in network, or IP set, and port, so that a packet matches one of
/// them or none. What a packet costs that no policy looks at is the first row.
///
/// Then what the eBPF programs of three hooks cost by themselves, as the kernel's test runs say, for the same rules in the other direction,
/// with IPv4 and IPv6, beside what entering a program costs; how many times as long that takes with the most rules as with the fewest; and rules as instructions one behind the other, as other eBPF dataplanes have them.
#[derive(Debug, Parser)]
struct Args {
    /// The agent's program.
    #[arg(long)]
    agent: PathBuf,
    /// How many rules.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000, 10_000], value_parser = clap::value_parser!(u16).range(1..=20_000))]
    rules: Vec<u16>,
    /// Who enforces, one behind the other.
    #[arg(long, value_delimiter = ',', default_values_t = [Backend::Legacy, Backend::Nft, Backend::NftablesFelix, Backend::NftablesFast, Backend::Ebpf])]
    backends: Vec<Backend>,
    /// How the agent finds workloads, one behind the other. By address only iptables can; other back ends are left out then.
    #[arg(long, value_delimiter = ',', default_values_t = [Workloads::ByName])]
    workloads: Vec<Workloads>,
    /// Each rule is a policy by itself, all of them for this pod.
    #[arg(long)]
    policies: bool,
    /// Flows are told: each rule tells its name.
    #[arg(long)]
    flow_logs: bool,
    /// Only what rules cost in forms that `nft` knows for the same, without an agent: one behind the other, and maps by address, by
    /// hash or by range, alone or together with protocol and port.
    #[arg(long, conflicts_with_all = ["test_runs_only", "no_test_runs"])]
    forms: bool,
    /// Only packets through namespaces, and nothing of what the kernel's test runs say.
    #[arg(long, conflicts_with = "test_runs_only")]
    no_test_runs: bool,
    /// Only what the kernel's test runs say.
    #[arg(long)]
    test_runs_only: bool,
    /// What the rules ask for; `sets-port-range` with `--no-test-runs` alone.
    #[arg(long, value_delimiter = ',', default_values_t = [Peers::Networks, Peers::Sets])]
    peers: Vec<Peers>,
    /// How many packets are sent at a time, fewer of them through more than 100 rules; the best of the times counts.
    #[arg(long, default_value_t = 20_000)]
    packets: u32,
    /// How often.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
}

/// How workloads are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workloads {
    /// By their interfaces' names
    ByName,
    /// Wherever their addresses are
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

/// Who enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// iptables-legacy
    Legacy,
    /// iptables-nft
    Nft,
    /// Tables of nftables, laid out as Felix does it
    NftablesFelix,
    /// Tables of nftables, laid out to be fast
    NftablesFast,
    /// Programs in eBPF
    Ebpf,
    /// The same, which rules of nftables ask
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

    /// How the agent is told.
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
            // Without privileges once more, as root of a user namespace.
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
        return Err("rules for ranges of ports are known to the agent alone: add --no-test-runs".into());
    }
    if args.forms && args.peers.contains(&Peers::Subnets) {
        return Err("a hash knows no networks: `--forms` asks for addresses or sets".into());
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
    let of_family = |family| Place::ALL.map(|place| (family, place));
    let mut rows = Vec::new();
    for (family, place) in Family::ALL.into_iter().flat_map(of_family) {
        for peers in &args.peers {
            for rules in &args.rules {
                let policy = Policy { peers: *peers, rules: *rules, are_policies: args.policies };
                let row = test_run::measure(policy, family, place, args.times)?;
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
        let knows = move |backend: &Backend| {
            workloads == Workloads::ByName || matches!(backend, Backend::Legacy | Backend::Nft)
        };
        let (known, others): (Vec<_>, Vec<_>) = args.backends.iter().copied().partition(knows);
        others.iter().for_each(|backend| eprintln!("{backend} finds no workloads {workloads}; left out"));
        known.into_iter().map(move |backend| (workloads, backend))
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
                    walked: walked::count(&node, &traffic, *backend, policy)?,
                    in_force,
                };
                table.print(&row);
                node.stop()?;
            }
        }
    }
    Ok(())
}
