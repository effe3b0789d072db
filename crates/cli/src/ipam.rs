mod read;

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};
use tortie_controller::addresses::{Addresses, Allocation, BorrowedAddress, PoolUsage, Problem, Usage};

use super::Failure;
use super::columns::table;
use super::output::Output;
use super::store::StoreArgs;
use tortie_telemetry::escape;

/// Show the usage of addresses, and check IPAM, as calicoctl does.
///
/// Reads pools, IPAM blocks, affinities and handles in etcd or Kubernetes, and the addresses of
/// endpoints and nodes. Changes nothing.
///
/// Examples: tortie ipam show --show-blocks
///           tortie ipam check -o json
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(subcommand)]
    command: IpamCommand,
}

#[derive(Debug, Subcommand)]
enum IpamCommand {
    /// Show used and free addresses of pools and blocks
    Show(ShowArgs),
    /// Find inconsistencies between IPAM and the users of addresses
    ///
    /// Reports allocated addresses that no endpoint, node or Service has; addresses of endpoints
    /// that are not allocated or in no pool; addresses that are allocated twice or that several
    /// endpoints have; blocks in no pool; affinities to missing blocks; handles without addresses.
    /// The datastore is not read at one moment: pods that begin or end meanwhile may be reported.
    /// Exits with 1 if there is a problem.
    Check(CheckArgs),
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Show the blocks of each pool, and blocks in no pool.
    #[arg(long)]
    show_blocks: bool,
    /// Show the owner of this address.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["show_blocks", "show_borrowed"])]
    ip: Option<IpAddr>,
    /// Show the addresses of each node that are from blocks of other nodes.
    #[arg(long, conflicts_with = "show_blocks")]
    show_borrowed: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// File for the answer as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        IpamCommand::Show(args) => show(args),
        IpamCommand::Check(args) => check(args),
    }
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    let addresses = read::read(&args.store, false)?;
    if let Some(address) = args.ip {
        let found = addresses.allocation(address);
        let whole = || found.as_ref().map_or(Value::Null, |found| of_allocation(address, found));
        return args.output.print(whole, || owner(address, found.as_ref()));
    }
    if args.show_borrowed {
        let (borrowed, unknown) = addresses.borrowed();
        let each: Vec<Value> = borrowed.iter().map(of_borrowed).collect();
        let whole = || json!({"borrowed": each, "without_node": unknown});
        return args.output.print(whole, || borrowed_table(&borrowed, unknown));
    }
    let usage = addresses.usage();
    args.output.print(|| of_all(&usage), || usage_table(&usage, args.show_blocks))
}

fn usage_table(usage: &[PoolUsage], with_blocks: bool) -> String {
    let mut rows = Vec::new();
    for PoolUsage { pool, blocks } in usage {
        rows.extend(pool.iter().map(|(_, usage)| row("IP Pool", usage)));
        rows.extend(blocks.iter().filter(|_| with_blocks).map(|(usage, _)| row("Block", usage)));
    }
    table(&["GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE"], rows)
}

fn row(grouping: &str, usage: &Usage) -> Vec<String> {
    let part = |count: f64| format!("{} ({:.0}%)", short(count), 100.0 * count / usage.total);
    let (in_use, reserved, free) = (part(usage.in_use), part(usage.reserved), part(usage.free));
    vec![grouping.to_owned(), usage.cidr.to_string(), short(usage.total), in_use, reserved, free]
}

/// Prints five digits at most, as `%.5g` of Go does for whole numbers.
fn short(count: f64) -> String {
    if count < 99_999.5 {
        return format!("{count:.0}");
    }
    let text = format!("{count:.4e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{}e+{exponent:0>2}", digits.trim_end_matches('0').trim_end_matches('.'))
}

fn owner(address: IpAddr, found: Option<&Allocation>) -> String {
    let Some(Allocation { handle, active, alternate, .. }) = found else {
        return format!("{address} is not assigned\n");
    };
    let mut text =
        format!("IP {address} is in use\nHandle ID: {}\n", escape::line(handle.as_deref().unwrap_or("<none>")));
    if active.is_empty() {
        text += "No Active Owner attributes defined\n";
    }
    for (title, attributes) in [("Active", active), ("Alternate", alternate)] {
        if !attributes.is_empty() {
            text += &format!("{title} Owner Attributes:\n");
        }
        text.extend(
            attributes.iter().map(|(name, value)| format!("  {}\n", escape::line(&format!("{name}: {value}")))),
        );
    }
    text
}

