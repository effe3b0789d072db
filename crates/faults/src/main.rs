//! Runs faults against `tortie run` on a real kernel under traffic: `cargo xtask faults --help`.
#![allow(clippy::disallowed_methods, reason = "a program for the machine's kernel")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tortie_faults::{Backend, Families, Options, list, run, totals};
use tortie_lab::kernel::{Unavailable, again_in_user_namespace};
use tortie_lab::shard::Shard;

const BACKENDS: [&str; 6] = ["nft", "legacy", "nftables", "nftables-fast", "ebpf", "ebpf-rules"];

/// Inject faults into an agent on a real kernel, under traffic
///
/// Lets programs fail, other processes change the kernel, files be torn and processes be killed,
/// while packets that policy allows and packets that it denies are sent to pods on a node of
/// network namespaces.
///
/// Prints a line per fault: packets sent, packets that arrived although policy denies them, packets
/// lost although policy allows them, and the duration of both (a lower and an upper bound).
/// "announced" marks the effect of the fault itself, for example until the agent's next check after
/// the fault has flushed a chain. A fault fails if other packets had a wrong outcome, if the agent
/// did not reach the state that a new agent writes, or if cleanup left state behind.
///
/// The exit code is 0 if no fault failed. Needs root or an unprivileged user namespace.
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
struct Args {
    /// Path of the agent; `cargo xtask faults` builds it and passes it
    #[arg(long)]
    agent: PathBuf,
    /// Run only faults with this in their names; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Back ends
    ///
    /// nft and legacy are implementations of iptables; nftables and nftables-fast
    /// (`NFTablesLayout=Fast`) run without iptables; ebpf uses eBPF programs, ebpf-rules attaches
    /// them by nftables rules.
    #[arg(long, value_delimiter = ',', default_values = BACKENDS, value_parser = BACKENDS)]
    backend: Vec<String>,
    /// Address families of the pods: 4, 6, or both
    #[arg(long, default_value = "dual", value_parser = ["4", "6", "dual"])]
    family: String,
    /// Print names and descriptions of all faults, and exit
    #[arg(long)]
    list: bool,
    /// Run each COUNT-th chosen fault, from INDEX: INDEX/COUNT
    ///
    /// A fault counts once per back end.
    #[arg(long, default_value = "0/1")]
    shard: Shard,
    /// Directory in which to keep manifests and logs of failed faults
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for (name, about) in list() {
            println!("{name:<28} {about}");
        }
        return ExitCode::SUCCESS;
    }
    let chosen = |backend: &Backend| args.backend.iter().any(|name| name == backend.name());
    let options = Options {
        // Agents are started in other folders.
        agent: std::fs::canonicalize(&args.agent).unwrap_or(args.agent),
        only: args.only,
        backends: Backend::ALL.into_iter().filter(chosen).collect(),
        families: match args.family.as_str() {
            "4" => Families::V4,
            "6" => Families::V6,
            _ => Families::Dual,
        },
        shard: args.shard,
        keep: args.keep,
    };
    match run(&options, |report| println!("{report}")) {
        Ok(reports) => {
            let (passed, failed) = totals(&reports);
            println!("{passed} passed, {failed} failed");
            // A run without any fault proves nothing.
            if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        // Without privileges: start again as root of a user namespace.
        Err(Unavailable::NotPermitted(_)) => again_in_user_namespace(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
