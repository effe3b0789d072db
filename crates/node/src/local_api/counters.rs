//! The kernel's counters of rules.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::ExitStatus;
use std::time::Duration;

use tortie_linux::exec::{ExecError, Job, Runner};
use tortie_model::Family;

use crate::engine::inspect::{CountedRule, DecisionCounters, Listing, Policy, RuleCounters, RuleCounts};

/// Maximum number of policy rules that are named for a shared count: with `NFTablesLayout=Fast`
/// there may be thousands.
const NAMED: usize = 8;
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(super) enum CountersError {
    #[error(transparent)]
    Run(#[from] ExecError),
    #[error("{program}: {status}: {stderr}")]
    Failed { program: String, status: ExitStatus, stderr: String },
    /// The engine cannot read its counters, for the reason in its answer.
    #[error("{0}")]
    Unread(String),
}

/// Adds the counters of rules to the policies. Returns all counted decisions, if eBPF programs
/// count them.
pub(super) fn note(
    policies: &mut [Policy],
    counts: RuleCounts,
    list: impl Fn(&Listing) -> Result<Vec<u8>, CountersError>,
) -> Result<Option<Vec<DecisionCounters>>, CountersError> {
    match counts {
        RuleCounts::Rules(rules) => {
            note_counted(policies, &rules);
            Ok(None)
        }
        RuleCounts::Listings(listings) => note_rules(policies, &listings, list).map(|()| None),
        RuleCounts::Decisions(decisions) => {
            for policy in policies {
                let own = |decision: &&DecisionCounters| decision.policy.as_ref() == Some(&policy.id);
                policy.decisions = Some(decisions.iter().filter(own).cloned().collect());
            }
            Ok(Some(decisions))
        }
        RuleCounts::Failed(why) => Err(CountersError::Unread(why)),
    }
}

fn note_counted(policies: &mut [Policy], rules: &[CountedRule]) {
    // For each owner: the rules that count for it, and its positions among the policy rules of
    // each.
    let mut places: HashMap<&str, BTreeMap<usize, Vec<usize>>> = HashMap::new();
    for (number, rule) in rules.iter().enumerate() {
        for (at, (owner, _)) in rule.of.iter().enumerate() {
            places.entry(owner).or_default().entry(number).or_default().push(at);
        }
    }
    for policy in policies {
        let counter = |(number, own): (&usize, &Vec<usize>)| {
            let rule = rules.get(*number)?;
            let own = own.iter().filter_map(|at| rule.of.get(*at));
            let others = rule.of.iter().filter(|(owner, _)| **owner != *policy.id);
            let named = own.chain(others).take(NAMED);
            let counts_for = named.map(|(owner, which)| format!("{owner} {which}")).collect();
            Some(RuleCounters { counts_for, ..rule.counters.clone() })
        };
        policy.counters = Some(places.get(&*policy.id).into_iter().flatten().filter_map(counter).collect());
    }
}

fn note_rules(
    policies: &mut [Policy],
    listings: &[Listing],
    list: impl Fn(&Listing) -> Result<Vec<u8>, CountersError>,
) -> Result<(), CountersError> {
    let chains: BTreeSet<String> =
        policies.iter().flat_map(|policy| [&policy.ingress_chain, &policy.egress_chain]).flatten().cloned().collect();
    let mut rules = Vec::new();
    for listing in listings {
        let text = list(listing)?;
        rules.extend(of_chains(&String::from_utf8_lossy(&text), listing.family, &chains));
    }
    for policy in policies {
        let chains = [&policy.ingress_chain, &policy.egress_chain];
        let own = |rule: &&RuleCounters| chains.into_iter().flatten().any(|chain| *chain == rule.chain);
        policy.counters = Some(rules.iter().filter(own).cloned().collect());
    }
    Ok(())
}

pub(super) fn list(listing: &Listing, runner: &Runner) -> Result<Vec<u8>, CountersError> {
    let program = listing.program.clone();
    let job = Job { program: program.clone(), args: vec!["-c".into()], input: Vec::new(), limit: LIMIT };
    let finished = runner.run(&job)?;
    if finished.status.success() {
        Ok(finished.stdout)
    } else {
        let stderr = String::from_utf8_lossy(&finished.stderr).trim().to_owned();
        Err(CountersError::Failed { program, status: finished.status, stderr })
    }
}

fn of_chains(text: &str, family: Family, chains: &BTreeSet<String>) -> Vec<RuleCounters> {
    let mut table = "";
    let mut rules = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        // Other lines declare chains, or begin and end tables.
        let Some((counters, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] -A ")) else { continue };
        let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        let Some((packets, bytes)) = counters.split_once(':').filter(|_| chains.contains(chain)) else { continue };
        if let (Ok(packets), Ok(bytes)) = (packets.parse(), bytes.parse()) {
            rules.push(RuleCounters {
                ip_version: family.number(),
                table: table.to_owned(),
                chain: chain.to_owned(),
                rule: rule.to_owned(),
                packets,
                bytes,
                kernel_rules: 1,
                ..RuleCounters::default()
            });
        }
    }
    rules
}

#[cfg(test)]
mod tests;
