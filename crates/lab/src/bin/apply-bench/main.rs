//! Measures the agent during the day of a node: `cargo xtask apply-bench --help`.
#![allow(clippy::disallowed_methods, reason = "a program that runs the agent on the machine's kernel")]

mod backend;
mod cluster;
mod day;
mod floor;
mod links;
mod node;
mod store;
mod table;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tortie_lab::kernel::again_in_user_namespace;
use tortie_lab::netns::NetnsError;

use backend::Backend;
use cluster::Cluster;
use node::{Node, Software};
use table::{Column, table};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measure how the agent programs the kernel of a node, and print a table
///
/// The agent runs in a private network namespace. Processor time is that of the agent and its
/// child processes.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Path of the agent
    #[arg(long)]
    agent: PathBuf,
    /// Path of calico-felix, to measure it as well
    ///
    /// Both then read an etcd.
    #[arg(long)]
    felix: Option<PathBuf>,
    /// Read an etcd instead of a directory with a file for each policy
    #[arg(long)]
    etcd: bool,
    /// Back ends; eBPF takes root
    #[arg(long, value_delimiter = ',', default_values = ["nft", "legacy", "nftables", "ebpf"])]
    backend: Vec<Backend>,
    /// Pods on the node
    #[arg(long, default_value_t = 200)]
    pods: usize,
    /// Policies, each of which selects one pod and allows one client
    ///
    /// Each policy needs two IP sets.
    #[arg(long, default_value_t = 2000)]
    policies: usize,
    /// Rules of each policy
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=19_000))]
    rules: u16,
    /// Let each policy select all pods of the node instead of one
    #[arg(long)]
    every_pod: bool,
    /// Pods to add, one at a time
    #[arg(long, default_value_t = 10)]
    added: usize,
    /// Edits of a policy
    #[arg(long, default_value_t = 20)]
    edits: usize,
    /// Pods to add and to remove at once
    #[arg(long, default_value_t = 200)]
    burst: usize,
    /// Seconds in which they are added, and removed
    #[arg(long, default_value_t = 10)]
    burst_seconds: u64,
    /// Seconds without changes
    #[arg(long, default_value_t = 30)]
    idle: u64,
    /// Interfaces that belong to no workload
    #[arg(long, default_value_t = 1000)]
    churn: usize,
    /// Seconds in which they change
    #[arg(long, default_value_t = 20)]
    churn_seconds: u64,
    /// Changes of them a second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    churn_rate: u32,
    /// IP sets that become unneeded at once, at the end (iptables)
    #[arg(long, default_value_t = 1000)]
    sets: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without privileges: start again as root of a user namespace.
            let in_vain = matches!(error.downcast_ref(), Some(NetnsError::Create(_)));
            if in_vain {
                return again_in_user_namespace();
            }
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let agent = Software::Tortie(args.agent.canonicalize()?);
    let felix = args.felix.as_ref().map(|felix| felix.canonicalize().map(Software::Felix)).transpose()?;
    let mut columns = Vec::new();
    for backend in args.backend.iter().copied() {
        let own = measure(args, &agent, backend, args.etcd || felix.is_some())?;
        // Felix's eBPF programs route and balance; they have no counterpart here.
        let other = felix.as_ref().filter(|_| backend != Backend::Ebpf);
        let other = other.map(|felix| measure(args, felix, backend, true)).transpose()?;
        let ratios = other.as_ref().map(|other| own.ratios(other));
        columns.extend(std::iter::once(own).chain(other).chain(ratios));
    }
    let rules = if args.rules == 1 { String::new() } else { format!(" of {} rules", args.rules) };
    println!("{} pods, {} policies{rules}:\n\n{}", args.pods, args.policies, table(&columns));
    Ok(())
}

fn measure(args: &Args, software: &Software, backend: Backend, with_etcd: bool) -> Result<Column> {
    let mut node = Node::new(software, backend, with_etcd)?;
    let (name, title) = if node.is_felix() { ("Felix", "Felix") } else { ("Tortie", backend.title()) };
    let mut column = Column::new(title);
    let progress = |part: &str| eprintln!("{}, {name}: {part}", backend.title());
    let cluster =
        Cluster { pods: args.pods, policies: args.policies, rules: usize::from(args.rules), every_pod: args.every_pod };
    cluster.objects().iter().try_for_each(|objects| node.store.put(objects))?;
    let mut links = node.links()?;
    (0..args.pods).try_for_each(|pod| links.add_pod(pod))?;
    links.finish()?;

    progress("start, restart");
    start(&mut node, &mut column)?;
    progress("edits, pods");
    day::edits(&mut node, args, cluster, &mut column)?;
    day::pods(&mut node, args, cluster, &mut column)?;
    progress("burst, drain");
    day::burst(&mut node, args, cluster, &mut column)?;
    progress("idle");
    day::idle(&node, args, &mut column)?;
    progress("churn");
    day::churn(&node, args, &mut column)?;
    day::replaced_interfaces(&mut node, args, &mut column)?;
    // The agent repairs tables that another process has written, so this comes after the measured
    // changes.
    progress("bare tools, deletions");
    bare_edits(&node, args, cluster, &mut column)?;
    deletions(&mut node, args, cluster, &mut column)?;
    node.stop()?;
    Ok(column)
}

fn start(node: &mut Node, column: &mut Column) -> Result<()> {
    column.add("first start, s", 2, node.start()?.as_secs_f64());
    column.add("first start, processor time, s", 2, node.processor_time()?);
    if let Some(bare) = floor::restore_all(node)? {
        column.add("first start by bare tools, s", 2, bare.as_secs_f64());
    }
    node.stop()?;
    column.add("restart with nothing to do, s", 2, node.start()?.as_secs_f64());
    std::thread::sleep(Duration::from_secs(1));
    let writes = node.writes()?;
    column.add("writes of that restart", 0, writes);
    if writes > 0.0 && !node.is_felix() {
        return Err(format!("a restart with nothing to do wrote something: {writes} writes").into());
    }
    let [resident, proportional] = node.memory()?;
    column.add("memory, resident (RSS), MiB", 0, resident);
    column.add("memory, proportional (PSS), MiB", 0, proportional);
    Ok(())
}

fn bare_edits(node: &Node, args: &Args, cluster: Cluster, column: &mut Column) -> Result<()> {
    let before = node.own_children()?;
    let times = floor::edits(node, cluster.port_of(args.edits), args.edits)?;
    if !times.is_empty() {
        column.add("edit by bare tools, median, ms", 0, day::milliseconds(day::at(&times, 50)));
        let used = (node.own_children()? - before) / f64::from(u32::try_from(times.len())?);
        column.add("edit by bare tools, processor time, s", 3, used);
    }
    Ok(())
}

/// Removes policies, and with them their IP sets.
fn deletions(node: &mut Node, args: &Args, cluster: Cluster, column: &mut Column) -> Result<()> {
    if node.backend.iptables().is_none() {
        return Ok(());
    }
    let sets = node.sets()?;
    let policies = (args.sets / 2).min(args.policies.saturating_sub(1));
    let begin = Instant::now();
    (0..policies).try_for_each(|index| node.store.remove(&cluster.policy(index, 0)))?;
    let left = sets.saturating_sub(2 * policies);
    node.until("unneeded sets are gone", Duration::from_millis(20), |node| Ok(node.sets()? <= left))?;
    column.add("policies removed, until their IP sets are gone, s", 1, begin.elapsed().as_secs_f64());
    Ok(())
}
