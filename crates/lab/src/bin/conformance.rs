//! Runs the policy cases against `tortie run` on a real kernel: `cargo xtask conformance --help`.
#![allow(clippy::disallowed_methods, reason = "a program for the machine's kernel")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tortie_lab::cases::Addressing;
use tortie_lab::conformance::{CommandAgent, ConformanceError, Options, Source, run};
use tortie_lab::kernel::{Unavailable, again_in_user_namespace};
use tortie_lab::shard::Shard;

/// Enforce policy cases on this kernel and compare the reachability
#[derive(Debug, Parser)]
struct Args {
    /// Path of the agent
    #[arg(long)]
    agent: PathBuf,
    /// Source of the agent's data: file, fanout, typha, etcd, kubernetes
    #[arg(long, default_value = "file")]
    source: Source,
    /// Enforce through a driver process, separate from the calculation
    #[arg(long)]
    driven: bool,
    /// Compare each measured packet with the flow that the agent reports
    ///
    /// The flow must have the packet's verdict and the rules that `trace` names. Not with etcd.
    #[arg(long, conflicts_with = "driven")]
    flows: bool,
    /// Back ends: nft, legacy, nftables, nftables-fast, ebpf, ebpf-rules
    ///
    /// `nft` and `legacy` are the implementations of iptables; `nftables` and `nftables-fast` run
    /// without iptables. With `ebpf` none of iptables, ipset and nft can be run. `ebpf-rules`
    /// attaches the eBPF programs by nftables rules, as on kernels before 6.4.
    #[arg(long, value_delimiter = ',', default_values = ["nft", "legacy"])]
    backend: Vec<String>,
    /// Address families of the pods: 4 as in the cases, 6 translated, or both
    #[arg(long, default_value = "4", value_parser = ["4", "6", "dual"])]
    family: String,
    /// Nodes, connected by VXLAN, over which the pods are spread
    ///
    /// Not with etcd.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Run each COUNT-th case, from INDEX: INDEX/COUNT
    #[arg(long, default_value = "0/1")]
    shard: Shard,
    /// Run only cases with this in their name
    #[arg(long)]
    filter: Option<String>,
    /// Laboratories that run in parallel
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Use a new laboratory and a new agent for each case
    #[arg(long)]
    fresh: bool,
    /// Seconds until a step must be enforced
    #[arg(long, default_value_t = 20)]
    deadline: u64,
    /// Directory in which to keep the agents' manifests and logs
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Files of cases, instead of the bundled ones that suit the source
    cases: Vec<PathBuf>,
}

impl Args {
    /// Returns the reason for which these arguments conflict, if any.
    fn refusal(&self) -> Option<&'static str> {
        let of_etcd = self.source == Source::Etcd;
        if of_etcd && self.nodes > 1 {
            return Some("nothing writes nodes and their blocks to etcd: --nodes needs another --source");
        }
        (of_etcd && self.flows).then_some(
            "policies have other names in etcd than in the manifests that are traced: --flows needs another --source",
        )
    }

    fn options(&self, backend: &str) -> Options {
        let agent = CommandAgent::tortie(&self.agent).source(self.source);
        let mut agent = match backend {
            "ebpf" => agent.by_programs(),
            "ebpf-rules" => agent.by_programs().environment("FELIX_BPFHOOKATTACHMENT", "Rule"),
            "nftables" => agent.by_nftables(),
            "nftables-fast" => agent.by_nftables().environment("FELIX_NFTABLESLAYOUT", "Fast"),
            iptables => agent.environment("FELIX_IPTABLESBACKEND", iptables),
        };
        if self.driven {
            agent = agent.driven();
        }
        if self.flows {
            agent = agent.flows();
        }
        let mut options = Options::new(agent);
        options.cases = if self.cases.is_empty() { self.source.cases() } else { self.cases.clone() };
        options.filter.clone_from(&self.filter);
        options.shard = self.shard;
        options.nodes = self.nodes.into();
        options.workers = self.workers;
        options.fresh = self.fresh;
        options.deadline = Duration::from_secs(self.deadline);
        options.keep = self.keep.as_ref().map(|folder| folder.join(backend));
        options.addressing = match self.family.as_str() {
            "6" => Addressing::V6,
            "dual" => Addressing::Dual,
            _ => Addressing::V4,
        };
        options
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(refusal) = args.refusal() {
        eprintln!("{refusal}");
        return ExitCode::FAILURE;
    }
    let mut passed = true;
    for backend in &args.backend {
        match run(&args.options(backend)) {
            Ok(report) => {
                let (source, family, nodes) = (args.source, &args.family, args.nodes);
                println!("source {source}, backend {backend}, family {family}, nodes {nodes}:\n{report}");
                passed &= report.passed();
            }
            // Without privileges: start again as root of a user namespace.
            Err(ConformanceError::Kernel(Unavailable::NotPermitted(_))) => return again_in_user_namespace(),
            Err(error) => {
                eprintln!("backend {backend}: {error}");
                passed = false;
            }
        }
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
