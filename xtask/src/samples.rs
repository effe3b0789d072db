//! Rotating parts of conformance cases and faults for the test of a change: ten changes cover each
//! fault once and each case twice, twenty changes each case in the configurations of [`OFTEN`], and
//! eighty in each configuration.

use std::path::Path;
use std::process::Command;
use std::thread;

use crate::programs::Programs;
use crate::shell::{output, root};

/// Configurations of the conformance cases; a change is tested with a twentieth of the cases of
/// each.
const OFTEN: [&str; 4] =
    ["--backend nft", "--backend legacy", "--family dual --backend nftables", "--family dual --backend ebpf"];
/// Configurations of which every second one is tested with a fortieth of the cases.
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

/// Runs the parts for the checked-out commit.
pub(crate) fn run(programs: &Programs) -> Result<(), String> {
    let change = change()?;
    println!("the parts of change {change} of the conformance cases and faults");
    // Faults mostly wait, for packets of probers and for agents that start again.
    thread::scope(|scope| {
        let halves = [0, 1].map(|half| {
            let shard = format!("{}/20", 2 * (change % 10) + half);
            scope.spawn(move || programs.collect_with_agent("faults", ["--shard", &shard]))
        });
        let cases = run_cases(programs, change);
        let panicked = |_| "a thread that runs faults panicked".to_owned();
        let faults = halves.map(|half| half.join().map_err(panicked).flatten());
        faults.into_iter().fold(cases, Result::and)
    })
}

fn run_cases(programs: &Programs, change: usize) -> Result<(), String> {
    for (configuration, shard) in shards(change) {
        let shard = format!("--shard {shard}");
        programs.run_with_agent("conformance", shard.split(' ').chain(configuration.split(' ')))?;
    }
    Ok(())
}

/// Returns the configurations for a change, each with its part of the cases.
fn shards(change: usize) -> Vec<(&'static str, String)> {
    let often = OFTEN.iter().enumerate().map(|(index, configuration)| {
        // For ten changes, half of the configurations take the even parts, the others the odd ones.
        let odd = (index + change / 10) % 2;
        (*configuration, format!("{}/20", 2 * (change % 10) + odd))
    });
    let seldom = SELDOM.iter().enumerate().filter(|(index, _)| (index + change).is_multiple_of(2));
    // Configurations begin at different cases, so that one change covers many of them.
    let seldom = seldom.map(|(index, configuration)| (*configuration, format!("{}/40", (change / 2 + 3 * index) % 40)));
    often.chain(seldom).collect()
}

/// Runs all cases and faults, which takes hours.
pub(crate) fn run_all(programs: &Programs) -> Result<(), String> {
    for configuration in OFTEN.iter().chain(&SELDOM) {
        programs.run_with_agent("conformance", configuration.split(' '))?;
    }
    programs.run_with_agent("faults", [])
}

/// Returns the number of the checked-out commit in its history. Without a history, such as in an
/// archive of the source, prints a line and returns 0.
pub(crate) fn change() -> Result<usize, String> {
    let folder = root();
    // An archive may be unpacked within another repository.
    if !folder.join(".git").exists() {
        println!(
            "running the first parts: {} is no Git repository, so the number of the change is unknown",
            folder.display()
        );
        return Ok(0);
    }
    number_in(&folder)
}

/// Returns the number of the commit. In a shallow clone it is unknown and derived from the commit's
/// hash.
fn number_in(folder: &Path) -> Result<usize, String> {
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        output(git.args(args).current_dir(folder)).map(|text| text.trim().to_owned())
    };
    if git(&["rev-parse", "--is-shallow-repository"])? == "true" {
        let name = git(&["rev-parse", "--short=7", "HEAD"])?;
        return usize::from_str_radix(&name[..7], 16).map_err(|error| format!("{name}: {error}"));
    }
    let count = git(&["rev-list", "--count", "HEAD"])?;
    count.parse().map_err(|error| format!("git counts {count:?} commits: {error}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the shards of a configuration that the changes run.
    fn covered(configuration: &str, changes: std::ops::Range<usize>) -> BTreeSet<String> {
        let runs = changes.flat_map(shards).filter(|(run, _)| *run == configuration);
        runs.map(|(_, shard)| shard).collect()
    }

    #[test]
    fn ten_changes_cover_all_cases_twice_and_eighty_all_configurations() {
        for first in [0, 7, 1262] {
            for halves in [[0, 1], [2, 3]] {
                let of_ten = halves.iter().flat_map(|index| covered(OFTEN[*index], first..first + 10));
                assert_eq!(of_ten.collect::<BTreeSet<_>>().len(), 20, "from change {first}");
            }
            assert!(OFTEN.iter().all(|configuration| covered(configuration, first..first + 20).len() == 20));
            assert!(SELDOM.iter().all(|configuration| covered(configuration, first..first + 80).len() == 40));
        }
    }

    #[test]
    fn a_repository_that_git_rejects_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".git")).unwrap();
        assert!(number_in(folder.path()).unwrap_err().starts_with("git rev-parse"));
    }
}
