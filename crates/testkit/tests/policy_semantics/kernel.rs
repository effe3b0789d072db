//! The kernel accepts the walker's input: random scenarios, rendered completely, pass through
//! `iptables-restore`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    process::Command,
};

use proptest::strategy::{Strategy, ValueTree};
use tortie_iptables::{Features, IpSetName, Match, Table, write_rest};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_model::Family;
use tortie_testkit::walker::Tables;

use crate::{
    chains::{Chains, config},
    runner,
    scenario::scenarios,
};

/// Returns a complete table for `iptables-restore`. Chains that are only jump targets, such as
/// those of dispatch, are empty.
fn restore_input(table: Table, tables: &Tables) -> String {
    let mut input = format!("*{}\n", table.as_str());
    let names: BTreeSet<_> =
        tables.chains().flat_map(|chain| chain.targets().chain([chain.name]).collect::<Vec<_>>()).collect();
    for name in names {
        writeln!(input, ":{name} - [0:0]").unwrap();
    }
    for chain in tables.chains() {
        for rule in &chain.rules {
            write!(input, "-A {} ", chain.name).unwrap();
            write_rest(rule, &Features::ALL, &mut input);
            input.push('\n');
        }
    }
    input + "COMMIT\n"
}

/// Returns all sets that the rules match, empty.
fn ipset_input(family: Family, tables: &Tables) -> String {
    let mut sets: BTreeMap<IpSetName, &str> = BTreeMap::new();
    for question in tables.chains().flat_map(|chain| &chain.rules).flat_map(|rule| rule.matches.iter()) {
        if let Match::IpSet { set, with_port, .. } = question {
            sets.insert(*set, if *with_port { "hash:ip,port" } else { "hash:net" });
        }
    }
    let family = if family == Family::V4 { "inet" } else { "inet6" };
    sets.iter().map(|(set, kind)| format!("create {set} {kind} family {family} -exist\n")).collect()
}

kernel_test! {
    fn the_kernel_accepts_rules_that_the_walker_accepts() {
        let mut runner = runner(1, 0);
        for _ in 0..6 {
            let scenario = scenarios().new_tree(&mut runner).unwrap().current();
            let chains = Chains::render(&config(), &scenario.state, |chain| chain);
            let namespace = Namespace::new().unwrap();
            let folder = tempfile::tempdir().unwrap();
            for (family, table, tables) in chains.tables() {
                namespace.output(Command::new("ipset").arg("restore"), &ipset_input(family, tables)).unwrap();
                let input = restore_input(table, tables);
                for backend in ["nft", "legacy"] {
                    let tool = if family == Family::V4 { "iptables" } else { "ip6tables" };
                    let mut restore = Command::new(format!("{tool}-{backend}-restore"));
                    restore.args(["--noflush", "--wait"]).env("XTABLES_LOCKFILE", folder.path().join("lock"));
                    if let Err(error) = namespace.output(&mut restore, &input) {
                        panic!("{family:?} {table:?}: {error}");
                    }
                }
            }
        }
    }
}
