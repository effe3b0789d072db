//! What the kernel has counted for rules.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tortie_linux::exec::{Job, Runner};
use tortie_model::Family;

use crate::engine::inspect::{CountedRule, DecisionCounters, Listing, Policy, RuleCounters, RuleCounts};

/// So many of the rules that share a count are named: with `NFTablesLayout=Fast` there may be thousands.
const NAMED: usize = 8;
/// How long a listing may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Notes what is counted for the rules of the policies, and gives all decisions that are counted, if eBPF programs take them.
///
/// # Errors
/// If the counters cannot be had, why.
pub(super) fn note(
    policies: &mut [Policy],
    counts: RuleCounts,
    list: impl Fn(&Listing) -> Result<Vec<u8>, String>,
) -> Result<Option<Vec<DecisionCounters>>, String> {
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
        RuleCounts::Failed(why) => Err(why),
    }
}

/// Gives each policy what rules of nftables have counted for it.
fn note_counted(policies: &mut [Policy], rules: &[CountedRule]) {
    // For each owner the numbers of the rules that count for it, and where among those that a rule counts for it is.
    let mut places: HashMap<&str, BTreeMap<usize, Vec<usize>>> = HashMap::new();
    for (number, rule) in rules.iter().enumerate() {
        for (at, (owner, _)) in rule.of.iter().enumerate() {
            places.entry(owner).or_default().entry(number).or_default().push(at);
        }
    }
    for policy in policies {
        let told = |(number, own): (&usize, &Vec<usize>)| {
            let rule = rules.get(*number)?;
            let own = own.iter().filter_map(|at| rule.of.get(*at));
            let others = rule.of.iter().filter(|(owner, _)| **owner != *policy.id);
            let named = own.chain(others).take(NAMED);
            let counts_for = named.map(|(owner, which)| format!("{owner} {which}")).collect();
            Some(RuleCounters { counts_for, ..rule.counters.clone() })
        };
        policy.counters = Some(places.get(&*policy.id).into_iter().flatten().filter_map(told).collect());
    }
}