fn borrowed_table(borrowed: &[BorrowedAddress], unknown: usize) -> String {
    let rows = borrowed.iter().map(|borrowed| {
        let BorrowedAddress { address, node, block, owner, kind, to, .. } = borrowed;
        vec![address.to_string(), node.clone(), block.to_string(), owner.clone(), kind.clone(), to.clone()]
    });
    let mut text = table(&["IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO"], rows);
    if unknown > 0 {
        text += &format!("\naddresses without a node, which may be borrowed: {unknown}\n");
    }
    text
}

fn of_allocation(address: IpAddr, found: &Allocation) -> Value {
    let Allocation { block, handle, active, alternate, .. } = found;
    json!({"ip": address, "block": block.to_string(), "handle": handle, "active": active, "alternate": alternate})
}

fn of_borrowed(borrowed: &BorrowedAddress) -> Value {
    let BorrowedAddress { address, node, block, owner, kind, to, .. } = borrowed;
    json!({"ip": address, "node": node, "block": block.to_string(), "owner": owner, "type": kind, "allocated_to": to})
}

fn of_usage(usage: &Usage) -> Value {
    // Counts of large networks of IPv6 are no integers of JSON.
    let number = |count: f64| format!("{count:.0}").parse::<u64>().map_or_else(|_| json!(count), Value::from);
    let Usage { cidr, total, in_use, reserved, free, .. } = *usage;
    json!({"cidr": cidr.to_string(), "total": number(total), "in_use": number(in_use), "reserved": number(reserved),
        "free": number(free)})
}

fn of_all(usage: &[PoolUsage]) -> Value {
    let pools: Vec<Value> = usage.iter().filter_map(of_pool).collect();
    let lost: Vec<Value> = usage.iter().filter(|usage| usage.pool.is_none()).flat_map(of_blocks).collect();
    json!({"pools": pools, "blocks_without_pool": lost})
}

fn of_pool(usage: &PoolUsage) -> Option<Value> {
    let (name, pool) = usage.pool.as_ref()?;
    let mut whole = of_usage(pool);
    let fields = whole.as_object_mut()?;
    fields.insert("name".into(), json!(name));
    fields.insert("blocks".into(), of_blocks(usage).collect());
    Some(whole)
}

fn of_blocks(usage: &PoolUsage) -> impl Iterator<Item = Value> {
    usage.blocks.iter().map(|(usage, owner)| {
        let mut whole = of_usage(usage);
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("owner".into(), json!(owner));
        }
        whole
    })
}

fn check(args: &CheckArgs) -> Result<(), Failure> {
    let addresses = read::read(&args.store, true)?;
    let problems = addresses.check();
    let whole = || report(&addresses, &problems);
    if let Some(file) = &args.report {
        fs::write(file, format!("{:#}\n", whole())).map_err(Failure::io(file.display().to_string()))?;
    }
    args.output.print(whole, || lines(&addresses, &problems))?;
    if problems.is_empty() { Ok(()) } else { Err(Failure::Reported(1)) }
}

fn report(addresses: &Addresses, problems: &[Problem]) -> Value {
    let of_problem = |problem: &Problem| {
        let Problem { kind, subject, detail } = problem;
        json!({"problem": kind.as_str(), "subject": subject, "detail": detail})
    };
    let problems: Vec<Value> = problems.iter().map(of_problem).collect();
    json!({"problems": problems, "blocks": addresses.blocks(), "allocated": addresses.allocated()})
}

fn lines(addresses: &Addresses, problems: &[Problem]) -> String {
    let mut text: String = problems.iter().map(|problem| format!("{}\n", escape::line(&problem.to_string()))).collect();
    let (blocks, allocated) = (addresses.blocks(), addresses.allocated());
    let count = match problems.len() {
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    text += &format!("{count} among {allocated} allocated addresses in {blocks} blocks\n");
    text
}

#[cfg(test)]
mod tests;
