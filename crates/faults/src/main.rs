//! Lets faults happen to `tortie run` on a real kernel while packets are sent: `cargo xtask faults --help`.
#![allow(clippy::disallowed_methods, reason = "a program for the machine's kernel")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tortie_faults::{Backend, Families, Options, list, run, totals};
use tortie_lab::kernel::{Unavailable, again_in_user_namespace};
use tortie_lab::shard::Shard;

const BACKENDS: [&str; 6] = ["nft", "legacy", "nftables", "nftables-fast", "ebpf", "ebpf-rules"];

/// Lets programs fail, others change the kernel, files be torn and processes be killed, while packets that policy allows
/// and packets that it denies are sent to pods on a node of namespaces with the real agent on it.
///
/// For each fault there is a line: how many packets were sent, how many came through though policy denied them, how many
/// were lost though policy allowed them, and for how long (surely, to at most). "announced" is what a fault itself does,
/// for example until the next check after somebody with root has flushed a chain. A fault fails if packets fared otherwise
/// than policy said, if the agent did not come to the state that a new agent writes, or left something behind.
///
/// The exit code is 0 if none failed. Takes root, or an unprivileged user namespace.
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
struct Args {
    /// The agent's program; `cargo xtask faults` builds it and gives it.
    #[arg(long)]
    agent: PathBuf,
    /// Only faults with this in their names; may be repeated.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// What enforces policy: nft and legacy, which are implementations of iptables, nftables without it, nftables-fast with
    /// `NFTablesLayout=Fast`, ebpf, and ebpf-rules, where programs are attached by rules of nftables.
    #[arg(long, value_delimiter = ',', default_values = BACKENDS, value_parser = BACKENDS)]
    backend: Vec<String>,
    /// The pods' addresses: 4, 6, or both.
    #[arg(long, default_value = "dual", value_parser = ["4", "6", "dual"])]
    family: String,
    /// Print the names of all faults with a line about each, and do nothing.
    #[arg(long)]
    list: bool,
    /// Only each COUNT-th of the chosen faults, from the one at INDEX on; a fault counts once for each back end: INDEX/COUNT.
    #[arg(long, default_value = "0/1")]
    shard: Shard,
    /// Keep manifests and logs of faults that failed here.
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
        // Agents are started in other folders than this one.
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
            // A run of nothing proves nothing.
            if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        // Once more with everything, as root of a user namespace.
        Err(Unavailable::NotPermitted(_)) => again_in_user_namespace(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
