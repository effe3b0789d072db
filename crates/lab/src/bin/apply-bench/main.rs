//! Measures the time that the agent takes to program a node: `cargo xtask apply-bench --help`.
#![allow(clippy::disallowed_methods, reason = "a program that runs the agent on the machine's kernel")]

mod cluster;
mod node;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tortie_lab::kernel::again_in_user_namespace;
use tortie_lab::netns::NetnsError;

use cluster::Cluster;
use node::Node;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measure how fast the agent programs the kernel of a node
///
/// The agent runs in a private network namespace.
#[derive(Debug, Parser)]
struct Args {
    /// Path of the agent
    #[arg(long)]
    agent: std::path::PathBuf,
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
    /// Implementation of iptables
    #[arg(long, default_value = "nft", value_parser = ["nft", "legacy"])]
    backend: String,
    /// Edits of a policy
    #[arg(long, default_value_t = 20)]
    edits: usize,
    /// IP sets that become unneeded at once, at the end
    #[arg(long, default_value_t = 1000)]
    sets: usize,
    /// Seconds without changes
    #[arg(long, default_value_t = 30)]
    idle: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match measure(&args) {
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

fn measure(args: &Args) -> Result<()> {
    let mut node = Node::new(&args.agent, &args.backend)?;
    let cluster =
        Cluster { pods: args.pods, policies: args.policies, rules: usize::from(args.rules), every_pod: args.every_pod };
    cluster.write(&node)?;
    let rules = if args.rules == 1 { String::new() } else { format!(" of {} rules", args.rules) };
    println!("{} pods, {} policies{rules}, back end {}", args.pods, args.policies, args.backend);

    let first = node.start()?;
    println!("first start               {}, {}", seconds(first), node.applies()?);
    println!("agent                     {}", node.effort()?);
    let sets = node.sets()?;
    let bare = node.restore_all()?;
    println!("bare restore of all       {}; the first start takes {:.1} times that", seconds(bare), ratio(first, bare));
    node.stop()?;
    let again = node.start()?;
    for counter in ["felix_iptables_restore_calls", "felix_ipset_lines_executed"] {
        if node.metric(counter)? != 0.0 {
            return Err(format!("a restart with nothing to do wrote something: {counter}").into());
        }
    }
    println!("restart, nothing to do    {}, {:.2} of the first start", seconds(again), ratio(again, first));

    println!("agent                     {}", node.effort()?);

    let added = add_pods(&mut node, args, cluster)?;
    println!("another pod               {}", of_many(&added));
    let edits = edit_policies(&mut node, args, cluster)?;
    println!("edit of a policy          {}", of_many(&edits));
    let (time, begin) = (Duration::from_secs(args.idle), Instant::now());
    let before = node.processor_time()?;
    std::thread::sleep(time);
    let used = node.processor_time()?.saturating_sub(before);
    let share = 100.0 * ratio(used, begin.elapsed());
    println!("idle for {} s             {share:.2} % of a core", args.idle);

    // The agent repairs tables that another process has written, so this comes after the measured
    // edits.
    let bare = node.restores(cluster.port_of(args.edits), args.edits)?;
    let times = ratio(median(&edits), median(&bare));
    println!("smallest write, bare      {}", of_many(&node.smallest_writes(args.edits)?));
    println!("iptables-restore of it    {}; the edit takes {times:.1} times that", of_many(&bare));

    let policies = (args.sets / 2).min(args.policies.saturating_sub(1));
    let begin = Instant::now();
    for index in 0..policies {
        node.remove(&cluster.policy(index, 0).0)?;
    }
    node.until_sets(sets.saturating_sub(2 * policies))?;
    println!("{} sets no longer needed: gone after {}", 2 * policies, seconds(begin.elapsed()));
    node.stop()
}

/// Adds pods, one at a time.
fn add_pods(node: &mut Node, args: &Args, cluster: Cluster) -> Result<Vec<Duration>> {
    let add = |number: usize| Ok((format!("pod-{number}.yaml"), cluster.another_pod(number)?));
    (0..args.added).map(|number| add(number).and_then(|(name, text)| change(node, &name, &text))).collect()
}

/// Edits the port of the last policy repeatedly.
fn edit_policies(node: &mut Node, args: &Args, cluster: Cluster) -> Result<Vec<Duration>> {
    let index = args.policies.saturating_sub(1);
    let edits = (1..=args.edits).map(|edit| cluster.policy(index, cluster.port_of(edit)));
    edits.map(|(name, text)| change(node, &name, &text)).collect()
}

/// Writes a file and returns the time until it is in force.
fn change(node: &mut Node, name: &str, text: &str) -> Result<Duration> {
    // A pause, so that consecutive changes do not affect each other.
    std::thread::sleep(Duration::from_millis(300));
    let before = node.applied()?;
    let begin = Instant::now();
    node.write(name, text)?;
    node.until_applied(before)?;
    Ok(begin.elapsed())
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn ratio(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn of_many(times: &[Duration]) -> String {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
    let worst = times.iter().copied().max().unwrap_or_default();
    format!("median {:.0} ms, worst {:.0} ms of {}", milliseconds(median(times)), milliseconds(worst), times.len())
}
