//! The command line.
#![allow(
    clippy::doc_markdown,
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "these comments are help texts, read on a terminal"
)]

#[macro_use]
mod terminal;

mod agent_socket;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod apply;
#[cfg(feature = "fanout")]
mod bootstrap;
mod capability;
mod check;
mod cleanup;
mod cluster;
mod color;
mod columns;
mod configuration;
mod confirm;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod confirming;
#[cfg(all(feature = "etcd", feature = "kubernetes"))]
mod controller;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod create;
mod dataplane;
mod dataplane_url;
mod datastore;
mod datastore_url;
mod decision;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod delete;
mod directory;
#[cfg(feature = "etcd")]
mod etcd;
mod exit;
#[cfg(feature = "fanout")]
mod fanout;
mod fast_layout;
mod flows;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod get;
mod github;
mod help;
mod history;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod label;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod label_query;
mod line_diff;
mod listeners;
#[cfg(feature = "manual")]
mod manual;
mod map;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod names;
mod node;
mod origin;
mod output;
mod parameters;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod patch;
mod plan;
mod progress;
#[cfg(feature = "manual")]
mod reference;
mod render;
mod replay;
mod run;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod selected;
mod selector;
mod show;
mod signals;
mod staged;
mod status;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod store;
mod trace;
#[cfg(all(feature = "fanout", feature = "kubernetes"))]
mod typha_service;
mod version;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod wish;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod written;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tortie_config::{Sources, from_environment};
use tortie_model::desired::ConfigSource;

use crate::logging;

pub use exit::Failure;

const EXIT_CODES: &str = "\
Exit codes:
  0    success; for `check`: nothing is wrong
  1    failure; for `check`: problems were found; for `run`: the input is
       unusable (see --unreadable); for `confirm`: there is no change to confirm
  2    wrong usage, or a selector that does not parse; for `plan` and `diff`:
       something changes
  3    for `trace`: the connection is denied; for `status`: the agent is not
       ready
  4    for `trace --live`: the kernel does not do what was calculated; for
       `trace --tables`: a table says something else
  129  for `dataplane`: a parameter changed; both sides should be started again";

/// A network-policy engine for Linux: what the cluster says becomes what this node's kernel enforces.
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
    Render(render::Args),
    Check(check::Args),
    Selector(selector::Args),
    Trace(trace::Args),
    Plan(plan::Args),
    Diff(plan::DiffArgs),
    Map(map::Args),
    Status(status::Args),
    Config(configuration::Args),
    Flows(flows::Args),
    Show(show::Args),
    History(history::Args),
    Rollback(history::RollbackArgs),
    Replay(replay::Args),
    Cleanup(cleanup::Args),
    Parameters(parameters::Args),
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    Apply(apply::Args),
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    Create(create::Args),
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    Replace(create::ReplaceArgs),
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    Patch(patch::Args),
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    Label(label::Args),
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    Get(get::Args),
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    Delete(delete::Args),
    Staged(staged::Args),
    Confirm(confirm::Args),
    #[cfg(all(feature = "etcd", feature = "kubernetes"))]
    Controller(controller::Args),
    #[cfg(feature = "fanout")]
    Fanout(fanout::Args),
    Version(version::Args),
    #[cfg(feature = "manual")]
    Completions(manual::CompletionsArgs),
    #[cfg(feature = "manual")]
    Man(manual::ManArgs),
    #[cfg(feature = "manual")]
    Reference(reference::Args),
}

/// The configuration of this machine: environment variables and the configuration file.
fn local_sources(file: Option<&Path>) -> Result<Sources, Failure> {
    let mut sources = Sources::default();
    read_again(&mut sources, file)?;
    Ok(sources)
}

/// Replaces the configuration of this machine, if all of it can be read.
fn read_again(sources: &mut Sources, file: Option<&Path>) -> Result<(), Failure> {
    if let Some(file) = file {
        let text = std::fs::read_to_string(file).map_err(Failure::io(file.display().to_string()))?;
        sources.set_file(&text).map_err(|why| Failure::Failed(format!("{}: {why}", file.display())))?;
    }
    sources.set(ConfigSource::Environment, from_environment(std::env::vars()));
    Ok(())
}

/// What the command line says. Ends the program if that makes no sense, or asks for help.
fn parse() -> Cli {
    let matches = help::laid_out(Cli::command(), help::columns()).get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Parses the command line and does what it says.
#[must_use]
pub fn main() -> ExitCode {
    let result = match parse().command {
        Command::Run(args) => run::run(&args),
        Command::Dataplane(args) => dataplane::run(&args),
        Command::Render(args) => render::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Selector(args) => selector::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Diff(args) => plan::diff(&args),
        Command::Map(args) => map::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Config(args) => configuration::run(&args),
        Command::Flows(args) => flows::run(&args),
        Command::Show(args) => show::run(&args),
        Command::History(args) => history::run(&args),
        Command::Rollback(args) => history::rollback(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Parameters(args) => parameters::run(&args),
        #[cfg(any(feature = "etcd", feature = "kubernetes"))]
        Command::Apply(args) => apply::run(&args),
        #[cfg(any(feature = "etcd", feature = "kubernetes"))]
        Command::Create(args) => create::run(&args),
        #[cfg(any(feature = "etcd", feature = "kubernetes"))]
        Command::Replace(args) => create::run_replace(&args),
        #[cfg(any(feature = "etcd", feature = "kubernetes"))]
        Command::Patch(args) => patch::run(&args),
        #[cfg(any(feature = "etcd", feature = "kubernetes"))]
        Command::Label(args) => label::run(&args),
        #[cfg(any(feature = "etcd", feature = "kubernetes"))]
        Command::Get(args) => get::run(&args),
        #[cfg(any(feature = "etcd", feature = "kubernetes"))]
        Command::Delete(args) => delete::run(&args),
        Command::Staged(args) => staged::run(&args),
        Command::Confirm(args) => confirm::run(&args),
        #[cfg(all(feature = "etcd", feature = "kubernetes"))]
        Command::Controller(args) => controller::run(&args),
        #[cfg(feature = "fanout")]
        Command::Fanout(args) => fanout::run(args),
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
