//! The program `tortie`: the commands that run a node, and the wiring of the other crates.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]
#![allow(clippy::disallowed_methods, reason = "the agent is where processes, threads, clocks and files belong")]
#![allow(
    clippy::doc_markdown,
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "these comments are help texts, read on a terminal"
)]

#[cfg(feature = "fanout")]
mod bootstrap;
mod cleanup;
mod dataplane;
mod dataplane_url;
#[cfg(feature = "fanout")]
mod fanout;
mod help;
mod listeners;
mod machine;
#[cfg(feature = "manual")]
mod manual;
mod node;
#[cfg(feature = "manual")]
mod reference;
mod run;
mod service_manager;
mod version;
#[cfg(feature = "fanout")]
mod wireguard_bootstrap;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tortie_telemetry::logging;

const EXIT_CODES: &str = "\
Exit codes:
  0    success; for `check`: no errors were found
  1    failure; for `check`: errors were found; for `run`: the input is
       unusable (see --unreadable); for `confirm`: there is no change to confirm
  2    wrong usage, or a selector that does not parse; for `plan` and `diff`:
       something changes
  3    for `trace`: the connection is denied; for `status`: the agent is not
       ready; for `suggest`: policies cannot express all observed connections
  4    for `trace --live`: the kernel disagrees with the calculation; for
       `trace --tables`: a table does
  129  for `dataplane`: a parameter changed; both programs must be started again";

/// Network-policy engine for Linux: enforces cluster policy in the kernel.
#[derive(Debug, Parser)]
#[command(name = "tortie", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Dataplane(dataplane::Args),
    Cleanup(cleanup::Args),
    #[cfg(feature = "fanout")]
    Fanout(fanout::Args),
    #[command(flatten)]
    Other(tortie_cli::Command),
    Node(node::Args),
    Version(version::Args),
    #[cfg(feature = "manual")]
    Completions(manual::CompletionsArgs),
    #[cfg(feature = "manual")]
    Man(manual::ManArgs),
    #[cfg(feature = "manual")]
    Reference(reference::Args),
}

/// Keeps the memory of this process in small pages, where the kernel gives huge ones unasked; the
/// allocator is built not to ask (its feature `no_thp`). It fills them in many places at once, so
/// that they hold a third more than is in use.
fn use_small_pages() {
    // Only kernels without huge pages refuse, which need no other.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Parses the command line. Ends the program on wrong usage, or after printing help.
fn parse() -> Cli {
    let mut command = help::laid_out(Cli::command(), help::columns());
    let matches = command.try_get_matches_from_mut(std::env::args_os()).unwrap_or_else(|error| {
        match help::missing_feature(&error) {
            Some(text) => command.error(ErrorKind::InvalidSubcommand, text).exit(),
            None => error.exit(),
        }
    });
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Parses the command line and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    use_small_pages();
    let result = match parse().command {
        Command::Run(args) => run::run(&args),
        Command::Dataplane(args) => dataplane::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        #[cfg(feature = "fanout")]
        Command::Fanout(args) => fanout::run(args),
        Command::Other(command) => command.run(),
        Command::Node(args) => node::run(&args),
        Command::Version(args) => version::run(&args),
        #[cfg(feature = "manual")]
        Command::Completions(args) => manual::completions(&args),
        #[cfg(feature = "manual")]
        Command::Man(args) => manual::man(&args),
        #[cfg(feature = "manual")]
        Command::Reference(args) => reference::run(&args),
    };
    let code = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    };
    logging::flush();
    code
}
