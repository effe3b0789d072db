//! The command line.

mod check;
mod cleanup;
mod demo;
mod exit;
mod render;
mod replay;
mod run;
mod selector;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use exit::Failure;

const EXIT_CODES: &str = "\
Exit codes:
  0    success; for `check`: nothing is wrong
  1    failure; for `check`: problems were found; for `run`: the input is unusable (see --lenient)
  2    wrong usage, or a selector that does not parse
  129  `run` ended because a parameter changed that needs a restart: start it again";

/// A network-policy engine for Linux: what the cluster says becomes what this node's kernel enforces.
#[derive(Debug, Parser)]
#[command(name = "tortie", version, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Render(render::Args),
    Check(check::Args),
    Selector(selector::Args),
    Replay(replay::Args),
    Cleanup(cleanup::Args),
    Demo(demo::Args),
}

/// Parses the command line and does what it says.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Render(args) => render::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Selector(args) => selector::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Demo(args) => demo::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
