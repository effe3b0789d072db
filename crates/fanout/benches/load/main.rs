//! Load on `tortie fanout`: `cargo xtask fanout-bench --help`, `cargo xtask scale --help`.
//!
//! This program acts as the datastore: a separate server, which the servers under test follow. The
//! servers under test are separate processes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark starts programs and reads clocks")]

mod cluster;
mod fanout_bench;
mod latency;
mod process;
mod scale;
mod wire;

use clap::{Parser, Subcommand};

/// Same allocator as in the agent, since its calculation is a part of the load.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Argument that cargo passes to benchmarks.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    FanoutBench(fanout_bench::Args),
    Scale(scale::Args),
    /// A node's engine, for `scale`.
    #[command(hide = true)]
    Engine(scale::engine::Args),
    /// Connections that are counted, for `scale`.
    #[command(hide = true)]
    Connections(scale::connections::Args),
}

fn main() {
    match Args::parse().command {
        Some(Command::FanoutBench(args)) => fanout_bench::run(&args),
        Some(Command::Scale(args)) => scale::run(&args),
        Some(Command::Engine(args)) => scale::engine::run(args),
        Some(Command::Connections(args)) => scale::connections::run(&args),
        None => println!("run by cargo xtask fanout-bench and cargo xtask scale, which build the servers under test"),
    }
}
