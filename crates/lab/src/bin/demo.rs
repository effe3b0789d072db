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

/// Build a small node on this machine, enforce manifests, show reachability
///
/// The node and its pods are private network namespaces. The host's network is not touched, and
/// nothing remains afterwards. The agent is `tortie run`; the kernel is the host's. The demo prints
/// which pods reach which named ports of other pods: without policies, with policies, and after an
/// edit of one manifest while the agent runs, with the time until the edit was in force.
///
/// Needs iproute2 and, except with --backend ebpf, iptables and ipset. Needs root or, except with
/// --backend ebpf, unprivileged user namespaces.
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
struct Args {
    /// Path of the agent
    #[arg(long)]
    agent: PathBuf,
    /// Directory of manifests: pods of node `demo-node`, a file per policy
    #[arg(long, value_name = "DIR", default_value = "examples/demo")]
    manifests: PathBuf,
    /// Back end of the agent
    ///
    /// `nft` and `legacy` are implementations of iptables, `auto` is the better of these here.
    /// `nftables` uses nftables tables instead of iptables and IP sets; `ebpf` uses eBPF programs.
    #[arg(long, default_value = "auto", value_parser = ["auto", "nft", "legacy", "nftables", "ebpf"])]
    backend: String,
    /// Keep the node at the end, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// Set by signals, which do not end the program: it has to clean up first.
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
        // Without privileges: start again as root of a user namespace.
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
        // The exit code of shells after Ctrl-C.
        Err(DemoError::Interrupted) => 130.into(),
        Err(DemoError::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("demo: {error}");
    ExitCode::FAILURE
}
