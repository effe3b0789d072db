//! The parts of conformance cases and faults that a change is tested with. They rotate: each case and each fault is run once in ten
//! changes, and each case in each way once in forty.

use crate::programs::Programs;
use crate::shell::{command, output};

/// Ways to run the conformance cases, of which a change is tested with a tenth.
const OFTEN: [&str; 4] =
    ["--backend nft", "--backend legacy", "--family dual --backend nftables", "--family dual --backend ebpf"];
/// Ways of which it is tested with a fortieth.
const SELDOM: [&str; 17] = [
    "--family dual --backend nft",
    "--family 4 --backend nftables",
    "--family 6 --backend nftables",
    "--family dual --backend nftables-fast",
    "--family 4 --backend ebpf",
    "--family 6 --backend ebpf",
    "--family dual --backend ebpf-rules",
    "--driven --backend nft",
    "--driven --backend ebpf",
    "--family dual --backend nft --nodes 3 --deadline 30",
    "--family dual --backend nft --flows",
    "--family dual --backend nftables-fast --flows",
    "--family dual --backend ebpf --flows",
    "--source etcd --backend nft",
    "--source kubernetes --backend nft",
    "--source fanout --backend nft",
    "--source typha --backend nft",
];

/// Runs the parts of the checked-out commit.
pub(crate) fn run(programs: &Programs) -> Result<(), String> {
    let change = change()?;
    println!("the parts of change {change} of the conformance cases and faults");
    for (ways, parts) in [(&OFTEN[..], 10), (&SELDOM[..], 40)] {
        for (place, way) in ways.iter().enumerate() {
            // Ways begin at different cases, so that one change is tested with many of them.
            let shard = format!("--shard {}/{parts}", (change + 3 * place) % parts);
            programs.run_with_agent("conformance", shard.split(' ').chain(way.split(' ')))?;
        }
    }
    programs.run_with_agent("faults", ["--shard", &format!("{}/10", change % 10)])
}

/// Runs all of them, which takes hours.
pub(crate) fn run_all(programs: &Programs) -> Result<(), String> {
    for way in OFTEN.iter().chain(&SELDOM) {
        programs.run_with_agent("conformance", way.split(' '))?;
    }
    programs.run_with_agent("faults", [])
}

/// The number of the commit in its history. A shallow clone does not know it: there a number made of the commit's name stands for it.
pub(crate) fn change() -> Result<usize, String> {
    let git = |args: &[&str]| output(&mut command("git", args)).map(|text| text.trim().to_owned());
    if git(&["rev-parse", "--is-shallow-repository"])? == "true" {
        let name = git(&["rev-parse", "--short=7", "HEAD"])?;
        return usize::from_str_radix(&name[..7], 16).map_err(|error| format!("{name}: {error}"));
    }
    let count = git(&["rev-list", "--count", "HEAD"])?;
    count.parse().map_err(|error| format!("git counts {count:?} commits: {error}"))
}
