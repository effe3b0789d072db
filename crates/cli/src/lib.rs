#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]
#![allow(clippy::disallowed_methods, reason = "commands read files, query sockets and start threads")]
#![allow(
    clippy::doc_markdown,
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "these comments are help texts, read on a terminal"
)]

#[macro_use]
pub mod terminal;

mod agent_socket;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod apply;
pub mod capability;
mod check;
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
pub mod datastore;
mod datastore_url;
mod decision;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod delete;
pub mod directory;
#[cfg(feature = "etcd")]
mod etcd;
mod exit;
mod flows;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod get;
mod github;
mod history;
mod host_network;
#[cfg(feature = "kubernetes")]
mod ipam;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod label;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod manifests;
mod map;
pub mod memory;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod names;
mod node_bounds;
mod origin;
pub mod output;
mod parameters;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod patch;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod pending_write;
mod plan;
pub mod program;
mod progress;
mod render;
mod replay;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod selected;
mod selector;
#[cfg(feature = "fanout")]
pub mod servers;
mod show;
pub mod signals;
mod staged;
mod status;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod store;
mod suggest;
mod trace;
#[cfg(all(feature = "fanout", feature = "kubernetes"))]
pub mod typha_service;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod write_args;

pub use check::Lint;
pub use exit::{Cause, Failure, with_causes};

/// A command that needs no privileges; only `trace --live` does, as it traces the kernel.
#[derive(Debug)]
pub struct Command(Parsed);

impl Command {
    /// Runs the command, and prints the answer to standard output.
    ///
    /// # Errors
    /// If the command fails; [`Failure::report`] prints the error and gives the exit code.
    pub fn run(self) -> Result<(), Failure> {
        match self.0 {
            Parsed::Render(args) => render::run(&args),
            Parsed::Check(args) => check::run(&args),
            Parsed::Selector(args) => selector::run(&args),
            Parsed::Trace(args) => trace::run(&args),
            Parsed::Plan(args) => plan::run(&args),
            Parsed::Diff(args) => plan::diff(&args),
            Parsed::Map(args) => map::run(&args),
            Parsed::Suggest(args) => suggest::run(&args),
            Parsed::Status(args) => status::run(&args),
            Parsed::Config(args) => configuration::run(&args),
            Parsed::Flows(args) => flows::run(&args),
            Parsed::Show(args) => show::run(&args),
            Parsed::History(args) => history::run(&args),
            Parsed::Rollback(args) => history::rollback(&args),
            Parsed::Replay(args) => replay::run(&args),
            Parsed::Parameters(args) => parameters::run(&args),
            #[cfg(any(feature = "etcd", feature = "kubernetes"))]
            Parsed::Apply(args) => apply::run(&args),
            #[cfg(any(feature = "etcd", feature = "kubernetes"))]
            Parsed::Create(args) => create::run(&args),
            #[cfg(any(feature = "etcd", feature = "kubernetes"))]
            Parsed::Replace(args) => create::run_replace(&args),
            #[cfg(any(feature = "etcd", feature = "kubernetes"))]
            Parsed::Patch(args) => patch::run(&args),
            #[cfg(any(feature = "etcd", feature = "kubernetes"))]
            Parsed::Label(args) => label::run(&args),
            #[cfg(any(feature = "etcd", feature = "kubernetes"))]
            Parsed::Get(args) => get::run(&args),
            #[cfg(any(feature = "etcd", feature = "kubernetes"))]
            Parsed::Delete(args) => delete::run(&args),
            #[cfg(feature = "kubernetes")]
            Parsed::Ipam(args) => ipam::run(&args),
            Parsed::Staged(args) => staged::run(&args),
            Parsed::Confirm(args) => confirm::run(&args),
            #[cfg(all(feature = "etcd", feature = "kubernetes"))]
            Parsed::Controller(args) => controller::run(&args),
        }
    }
}

impl clap::FromArgMatches for Command {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        Parsed::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl clap::Subcommand for Command {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        Parsed::augment_subcommands(command)
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Parsed::augment_subcommands_for_update(command)
    }

    fn has_subcommand(name: &str) -> bool {
        Parsed::has_subcommand(name)
    }
}

#[derive(Debug, clap::Subcommand)]
enum Parsed {
    Render(render::Args),
    Check(check::Args),
    Selector(selector::Args),
    Trace(trace::Args),
    Plan(plan::Args),
    Diff(plan::DiffArgs),
    Map(map::Args),
    Suggest(suggest::Args),
    Status(status::Args),
    Config(configuration::Args),
    Flows(flows::Args),
    Show(show::Args),
    History(history::Args),
    Rollback(history::RollbackArgs),
    Replay(replay::Args),
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
    #[cfg(feature = "kubernetes")]
    Ipam(ipam::Args),
    Staged(staged::Args),
    Confirm(confirm::Args),
    #[cfg(all(feature = "etcd", feature = "kubernetes"))]
    Controller(controller::Args),
}
