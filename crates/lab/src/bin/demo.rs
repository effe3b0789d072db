//! A node of network namespaces with the real agent on it: `cargo xtask demo --help`.
#![allow(clippy::disallowed_methods, reason = "a program for the machine's kernel")]

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use tortie_lab::{
    demo::{DemoError, Options, run},
    kernel::{Unavailable, in_user_namespace, require},
};

/// Build a small node on this machine, enforce manifests on it, and show who can talk to whom.
///
/// The node and its pods are private network namespaces; the host's own network is not touched, and nothing is left
/// behind. The agent is `tortie run`, the kernel is this one. Shown is which pods reach which named ports of which
/// others: without the policies, with them, and after one manifest is edited while the agent runs, with the time that
/// the change took.
///
/// Needs iproute2 and, but for --backend ebpf, iptables and ipset; and root, or, but for --backend ebpf, unprivileged user
/// namespaces.
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
struct Args {
    /// The agent's program.
    #[arg(long)]
    agent: PathBuf,
    /// Where the manifests are: pods with `nodeName: demo-node`, and policies in files of their own.
    #[arg(long, value_name = "DIR", default_value = "examples/demo")]
    manifests: PathBuf,
    /// The iptables implementation that the agent uses; `auto` is the one that it finds best. With `nftables` tables of nftables
    /// take the place of iptables and IP sets, with `ebpf` eBPF programs enforce policy.
    #[arg(long, default_value = "auto", value_parser = ["auto", "nft", "legacy", "nftables", "ebpf"])]
    backend: String,
    /// Leave the node up at the end, for a look around, until Ctrl-C.
    #[arg(long)]
    keep: bool,
}

/// Set by signals. They no longer end the program: it has to clean up.
static INTERRUPTED: std::sync::LazyLock<Arc<AtomicBool>> = std::sync::LazyLock::new(Arc::default);

fn main() -> ExitCode {
    let args = Args::parse();
    for signal in [SIGINT, SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&INTERRUPTED)) {
            return failed(&error);
        }
    }
    match require() {
        Ok(_) => {}
        // Once more with everything, as root of a user namespace.
        Err(Unavailable::NotPermitted(_)) => {
            return match in_user_namespace(std::env::args_os().skip(1)) {
                Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1).into(),
                Err(error) => failed(&error),
            };
        }
        Err(error) => return failed(&error),
    }
    let mut out = io::stdout();
    let options = Options {
        agent: args.agent,
        manifests: args.manifests,
        backend: args.backend,
        keep: args.keep,
        colors: out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        interrupted: || INTERRUPTED.load(Ordering::Relaxed),
    };
    match run(&options, &mut out) {
        Ok(()) => ExitCode::SUCCESS,
        // The exit code that shells give to Ctrl-C.
        Err(DemoError::Interrupted) => 130.into(),
        Err(DemoError::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("demo: {error}");
    ExitCode::FAILURE
}
