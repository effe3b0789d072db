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

/// Enforces every policy case in namespaces of this machine's kernel and compares the whole reachability.
#[derive(Debug, Parser)]
struct Args {
    /// The agent's program.
    #[arg(long)]
    agent: PathBuf,
    /// Where the agent reads: file, fanout, typha, etcd, kubernetes.
    #[arg(long, default_value = "file")]
    source: Source,
    /// A driver process enforces what the agent calculates.
    #[arg(long)]
    driven: bool,
    /// The agents tell flows: each measured packet must be told, with its fate and the rules that `trace` names. Not from etcd.
    #[arg(long, conflicts_with = "driven")]
    flows: bool,
    /// The back ends to go through: nft and legacy of iptables; nftables without it, nftables-fast, or ebpf, where none of the programs iptables,
    /// ipset and nft can be run, or ebpf-rules, the same attached by rules of nftables as on kernels before 6.4.
    #[arg(long, value_delimiter = ',', default_values = ["nft", "legacy"])]
    backend: Vec<String>,
    /// The pods' addresses: 4 as the cases have them, 6 translated, or both.
    #[arg(long, default_value = "4", value_parser = ["4", "6", "dual"])]
    family: String,
    /// Nodes with VXLAN between them, over which the pods are spread. Not from etcd.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Only every so manieth case: INDEX/COUNT.
    #[arg(long, default_value = "0/1")]
    shard: Shard,
    /// Only cases with this in their name.
    #[arg(long)]
    filter: Option<String>,
    /// Laboratories side by side.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// A new laboratory and agent for every case.
    #[arg(long)]
    fresh: bool,
    /// Seconds until a step must be enforced.
    #[arg(long, default_value_t = 20)]
    deadline: u64,
    /// Keep the agents' manifests and logs here.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Other files of cases than the bundled ones whose kinds the source has.
    cases: Vec<PathBuf>,
}

impl Args {
    /// Why these arguments do not go together.
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
            // Once more with everything, as root of a user namespace.
            Err(ConformanceError::Kernel(Unavailable::NotPermitted(_))) => return again_in_user_namespace(),
            Err(error) => {
                eprintln!("backend {backend}: {error}");
                passed = false;
            }
        }
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
