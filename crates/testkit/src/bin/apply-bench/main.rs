//! How long the agent takes to program a node: `cargo xtask apply-bench --help`.
#![allow(clippy::disallowed_methods, reason = "a program that runs the agent on the machine's kernel")]

mod cluster;
mod node;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tortie_testkit::kernel::in_user_namespace;
use tortie_testkit::netns::NetnsError;

use cluster::{policy, port_of, write_cluster};
use node::Node;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Runs the agent on a node of its own, in a private network namespace, and measures what it takes until the kernel is as
/// wanted.
#[derive(Debug, Parser)]
struct Args {
    /// The agent's program.
    #[arg(long)]
    agent: std::path::PathBuf,
    /// Pods of the node.
    #[arg(long, default_value_t = 200)]
    pods: usize,
    /// Policies, each of which selects one of these pods and admits one client. There are two IP sets for each.
    #[arg(long, default_value_t = 2000)]
    policies: usize,
    /// The implementation of iptables.
    #[arg(long, default_value = "nft", value_parser = ["nft", "legacy"])]
    backend: String,
    /// How often a policy is edited.
    #[arg(long, default_value_t = 20)]
    edits: usize,
    /// How many IP sets become unneeded at once, at the end.
    #[arg(long, default_value_t = 1000)]
    sets: usize,
    /// Seconds for which nothing changes.
    #[arg(long, default_value_t = 30)]
    idle: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match measure(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without privileges once more, as root of a user namespace.
            let in_vain = matches!(error.downcast_ref(), Some(NetnsError::Create(_)));
            match in_vain.then(|| in_user_namespace(std::env::args_os().skip(1))) {
                Some(Ok(status)) if status.success() => ExitCode::SUCCESS,
                Some(Ok(_)) => ExitCode::FAILURE,
                Some(Err(error)) => failure(&error),
                None => failure(&*error),
            }
        }
    }
}

fn failure(error: &dyn Error) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn measure(args: &Args) -> Result<()> {
    let mut node = Node::new(&args.agent, &args.backend)?;
    write_cluster(&node, args.pods, args.policies)?;
    println!("{} pods, {} policies, back end {}", args.pods, args.policies, args.backend);

    let first = node.start()?;
    println!("first start               {}", seconds(first));
    let sets = node.sets()?;
    node.stop()?;
    let again = node.start()?;
    for counter in ["felix_iptables_restore_calls", "felix_ipset_lines_executed"] {
        if node.metric(counter)? != 0.0 {
            return Err(format!("a restart with nothing to do wrote something: {counter}").into());
        }
    }
    println!("restart, nothing to do    {}, {:.2} of the first start", seconds(again), ratio(again, first));

    let edits = edit_policies(&mut node, args)?;
    println!("edit of a policy          {}", of_many(&edits));
    let (time, begin) = (Duration::from_secs(args.idle), Instant::now());
    let before = node.processor_time()?;
    std::thread::sleep(time);
    let used = node.processor_time()?.saturating_sub(before);
    let share = 100.0 * ratio(used, begin.elapsed());
    println!("idle for {} s             {share:.2} % of a core", args.idle);

    // What another program writes is read and put right again, so this comes after that.
    let bare = node.restores(port_of(args.policies, args.edits), args.edits)?;
    let times = ratio(median(&edits), median(&bare));
    println!("iptables-restore of it    {}; the edit takes {times:.1} times that", of_many(&bare));

    let policies = (args.sets / 2).min(args.policies.saturating_sub(1));
    let begin = Instant::now();
    for index in 0..policies {
        node.remove(&policy(index, args.pods, 0).0)?;
    }
    node.until_sets(sets.saturating_sub(2 * policies))?;
    println!("{} sets no longer needed: gone after {}", 2 * policies, seconds(begin.elapsed()));
    node.stop()
}

/// Changes the port of the last policy, again and again.
fn edit_policies(node: &mut Node, args: &Args) -> Result<Vec<Duration>> {
    let index = args.policies.saturating_sub(1);
    let mut times = Vec::new();
    for edit in 1..=args.edits {
        let (name, text) = policy(index, args.pods, port_of(args.policies, edit));
        // Apart enough that no edit pays for another.
        std::thread::sleep(Duration::from_millis(300));
        let before = node.applied()?;
        let begin = Instant::now();
        node.write(&name, &text)?;
        node.until_applied(before)?;
        times.push(begin.elapsed());
    }
    Ok(times)
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
