use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::ExitStatus;
use std::time::Duration;

use tortie_iptables::{Backend, Programs};
use tortie_linux::exec::{ExecError, Job, Runner, is_installed};
use tortie_linux::netlink::nftrace::{self, Chain, NFPROTO_INET};
use tortie_linux::netlink::{NetlinkError, Nftables};
use tortie_model::{Family, with_causes};

use super::listing::{Listing, Rules, is_of_iptables, nft_rules};
use super::steps::{ChainName, Packet};

const LIMIT: Duration = Duration::from_secs(15);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Number of times that nftables rules are listed if they change meanwhile.
const ATTEMPTS: usize = 3;

pub(super) fn has_legacy(family: Family) -> bool {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(file).is_ok_and(|names| !names.trim().is_empty())
}

pub(super) fn legacy(family: Family, runner: &Runner, problems: &mut Vec<String>) -> Listing {
    let program = Programs::specific(Backend::Legacy, family).save;
    list(&program, runner, problems)
}

/// Lists the rules that these packets met; `before` is the result of [`legacy`] before the trace.
pub(super) fn all(
    family: Family,
    packets: &[Packet],
    before: Option<Listing>,
    runner: &Runner,
    problems: &mut Vec<String>,
) -> Rules {
    let mut rules = Rules::default();
    if let Some(before) = before {
        rules.legacy = legacy(family, runner, problems);
        rules.legacy_before = before;
    }
    let chains: BTreeSet<&Chain> = packets
        .iter()
        .flat_map(|packet| &packet.steps)
        .filter_map(|step| match &step.chain {
            ChainName::Nft(chain) => Some(chain),
            ChainName::Legacy { .. } => None,
        })
        .collect();
    if chains.is_empty() {
        return rules;
    }
    for _ in 0..ATTEMPTS {
        let mut failures = Vec::new();
        let before = generation();
        if let Err(error) = list_nftables(family, &chains, runner, &mut rules, &mut failures) {
            failures.push(with_causes(&error));
        }
        let is_steady = before.is_some() && before == generation();
        if is_steady || !failures.is_empty() {
            problems.append(&mut failures);
            return rules;
        }
    }
    problems
        .push("rules of nftables changed each time they were listed: counters and texts may be those of others".into());
    rules
}

fn generation() -> Option<u32> {
    Nftables::open(TIMEOUT).and_then(|mut nftables| nftables.generation()).ok()
}

fn list_nftables(
    family: Family,
    chains: &BTreeSet<&Chain>,
    runner: &Runner,
    rules: &mut Rules,
    problems: &mut Vec<String>,
) -> Result<(), NetlinkError> {
    rules.handles = nftrace::handles(family)?;
    if chains.iter().any(|chain| is_of_iptables(chain)) {
        rules.nft = list(&Programs::specific(Backend::Nft, family).save, runner, problems);
    }
    let others: BTreeSet<(u8, &str)> = chains
        .iter()
        .filter(|chain| !is_of_iptables(chain) || rules.nft.is_empty())
        .map(|chain| (chain.family, chain.table.as_str()))
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    if !is_installed("nft") {
        let tables: Vec<&str> = others.iter().map(|(_, table)| *table).collect();
        problems.push(format!("`nft` is not installed: rules of {} are shown by their handles", tables.join(", ")));
        return Ok(());
    }
    for (of, table) in others {
        let name = match (of, family) {
            (NFPROTO_INET, _) => "inet",
            (_, Family::V4) => "ip",
            (_, Family::V6) => "ip6",
        };
        let args = ["-a", "list", "table", name, table].map(str::to_owned).to_vec();
        let texts: BTreeMap<_, _> = match output("nft", args, runner) {
            Ok(text) => nft_rules(&text),
            Err(error) => {
                problems.push(with_causes(&error));
                continue;
            }
        };
        for chain in chains.iter().filter(|chain| chain.family == of && chain.table == table) {
            rules.native.insert((*chain).clone(), texts.clone());
        }
    }
    Ok(())
}

fn list(program: &str, runner: &Runner, problems: &mut Vec<String>) -> Listing {
    match output(program, vec!["-c".into()], runner) {
        Ok(text) => Listing::parse(&text),
        Err(error) => {
            problems.push(with_causes(&error));
            Listing::default()
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error("{program}: {status}: {stderr}")]
    Program { program: String, status: ExitStatus, stderr: String },
}

fn output(program: &str, args: Vec<String>, runner: &Runner) -> Result<String, ListError> {
    let job = Job { program: program.to_owned(), args, input: Vec::new(), limit: LIMIT };
    let finished = runner.run(&job)?;
    if finished.status.success() {
        Ok(String::from_utf8_lossy(&finished.stdout).into_owned())
    } else {
        let stderr = String::from_utf8_lossy(&finished.stderr).trim().to_owned();
        Err(ListError::Program { program: job.program, status: finished.status, stderr })
    }
}