/// Notes the counters of the rules of all chains of the policies.
fn note_rules(
    policies: &mut [Policy],
    listings: &[Listing],
    list: impl Fn(&Listing) -> Result<Vec<u8>, String>,
) -> Result<(), String> {
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

/// The listing of all tables of a family, with counters.
///
/// # Errors
/// If the program fails, why.
pub(super) fn list(listing: &Listing, runner: &Runner) -> Result<Vec<u8>, String> {
    let program = listing.program.clone();
    let job = Job { program: program.clone(), args: vec!["-c".into()], input: Vec::new(), limit: LIMIT };
    let finished = runner.run(&job).map_err(|error| error.to_string())?;
    if finished.status.success() {
        Ok(finished.stdout)
    } else {
        let said = String::from_utf8_lossy(&finished.stderr);
        Err(format!("{program}: {}: {}", finished.status, said.trim()))
    }
}

/// The counters of the rules of some chains in a listing of `iptables-save -c`.
fn of_chains(text: &str, family: Family, chains: &BTreeSet<String>) -> Vec<RuleCounters> {
    let mut table = "";
    let mut rules = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let Some((counters, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] -A ")) else { continue };
        let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        let Some((packets, bytes)) = counters.split_once(':').filter(|_| chains.contains(chain)) else { continue };
        if let (Ok(packets), Ok(bytes)) = (packets.parse(), bytes.parse()) {
            let ip_version = family.number();
            let (table, chain, rule) = (table.to_owned(), chain.to_owned(), rule.to_owned());
            let (counts_for, kernel_rules) = (Vec::new(), 1);
            let counted = RuleCounters {
                ip_version,
                table,
                chain,
                rule,
                packets,
                bytes,
                counts_for,
                counted_together: 0,
                kernel_rules,
            };
            rules.push(counted);
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
# Generated by iptables-save
*raw
:PREROUTING ACCEPT [9:900]
[3:180] -A cali-pi-x -j DROP
COMMIT
*filter
:cali-pi-x - [0:0]
[12:720] -A cali-pi-x -m comment --comment \"a [1:2] -A b\" -j ACCEPT
[0:0] -A cali-pi-x
[5:300] -A cali-pi-y -j ACCEPT
[x:1] -A cali-pi-x -j DROP
-A cali-pi-x -j DROP
COMMIT
";

    #[test]
    fn each_policy_gets_the_counters_of_its_own_chains() {
        let policy = |ingress: &str| Policy { ingress_chain: Some(ingress.into()), ..Policy::default() };
        let mut policies = [policy("cali-pi-x"), policy("cali-pi-y"), policy("cali-pi-none"), Policy::default()];
        let listings = [Listing { family: Family::V6, program: "save".into() }];
        let listed = || RuleCounts::Listings(listings.to_vec());
        assert_eq!(note(&mut policies, listed(), |_| Ok(LISTING.into())), Ok(None));
        let told = |policy: &Policy| -> Vec<(String, u8, u64, u64, String)> {
            let counters = policy.counters.clone().unwrap().into_iter();
            counters.map(|rule| (rule.table, rule.ip_version, rule.packets, rule.bytes, rule.rule)).collect()
        };
        assert_eq!(
            told(&policies[0]),
            [
                ("raw".into(), 6, 3, 180, "-j DROP".into()),
                ("filter".into(), 6, 12, 720, "-m comment --comment \"a [1:2] -A b\" -j ACCEPT".into()),
                ("filter".into(), 6, 0, 0, String::new()),
            ]
        );
        assert_eq!(told(&policies[1]).len(), 1);
        assert!(told(&policies[2]).is_empty() && told(&policies[3]).is_empty());
        assert_eq!(note(&mut policies, listed(), |_| Err("no".into())), Err("no".into()));
    }

    #[test]
    fn each_policy_gets_what_its_own_rules_decided() {
        let decision = |policy: Option<&str>, packets| DecisionCounters {
            policy: policy.map(str::to_owned),
            packets,
            ..DecisionCounters::default()
        };
        let decisions = vec![decision(Some("Tier/a"), 1), decision(None, 2), decision(Some("Tier/b"), 3)];
        let mut policies = ["Tier/b", "Tier/c"].map(|id| Policy { id: id.into(), ..Policy::default() });
        let nothing = |_: &Listing| Err("nothing is to be listed".to_owned());
        let all = note(&mut policies, RuleCounts::Decisions(decisions.clone()), nothing);
        assert_eq!(all, Ok(Some(decisions)));
        let packets = policies.map(|policy| policy.decisions.unwrap().iter().map(|found| found.packets).sum::<u64>());
        assert_eq!(packets, [3, 0]);
        assert_eq!(note(&mut [], RuleCounts::Failed("no".into()), nothing), Err("no".into()));
    }

    #[test]
    fn each_policy_gets_what_rules_of_nftables_count_for_it_and_others() {
        let rule = |packets, of: &[(&str, &str)]| CountedRule {
            counters: RuleCounters { packets, counted_together: of.len(), ..RuleCounters::default() },
            of: of.iter().map(|(owner, which)| ((*owner).into(), (*which).to_owned())).collect(),
        };
        let many: Vec<String> = (0..100).map(|number| format!("Policy/{number}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|owner| (&**owner, "egress 0")).collect();
        let rules = vec![rule(1, &[("Tier/a", "ingress 0"), ("Tier/b", "ingress 2")]), rule(2, &many)];
        let mut policies = ["Tier/b", "Policy/99", "Policy/c"].map(|id| Policy { id: id.into(), ..Policy::default() });
        let nothing = |_: &Listing| Err("nothing is to be listed".to_owned());
        assert_eq!(note(&mut policies, RuleCounts::Rules(rules), nothing), Ok(None));
        let [b, last, none] = policies.map(|policy| policy.counters.unwrap());
        assert_eq!((b[0].packets, b[0].counted_together), (1, 2));
        assert_eq!(b[0].counts_for, ["Tier/b ingress 2", "Tier/a ingress 0"], "its own come first");
        assert_eq!((last[0].packets, last[0].counted_together, last[0].counts_for.len()), (2, 100, NAMED));
        assert_eq!(last[0].counts_for[0], "Policy/99 egress 0");
        assert!(none.is_empty() && b.len() == 1 && last.len() == 1);
    }

    #[test]
    fn a_program_that_fails_is_named() {
        let listing = Listing { family: Family::V4, program: "/bin/false".into() };
        assert!(list(&listing, &Runner::default()).unwrap_err().starts_with("/bin/false: exit status: 1"));
        let listing = Listing { family: Family::V4, program: "/nowhere/save".into() };
        assert!(list(&listing, &Runner::default()).unwrap_err().contains("/nowhere/save cannot be started"));
    }
}
